"""What an operator does to a sink by hand, over the real store and a simulated table."""

import pytest

from strandline.base.ranges import Range, RangeSet
from strandline.delivery.instance import DestinationChanged
from strandline.delivery.operate_sink import (
    IntentOpen,
    NothingThere,
    bind,
    forget,
    release,
    rewind,
    skip,
)
from strandline.delivery.owed import Terms
from strandline.delivery.policy import Rule
from strandline.errors import UsageError
from strandline.persist import Append
from strandline.rows.dataset import Strand
from strandline.sinks.sink import Outcome, Patience
from strandline.state.context import Site
from strandline.state.lease import LeaseHeld, take_lease
from strandline.state.sink_progress import SinkProgress, sink_stream
from tests.delivery.destinations import Bucket, BucketSink, Server, ServerSink
from tests.delivery.test_run import keys, land, line, numbers, run
from tests.simulation import DATASET, World

TERMS = Terms("centre")
WEB = Strand(DATASET, "web-1")
SECRET = (Rule(("logs",), "key LIKE '1%'"),)
FAILS = Outcome(0, 0, "failed", kind="timeout")


@pytest.fixture
def bucket(world: World) -> Bucket:
    return Bucket(world)


class Shut(Bucket):
    """Takes nothing, or does not say so."""

    def put(self, key: str, intent: str, keys: tuple[str, ...]) -> str:
        return "failed"


def impatient(server: Server) -> ServerSink:
    return ServerSink(server, patient=Patience(inline_wait_s=0))


def withheld(site: Site) -> list[tuple[int, int]]:
    return [(each.lo, each.hi) for each in line(site).withheld.ranges]


# rewind


def test_a_rewind_sends_what_the_server_lacks_and_nothing_twice(
    world: World, site: Site, server: Server
) -> None:
    """L-WM-13, L-FWD-7: without --resend it stays in its epoch."""
    land(site, world, 1, 12)
    run(site, ServerSink(server))
    server.rows = [row for row in server.rows if row[1] not in numbers(6, 10)]
    server.ranges[0, "web-1"] = RangeSet.of([Range(0, 5), Range(10, 12)])

    (moved,) = rewind(site, ServerSink(server), TERMS, reason="the server lost a disk")

    assert (moved.was, moved.mark, moved.epoch) == (12, 0, 0)
    assert run(site, ServerSink(server)).status == "exported"
    assert sorted(keys(server), key=int) == numbers(1, 12)


def test_a_rewind_that_resends_is_a_new_epoch(world: World, site: Site, server: Server) -> None:
    """L-WM-13."""
    land(site, world, 1, 7)
    run(site, ServerSink(server))

    (moved,) = rewind(site, ServerSink(server), TERMS, to=5, reason="again", resend=True)
    run(site, ServerSink(server))

    assert moved.epoch == 1
    assert keys(server) == [*numbers(1, 7), *numbers(6, 7)]


def test_a_bucket_is_always_rewound_into_a_chain_of_its_own(world: World, site: Site, bucket: Bucket) -> None:
    """L-WM-13."""
    land(site, world, 1, 9)
    run(site, BucketSink(bucket))
    rewind(site, BucketSink(bucket), TERMS, to=2, reason="again")
    run(site, BucketSink(bucket))
    names = [f"web-1/{epoch}/{lo:020}-{hi:020}" for epoch, lo, hi in ((0, 0, 7), (0, 7, 9), (1, 2, 9))]
    assert list(bucket.objects) == names


def test_a_line_cannot_be_rewound_forward(world: World, site: Site, server: Server) -> None:
    """L-WM-3: forward is a skip, which says so."""
    land(site, world, 1, 3)
    run(site, ServerSink(server))
    with pytest.raises(UsageError, match="at 3, before 9"):
        rewind(site, ServerSink(server), TERMS, strands=[WEB], to=9, reason="x")
    with pytest.raises(NothingThere):
        rewind(site, ServerSink(server), TERMS, strands=[Strand(DATASET, "nobody")], reason="x")
    assert rewind(site, ServerSink(server), TERMS, to=9, reason="x") == []


def test_an_open_intent_refuses_to_be_moved_over(world: World, site: Site, server: Server) -> None:
    """L-WM-13."""
    land(site, world, 1, 12)
    server.answers = [None, FAILS]
    run(site, impatient(server))
    before = line(site)
    for act in (
        lambda: rewind(site, ServerSink(server), TERMS, reason="x"),
        lambda: skip(site, ServerSink(server), TERMS, reason="x"),
        lambda: forget(site, "centre", reason="x"),
        lambda: bind(site, ServerSink(server, place="new"), TERMS, "reset", reason="x"),
    ):
        with pytest.raises(IntentOpen, match="has rows 1-12 of logs/web-1 under way") as caught:
            act()
        assert "--abort-intent" in (caught.value.hint or "")
    assert line(site) == before


