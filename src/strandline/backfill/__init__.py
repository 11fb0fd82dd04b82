"""Backfill: history from elsewhere, each row once, whatever is committed or spooled already."""
