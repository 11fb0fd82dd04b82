"""Random histories: the same steps on the backend and on the in-memory reference, compared after each.

A history is made of a seed, so that a failure can be run again; it is named with the steps that led to it.
Truncation, conflicts, repeats and crashes are among the steps. The budget is bounded: every seed has a fixed
number of steps.
"""

from collections.abc import Callable
from random import Random
from typing import Any, TypeAlias

from strandline.conformance.case import Suite
from strandline.conformance.check import equal
from strandline.conformance.fixture import BackendFixture
from strandline.conformance.suites.given import kept_keys, total
from strandline.conformance.suites.workers import in_threads
from strandline.errors import StrandlineError
from strandline.persist import (
    ABSENT,
    Append,
    Backend,
    ExpectKey,
    ExpectSeq,
    ProjectionState,
    Put,
    append,
    append_batch,
    append_batch_expect,
    append_expect,
    append_once,
    checkpoint,
    commit,
    compact,
    count,
    erase_stream,
    global_events,
    global_pos,
    global_trim,
    hold,
    hold_drop,
    holds,
    is_conflict,
    kv_cas,
    kv_delete,
    kv_get_or,
    kv_put,
    kv_put_new,
    kv_update,
    last_seq,
    mem_backend,
    once_forget,
    project,
    read,
    read_window,
    stream_count,
    streams_all,
    total_events,
    truncate_through,
)
from strandline.persist.core.lift import atomic

RANDOM = Suite("random", expected=3, timeout_s=600)

STEPS = 60
STREAMS = ("a", "b", "é/1")
KEYS = ("k", "l", "m")

Do: TypeAlias = Callable[[Backend], Any]


