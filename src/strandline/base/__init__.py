"""Parts that every room may use: time, schedules, ranges, secrets. They import no other room."""
