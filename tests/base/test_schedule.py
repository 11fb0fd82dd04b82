"""Schedules: which minutes match, and whether one was missed (L-DRV-1)."""

import pickle
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.base.schedule import Cron, ScheduleInvalid
from strandline.errors import UsageError

MINUTE = timedelta(minutes=1)
TIMES = st.datetimes(datetime(2023, 12, 25), datetime(2024, 3, 5), timezones=st.just(UTC))  # noqa: DTZ001


def at(text: str) -> datetime:
    return datetime.fromisoformat(f"{text}Z")


def matches(cron: str, minute: datetime) -> bool:
    """The rule as one would say it, minute by minute: the model for the search."""

    def has(field: str, value: int, low: int, high: int) -> bool:
        for term in field.split(","):
            span, _, step = term.partition("/")
            first, _, last = (f"{low}-{high}" if span == "*" else span).partition("-")
            if value in range(int(first), int(last or first) + 1, int(step or 1)):
                return True
        return False

    minutes, hours, days, months, weekdays = cron.split()
    weekday = minute.isoweekday() % 7
    is_day = has(days, minute.day, 1, 31)
    is_weekday = has(weekdays, weekday, 0, 7) or (weekday == 0 and has(weekdays, 7, 0, 7))
    is_open = days == "*" or weekdays == "*"
    return (
        has(minutes, minute.minute, 0, 59)
        and has(hours, minute.hour, 0, 23)
        and has(months, minute.month, 1, 12)
        and (is_day and is_weekday if is_open else is_day or is_weekday)
    )


@st.composite
def fields(draw: st.DrawFn, low: int, high: int) -> str:
    def term() -> str:
        first = draw(st.integers(low, high))
        last = draw(st.integers(first, high))
        step = draw(st.sampled_from(["", "/2", "/7"]))
        return draw(st.sampled_from([f"*{step}", str(first), f"{first}-{last}{step}"]))

    return "*" if draw(st.booleans()) else ",".join(term() for _ in range(draw(st.integers(1, 3))))


@st.composite
def crons(draw: st.DrawFn) -> str:
    """Such as happen in the weeks of TIMES, and whose days are not all of them by another name than `*`."""
    days, weekdays = draw(fields(1, 31)), draw(fields(0, 7))
    month = draw(st.sampled_from(["*", "1-2", "*/1"]))
    return f"{draw(fields(0, 59))} {draw(fields(0, 23))} {_star(days)} {month} {_star(weekdays)}"


def _star(field: str) -> str:
    return "*" if "*" in field.split(",") else field


