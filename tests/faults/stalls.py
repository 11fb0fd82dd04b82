"""Processes that are stopped and killed at random while they write: nothing is lost or there twice."""

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from random import Random

from strandline.errors import OutcomeUnknown, StoreUnavailable
from strandline.persist import append_once, events, last_seq, verify
from strandline.persist.backend import AtomicBackend
from strandline.persist.backends.remote import RemoteBackend
from strandline.persist.backends.sqlite import SqliteBackend
from tests.conftest import Place, place_of
from tests.crash.killing import Child
from tests.faults.count import Count
from tests.server.hosts import HostProcess

SPAN = 10**6


class Writer:
    """A process that appends the numbers from `base` + 1 on; killed, it is started again where it was."""

    def __init__(self, place: Place, base: int) -> None:
        self.place, self.base, self.done = place, base, base
        self.child = self._started()

    def _started(self) -> Child:
        child = Child(self.place)
        child.acknowledged = self.done
        child.tell("writes", kind="append", first=self.done + 1, last=self.base + SPAN)
        return child

    def signal(self, number: int) -> None:
        os.kill(self.child._process.pid, number)

    def kill(self) -> None:
        self.done = self.child.kill_at_work()
        self.end()

    def end(self) -> None:
        self.child.__exit__(None, None, None)

    def restart(self) -> None:
        self.kill()
        self.child = self._started()


def stalled(kind: str, *, times: int, writers: int = 4, seed: int = 1) -> Count:
    """Stop, go on, kill and start again, at random, a few writers of one store."""
    count, chance = Count(f"stalls of {kind}", f"seed {seed}, and the moment"), Random(f"{kind} {seed}")
    place = place_of(kind, Path(tempfile.mkdtemp(prefix="strandline-stalls-")))
    with count.timed(), ExitStack() as stack:
        crew = [Writer(place, number * SPAN) for number in range(writers)]
        for writer in crew:
            stack.callback(writer.end)
        for turn in range(times):
            chosen = chance.choice(crew)
            if turn % 5 == 4:
                chosen.restart()
                count.add("killed")
                continue
            with stopped(chosen):
                time.sleep(chance.random() * 0.03)
            count.add("stopped")
        for writer in crew:
            writer.child.listen(until=writer.child.acknowledged + 1)
            writer.kill()
        with closing(place.open()) as b:
            settle(b)
            numbers: dict[int, list[int]] = {writer.base: [] for writer in crew}
            for event in events(b, "s"):
                numbers[(event.data["n"] - 1) // SPAN * SPAN].append(event.data["n"])
            for writer in crew:
                found, last = numbers[writer.base], writer.done
                count.add("events", len(found))
                if found not in ([*range(writer.base + 1, last + 1)], [*range(writer.base + 1, last + 2)]):
                    count.broken.append(
                        f"of the writer from {writer.base} {len(found)} are there, {last - writer.base} acked"
                    )
            count.broken += [str(damage) for damage in verify(b)]
    return count


def settle(b: AtomicBackend) -> None:
    """A server may still be at work on the last commit of a client that is dead."""
    before = -1
    while before != (now := last_seq(b, "s")):
        before = now
        time.sleep(0.05)


@contextmanager
def stopped(writer: Writer) -> Iterator[None]:
    writer.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        writer.signal(signal.SIGCONT)


def held_lock(*, times: int) -> Count:
    """A writer stopped in the middle of a commit keeps the others out for a time: they are told that nothing
    was written, and nothing was."""
    count = Count("stalls past the timeout", "the moment")
    place = place_of("sqlite", Path(tempfile.mkdtemp(prefix="strandline-stalls-")))
    with count.timed(), closing(SqliteBackend(place.target, busy_timeout_s=0.05)) as b:
        writer = Writer(place, SPAN)
        try:
            told = []
            for n in range(1, times + 1):
                writer.child.listen(until=writer.child.acknowledged + 1)
                with stopped(writer):
                    told.append(tell(b, n))
            count.add("done while another was stopped", told.count("done"))
            count.add("refused while another was stopped", told.count("refused"))
            writer.kill()
        finally:
            writer.end()
        if "refused" not in told:
            count.broken.append(
                "nobody was refused: no writer was stopped in its commit, and nothing was tried"
            )
        ours = [event.data["n"] for event in events(b, "s") if event.data["n"] <= SPAN]
        if ours != [n for n, what in enumerate(told, 1) if what == "done"]:
            count.broken.append(f"{len(ours)} are there of {told.count('done')} that were done")
        count.broken += [str(damage) for damage in verify(b)]
    return count


def tell(b: SqliteBackend, n: int) -> str:
    try:
        append_once(b, "s", f"key {n}", "t", n, {"n": n})
    except StoreUnavailable:
        return "refused"
    return "done"


def stopped_host(*, times: int) -> Count:
    """A host that stalls for longer than its client waits: the repeat has one effect."""
    count = Count("stalls of a host", "the moment")
    folder = Path(tempfile.mkdtemp(prefix="strandline-stalls-"))
    with (
        count.timed(),
        HostProcess(folder / "store.db") as host,
        closing(RemoteBackend(host.url, timeout_s=0.05, retries=0)) as b,
        closing(RemoteBackend(host.url)) as patient,
    ):
        append_once(patient, "s", "key 0", "t", 0, {"n": 0})
        for n in range(1, times + 1):
            os.kill(host.process.pid, signal.SIGSTOP)
            try:
                append_once(b, "s", f"key {n}", "t", n, {"n": n})
            except (OutcomeUnknown, StoreUnavailable) as error:
                count.add(f"told: {error.kind}")
            finally:
                os.kill(host.process.pid, signal.SIGCONT)
            append_once(patient, "s", f"key {n}", "t", n, {"n": n})
        found = [event.data["n"] for event in events(patient, "s")]
        if found != [*range(times + 1)]:
            count.broken.append(f"{len(found)} are there of {times + 1}")
        count.broken += [str(damage) for damage in verify(patient)]
    return count
