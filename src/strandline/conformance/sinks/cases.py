"""The cases: a sentence each, what any sink promises to whoever drives it.

Their ids, `sink/an-idle-run-touches-nothing`, stay for good.
"""

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from strandline.base.ranges import Range, RangeSet
from strandline.conformance.check import CaseFailed, equal, truthy
from strandline.conformance.sinks.bench import UNIT_ROWS, WEB, Bench, SinkUnderTest
from strandline.conformance.sinks.table import Killed
from strandline.delivery.policy import Rule

AWKWARD: Final = ("a/b", "a_b", "a%2Fb", "../up", ".", "ü", "a b", "A", "a", "epoch=1", "x?y#z", "'; --")

_CASES: Final[list["SinkCase"]] = []


@dataclass(frozen=True, slots=True)
class SinkCase:
    """One promise put to the test; called, it returns or raises CaseFailed."""

    id: str
    rules: tuple[str, ...]
    body: Callable[[Bench], None]

    def __call__(self, under_test: SinkUnderTest) -> None:
        bench = Bench(under_test)
        reason = under_test.sink.cannot_take(bench.shipment().dataset)
        if reason is not None:
            raise CaseFailed("a sink that takes every type of column", reason)
        self.body(bench)

    def __str__(self) -> str:
        return self.id


def _case(*rules: str) -> Callable[[Callable[[Bench], None]], Callable[[Bench], None]]:
    def register(body: Callable[[Bench], None]) -> Callable[[Bench], None]:
        _CASES.append(SinkCase(f"sink/{body.__name__.replace('_', '-')}", rules, body))
        return body

    return register


# What arrives


@_case("L-FWD-5", "L-WM-3")
def every_row_arrives_with_all_its_values_in_order(bench: Bench) -> None:
    bench.land(12)
    result = bench.finish()
    equal([result.rows, result.units], [12, 3])
    bench.expect()


@_case("F-36", "L-COST-1")
def an_idle_run_touches_nothing(bench: Bench) -> None:
    equal(bench.finish().status, "idle")
    bench.land(7)
    bench.finish()
    jobs = bench.courier.jobs
    for _ in range(3):
        result = bench.finish()
        equal([result.status, result.rows, result.requests, result.control_writes], ["idle", 0, 0, 0])
    equal(bench.courier.jobs, jobs, "jobs")
    bench.expect()


@_case("F-36", "L-WM-3")
def a_run_delivers_what_is_new_and_nothing_again(bench: Bench) -> None:
    for count in (7, 1, 12):
        bench.land(count)
        equal(bench.finish().rows, count)
        bench.expect()


@_case("L-SCH-2", "F-35")
def sources_that_look_alike_are_kept_apart(bench: Bench) -> None:
    for source in AWKWARD:
        bench.land(6, source)
    bench.finish()
    bench.expect()


@_case("L-SCH-5")
def a_new_column_arrives_with_the_rows_that_have_it(bench: Bench) -> None:
    bench.land(3)
    bench.finish()
    bench.land(3, colour="red")
    bench.finish()
    bench.expect()


@_case("L-WM-7", "L-WM-8", "L-SCH-5")
def a_column_that_appears_between_two_tries_waits_for_the_next_intent(bench: Bench) -> None:
    bench.land(7)
    bench.round("lost", "cut")
    bench.land(6, colour="red")
    bench.finish()
    bench.expect()


@_case("L-POL-1")
def rows_that_are_withheld_do_not_leave(bench: Bench) -> None:
    kept = (2, *range(6, 11), 12)  # one of a unit, all of one, the last of one
    bench.rules = (Rule(("*",), f"n IN ({', '.join(map(str, kept))})"),)
    bench.land(13)
    equal(bench.finish().withheld, len(kept))
    bench.expect(without=kept)
    equal(bench.finish().status, "idle")


@_case("L-WM-11", "L-BLOB-4")
def a_unit_without_rows_sends_nothing(bench: Bench) -> None:
    gone = range(UNIT_ROWS + 1, 2 * UNIT_ROWS + 1)
    bench.land(13)
    bench.tables.remove(*gone)
    equal(bench.finish().units, 2)
    bench.expect(without=gone)


# When something goes wrong


@_case("L-WM-10", "L-SRV-3", "L-BLOB-5")
def a_repeat_after_a_lost_answer_stores_nothing_twice(bench: Bench) -> None:
    bench.land(12)
    for _ in range(3):
        bench.round("lost", "lost", "lost")
        bench.clock.sleep(3600)
    bench.finish()
    bench.expect()


@_case("L-WM-10", "L-ACC-3")
def a_repeat_after_a_kill_stores_nothing_twice(bench: Bench) -> None:
    bench.land(12)
    try:
        bench.round(None, "killed")
    except Killed:
        bench.clock.sleep(3600)
    bench.finish()
    bench.expect()


@_case("F-11", "L-WM-3")
def after_a_partial_failure_the_rest_arrives(bench: Bench) -> None:
    bench.land(23)
    truthy(bench.round(None, "untried", None, "untried").troubles, "a run that failed in part says so")
    bench.clock.sleep(3600)
    bench.finish()
    bench.expect()