@given(crons(), TIMES, st.timedeltas(timedelta(0), timedelta(days=4)))
def test_it_is_due_if_a_minute_of_the_schedule_has_passed(
    cron: str, last: datetime, passed: timedelta
) -> None:  # L-DRV-1, F-32
    now = last + passed
    first = last.replace(second=0, microsecond=0) + MINUTE
    minutes = (first + n * MINUTE for n in range((now - first) // MINUTE + 1))

    parsed = Cron.parse(cron)
    is_full = len(parsed.days) == 31 or len(parsed.weekdays) == 7
    wanted = any(matches(_as_read(cron, parsed) if is_full else cron, minute) for minute in minutes)

    assert parsed.due(last, now) == wanted


def _as_read(cron: str, parsed: Cron) -> str:
    """A list that has every day restricts nothing, as `*` does."""
    minutes, hours, days, months, weekdays = cron.split()
    days = "*" if len(parsed.days) == 31 else days
    weekdays = "*" if len(parsed.weekdays) == 7 else weekdays
    return f"{minutes} {hours} {days} {months} {weekdays}"


@given(crons(), TIMES)
def test_the_next_minute_is_after_now_and_none_lies_between(cron: str, now: datetime) -> None:  # L-DRV-1
    parsed = Cron.parse(cron)

    following = parsed.next_after(now)

    assert following is not None
    assert following > now
    assert following.second == following.microsecond == 0
    assert not parsed.due(now, following - timedelta(microseconds=1))
    assert parsed.due(now, following)


def test_a_clock_that_jumps_over_the_hour_makes_one_run() -> None:  # F-32
    nightly = Cron.parse("0 2 * * *")
    ran = [at("2026-03-01T01:59:30")]

    for now in ["2026-03-01T01:59:59", "2026-03-01T04:10:00", "2026-03-01T04:11:00", "2026-03-04T01:00:00"]:
        if nightly.due(ran[-1], at(now)):
            ran.append(at(now))

    assert ran[1:] == [at("2026-03-01T04:10:00"), at("2026-03-04T01:00:00")]


def test_the_minute_of_the_last_run_is_not_due_again() -> None:  # L-DRV-1
    each = Cron.parse("* * * * *")

    assert not each.due(at("2026-03-01T10:00:00"), at("2026-03-01T10:00:59"))
    assert each.due(at("2026-03-01T10:00:59"), at("2026-03-01T10:01:00"))
    assert not each.due(at("2026-03-01T10:00:00"), at("2026-03-01T09:00:00"))  # the clock went back


@pytest.mark.parametrize(
    ("cron", "after", "wanted"),
    [
        ("30 4 1,15 * 5", "2026-03-01T05:00:00", "2026-03-06T04:30:00"),  # a Friday
        ("30 4 1,15 * 5", "2026-03-13T05:00:00", "2026-03-15T04:30:00"),
        ("0 0 * * 7", "2026-03-02T00:00:00", "2026-03-08T00:00:00"),
        ("0 0 * * 0", "2026-03-02T00:00:00", "2026-03-08T00:00:00"),
        ("0 0 * * 5-7", "2026-03-02T00:00:00", "2026-03-06T00:00:00"),
        ("*/20 8-10/2 * * *", "2026-03-02T08:40:00", "2026-03-02T10:00:00"),
        ("0 0 29 2 *", "2096-03-01T00:00:00", "2104-02-29T00:00:00"),
        ("59 23 31 12 *", "2026-12-31T23:59:00", "2027-12-31T23:59:00"),
    ],
)
def test_the_next_run(cron: str, after: str, wanted: str) -> None:  # L-DRV-1
    assert Cron.parse(cron).next_after(at(after)) == at(wanted)


def test_times_are_in_utc_whatever_zone_they_come_in() -> None:  # L-DRV-1
    nightly = Cron.parse("0 2 * * *")
    east = timezone(timedelta(hours=3))

    assert nightly.due(datetime(2026, 3, 1, 4, 59, tzinfo=east), datetime(2026, 3, 1, 5, 0, tzinfo=east))
    with pytest.raises(UsageError, match="no time zone"):
        nightly.next_after(datetime(2026, 3, 1))  # noqa: DTZ001


def test_the_end_of_the_calendar_is_no_run() -> None:  # L-DRV-1
    assert Cron.parse("0 0 1 1 *").next_after(at("9999-06-01T00:00:00")) is None
    assert not Cron.parse("0 0 1 1 *").due(at("9999-06-01T00:00:00"), at("9999-12-31T23:59:00"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "* * * *",
        "* * * * * *",
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * * 13 *",
        "* * * * 8",
        "5/10 * * * *",
        "*/0 * * * *",
        "7-3 * * * *",
        "1,,2 * * * *",
        "-1 * * * *",
        "a * * * *",
        "@daily",
        "0 0 31 2 *",
        "0 0 30 2 *",
        "٣ * * * *",
    ],
)
def test_what_is_no_schedule_is_refused(text: str) -> None:  # L-CFG-2
    with pytest.raises(ScheduleInvalid, match="is no schedule") as caught:
        Cron.parse(text)

    assert caught.value.hint is not None
    assert pickle.loads(pickle.dumps(caught.value)).text == text
