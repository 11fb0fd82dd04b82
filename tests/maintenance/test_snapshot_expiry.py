"""Which snapshots may go (L-FLUSH-5, L-CMP-6). tests/node/test_node.py shows on real tables that they do."""

from collections.abc import Set as AbstractSet

from hypothesis import given
from hypothesis import strategies as st

from strandline.config.keys import CompactionSection
from strandline.lake.ports.snapshots import KnownSnapshot
from strandline.maintenance.snapshot_expiry import SnapshotsToExpire, choose_expired

HOUR_US = 3_600_000_000
NOW = 1_000 * HOUR_US
SETTINGS = CompactionSection(min_snapshots=2, max_snapshots=10, max_snapshot_age_h=24)


def published(count: int, *, first_id: int = 1, at: int = NOW - HOUR_US) -> list[KnownSnapshot]:
    return [
        KnownSnapshot(first_id + i, at + i, f"logs-{first_id + i}-x", is_current=True) for i in range(count)
    ]


def chosen(
    found: list[KnownSnapshot],
    *,
    open_numbers: AbstractSet[int] = frozenset(),
    oldest_open: int | None = None,
) -> SnapshotsToExpire:
    return choose_expired(
        found,
        SETTINGS,
        now=NOW,
        is_closed=lambda wap: int(wap.split("-")[1]) not in open_numbers,
        oldest_open=oldest_open,
    )


def test_few_young_snapshots_stay() -> None:
    assert chosen(published(10)) == SnapshotsToExpire((), ())


def test_too_many_go_oldest_first_and_some_more_so_that_not_every_flush_expires() -> None:
    doomed = chosen(published(11))

    assert doomed.published == (1, 2, 3)


def test_old_ones_go_but_for_the_least_number() -> None:
    assert chosen(published(5, at=NOW - 30 * HOUR_US)).published == (1, 2, 3)
    assert chosen(published(2, at=NOW - 30 * HOUR_US)).published == ()


def test_staged_copies_of_closed_numbers_go_and_those_of_open_ones_stay() -> None:
    staged = [
        KnownSnapshot(100, NOW - 5, "logs-3-x", is_current=False),
        KnownSnapshot(101, NOW - 4, "logs-7-x", is_current=False),
        KnownSnapshot(102, NOW - 3, None, is_current=False),  # not ours to judge
    ]

    assert chosen([*published(3), *staged], open_numbers={7}).staged == (100,)


def test_nothing_newer_than_the_oldest_open_plan_goes() -> None:
    found = published(20, at=NOW - 30 * HOUR_US)

    assert chosen(found, open_numbers={99}, oldest_open=found[4].at).published == (1, 2, 3, 4)
    assert chosen(found, open_numbers={99}, oldest_open=found[0].at) == SnapshotsToExpire((), ())


@given(
    count=st.integers(0, 40),
    age_h=st.integers(0, 100),
    open_number=st.integers(0, 40),
    open_at=st.integers(0, 40),
)
def test_no_choice_takes_what_an_open_plan_needs_or_the_newest(
    count: int, age_h: int, open_number: int, open_at: int
) -> None:
    found = published(count, at=NOW - age_h * HOUR_US)
    oldest = NOW - age_h * HOUR_US + open_at

    doomed = chosen(found, open_numbers={open_number}, oldest_open=oldest)

    gone = set(doomed.published)
    assert open_number not in gone
    assert all(each.at < oldest for each in found if each.id in gone)
    assert not gone & {each.id for each in found[-SETTINGS.min_snapshots :]}


def test_a_published_snapshot_stays_while_a_staged_copy_of_its_id_does() -> None:  # L-FLUSH-5, L-SEQ-8
    found = published(20, at=NOW - 30 * HOUR_US)
    late_copy = KnownSnapshot(100, found[10].at, "logs-3-x", is_current=False)
    oldest_open = found[10].at

    doomed = chosen([*found, late_copy], open_numbers={99}, oldest_open=oldest_open)

    assert doomed.staged == ()  # it is newer than the open plan
    assert 3 not in doomed.published
    assert {1, 2, 4} <= set(doomed.published)


HISTORIES = st.lists(st.tuples(st.integers(1, 20), st.integers(0, 40)), max_size=15)


@given(
    count=st.integers(0, 20), copies=HISTORIES, opened=st.sets(st.integers(1, 20), max_size=3), data=st.data()
)
def test_no_expiry_leaves_a_staged_copy_whose_id_is_forgotten(
    count: int, copies: list[tuple[int, int]], opened: set[int], data: st.DataObject
) -> None:
    """L-FLUSH-5, F-45: staged copies of any number, of any age, before and after an open plan."""
    at = NOW - 30 * HOUR_US
    staged = [
        KnownSnapshot(100 + i, at + later, f"logs-{number}-x", is_current=False)
        for i, (number, later) in enumerate(copies)
    ]
    found = sorted([*published(count, at=at), *staged], key=lambda each: (each.at, each.id))
    oldest = at + data.draw(st.integers(0, 40)) if opened else None

    doomed = chosen(found, open_numbers=opened, oldest_open=oldest)

    kept = {each.wap for each in staged if each.id not in doomed.staged}
    forgotten = {each.wap for each in found if each.id in doomed.published}
    assert not kept & forgotten
    assert not {f"logs-{number}-x" for number in opened} & forgotten
    assert not [each for each in staged if each.id in doomed.staged and int(each.wap.split("-")[1]) in opened]  # type: ignore[union-attr]
