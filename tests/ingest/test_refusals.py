"""What is refused, and what of it is kept: each refusal that a caller may meet, and quarantined values."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from strandline.errors import UsageError
from strandline.ingest.append import ExpectationUnmet, Received, append
from strandline.ingest.buffered_writer import BufferedWriter, NotAcknowledged
from strandline.ingest.quarantine import entries, rows_of
from strandline.ingest.spool import declare_lost
from strandline.persist import Append, ExpectSeq, mem_backend, read
from strandline.persist.backend import Write
from strandline.rows.dataset import SchemaBreaking, SourceInvalid, Strand
from strandline.state.context import Site
from strandline.state.lease import TTL_S, LeaseLost, take_lease
from strandline.state.strand_entries import Held, OriginRange, append_of
from strandline.storage.objects import MemoryObjects
from tests.ingest.interrupted import Interrupted
from tests.simulation import DATASET, calm_world
from tests.sites import NOON_US, StillClock, make_site


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return make_site(mem_backend(), tmp_path / "content")


def test_quarantined_values_that_are_none_or_a_boolean_come_back_as_they_were(site: Site) -> None:
    """L-SPOOL-9."""
    append(site, "logs", [{"n": 1}], source="a")
    bad = {"n": "three", "none": None, "yes": True, "no": False, "inner": [None, True]}

    append(site, "logs", [bad], source="a", on_bad="quarantine")

    (entry,) = entries(site.b, "logs")
    (row,) = rows_of(site.content, entry)
    assert row == bad
    assert [type(row[name]) for name in ("none", "yes", "no")] == [type(None), bool, bool]


def test_a_look_at_quarantine_as_of_a_time_includes_what_came_at_that_time(tmp_path: Path) -> None:
    """L-SPOOL-9."""
    site = make_site(mem_backend(), tmp_path / "content", clock=StillClock())
    append(site, "logs", [{"n": 1}], source="a")
    append(site, "logs", [{"n": "x"}], source="a", on_bad="quarantine")

    assert len(entries(site.b, "logs", until=NOON_US)) == 1
    assert entries(site.b, "logs", until=NOON_US - 1) == []


def test_an_expectation_that_is_not_met_says_what_was_expected_and_found(site: Site) -> None:  # L-SPOOL-3
    site.b.commit([], [Append("other", "t", 1, {})])

    with pytest.raises(ExpectationUnmet, match="'other' was expected at 0, it is at 1") as caught:
        append(site, "logs", [{"n": 1}], source="a", expected=[ExpectSeq("other", 0)])

    assert caught.value.hint
    assert read(site.b, Strand("logs", "a").ledger) == []


def test_rows_whose_announced_type_would_be_read_as_another_are_refused(site: Site) -> None:  # L-SPOOL-8
    append(site, "logs", [{"at": "a text"}], source="a")
    sent = Received(OriginRange("edge", 1, "logs", "a", 0, 1), {"at": "timestamp"}, "digest")

    with pytest.raises(SchemaBreaking, match="timestamp from another node"):
        append(site, "logs", [{"at": "2026-01-01T00:00:00Z"}], source="a", received=sent)

    assert site.standing.strand_state(Strand("logs", "a")).hi == 1


def test_a_writer_refuses_an_unknown_way_to_wait(site: Site) -> None:  # L-SPOOL-15
    unknown: Any = "drop"

    with pytest.raises(UsageError, match="on_full is 'drop'"):
        BufferedWriter(site, "logs", on_full=unknown)


def test_rows_are_given_up_only_by_who_still_holds_the_flush_lease() -> None:  # L-SPOOL-13, L-CTL-5
    world = calm_world()
    site = world.site()
    bad = append(site, DATASET, [{"key": "1"}], source="a").segment
    assert bad is not None
    digest = bad.removeprefix("sha256-")
    MemoryObjects.replace(world.disk, f"sha256/{digest[:2]}/{digest}", b"damaged")
    ledger = Strand(DATASET, "a").ledger
    site.b.commit([], [append_of(ledger, Held(bad, 0, 1, "damaged"), world.now_us)])

    def overtake() -> None:
        world.now_us += (TTL_S + 1) * 1_000_000
        take_lease(world.b, site.clock, f"flush/{DATASET}")

    def gives_up(writes: Sequence[Write]) -> bool:
        return any(isinstance(write, Append) and write.type == "lost" for write in writes)

    store: Any = Interrupted(world.b, overtake, before=gives_up)
    with pytest.raises(LeaseLost):
        declare_lost(replace(site, b=store), DATASET, bad, reason="gone")

    assert [event.type for event in read(site.b, ledger)] == ["spooled", "held"]


def test_a_writer_whose_source_could_never_land_fails_each_row(site: Site) -> None:  # L-SPOOL-15
    writer = BufferedWriter(site, "logs", source="x" * 5_000, linger_ms=0)
    acks = [writer.write({"n": n}) for n in range(2)]

    with pytest.raises(NotAcknowledged):
        writer.close(timeout_s=20)

    for ack in acks:
        assert isinstance(ack.exception(0), SourceInvalid)


@pytest.mark.parametrize("bound", [{"group_rows": 3}, {"group_bytes": 3 * (100 + 8)}])
def test_a_group_goes_out_as_soon_as_it_is_full(site: Site, bound: Any) -> None:  # L-SPOOL-15
    with BufferedWriter(site, "logs", source="a", linger_ms=3_600_000, **bound) as writer:
        acks = [writer.write({"t": "x" * 100}) for _ in range(3)]

        assert [ack.result(20).seq for ack in acks] == [1, 2, 3]


def test_an_unknown_way_to_treat_bad_rows_is_refused_before_anything_is_written(site: Site) -> None:
    """L-SPOOL-9."""
    unknown: Any = "drop"

    with pytest.raises(UsageError, match="on_bad is 'drop'"):
        append(site, "logs", [{"n": 1}], source="a", on_bad=unknown)

    assert site.b.streams() == []