def test_an_intent_that_is_given_up_may_have_arrived_and_is_asked_for(
    world: World, site: Site, server: Server
) -> None:
    """L-WM-13, L-FWD-7: rows that an aborted intent delivered without our knowing are not sent twice."""
    land(site, world, 1, 12)
    server.answers = [FAILS]
    run(site, impatient(server))
    unit = server.requests[0]
    server.store(unit.unit, unit.keys, unit.unit.lo, unit.unit.hi)  # it had arrived all the same

    rewind(site, ServerSink(server), TERMS, reason="stuck", abort_intent=True)

    assert (line(site).intent, line(site).high) == (None, 12)
    assert run(site, ServerSink(server, unit_rows=4)).status == "exported"
    assert keys(server) == numbers(1, 12)
    assert [(each.unit.lo, each.unit.hi) for each in server.requests[1:]] == [(5, 8), (8, 12)]


# skip


def test_skipped_rows_are_not_delivered_and_those_behind_are(
    world: World, site: Site, server: Server
) -> None:
    """L-WM-13: recorded with its reason."""
    land(site, world, 1, 12)
    (moved,) = skip(site, ServerSink(server), TERMS, strands=[WEB], to=10, reason="bad data")
    run(site, ServerSink(server))
    assert (moved.was, moved.mark) == (0, 10)
    assert keys(server) == numbers(11, 12)
    event = site.b.event_at(sink_stream("centre", DATASET, "web-1"), 1)
    assert event is not None
    assert event.data == {"mark": 10, "epoch": 0, "reason": "bad data", "aborts": False}


def test_a_skip_goes_to_what_is_visible_and_not_further(world: World, site: Site, server: Server) -> None:
    """L-SEQ-7."""
    land(site, world, 1, 12)
    with pytest.raises(UsageError, match="visible up to 12"):
        skip(site, ServerSink(server), TERMS, strands=[WEB], to=13, reason="x")
    (moved,) = skip(site, ServerSink(server), TERMS, reason="x")
    assert moved.mark == 12
    assert run(site, ServerSink(server)).status == "idle"


def test_a_bucket_cannot_be_asked_so_a_skip_passes_the_whole_intent(
    world: World, site: Site, bucket: Bucket
) -> None:
    """L-BLOB-2: objects of the aborted intent may be there under the names of their units."""
    land(site, world, 1, 21)
    run(site, BucketSink(Shut(world)))
    bucket.objects["web-1/0/" + f"{0:020}-{7:020}"] = ("late", tuple(numbers(1, 7)))

    with pytest.raises(IntentOpen) as caught:
        skip(site, BucketSink(bucket), TERMS, strands=[WEB], to=7, reason="x", abort_intent=True)
    assert "skip to 21 or further" in (caught.value.hint or "")
    skip(site, BucketSink(bucket), TERMS, strands=[WEB], to=21, reason="x", abort_intent=True)
    land(site, world, 22, 23)
    assert run(site, BucketSink(bucket)).status == "exported"

    assert list(bucket.objects)[-1] == f"web-1/0/{21:020}-{23:020}"


# forget, bind


def test_a_forgotten_sink_is_owed_nothing_and_starts_anew(world: World, site: Site, server: Server) -> None:
    """L-WM-13, L-WM-6."""
    land(site, world, 1, 3)
    run(site, ServerSink(server))
    assert forget(site, "centre", reason="gone") == 1
    assert site.standing.lines().instances() == []
    with pytest.raises(NothingThere):
        forget(site, "centre", reason="gone")
    run(site, ServerSink(server))
    assert keys(server) == numbers(1, 3) * 2
    assert {epoch for epoch, _ in server.ranges} == {0, 1}


@pytest.mark.parametrize(("how", "sent"), [("keep", numbers(4, 6)), ("reset", numbers(1, 6))])
def test_an_operator_says_what_another_destination_means(
    world: World, site: Site, server: Server, how: str, sent: list[str]
) -> None:
    """L-WM-5."""
    land(site, world, 1, 3)
    run(site, ServerSink(server))
    land(site, world, 4, 6)
    other = Server(world)
    with pytest.raises(DestinationChanged) as caught:
        run(site, ServerSink(other, place="new"))
    assert "sink bind centre --keep" in (caught.value.hint or "")
    bind(site, ServerSink(other, place="new"), TERMS, how, reason="moved")  # type: ignore[arg-type]
    assert run(site, ServerSink(other, place="new")).status == "exported"
    assert keys(other) == sent


# release


