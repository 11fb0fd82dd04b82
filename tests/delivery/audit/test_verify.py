"""Records of a sink against themselves and its destination: each kind of fault is found, and nothing else."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from strandline.base.ranges import Range, RangeSet
from strandline.delivery.audit.account import account_of
from strandline.delivery.audit.verify import StrandVerdict, verify
from strandline.delivery.instance import DestinationChanged
from strandline.delivery.owed import Terms
from strandline.delivery.policy import Rule
from strandline.delivery.session import Sender
from strandline.delivery.sink_history import history, lines_at, position_at, standing_at
from strandline.persist import Append
from strandline.rows.dataset import Strand
from strandline.sinks.blob.blob_sink import BlobSink
from strandline.sinks.sink import Holdings, Outcome, Patience, Shipment, Sink, Stored
from strandline.state.context import Site
from strandline.state.sink_progress import sink_stream
from tests.delivery.destinations import Bucket, BucketSink, Server, ServerSink
from tests.delivery.simulated import BUCKET, SERVER, Destinations, simulate
from tests.delivery.tampering import changing, tampered
from tests.delivery.test_run import TERMS, land, run
from tests.simulation import DATASET, World

SENDER = Sender("origin", "edge", lambda name: name)
STREAM = sink_stream("centre", DATASET, "web-1")


@dataclass(frozen=True)
class TellingBucketSink(BucketSink):
    """A bucket that tells what it has."""

    def holdings(self, shipment: Shipment, source: str, epoch: int) -> Holdings:
        folder = f"{source}/{epoch}/"
        return Holdings(
            tuple(
                Stored(int(name[-41:-21]), int(name[-20:]), len(keys), "d", name)
                for name, (_, keys) in self.bucket.objects.items()
                if name.startswith(folder)
            )
        )


@pytest.fixture
def archive(tmp_path: Path) -> BlobSink:
    return BlobSink("local", dir=str(tmp_path / "archive"), max_object_rows=7)


def found(site: Site, sink: Sink, terms: Terms = TERMS) -> StrandVerdict:
    (verdict,) = verify(site, sink, terms, SENDER)
    return verdict


def faults(verdict: StrandVerdict) -> list[tuple[str, int, int]]:
    return [(each.kind, each.lo, each.hi) for each in verdict.faults]


def objects(sink: BlobSink) -> list[Path]:
    return sorted(Path(sink.dir).rglob("*.parquet"))


def without_unit(number: int) -> Any:
    """Take a unit out of the first receipt."""

    def change(data: Any) -> Any:
        return {**data, "units": [unit for at, unit in enumerate(data["units"]) if at != number]}

    return changing(STREAM, "delivered", change)


# A destination that keeps ranges


def test_what_a_server_has_and_the_receipts_agree(world: World, site: Site) -> None:
    """L-SRV-9: also with a dead letter, withheld rows, a gap, and a try whose answer was lost."""
    server = Server(world)
    land(site, world, 1, 12)
    lost = Outcome(0, 0, "failed", kind="timeout")
    server.answers = [None, *[Outcome(0, 0, "poison", kind="bad")] * 3, lost]
    run(site, ServerSink(server), rules=(Rule(("logs",), "key LIKE '1%'"),))
    verdict = found(site, ServerSink(server))
    assert (verdict.status, verdict.faults) == ("ok", ())
    assert (verdict.mark, verdict.rows, verdict.letters, verdict.withheld) == (12, 4, 4, 4)


def test_rows_that_a_server_has_lost_are_missing(world: World, site: Site) -> None:
    """L-SRV-9, G-1."""
    server = Server(world)
    land(site, world, 1, 12)
    run(site, ServerSink(server))
    server.ranges[0, "web-1"] = RangeSet((Range(0, 4), Range(6, 12)))
    assert faults(found(site, ServerSink(server))) == [("missing", 4, 6)]


def test_rows_that_a_server_has_from_nobody_are_strange(world: World, site: Site) -> None:
    server = Server(world)
    land(site, world, 1, 12)
    run(site, ServerSink(server))
    server.ranges[0, "web-1"] = RangeSet((Range(0, 15),))
    assert faults(found(site, ServerSink(server))) == [("stranger", 12, 15)]


def test_another_sink_to_the_same_server_is_no_stranger(world: World, site: Site) -> None:
    """L-SRV-1: ranges are an origin strand's, whichever instance sent them."""
    server = Server(world)
    land(site, world, 1, 5)
    run(site, ServerSink(server))
    late = Terms("late", start="now")
    run(site, ServerSink(server), late)
    land(site, world, 6, 9)
    run(site, ServerSink(server), late)
    assert found(site, ServerSink(server)).status == "ok"
    assert found(site, ServerSink(server), late).status == "ok"


