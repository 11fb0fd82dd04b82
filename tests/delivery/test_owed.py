"""What a sink is owed and what is due of that, over the real store and a simulated table."""

from dataclasses import dataclass
from typing import Final

from strandline.delivery.owed import Terms, due, mean_row_bytes, owed
from strandline.delivery.result import SyncResult
from strandline.delivery.run import sync
from strandline.delivery.session import Sender
from strandline.flush.flush import flush
from strandline.ingest.append import append
from strandline.rows.dataset import Dataset, Strand
from strandline.sinks.sink import Outcome, Patience, Sink
from strandline.state.context import Site
from tests.delivery.destinations import Server, ServerSink, TableCourier
from tests.simulation import DATASET, World

TERMS: Final = Terms("centre")


def land(site: Site, world: World, first: int, last: int, source: str = "web-1") -> None:
    append(site, DATASET, [{"key": str(number)} for number in range(first, last + 1)], source=source)
    flush(site, world.table, DATASET)


def run(site: Site, world: World, sink: Sink, *, is_command: bool = False) -> SyncResult:
    courier, sender = TableCourier(world), Sender("origin", "edge", lambda name: name)
    return sync(site, lambda: courier, sink, TERMS, sender, is_command=is_command)


def test_the_strand_whose_oldest_row_waits_longest_goes_first(
    world: World, site: Site, server: Server
) -> None:
    """L-DRV-4: by the age of what is not delivered, whenever something of the strand last was."""
    land(site, world, 1, 3, "web-1")
    world.now_us += 1_000_000
    land(site, world, 4, 6, "web-2")
    run(site, world, ServerSink(server))
    world.now_us += 1_000_000
    server.answers = [Outcome(0, 0, "failed", kind="timeout")]
    land(site, world, 7, 7, "web-2")
    run(site, world, ServerSink(server, patient=Patience(inline_wait_s=0)))  # of web-2, and it fails
    world.now_us += 1_000_000
    land(site, world, 8, 8, "web-1")
    land(site, world, 9, 9, "web-3")
    for each in (site, world.site()):
        assert [found.strand.source for found in owed(each, TERMS)] == ["web-2", "web-1", "web-3"]


def test_a_strand_that_stands_still_is_looked_up_once(world: World, site: Site) -> None:
    """L-DRV-4, L-COST-1: the age of what waits is read when the line comes to it, not with each tick."""
    land(site, world, 1, 3, "web-1")
    land(site, world, 4, 6, "web-2")
    owed(site, TERMS)
    read = world.counts["read"]
    owed(site, TERMS)
    assert world.counts["read"] == read


# Datasets that a sink cannot take


@dataclass(frozen=True)
class PickySink(ServerSink):
    """It says of each dataset why it cannot take it, unless that is empty."""

    why: str = "it has no column `day`"

    def cannot_take(self, dataset: Dataset) -> str | None:
        assert dataset.name == DATASET
        return self.why or None


def test_a_dataset_that_a_sink_cannot_take_is_told_once_and_then_costs_nothing(
    world: World, site: Site, server: Server
) -> None:
    """L-DRV-6, L-COST-1: the first run says why; after it no lease is taken and nothing is written."""
    land(site, world, 1, 3, "web-1")
    land(site, world, 4, 6, "web-2")
    first = run(site, world, PickySink(server))
    told = [(each.source, each.kind, each.text) for each in first.troubles]
    why = "it has no column `day`"
    assert told == [("web-1", "not_taken", why), ("web-2", "not_taken", why)]
    assert (first.status, first.requests, server.requests) == ("idle", 0, [])
    land(site, world, 7, 9, "web-1")
    written = world.counts["commit"]
    for is_command in (False, True):
        later = run(world.site(), world, PickySink(server), is_command=is_command)
        assert (later.status, later.troubles, later.control_writes) == ("idle", [], 0)
    assert world.counts["commit"] == written


def test_a_strand_that_was_not_taken_says_so_until_the_sink_takes_it(
    world: World, site: Site, server: Server
) -> None:
    """L-DRV-6, L-OBS-2: retention waits for such a sink, so that what it lacks must be seen."""
    land(site, world, 1, 3)
    run(site, world, PickySink(server))
    hold = site.standing.lines().line("centre", Strand(DATASET, "web-1")).hold
    assert hold is not None
    assert (hold.kind, hold.text) == ("not_taken", "it has no column `day`")
    taking = PickySink(server, why="")
    assert [each.strand.source for each in due(site, taking, TERMS)] == ["web-1"]
    assert run(site, world, taking, is_command=True).status == "exported"
    line = site.standing.lines().line("centre", Strand(DATASET, "web-1"))
    assert (line.hold, line.mark, len(server.rows)) == (None, 3, 3)


# Waiting for a larger object


def waiting(site: Site, server: Server, rows: int) -> ServerSink:
    """A sink for which fewer rows wait, for a minute at most."""
    mean = mean_row_bytes(site.b, DATASET)
    assert mean > 0
    return ServerSink(server, patient=Patience(min_bytes=int(mean * rows), max_delay_s=60))


def test_rows_wait_until_they_make_an_object(world: World, site: Site, server: Server) -> None:
    """L-BLOB-8, L-COST-1: until then a run takes no lease and writes nothing but that the sink is there."""
    land(site, world, 1, 3)
    sink = waiting(site, server, rows=5)
    run(site, world, sink)
    written = world.counts["commit"]
    waits = run(site, world, sink)
    assert (waits.status, waits.control_writes, server.rows) == ("idle", 0, [])
    assert world.counts["commit"] == written
    land(site, world, 4, 6)
    assert (run(site, world, sink).status, len(server.rows)) == ("exported", 6)


def test_rows_do_not_wait_for_longer_than_they_may(world: World, site: Site, server: Server) -> None:
    """L-BLOB-8: by the age of the oldest; each strand waits for itself."""
    land(site, world, 1, 3, "web-1")
    world.now_us += 30_000_000
    land(site, world, 4, 6, "web-2")
    sink = waiting(site, server, rows=5)
    world.now_us += 25_000_000
    assert due(site, sink, TERMS) == []
    world.now_us += 10_000_000
    assert [each.strand.source for each in due(site, sink, TERMS)] == ["web-1"]
    run(site, world, sink)
    assert {source for source, _ in server.rows} == {"web-1"}
    world.now_us += 30_000_000
    run(site, world, sink)
    assert {source for source, _ in server.rows} == {"web-1", "web-2"}


def test_what_is_under_way_waits_for_nothing(world: World, site: Site, server: Server) -> None:
    """L-BLOB-8, L-DRV-10: an open intent is taken up again, however few rows it has."""
    land(site, world, 1, 3)
    server.answers = [Outcome(0, 0, "failed", kind="timeout")]
    run(site, world, ServerSink(server, patient=Patience(inline_wait_s=0)))
    world.now_us += 10_000_000
    assert run(site, world, waiting(site, server, rows=5)).status == "exported"


def test_a_sync_on_command_waits_for_no_larger_object(world: World, site: Site, server: Server) -> None:
    """L-BLOB-8, L-CLI-3: a dry run lists all that is owed, and a sync on command sends all of it."""
    land(site, world, 1, 3)
    sink = waiting(site, server, rows=5)
    assert run(site, world, sink).status == "idle"
    assert [each.rows for each in owed(site, TERMS)] == [3]
    assert (run(site, world, sink, is_command=True).status, len(server.rows)) == ("exported", 3)