def test_withheld_rows_arrive_once_after_the_rule_is_lifted(world: World, site: Site, server: Server) -> None:
    """F-46, L-POL-1: exactly those rows, in a new epoch; the line stays."""
    land(site, world, 1, 12)
    run(site, ServerSink(server), rules=SECRET)

    (released,) = release(site, ServerSink(server), TERMS, ())
    result = run(site, ServerSink(server))

    assert [(each.lo, each.hi) for each in released.ranges] == [(0, 1), (9, 12)]
    assert (result.status, result.rows) == ("exported", 4)
    assert keys(server) == [*numbers(2, 9), "1", *numbers(10, 12)]
    assert (line(site).mark, line(site).epoch, withheld(site)) == (12, 0, [])
    assert release(site, ServerSink(server), TERMS, ()) == []
    land(site, world, 13, 14)
    run(site, ServerSink(server))
    assert keys(server)[-2:] == numbers(13, 14)
    assert len(keys(server)) == 14


def test_what_the_policy_of_now_withholds_stays_withheld(world: World, site: Site, server: Server) -> None:
    """L-POL-1."""
    land(site, world, 1, 12)
    run(site, ServerSink(server), rules=SECRET)
    narrower = (Rule(("logs",), "key LIKE '11%'"),)
    release(site, ServerSink(server), TERMS, narrower)
    run(site, ServerSink(server), rules=narrower)
    assert sorted(keys(server), key=int) == [*numbers(1, 10), "12"]
    assert withheld(site) == [(10, 11)]


def test_released_rows_of_a_bucket_have_a_chain_of_their_own(
    world: World, site: Site, bucket: Bucket
) -> None:
    """L-BLOB-2, L-POL-1: rows that lie apart in one unit are one object."""
    land(site, world, 1, 12)
    run(site, BucketSink(bucket), rules=SECRET)
    release(site, BucketSink(bucket), TERMS, ())
    run(site, BucketSink(bucket))
    released = {name: keys_ for name, (_, keys_) in bucket.objects.items() if "/1/" in name}
    assert released == {
        f"web-1/1/{0:020}-{7:020}": ("1",),
        f"web-1/1/{7:020}-{12:020}": ("10", "11", "12"),
    }
    assert set(bucket.rows().values()) == {1}


def test_a_release_that_fails_is_taken_up_by_the_next_run(world: World, site: Site, server: Server) -> None:
    """L-DRV-10: it is an intent like any other."""
    land(site, world, 1, 12)
    run(site, ServerSink(server), rules=SECRET)
    release(site, ServerSink(server), TERMS, ())
    server.answers = [None, FAILS]
    assert run(site, impatient(server)).status == "partial"
    with pytest.raises(IntentOpen):
        release(site, ServerSink(server), TERMS, ())
    for resend in (False, True):  # what it has delivered could be released a second time
        with pytest.raises(IntentOpen):
            rewind(site, ServerSink(server), TERMS, to=1, reason="x", abort_intent=True, resend=resend)
    world.now_us += 400_000_000
    assert run(site, ServerSink(server)).status == "exported"
    assert sorted(keys(server), key=int) == numbers(1, 12)


def test_withheld_rows_of_units_whose_answer_was_lost_are_remembered(
    world: World, site: Site, server: Server
) -> None:
    """F-46, L-WM-10: the server knows a unit by its bounds, not which of its rows stayed here."""
    land(site, world, 1, 12)
    server.answers = [FAILS]
    run(site, impatient(server), rules=SECRET)
    unit = server.requests[0]
    server.store(unit.unit, unit.keys, unit.unit.lo, unit.unit.hi)
    with pytest.raises(IntentOpen):  # nobody could tell afterwards which rows it has withheld
        rewind(site, ServerSink(server), TERMS, reason="x", abort_intent=True)
    world.now_us += 400_000_000
    run(site, ServerSink(server), rules=SECRET)
    assert withheld(site) == [(0, 1), (9, 12)]
    release(site, ServerSink(server), TERMS, ())
    run(site, ServerSink(server))
    assert sorted(keys(server), key=int) == numbers(1, 12)


def test_an_intent_that_may_have_sent_withheld_rows_is_not_given_up(
    world: World, site: Site, server: Server
) -> None:
    """F-46, L-WM-13: the next intent could not tell its rows from those that stayed here, and a release would
    send them a second time."""
    land(site, world, 1, 12)
    run(site, ServerSink(server), rules=SECRET)  # of (10, 12] nothing was sent
    rewind(site, ServerSink(server), TERMS, to=10, reason="again")
    server.answers = [FAILS]
    run(site, impatient(server))
    unit = server.requests[-1]
    server.store(unit.unit, unit.keys, unit.unit.lo, unit.unit.hi)

    for act, to in ((rewind, 10), (skip, 12)):
        with pytest.raises(IntentOpen) as caught:
            act(site, ServerSink(server), TERMS, strands=[WEB], to=to, reason="x", abort_intent=True)
        assert "--abort-intent" not in (caught.value.hint or "")

    world.now_us += 400_000_000
    run(site, ServerSink(server))
    assert withheld(site) == [(0, 1), (9, 10)]
    release(site, ServerSink(server), TERMS, ())
    run(site, ServerSink(server))
    assert sorted(keys(server), key=int) == numbers(1, 12)