def test_an_open_intent_explains_what_is_there_and_not_recorded(world: World, site: Site) -> None:
    """L-WM-10: a crash loses knowledge, not rows."""
    server = Server(world)
    land(site, world, 1, 7)
    server.answers = [None, Outcome(0, 0, "failed", kind="timeout")]
    sink = ServerSink(server, patient=Patience(inline_wait_s=0))
    run(site, sink)
    unit = server.requests[1]
    server.store(unit.unit, unit.keys, unit.unit.lo, unit.unit.hi)
    verdict = found(site, sink)
    assert (verdict.status, verdict.mark, verdict.unrecorded) == ("ok", 5, 1)


def test_a_destination_that_does_not_answer_leaves_it_unknown(world: World, site: Site) -> None:
    """L-CLI-2: unknown is neither well nor wrong."""
    land(site, world, 1, 3)
    sink = BucketSink(Bucket(world))  # it cannot tell
    run(site, sink)
    verdict = found(site, sink)
    assert (verdict.status, verdict.unknown) == ("unknown", "the destination does not tell what it has")


def test_another_destination_is_not_compared(world: World, site: Site) -> None:
    """L-WM-5."""
    server = Server(world)
    land(site, world, 1, 3)
    run(site, ServerSink(server))
    with pytest.raises(DestinationChanged):
        verify(site, ServerSink(server, place="elsewhere"), TERMS, SENDER)


# The records themselves


def test_a_range_that_no_receipt_has_is_a_hole(world: World, site: Site) -> None:
    """L-WM-3: the line is past it, and nothing says why."""
    server = Server(world)
    land(site, world, 1, 12)
    run(site, ServerSink(server))
    land(site, world, 13, 15)
    run(site, ServerSink(server))
    damaged = tampered(site, without_unit(1))
    verdict = found(damaged, ServerSink(server))
    assert ("hole", 5, 10) in faults(verdict)
    assert found(site, ServerSink(server)).status == "ok"


def test_two_receipts_of_one_range_are_told(world: World, site: Site) -> None:
    server = Server(world)
    land(site, world, 1, 12)
    run(site, ServerSink(server))

    def doubled(data: Any) -> Any:
        return {**data, "units": [*data["units"], data["units"][0]]}

    damaged = tampered(site, changing(STREAM, "delivered", doubled))
    assert faults(found(damaged, ServerSink(server))) == [("settled_twice", 0, 5)]


def test_a_stream_that_cannot_be_read_is_a_fault_of_its_strand(world: World, site: Site) -> None:
    """L-WM-12."""
    server = Server(world)
    land(site, world, 1, 3)
    run(site, ServerSink(server))
    site.b.commit([], [Append(STREAM, "delivered", 1, {"nonsense": True}, globally=True)])
    assert faults(found(site, ServerSink(server))) == [("control_unreadable", 0, 3)]


def test_a_line_that_was_moved_is_accounted_for(world: World, site: Site) -> None:
    """L-WM-13: skipped is an exception on record, sent again is no second delivery."""
    server = Server(world)
    land(site, world, 1, 12)
    moves = [{"mark": 5, "epoch": 0}, {"mark": 2, "epoch": 0}]
    for move in moves:
        data = {**move, "reason": "by hand", "aborts": False}
        site.b.commit([], [Append(STREAM, "moved", 1, data, globally=True)])
        run(site, ServerSink(server))
    verdict = found(site, ServerSink(server))
    assert (verdict.status, verdict.skipped, verdict.mark) == ("ok", 5, 12)


# A destination that keeps objects


def test_a_folder_with_one_object_a_receipt_is_whole(world: World, site: Site, archive: BlobSink) -> None:
    """L-BLOB-11, L-BLOB-2: a hole in the names where a unit was void is none."""
    land(site, world, 1, 21)
    snapshot = world.table.published[0]
    snapshot.rows = [row for row in snapshot.rows if not 8 <= row.seq <= 14]
    run(site, archive)
    verdict = found(site, archive)
    assert (verdict.status, verdict.units, verdict.rows) == ("ok", 2, 14)
    assert [path.name[15:20] for path in objects(archive)] == ["00000", "00014"]


def test_an_object_that_was_deleted_is_missing(world: World, site: Site, archive: BlobSink) -> None:
    """L-BLOB-11."""
    land(site, world, 1, 21)
    run(site, archive)
    objects(archive)[1].unlink()
    assert faults(found(site, archive)) == [("missing", 7, 14)]


def test_an_object_that_was_copied_is_an_overlap_and_a_stranger(
    world: World, site: Site, archive: BlobSink
) -> None:
    """L-BLOB-11: under a unit's name, and under no unit's."""
    land(site, world, 1, 21)
    run(site, archive)
    first = objects(archive)[0]
    (first.parent / f"{3:020}-{7:020}.parquet").write_bytes(first.read_bytes())
    (first.parent / "copy.parquet").write_bytes(first.read_bytes())
    assert faults(found(site, archive)) == [("overlap", 3, 7), ("stranger", 3, 7), ("stranger", 0, 0)]


