"""Histories of concurrent calls, from threads and from processes, for the checker of linear.py.

python -m tests.faults.histories TARGET OPTIONS SEED CALLS   prints its calls, a line of JSON each
"""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import strandline.persist
from strandline.persist import (
    Conflict,
    append,
    append_expect,
    kv_cas,
    kv_get,
    kv_put,
    last_seq,
    open_store,
)
from strandline.persist.backend import AtomicBackend
from tests.faults.count import ROOT, Count
from tests.faults.linear import Call, not_linear, register, stream

if TYPE_CHECKING:
    from tests.conftest import Place  # which a process of its own does without: it starts quicker

KEYS: Final = ("k1", "k2")
STREAMS: Final = ("s1", "s2")
STORE: Final = str(Path(strandline.persist.__file__).parent)


def timed(about: str, what: str, arguments: tuple[Any, ...], do: Callable[[], Any]) -> Call:
    start = time.monotonic_ns()
    result = do()
    return Call(about, what, arguments, result, start, time.monotonic_ns())


def won(outcome: Any) -> Any:
    """True, or what was there instead."""
    return outcome.actual if isinstance(outcome, Conflict) else True


def one_call(b: AtomicBackend, chance: Random, guesses: dict[str, Any], number: int) -> Call:
    """Something at random; what is expected is what this caller saw last, so that it is sometimes right."""
    key, name = chance.choice(KEYS), chance.choice(STREAMS)
    kind = chance.choice(["put", "get", "swap", "swap", "append", "mark", "expect", "expect"])
    about = key if kind in ("put", "get", "swap") else name
    guess = guesses.get(about, 0)
    new = number
    acts: dict[str, tuple[tuple[Any, ...], Callable[[], Any]]] = {
        "put": ((new,), lambda: kv_put(b, key, new) and None),
        "get": ((), lambda: kv_get(b, key) or 0),
        "swap": ((guess, new), lambda: won(kv_cas(b, key, guess or None, new)) or 0),
        "append": ((), lambda: append(b, name, "t", number, {"n": number}).seq),
        "mark": ((), lambda: last_seq(b, name)),
        "expect": ((guess,), lambda: won(append_expect(b, name, guess, "t", number, {"n": number}))),
    }
    call = timed(about, kind, *acts[kind])
    if kind == "put" or (kind == "swap" and call.result is True):
        guesses[about] = new
    elif kind == "expect" and call.result is True:
        guesses[about] = guess + 1
    else:
        guesses[about] = call.result
    return call


def history(b: AtomicBackend, seed: int, calls: int) -> list[Call]:
    chance, guesses = Random(seed), dict[str, Any]()
    return [one_call(b, chance, guesses, seed * 10**6 + n) for n in range(1, calls + 1)]


def pausing(chance: Random) -> Callable[..., Any]:
    """A trace that lets another thread in, now and then, between two lines of the store's own code.

    Without it a call in memory is through before the next thread has its turn, on a busy machine always.
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
        assert each.returncode == 0
        found += [Call(*json.loads(line)) for line in said.splitlines()]
    return [call._replace(arguments=tuple(call.arguments)) for call in found]


def judge(calls: list[Call], count: Count) -> None:
    """Look for an order of them, key by key and stream by stream."""
    count.add("calls", len(calls))
    count.add("that overlapped another", overlapping(calls))
    count.add("histories")
    of_keys = [call for call in calls if call.about in KEYS]
    count.broken += [f"key {name} has no order" for name in not_linear(of_keys, register, 0)]
    of_streams = [call for call in calls if call.about in STREAMS]
    count.broken += [f"stream {name} has no order" for name in not_linear(of_streams, stream, 0)]


def overlapping(calls: list[Call]) -> int:
    """How many of them ran while another did."""
    found, running = set[int](), list[tuple[int, int]]()
    for place, call in sorted(enumerate(calls), key=lambda each: each[1].start):
        running = [each for each in running if each[0] > call.start]
        if running:
            found |= {place, *(other for _, other in running)}
        running.append((call.end, place))
    return len(found)


def main() -> None:
    target, options, seed, calls = sys.argv[1:]
    b = open_store(target, **json.loads(options))
    print("ready", flush=True)
    sys.stdin.readline()
    for call in history(b, int(seed), int(calls)):
        print(json.dumps(call))
    b.close()


if __name__ == "__main__":
    main()
