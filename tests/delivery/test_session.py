"""Two nets under every write of a run, each tested by itself: the fence of its lease, which refuses another
holder, and what it expects of the streams that it has looked at, which refuses an operator."""

import pytest

from strandline.delivery.delivery_round import Rounds
from strandline.delivery.owed import Terms, owed
from strandline.delivery.result import SyncResult
from strandline.delivery.session import DeliverySession, Sender
from strandline.flush.flush import flush
from strandline.ingest.append import append
from strandline.persist import Append, last_seq, read
from strandline.rows.dataset import Strand
from strandline.sinks.sink import Outcome, Unit
from strandline.state.context import Site
from strandline.state.lease import TTL_S, Lease, LeaseLost, take_lease
from strandline.state.sink_progress import event_of, sink_stream
from tests.delivery.destinations import Keys, Server, ServerSink, TableCourier
from tests.simulation import DATASET, World

TERMS = Terms("centre")
STRAND = Strand(DATASET, "web-1")
STREAM = sink_stream(TERMS.name, DATASET, STRAND.source)


@pytest.fixture
def lease(world: World, site: Site) -> Lease:
    append(site, DATASET, [{"key": str(number)} for number in range(1, 8)], source=STRAND.source)
    flush(site, world.table, DATASET)
    return take_lease(site.b, site.clock, f"sink/{TERMS.name}")


def session_of(world: World, site: Site, lease: Lease, server: Server) -> DeliverySession:
    sender = Sender("origin", "edge", lambda name: name)
    result = SyncResult(TERMS.name)
    return DeliverySession(
        site, lambda: TableCourier(world), ServerSink(server), TERMS, sender, lease, result
    )


def skipped(mark: int) -> Append:
    """What an operator writes who gives rows up. Nothing but what a run expects can notice it."""
    return event_of(STREAM, "moved", 1, mark=mark, epoch=1, reason="by hand", aborts=True)


def test_a_run_that_was_overtaken_writes_nothing(
    world: World, site: Site, lease: Lease, server: Server
) -> None:
    """L-CTL-5, L-WM-8: also if no stream has moved, so that the fence alone can refuse it."""
    session = session_of(world, site, lease, server)
    world.now_us += (TTL_S + 1) * 1_000_000
    take_lease(site.b, site.clock, lease.scope)

    with pytest.raises(LeaseLost, match="centre"):
        session.commit([], [event_of(STREAM, "held", 1, kind="by_hand", text="")])

    assert last_seq(site.b, STREAM) == 0


def test_a_run_that_was_overtaken_makes_no_intent_and_sends_nothing(
    world: World, site: Site, lease: Lease, server: Server
) -> None:  # L-CTL-5, L-WM-8
    session = session_of(world, site, lease, server)
    world.now_us += (TTL_S + 1) * 1_000_000
    take_lease(site.b, site.clock, lease.scope)

    with pytest.raises(LeaseLost):
        Rounds(session, {STRAND: 7}).run(owed(site, TERMS))

    assert (last_seq(site.b, STREAM), server.requests) == (0, [])


def test_a_run_makes_no_intent_for_a_strand_that_an_operator_has_moved_since_it_looked(
    world: World, site: Site, lease: Lease, server: Server
) -> None:  # L-WM-8
    batch = owed(site, TERMS)
    site.b.commit([], [skipped(5)])

    got_on = Rounds(session_of(world, site, lease, server), {STRAND: 7}).run(batch)

    assert (got_on, server.requests) == ([], [])
    assert [event.type for event in read(site.b, STREAM)] == ["moved"]


class MovedMeanwhile(Server):
    """A server of which an operator moves the sink while it stores the first unit."""

    def store(self, unit: Unit, keys: Keys, lo: int, hi: int) -> Outcome:
        if len(self.requests) == 1:
            self.world.b.commit([], [skipped(6)])
        return super().store(unit, keys, lo, hi)


def test_a_run_records_nothing_on_a_strand_that_an_operator_moved_while_it_delivered(
    world: World, site: Site, lease: Lease
) -> None:  # L-WM-10
    server = MovedMeanwhile(world)

    got_on = Rounds(session_of(world, site, lease, server), {STRAND: 7}).run(owed(site, TERMS))

    assert got_on == []
    assert len(server.rows) == 7
    assert [event.type for event in read(site.b, STREAM)] == ["intended", "moved"]
    assert site.standing.lines().line(TERMS.name, STRAND).mark == 6