def test_a_rewind_forgets_nothing_of_what_was_withheld(world: World, site: Site, server: Server) -> None:
    """F-46, L-WM-13: the server has the ranges, so only the records tell which rows are not there."""
    land(site, world, 1, 12)
    run(site, ServerSink(server), rules=SECRET)
    rewind(site, ServerSink(server), TERMS, reason="again")
    assert release(site, ServerSink(server), TERMS, ()) == []  # what is behind the line is looked at first
    run(site, ServerSink(server))  # under another policy, which withholds nothing
    assert withheld(site) == [(0, 1), (9, 10)]  # 11 and 12 the server did not have
    rewind(site, ServerSink(server), TERMS, reason="again")
    run(site, ServerSink(server), rules=(Rule(("logs",), "key LIKE '5%'"),))  # it has left already
    assert withheld(site) == [(0, 1), (9, 10)]
    release(site, ServerSink(server), TERMS, ())
    run(site, ServerSink(server))
    assert sorted(keys(server), key=int) == numbers(1, 12)


def test_rows_that_were_released_are_not_sent_again_by_a_rewind(
    world: World, site: Site, server: Server
) -> None:
    """L-POL-1, L-WM-13: the server has them, under another epoch."""
    land(site, world, 1, 12)
    run(site, ServerSink(server), rules=SECRET)  # of (10, 12] nothing was sent
    release(site, ServerSink(server), TERMS, ())
    run(site, ServerSink(server))
    rewind(site, ServerSink(server), TERMS, reason="again")
    run(site, ServerSink(server))
    assert sorted(keys(server), key=int) == numbers(1, 12)


def test_a_policy_that_cannot_be_read_holds_without_an_intent(
    world: World, site: Site, server: Server
) -> None:
    """L-POL-2: it fails closed, and goes on once the rule is corrected."""
    land(site, world, 1, 3)
    result = run(site, ServerSink(server), rules=(Rule(("logs",), "no sense"),))
    assert (result.status, [each.kind for each in result.troubles]) == ("held", ["policy_unreadable"])
    assert (server.requests, line(site).intent) == ([], None)
    assert run(site, ServerSink(server), rules=SECRET).status == "held"
    assert run(site, ServerSink(server), rules=SECRET, is_command=True).status == "exported"
    assert keys(server) == numbers(2, 3)


# All of them


def test_a_rewind_ends_the_hold_of_a_damaged_stream(world: World, site: Site, server: Server) -> None:
    """L-WM-12: an operator says where the line is; nothing else does."""
    land(site, world, 1, 3)
    run(site, ServerSink(server))
    stream = sink_stream("centre", DATASET, "web-1")
    site.b.commit([], [Append(stream, "delivered", 1, {"nonsense": True}, globally=True)])
    land(site, world, 4, 6)
    with pytest.raises(UsageError, match="damaged"):
        skip(site, ServerSink(server), TERMS, strands=[WEB], reason="x")
    rewind(site, ServerSink(server), TERMS, reason="looked at the server")
    assert run(site, ServerSink(server)).status == "exported"
    assert keys(server) == numbers(1, 6)


def test_an_act_waits_for_the_lease_and_says_who_has_it(world: World, site: Site, server: Server) -> None:
    """L-CLI-4, L-DRV-2."""
    land(site, world, 1, 3)
    run(site, ServerSink(server))
    take_lease(site.b, site.clock, "sink/centre")
    began = world.now_us
    with pytest.raises(LeaseHeld):
        rewind(site, ServerSink(server), TERMS, reason="x")
    assert 4_000_000 <= world.now_us - began <= 7_000_000
    assert line(site).mark == 3


def test_what_is_kept_of_the_fold_knows_what_operators_did(world: World, site: Site, server: Server) -> None:
    """L-CTL-6."""
    land(site, world, 1, 12)
    run(site, ServerSink(server), rules=SECRET)
    release(site, ServerSink(server), TERMS, ())
    site.standing._keep()
    found: SinkProgress = world.site().standing.lines().line("centre", WEB)
    assert found == line(site)
    assert found.intent is not None
    assert found.intent.ranges is not None