def plan(random: Random, mark: int, can_crash: bool) -> tuple[str, Do | None]:
    """The next step and its name; None stands for a crash."""
    stream, key, n = random.choice(STREAMS), random.choice(KEYS), random.randrange(1_000)
    data = random.choice([{"n": n}, {"n": n, "deep": [None, {"x": 1.5}]}, {"n": n, "text": "é\0" * (n % 20)}])
    at: Any = random.choice([n, n / 2, f"t{n:03}"])
    globally = random.random() < 0.4
    expected = random.choice([mark, mark, max(mark - 1, 0), mark + 1])
    specs = [(f"type-{i % 2}", at, {"n": n + i}) for i in range(random.randrange(5))]
    value = random.choice([None, True, n, float(n), "x", [n], {"n": n}])
    old = random.choice([None, n, ABSENT])
    once = f"key-{random.randrange(6)}"
    place = random.randrange(mark + 3)
    steps: list[tuple[str, Do]] = [
        (f"append {stream} {data}", lambda b: append(b, stream, "type-0", at, data, globally=globally)),
        (f"expect {stream} {expected}", lambda b: append_expect(b, stream, expected, "type-1", at, data)),
        (f"batch {stream} {len(specs)}", lambda b: append_batch(b, stream, specs, globally=globally)),
        (f"batch expect {stream} {expected}", lambda b: append_batch_expect(b, stream, expected, specs)),
        (
            f"once {stream} {once}",
            lambda b: append_once(b, stream, once, "type-0", at, {"n": 1}, globally=globally),
        ),
        (f"once other {stream} {once}", lambda b: append_once(b, stream, once, "type-1", at, {"n": n % 2})),
        (f"put {key} {value}", lambda b: kv_put(b, key, value)),
        (f"delete {key}", lambda b: kv_delete(b, key)),
        (f"cas {key} {old}", lambda b: kv_cas(b, key, old, value)),
        (f"put new {key}", lambda b: kv_put_new(b, key, value)),
        (f"truncate {stream} {place}", lambda b: truncate_through(b, stream, place)),
        (f"checkpoint {stream}", lambda b: checkpoint(b, stream, f"total-{stream}", total, 0)),
        (f"compact {stream}", lambda b: compact(b, stream, f"total-{stream}", total, 0)),
        (f"hold {stream} {place}", lambda b: hold(b, stream, "holder", place)),
        (f"hold drop {stream}", lambda b: hold_drop(b, stream, "holder")),
        (f"trim {place}", lambda b: global_trim(b, place)),
        (f"fold {stream}", lambda b: project(b, stream, total, 0)),
        (f"window {stream} {n}", lambda b: read_window(b, stream, n // 2, n)),
        (f"forget {stream} {place}", lambda b: once_forget(b, stream, place)),
        (
            f"commit {stream} {expected} {key} {old}",
            lambda b: commit(
                b,
                [ExpectSeq(stream, expected), ExpectKey(key, old)],
                [
                    Append("a", "type-0", at, data, globally=True),
                    Put(key, value),
                    Append(stream, "type-1", at, data),
                ],
            ),
        ),
        (f"erase {stream}", lambda b: erase_stream(b, stream, at, reason="random")),
    ]
    weights = [8, 5, 5, 4, 5, 3, 4, 2, 4, 2, 3, 3, 2, 1, 1, 1, 3, 2, 1, 6, 0.3]
    if can_crash and random.random() < 0.05:
        return "crash", None
    return random.choices(steps, weights)[0]


def outcome_of(do: Do, b: Backend) -> Any:
    """What a step gives: its result, or the kind of its error."""
    try:
        return do(b)
    except StrandlineError as error:
        return f"raised {error.kind}"


def state_of(b: Backend) -> dict[str, Any]:
    """All that a reader can see, whatever the backend keeps it in."""
    names = streams_all(b)
    pos = atomic(b).truncated_through("$global")
    return {
        "streams": {name: (last_seq(b, name), count(b, name), read(b, name)) for name in names},
        "keys": kept_keys(b),
        "global": (global_pos(b), list(global_events(b, first=pos + 1))),
        "counts": (stream_count(b), total_events(b)),
        "holds": {name: holds(b, name) for name in names},
    }


def agree(b: Backend, f: BackendFixture, seed: int) -> None:
    """Run one history on both."""
    random, reference, taken = Random(seed), mem_backend(), []
    can_crash = f.capabilities.reason_against("basic", ("reopen",)) is None
    for number in range(STEPS):
        name, do = plan(random, last_seq(reference, random.choice(STREAMS)), can_crash)
        taken.append(name)
        note = f"seed {seed}, step {number}, after {'; '.join(taken[-12:])}"
        if do is None:
            b = f.crash() if random.random() < 0.5 else f.reopen()
        else:
            equal(outcome_of(do, b), outcome_of(do, reference), note)
        if do is None or number % 5 == 4:
            equal(state_of(b), state_of(reference), note)
    equal(state_of(b), state_of(reference), f"seed {seed}, at its end")


@RANDOM.case("P-BKD-6", "P-API-3", "P-DUR-6")
def histories_of_seeds_1_to_4_agree_with_the_reference(b: Backend, f: BackendFixture) -> None:
    for seed in range(1, 5):
        agree(b if seed == 1 else f.fresh(), f, seed)


@RANDOM.case("P-BKD-6", "P-API-3", "P-DUR-6")
def histories_of_seeds_5_to_8_agree_with_the_reference(b: Backend, f: BackendFixture) -> None:
    for seed in range(5, 9):
        agree(b if seed == 5 else f.fresh(), f, seed)


@RANDOM.case("P-BKD-6", "P-LOG-11", "P-KV-7", level="atomic")
def what_threads_did_at_random_is_some_order_of_what_each_did(b: Backend) -> None:
    """Each thread appends, swaps and repeats at random; the sums must come out whatever the order was."""

    def work(index: int) -> tuple[int, int]:
        random, appended, added = Random(index), 0, 0
        for i in range(40):
            kind = random.randrange(3)
            if kind == 0:
                append(b, "s", "added", i, {"n": 1}, globally=True)
                appended += 1
            elif kind == 1:
                kv_update(b, "n", 0, lambda value: value + 1)
                added += 1
            elif not is_conflict(
                append_expect(b, "s", last_seq(b, "s"), "added", i, {"n": 1}, globally=True)
            ):
                appended += 1
        return appended, added

    done = in_threads(4, work)

    appended = sum(each[0] for each in done)
    equal(project(b, "s", total, 0), ProjectionState(appended, appended))
    equal((kv_get_or(b, "n", 0), global_pos(b)), (sum(each[1] for each in done), appended))
