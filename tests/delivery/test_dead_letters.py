"""Dead letters after they were written: listed, sent once more, dropped."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from strandline.base.ranges import Range, RangeSet
from strandline.delivery.dead_letter_files import DeadLetter
from strandline.delivery.dead_letters import LetterUnknown, body_of, drop, letter_named, retry, waiting
from strandline.delivery.operate_sink import rewind
from strandline.delivery.owed import Terms
from strandline.delivery.policy import Rule
from strandline.delivery.session import Sender
from strandline.ingest.append import append
from strandline.rows.dataset import Strand
from strandline.sinks.sink import Outcome, Unit
from strandline.state.context import Site
from tests.delivery.destinations import Keys, Server, ServerSink
from tests.delivery.test_run import keys, land, line, numbers, run
from tests.simulation import DATASET, Process, World, calm_world

TERMS = Terms("centre")
SENDER = Sender("origin", "edge", lambda name: name)
BAD = Outcome(0, 0, "poison", kind="bad_request", text="no such field", http_status=400)


@pytest.fixture
def letter(world: World, site: Site, server: Server) -> DeadLetter:
    """Rows 6 to 10 of 12, which the server refused."""
    land(site, world, 1, 12)
    server.answers = [None, *[BAD] * 3]
    run(site, ServerSink(server))
    (found,) = waiting(site)
    return found


def test_a_letter_says_which_rows_were_refused_and_why(site: Site, letter: DeadLetter) -> None:
    """L-FWD-14."""
    assert (letter.instance, letter.strand) == ("centre", Strand(DATASET, "web-1"))
    assert (letter.lo, letter.hi, letter.rows, letter.epoch) == (5, 10, 5, 0)
    assert (letter.kind, letter.http_status, letter.answer) == ("bad_request", 400, "no such field")
    assert body_of(site, letter_named(site, letter.id)).splitlines()[0] == b'{"key":"6"}'
    assert waiting(site, "elsewhere") == []


def test_a_retry_sends_the_same_unit_and_settles_it(site: Site, server: Server, letter: DeadLetter) -> None:
    """L-FWD-14, F-29: afterwards no record of the failure waits for anybody."""
    before = line(site).rows
    done = retry(site, ServerSink(server, unit_rows=2), TERMS, SENDER, letter.id)

    assert (done.is_sent, done.rows, done.requests) == (True, 5, 1)
    unit = server.requests[-1].unit
    assert (unit.lo, unit.hi, unit.epoch, unit.intent) == (5, 10, 0, letter.intent)
    assert sorted(keys(server), key=int) == numbers(1, 12)
    assert waiting(site) == []
    assert line(site).rows == before + 5
    with pytest.raises(LetterUnknown):
        retry(site, ServerSink(server), TERMS, SENDER, letter.id)


def test_only_what_the_server_lacks_of_a_letter_is_sent(
    site: Site, server: Server, letter: DeadLetter
) -> None:
    """L-FWD-14, L-FWD-12."""
    server.ranges[0, "web-1"] = RangeSet.of([Range(0, 7), Range(10, 12)])
    server.rows += [("web-1", key) for key in numbers(6, 7)]
    assert retry(site, ServerSink(server), TERMS, SENDER, letter.id).is_sent
    assert sorted(keys(server), key=int) == numbers(1, 12)


def test_a_letter_that_is_refused_again_stays(site: Site, server: Server, letter: DeadLetter) -> None:
    """L-FWD-14."""
    server.answers = [BAD]
    done = retry(site, ServerSink(server), TERMS, SENDER, letter.id)
    assert (done.is_sent, done.outcomes[0].kind) == (False, "bad_request")
    assert waiting(site) == [letter]


def test_a_retry_whose_record_is_lost_sends_nothing_twice(
    site: Site, server: Server, letter: DeadLetter
) -> None:
    """L-WM-10: the server knows the range."""
    server.ranges[0, "web-1"] = RangeSet.of([Range(0, 12)])
    server.rows += [("web-1", key) for key in numbers(6, 10)]
    assert retry(site, ServerSink(server), TERMS, SENDER, letter.id).is_sent
    assert sorted(keys(server), key=int) == numbers(1, 12)


def test_a_dropped_letter_is_gone_with_its_reason(site: Site, server: Server, letter: DeadLetter) -> None:
    """L-FWD-14."""
    assert drop(site, letter.id, reason="test data").rows == 5
    assert waiting(site) == []
    event = site.b.event_at(letter.stream, site.b.last_seq(letter.stream))
    assert event is not None
    assert event.data == {"letter": letter.event, "how": "dropped", "reason": "test data", "units": []}
    assert "6" not in keys(server)


def test_rows_that_were_removed_meanwhile_keep_the_seqs_of_the_others(
    world: World, site: Site, server: Server
) -> None:
    """L-WM-11: a letter with gaps is cut by seqs, not by lines."""
    land(site, world, 1, 5)
    snapshot = world.table.published[0]
    snapshot.rows = [row for row in snapshot.rows if row.key != "2"]
    server.answers = [BAD] * 3
    run(site, ServerSink(server))
    (letter,) = waiting(site)
    assert (letter.rows, [(each.lo, each.hi) for each in letter.seqs]) == (4, [(0, 1), (2, 5)])
    server.ranges[0, "web-1"] = RangeSet.of([Range(0, 3)])
    assert retry(site, ServerSink(server), TERMS, SENDER, letter.id).is_sent
    assert keys(server) == numbers(4, 5)


def test_what_is_withheld_is_no_part_of_a_letter(world: World, site: Site, server: Server) -> None:
    """L-POL-1: a retry must not let it out, and it is remembered as withheld."""
    land(site, world, 1, 5)
    server.answers = [BAD] * 3
    run(site, ServerSink(server), rules=(Rule(("logs",), "key LIKE '2%'"),))
    (letter,) = waiting(site)
    assert b'"2"' not in body_of(site, letter)
    assert [(each.lo, each.hi) for each in line(site).withheld.ranges] == [(1, 2)]
    assert retry(site, ServerSink(server), TERMS, SENDER, letter.id).is_sent
    assert keys(server) == ["1", *numbers(3, 5)]


def test_a_rewind_sends_the_rows_of_letters_again_and_drops_them(
    site: Site, server: Server, letter: DeadLetter
) -> None:
    """L-WM-13: else a retry would send them a second time."""
    (moved,) = rewind(site, ServerSink(server), TERMS, reason="again", resend=True)
    assert (moved.dropped_letters, waiting(site)) == (1, [])
    run(site, ServerSink(server))
    assert keys(server)[-12:] == numbers(1, 12)


def test_every_type_comes_back_from_a_letter(world: World, site: Site) -> None:
    """L-FWD-5: what a retry sends is what the first try sent, byte by byte."""
    from decimal import Decimal

    from strandline.delivery.dead_letters import _batch
    from strandline.sinks.ndjson import ndjson_lines

    rows = [
        {"n": 2**53 + 1, "x": float("nan"), "d": Decimal("1.50"), "raw": b"\x00\x01", "j": {"a": [1]}},
        {"s": "line\nend \u2028", "b": True},
    ]
    append(site, "things", rows, source="a")
    dataset = site.known("things").dataset
    letter = DeadLetter(
        *("centre", Strand("things", "a"), 1, 0, 0, 2, 0, 2, 1, 400, "k", "", None, "", "i"),  # type: ignore[arg-type]
        seqs=(Range(0, 2),),
    )
    body = (
        b'{"n":9007199254740993,"x":"NaN","d":"1.50","raw":"AAE=","j":{"a":[1]}}\n'
        b'{"s":"line\\nend \xe2\x80\xa8","b":true}\n'
    )
    batch = _batch(dataset, letter, body, with_row_id=True)
    again = ndjson_lines(dataset, batch, with_source=False, with_row_id=True)
    assert sorted(again.splitlines()) == sorted(body.splitlines())
    assert batch.column("_sl_seq").to_pylist() == [1, 2]


# Killed at any step


class Refusing(Server):
    """Takes no unit that begins behind row 5, until it is told to."""

    is_mild = False

    def store(self, unit: Unit, keys: Keys, lo: int, hi: int) -> Outcome:
        if lo == 5 and not self.is_mild:
            return replace(BAD, lo=lo, hi=hi, requests=1)
        return super().store(unit, keys, lo, hi)


def is_killed(world: World, steps: int, body: Callable[[], object]) -> bool:
    """Run it in a process that is killed after so many steps; False if it was over before."""

    def act(_: Process) -> None:
        body()

    process = world.start("sender", act)
    for _ in range(steps):
        process.resume()
        if process.is_done:
            assert process.error is None
            return False
    world.kill(process)
    assert process.error is None
    world.now_us += 400_000_000  # its lease is over
    return True


def test_a_sender_killed_at_any_step_of_giving_rows_up_gives_them_up_once() -> None:
    """L-FWD-14, L-ACC-3: no letter is lost or doubled, and its rows are kept before the line passes them."""
    for steps in range(1, 200):
        world = calm_world()
        server = Refusing(world)
        land(world.site(), world, 1, 12)
        if not is_killed(world, steps, partial(run, world.site(), ServerSink(server))):
            break
        for _ in range(6):
            run(world.site(), ServerSink(server))
            world.now_us += 400_000_000
        (letter,) = waiting(world.site())
        assert (letter.lo, letter.hi, letter.rows) == (5, 10, 5)
        assert len(body_of(world.site(), letter).splitlines()) == 5
        assert keys(server) == [*numbers(1, 5), *numbers(11, 12)]
    assert steps > 10


def test_a_retry_killed_at_any_step_sends_a_letter_once() -> None:
    """L-FWD-14, L-ACC-3, L-WM-10."""
    for steps in range(1, 200):
        world = calm_world()
        server = Refusing(world)
        land(world.site(), world, 1, 12)
        run(world.site(), ServerSink(server))
        (letter,) = waiting(world.site())
        server.is_mild = True
        again = partial(retry, world.site(), ServerSink(server), TERMS, SENDER, letter.id)
        if not is_killed(world, steps, again):
            break
        if waiting(world.site()):
            retry(world.site(), ServerSink(server), TERMS, SENDER, letter.id)
        assert waiting(world.site()) == []
        assert sorted(keys(server), key=int) == numbers(1, 12)
    assert steps > 3
