"""Histories of concurrent calls, from threads and from processes, for the checker of linear.py.

python -m tests.faults.histories TARGET OPTIONS SEED CALLS   prints its calls, a line of JSON each
"""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import strandline.persist
from strandline.errors import CorruptionError, OutcomeUnknown, StoreUnavailable
from strandline.persist import (
    Conflict,
    append,
    append_expect,
    events,
    kv_cas,
    kv_get,
    kv_put,
    last_seq,
    open_store,
)
from strandline.persist.backend import AtomicBackend
from tests.faults.count import ROOT, Count
from tests.faults.linear import NEVER, UNKNOWN, Call, not_linear, not_stored, register, stream

if TYPE_CHECKING:
    from tests.conftest import Place  # which a process of its own does without: it starts quicker

KEYS: Final = ("k1", "k2")
STREAMS: Final = ("s1", "s2")
LOOKS: Final = {"swap": "get", "expect": "mark"}
REFUSED: Final = "refused:"
STORE: Final = str(Path(strandline.persist.__file__).parent)


def timed(about: str, what: str, arguments: tuple[Any, ...], do: Callable[[], Any]) -> Call:
    """The call and what it gave; an error of the store is a result too."""
    start, end = time.monotonic_ns(), 0
    try:
        result = do()
    except OutcomeUnknown:
        result, end = UNKNOWN, NEVER
    except (StoreUnavailable, CorruptionError) as error:
        result = f"{REFUSED} {error}"
    return Call(about, what, arguments, result, start, end or time.monotonic_ns())


def is_refused(call: Call) -> bool:
    """Whether the store said that it did nothing."""
    return isinstance(call.result, str) and call.result.startswith(REFUSED)


def swapped(outcome: Any) -> Any:
    """True, or what was there instead."""
    return (outcome.actual or 0) if isinstance(outcome, Conflict) else True


def appended(outcome: Any) -> Any:
    """The seq in a list, or the mark that was there instead."""
    return outcome.actual if isinstance(outcome, Conflict) else [outcome.seq]


def planned(chance: Random) -> Iterator[tuple[str, str]]:
    """What to do, and with which key or stream. Who expects something has just looked, so that several who
    looked at once are all right until one of them has won."""
    while True:
        kind = chance.choice(["put", "get", "swap", "swap", "append", "mark", "expect", "expect"])
        about = chance.choice(KEYS if kind in ("put", "get", "swap") else STREAMS)
        if kind in LOOKS:
            yield LOOKS[kind], about
        yield kind, about


def one_call(b: AtomicBackend, kind: str, about: str, guesses: dict[str, Any], number: int) -> Call:
    """What is expected is what this caller saw last, so that it is sometimes right."""
    guess, data = guesses.get(about, 0), {"n": number}
    acts: dict[str, tuple[tuple[Any, ...], Callable[[], Any]]] = {
        "put": ((number,), lambda: kv_put(b, about, number) and None),
        "get": ((), lambda: kv_get(b, about) or 0),
        "swap": ((guess, number), lambda: swapped(kv_cas(b, about, guess or None, number))),
        "append": ((number,), lambda: appended(append(b, about, "t", number, data))),
        "mark": ((), lambda: last_seq(b, about)),
        "expect": ((guess, number), lambda: appended(append_expect(b, about, guess, "t", number, data))),
    }
    call = timed(about, kind, *acts[kind])
    if kind == "put" or call.result is True:
        guesses[about] = number
    elif isinstance(call.result, list):
        (guesses[about],) = call.result
    elif isinstance(call.result, int):
        guesses[about] = call.result
    return call


def history(b: AtomicBackend, seed: int, calls: int) -> list[Call]:
    guesses, plan = dict[str, Any](), islice(planned(Random(seed)), calls)
    return [one_call(b, *each, guesses, seed * 10**6 + n) for n, each in enumerate(plan, 1)]