def test_an_object_that_was_altered_is_told(world: World, site: Site, archive: BlobSink) -> None:
    """L-BLOB-11: another row count, and the same rows with other bytes."""
    land(site, world, 1, 15)
    run(site, archive)
    first, second, last = objects(archive)
    first.write_bytes(last.read_bytes())
    second.write_bytes(second.read_bytes().replace(b"strandline", b"strandlinE", 1))
    assert faults(found(site, archive)) == [("rows_differ", 0, 7), ("digest_differs", 7, 14)]


def test_an_object_of_a_try_that_was_cut_short_is_no_stranger(
    world: World, site: Site, archive: BlobSink
) -> None:
    """L-WM-11: written, not recorded; then its rows were removed, and the next try found nothing to send."""
    land(site, world, 1, 14)
    run(site, archive)

    def forgotten(data: Any) -> Any:
        kept = {"units": data["units"][1:], "void": [[0, 7]], "is_repeat": True}
        return {**data, **kept}

    repeated = tampered(site, changing(STREAM, "delivered", forgotten))
    verdict = found(repeated, archive)
    assert (verdict.status, verdict.unrecorded) == ("ok", 1)
    at_once = tampered(
        site, changing(STREAM, "delivered", lambda data: {**forgotten(data), "is_repeat": False})
    )
    assert faults(found(at_once, archive)) == [("stranger", 0, 7)]


def test_whatever_happened_on_the_way_the_records_agree() -> None:
    """G-1, L-WM-10, L-WM-13: lost answers, kills, rows pruned between tries, an operator at work."""
    for seed in range(4):
        made: list[Destinations] = []
        site, (to,) = simulate(seed, change=made.append).site(), made
        telling = [(ServerSink(to.server), SERVER), (TellingBucketSink(to.bucket), BUCKET)]
        for sink, terms in telling:
            for verdict in verify(site, sink, terms, SENDER):
                assert verdict.faults == (), f"seed {seed}, {terms.name}: {verdict.faults[:3]}"
                assert verdict.status == "ok", f"seed {seed}, {terms.name}: {verdict.unknown}"


# History


def test_the_history_of_a_sink_is_told_in_order(world: World, site: Site) -> None:
    """L-CLI-1."""
    server = Server(world)
    land(site, world, 1, 7)
    server.answers = [None, Outcome(0, 0, "failed", kind="timeout", text="no answer")]
    run(site, ServerSink(server, patient=Patience(inline_wait_s=0)))
    world.now_us += 400_000_000
    run(site, ServerSink(server))
    moments = list(history(site, "centre"))
    assert [each.text for each in moments] == [
        "first seen, delivers to server",
        "intends (0, 7], 5 rows a unit",
        "delivered 5 rows in 1 units up to 5",
        "failed at (5, 7], try 1: timeout: no answer",
        "delivered 2 rows in 1 units up to 7",
    ]
    assert [each.at for each in moments] == sorted(each.at for each in moments)
    assert len(list(history(site, "centre", dataset=DATASET, source="web-1"))) == 4
    assert list(history(site, "centre", dataset="other")) == []


def test_lines_are_told_as_they_stood_at_a_time(world: World, site: Site) -> None:
    """Control state is events: what they say of a past time never changes."""
    server, strand = Server(world), Strand(DATASET, "web-1")
    before = world.now_us - 1
    land(site, world, 1, 5)
    run(site, ServerSink(server))
    then = world.now_us
    world.now_us += 1_000_000
    land(site, world, 6, 9)
    run(site, ServerSink(server))
    site.standing._keep()
    assert lines_at(site, before).line("centre", strand).mark == 0
    assert lines_at(site, then).line("centre", strand).mark == 5
    assert standing_at(site, then).strand_state(strand).visible_through == 5
    assert lines_at(site, world.now_us).line("centre", strand).mark == 9
    assert position_at(site, before) == 0


def test_an_event_that_a_clock_dated_late_hides_nothing_after_it(world: World, site: Site) -> None:
    """A past time is a piece of the one order, whatever clocks say."""
    site.b.commit([], [Append("sink/a", "opened", 900, {"fingerprint": "x"}, globally=True)])
    site.b.commit([], [Append("sink/b", "opened", 100, {"fingerprint": "y"}, globally=True)])
    assert lines_at(site, 50).instances() == []
    assert lines_at(site, 100).instances() == ["a", "b"]


def test_a_forgotten_sink_begins_a_new_account(world: World, site: Site) -> None:
    """L-WM-13: what it delivered in its former life is not looked for."""
    server = Server(world)
    land(site, world, 1, 5)
    run(site, ServerSink(server))
    data = {"reason": "by hand", "next_epoch": 1}
    site.b.commit([], [Append("sink/centre", "forgotten", world.now_us, data, globally=True)])
    server.ranges.clear()
    line = site.standing.lines().line("centre", Strand(DATASET, "web-1"))
    assert account_of(site, "centre", Strand(DATASET, "web-1"), line, 1).epochs == {}
    run(site, ServerSink(server))
    verdict = found(site, ServerSink(server))
    assert (verdict.status, verdict.epochs, verdict.mark) == ("ok", (1,), 5)
