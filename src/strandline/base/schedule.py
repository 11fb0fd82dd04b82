"""Schedules: cron with five fields, in UTC.

    minute (0-59)  hour (0-23)  day of month (1-31)  month (1-12)  day of week (0-7, 0 and 7 are Sunday)

    0 2 * * *         each night at two          */15 8-18 * * 1-5   each quarter of an hour of a working day
    30 4 1,15 * 5     the 1st, the 15th, and each Friday

A field is `*`, a number, a range, or a list of these with commas; `/n` behind `*` or a range takes each nth.
Where both days are restricted either may match; one that has every day restricts nothing.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final

from strandline.errors import UsageError

_FIELDS: Final = (
    ("minute", 0, 59),
    ("hour", 0, 23),
    ("day of month", 1, 31),
    ("month", 1, 12),
    ("day of week", 0, 7),
)
_TERM: Final = re.compile(r"(?:\*|([0-9]{1,2})(?:-([0-9]{1,2}))?)(?:/([0-9]{1,2}))?")
_FARTHEST_DAYS: Final = 8 * 366 + 1  # from one 29 February to the next, over 1900 or 2100
_DAY: Final = timedelta(days=1)


class ScheduleInvalid(UsageError):
    """A text that is no schedule."""

    def __init__(self, text: str, found: str) -> None:
        super().__init__(
            f"{text!r:.80} is no schedule: {found}",
            hint='five fields such as "*/5 * * * *": minute, hour, day of month, month, day of week, in UTC',
        )
        self.text = text


@dataclass(frozen=True, slots=True)
class Cron:
    """The minutes at which something happens."""

    text: str
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]  # 0 is Sunday

    @classmethod
    def parse(cls, text: str) -> "Cron":
        """Raises ScheduleInvalid, also for what could never happen, such as 31 February."""
        fields = text.split()
        if len(fields) != len(_FIELDS):
            raise ScheduleInvalid(text, f"it has {len(fields)} fields, not 5")
        minutes, hours, days, months, weekdays = (
            _field(text, field, bounds) for field, bounds in zip(fields, _FIELDS, strict=True)
        )
        cron = cls(text, minutes, hours, days, months, frozenset(day % 7 for day in weekdays))
        if cron.next_after(datetime(2000, 1, 1, tzinfo=UTC)) is None:
            raise ScheduleInvalid(text, "there is no such day")
        return cron

    def due(self, last: datetime, now: datetime) -> bool:
        """Whether a minute of the schedule lies in (last, now]: however many were missed, it is one run."""
        if now <= last:
            return False
        following = self.next_after(last)
        return following is not None and following <= now

    def next_after(self, instant: datetime) -> datetime | None:
        """The first minute of the schedule after an instant; None if the calendar ends before."""
        if instant.tzinfo is None:
            raise UsageError(f"{instant} has no time zone", hint="pass an aware datetime")
        at = instant.astimezone(UTC)
        first = self._in_day(at.date(), at)
        if first is not None:
            return first
        return next(
            (self._at(day, min(self.hours), min(self.minutes)) for day in self._days(at.date())), None
        )

    def _in_day(self, day: date, after: datetime) -> datetime | None:
        if not self._has(day):
            return None
        minutes = (
            self._at(day, hour, minute)
            for hour in sorted(self.hours)
            if hour >= after.hour
            for minute in sorted(self.minutes)
        )
        return next((minute for minute in minutes if minute > after), None)

    def _days(self, after: date) -> Iterator[date]:
        days = min(_FARTHEST_DAYS, (date.max - after).days)
        return (day for n in range(1, days + 1) if self._has(day := after + n * _DAY))

    def _has(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        is_day, is_weekday = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        if len(self.days) == 31 or len(self.weekdays) == 7:
            return is_day and is_weekday
        return is_day or is_weekday

    def _at(self, day: date, hour: int, minute: int) -> datetime:
        return datetime(day.year, day.month, day.day, hour, minute, tzinfo=UTC)


def _field(text: str, field: str, bounds: tuple[str, int, int]) -> frozenset[int]:
    return frozenset(value for term in field.split(",") for value in _term(text, term, *bounds))


def _term(text: str, term: str, name: str, low: int, high: int) -> range:
    match = _TERM.fullmatch(term)
    if match is None:
        raise ScheduleInvalid(text, f"{term!r:.20} is no {name}")
    first, last, step = match.groups()
    if step and first and not last:
        raise ScheduleInvalid(text, f"{term!r}: a step needs a range, such as {first}-{high}/{step}")
    lo = low if first is None else int(first)
    hi = high if first is None else int(last or first)
    if not low <= lo <= hi <= high or (step and int(step) == 0):
        raise ScheduleInvalid(text, f"{term!r} is no {name}: {low} to {high}")
    return range(lo, hi + 1, int(step or 1))
