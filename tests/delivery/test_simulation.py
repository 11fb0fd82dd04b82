"""Delivery under everything that can go wrong at once, by seed; and proof that the simulation can fail."""

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from strandline.base.ranges import Range
from strandline.delivery import delivery_round as round_room
from strandline.delivery import owed as owed_room
from strandline.delivery import verdict as verdict_room
from strandline.delivery.owed import Owed, Terms
from strandline.sinks.unit_runner import IntentPart
from strandline.state import sink_progress as line_room
from strandline.state.context import Site
from tests.delivery.simulated import Destinations, simulate

QUICK, SLOW = 100, 10_000
_GROUP, _SHARE = 25, 500


@pytest.mark.parametrize("first", range(0, QUICK, _GROUP))
def test_each_row_arrives_once(first: int) -> None:
    """G-1, L-ACC-4: two senders a sink, lost and late answers, kills, power cuts, pruned rows."""
    _run(range(first, first + _GROUP))


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("first", range(QUICK, QUICK + SLOW, _SHARE))
def test_each_row_arrives_once_in_thousands_of_runs(first: int) -> None:
    """G-1, L-ACC-4."""
    _run(range(first, first + _SHARE))


def _run(seeds: range) -> None:
    for seed in seeds:
        try:
            simulate(seed)
        except BaseException as error:
            error.add_note(f"the seed is {seed}")
            raise


def _forgets_ranges(to: Destinations) -> None:
    to.server.forgets_ranges = True


def _caught(change: Callable[[Destinations], None] = lambda _: None) -> bool:
    """By what is at the destinations, or still owed to them: not by some assertion on the way."""
    for seed in range(60):
        try:
            simulate(seed, change=change)
        except AssertionError as error:
            if re.search(r"the (server|bucket) has|objects|still owed|still withholds|visible", str(error)):
                return True
    return False


def test_a_server_that_forgets_ranges_is_caught() -> None:
    """F-45: the range sets taken out."""
    assert _caught(_forgets_ranges)


def test_delivery_past_what_is_visible_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """F-45: the V bound taken out."""

    def unbounded(site: Site, terms: Terms) -> list[Owed]:
        lines = site.standing.lines()
        return [
            Owed(strand, line, strand_state, strand_state.hi)
            for strand, strand_state in owed_room.covered(site, terms)
            if (line := lines.line(terms.name, strand)).intent is not None or line.mark < strand_state.hi
        ]

    for room in ("strandline.delivery.owed", "strandline.delivery.run", "tests.delivery.simulated"):
        monkeypatch.setattr(f"{room}.owed", unbounded)
    assert _caught()


def test_an_intent_that_grows_between_tries_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """F-45, F-12: the intent taken out, each try takes what is visible then."""

    def grown(strand: object, line: object) -> IntentPart:
        part = kept(strand, line)  # type: ignore[arg-type]
        wider = part.until + 3
        return IntentPart(
            part.intent,
            part.epoch,
            part.source,
            part.since,
            wider,
            part.chain_hi,
            (*part.ranges[:-1], Range(part.ranges[-1].lo, wider)),
            part.limits,
        )

    kept = round_room.part_of
    monkeypatch.setattr(round_room, "part_of", grown)
    assert _caught()


def test_a_line_that_moves_to_the_highest_seq_sent_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """F-45, F-10: order taken out, what is done is taken for a prefix."""

    def to_the_highest(*args: object) -> object:
        verdict = kept(*args)  # type: ignore[arg-type]
        if not verdict.receipts:
            return verdict
        part = args[1]
        assert isinstance(part, IntentPart)
        highest = max(each.hi for each in verdict.receipts)
        void = tuple(found for each in part.ranges if (found := each.meets(Range(0, highest))) is not None)
        return type(verdict)(
            verdict.receipts, void, verdict.withheld, (), None, verdict.trouble, verdict.is_denied
        )

    kept = verdict_room.judge
    monkeypatch.setattr(round_room, "judge", to_the_highest)
    assert _caught()


def test_a_name_that_may_be_in_use_given_out_again_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """L-BLOB-2: a unit that was emptied after its object was written."""
    kept = line_room.delivered

    def forgets(*args: object, **options: object) -> object:
        return kept(*args, **{**options, "is_repeat": False})  # type: ignore[arg-type]

    monkeypatch.setattr(round_room, "delivered", forgets)
    assert _caught()


def test_an_intent_made_again_after_a_crash_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """F-45: an intent that is not durable: each run draws its own, cut anew."""
    kept = round_room.part_of

    def redrawn(strand: object, line: object) -> IntentPart:
        part = kept(strand, line)  # type: ignore[arg-type]
        lo = part.ranges[0].lo
        return IntentPart(
            f"{part.intent}/{lo}", part.epoch, part.source, lo, part.until, lo, part.ranges, part.limits
        )

    monkeypatch.setattr(round_room, "part_of", redrawn)
    assert _caught()


def test_withheld_rows_that_a_server_is_taken_to_have_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """F-46: a range that the server had before counts as delivered with all its rows."""
    kept = line_room._delivered
    monkeypatch.setattr(
        line_room, "_delivered", lambda line, data, at: kept(replace(line, is_told=True), data, at)
    )
    assert _caught()


def test_withheld_rows_of_a_lost_answer_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """F-46, L-WM-10: what a crash forgets of them, nobody else tells."""
    monkeypatch.setattr(round_room.Rounds, "_withheld", lambda *_: [])
    assert _caught()