def pausing(chance: Random) -> Callable[..., Any]:
    """A trace that lets another thread or process in, now and then, between two lines of the store's code.

    Without it a call is through before the next one has its turn: in memory always, elsewhere on a machine
    that is busy.
    """

    def line(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line" and chance.random() < 0.05:
            time.sleep(1e-6)
        return line

    def call(frame: FrameType, event: str, _: Any) -> Any:
        return line if frame.f_code.co_filename.startswith(STORE) else None

    return call


def of_threads(b: AtomicBackend, *, threads: int, calls: int, seed: int) -> list[Call]:
    start = threading.Barrier(threads)

    def run(own: int) -> list[Call]:
        start.wait()
        before = sys.gettrace()
        sys.settrace(pausing(Random(own)))
        try:
            return history(b, own, calls)
        finally:
            sys.settrace(before)

    with ThreadPoolExecutor(threads) as pool:
        seeds = range(seed * 100 + 1, seed * 100 + threads + 1)
        return [call for each in pool.map(run, seeds) for call in each]


def of_processes(place: "Place", *, processes: int, calls: int, seed: int) -> list[Call]:
    base = [sys.executable, "-m", "tests.faults.histories", place.target, json.dumps(place.options)]
    seeds = range(seed * 100 + 1, seed * 100 + processes + 1)
    started = [
        subprocess.Popen([*base, str(s), str(calls)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for s in seeds
    ]
    for each in started:
        assert each.stdout is not None
        assert each.stdout.readline() == b"ready\n"
    for each in started:
        assert each.stdin is not None
        each.stdin.write(b"go\n")
        each.stdin.flush()
    found = []
    for each in started:
        said = each.communicate(timeout=300)[0]
        assert each.returncode == 0, f"a process ended with {each.returncode}: it said {said[-300:]!r}"
        found += [Call(*json.loads(line)) for line in said.splitlines()]
    return [call._replace(arguments=tuple(call.arguments)) for call in found]


def judge(calls: list[Call], b: AtomicBackend, count: Count) -> None:
    """Look for an order of them, key by key and stream by stream, and for what was acknowledged in `b`.

    Nothing was cut or stopped here, so nobody may be refused."""
    refused = [call for call in calls if is_refused(call)]
    if refused:
        count.broken.append(f"{len(refused)} calls were refused, one with: {refused[0].result}")
    count.add("calls", len(calls))
    count.add("that overlapped another about the same", overlapping(calls))
    count.add("histories")
    made = [call for call in calls if not is_refused(call)] + last_calls(b)
    of_keys = [call for call in made if call.about in KEYS]
    count.broken += [f"key {name} has no order" for name in not_linear(of_keys, register, 0)]
    of_streams = [call for call in made if call.about in STREAMS]
    count.broken += [f"stream {name} has no order" for name in not_linear(of_streams, stream, 0)]
    for name in STREAMS:
        rows = [(event.seq, event.data["n"]) for event in events(b, name)]
        faults = not_stored([call for call in made if call.about == name], rows)
        count.broken += [f"stream {name}: {fault}" for fault in faults[:9]]


def last_calls(b: AtomicBackend) -> list[Call]:
    """What is there at the end belongs to the history."""
    gets = [timed(key, "get", (), partial(kv_get, b, key)) for key in KEYS]
    marks = [timed(name, "mark", (), partial(last_seq, b, name)) for name in STREAMS]
    return [*(call._replace(result=call.result or 0) for call in gets), *marks]


def overlapping(calls: list[Call]) -> int:
    """How many of them ran while another did that is about the same key or stream."""
    found, running = set[int](), dict[str, list[tuple[int, int]]]()
    for place, call in sorted(enumerate(calls), key=lambda each: each[1].start):
        others = [each for each in running.get(call.about, []) if each[0] > call.start]
        if others:
            found |= {place, *(other for _, other in others)}
        running[call.about] = [*others, (call.end, place)]
    return len(found)


def main() -> None:
    target, options, seed, calls = sys.argv[1:]
    b = open_store(target, **json.loads(options))
    print("ready", flush=True)
    sys.stdin.readline()
    sys.settrace(pausing(Random(seed)))
    for call in history(b, int(seed), int(calls)):
        print(json.dumps(call))
    b.close()


if __name__ == "__main__":
    main()