@_case("L-BLOB-6", "L-SRV-6")
def rows_that_end_in_an_error_leave_no_part_that_counts(bench: Bench) -> None:
    bench.land(12)
    for _ in range(2):
        truthy(bench.round("cut", "cut", "cut").troubles, "a unit whose rows were cut off has failed")
        bench.clock.sleep(3600)
    bench.finish()
    bench.expect()


@_case("F-12", "L-WM-8")
def rows_that_arrive_before_the_retry_wait_for_the_next_intent(bench: Bench) -> None:
    bench.land(7)
    bench.round(None, "lost")
    bench.land(9)
    bench.clock.sleep(3600)
    bench.finish()
    bench.expect()


@_case("L-WM-11")
def rows_removed_before_they_were_sent_are_passed(bench: Bench) -> None:
    gone = (2, *range(6, 11))
    bench.land(13)
    bench.round("untried", "untried", "untried")
    bench.tables.remove(*gone)
    bench.clock.sleep(3600)
    bench.finish()
    bench.expect(without=gone)
    equal(bench.finish().status, "idle")


@_case("L-WM-11", "L-SRV-3", "L-BLOB-5")
def rows_removed_after_they_were_sent_stay_there_once(bench: Bench) -> None:
    bench.land(7)
    bench.round("lost", "lost")
    sent = bench.stored()
    bench.tables.remove(2, 6)
    bench.clock.sleep(3600)
    bench.finish()
    bench.expect(without=() if 6 in sent else (6,))


@_case("F-14", "L-CMP-9", "L-ACC-2")
def a_compaction_between_two_tries_changes_nothing(bench: Bench) -> None:
    bench.land(13)
    for faults in (("lost", "cut", "untried"), ("untried", "lost", "cut")):
        bench.round(*faults)
        bench.tables.compact()
        bench.clock.sleep(3600)
    bench.finish()
    bench.expect()


@_case("L-SRV-5", "L-BLOB-5", "L-DRV-11")
def two_tasks_that_deliver_the_same_at_once_store_it_once(bench: Bench) -> None:
    bench.courier.at_once = 2
    for _ in range(3):
        bench.land(13)
        bench.finish()
    bench.expect()


# When an operator moves the line


@_case("L-WM-13", "F-13", "L-FWD-12")
def other_bounds_after_a_rewind_store_nothing_twice(bench: Bench) -> None:
    bench.land(13)
    bench.finish()
    if bench.sink.asks_first:  # else a rewind begins a new epoch
        bench.rewind(3, resend=False)
        bench.land(4)
        bench.finish()
    bench.expect()


@_case("L-WM-13", "L-BLOB-2")
def what_is_sent_again_in_a_new_epoch_is_no_repeat(bench: Bench) -> None:
    bench.land(13)
    bench.finish()
    bench.courier.told.clear()
    bench.rewind(0, resend=True)
    equal(bench.finish().rows, 13)
    equal([(each.lo, each.hi, each.status) for each in bench.courier.told], _all_stored(13))


def _all_stored(rows: int) -> list[tuple[int, int, str]]:
    return [(lo, min(lo + UNIT_ROWS, rows), "stored") for lo in range(0, rows, UNIT_ROWS)]


# What it says of itself


@_case("L-FWD-7", "L-BLOB-11")
def what_it_says_it_holds_is_what_is_there(bench: Bench) -> None:
    bench.land(13)
    bench.round(None, "untried", "cut")
    told = bench.sink.holdings(bench.shipment(), WEB, 0)
    nothing = bench.sink.holdings(bench.shipment(), "a source without rows", 0)
    if told is None:
        equal(bench.sink.asks_first, False, "a sink that cannot tell is not to be asked")
        return
    held = RangeSet.of(Range(each.lo, each.hi) for each in told.stored)
    equal([n for n in range(1, 14) if n in held], sorted(bench.stored()))
    equal(nothing is not None and nothing.stored, (), "holdings of a source without rows")


@_case("L-WM-8")
def the_limits_of_a_unit_are_kept(bench: Bench) -> None:
    for size in (0, 1, 1_000, 10.0**12):
        truthy(bench.sink.limits(size).unit_rows >= 1, "a unit has room for a row, however large rows are")
    bench.land(13)
    bench.finish()
    equal([(each.lo, each.hi) for each in bench.courier.units], [(0, 5), (5, 10), (10, 13)])


@_case("L-WM-5", "L-DRV-11")
def it_is_the_same_sink_after_pickling(bench: Bench) -> None:
    copy = pickle.loads(pickle.dumps(bench.sink))
    facts = [
        (each.fingerprint, each.limits(100), each.is_ordered, each.asks_first, each.patience)
        for each in (bench.sink, copy)
    ]
    equal(facts[1], facts[0])
    truthy(copy.fingerprint, "a fingerprint says which destination it is")


@_case("L-CFG-1")
def it_shows_no_secret(bench: Bench) -> None:
    shown = f"{bench.sink!r} {bench.sink} {bench.sink.fingerprint}"
    for secret in bench.under_test.secrets:
        truthy(secret not in shown, "a sink that is printed shows no secret")


CASES: Final = tuple(_CASES)
