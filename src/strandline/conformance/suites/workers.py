"""Many at once: threads over one backend, processes over one store, and one that is killed while it writes.

The functions that run in other processes are here, since those import them by name.
"""

import os
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, TypeAlias, TypeVar

from strandline.conformance.check import CaseFailed
from strandline.conformance.fixture import BackendFixture, Opener
from strandline.conformance.forked_processes import nursery
from strandline.persist import (
    OutcomeUnknown,
    StoreUnavailable,
    append,
    append_batch,
    append_expect,
    append_once,
    commit,
    compact,
    consumer,
    gappend,
    is_conflict,
    kv_put_new,
    kv_update,
    last_seq,
    poll,
)
from strandline.persist.backend import Append, Backend, ExpectKey, Put
from strandline.persist.event import ABSENT
from strandline.persist.features.consumer import MoveCursor

Result = TypeVar("Result")
Job: TypeAlias = Callable[..., Any]

_PATIENCE_S = 120.0


def in_threads(n: int, work: Callable[[int], Result]) -> list[Result]:
    """`work(0)` to `work(n - 1)`, started together; the results in that order."""
    results: dict[int, Result] = {}
    errors: list[BaseException] = []
    together = threading.Barrier(n)

    def run(index: int) -> None:
        try:
            together.wait(_PATIENCE_S)
            results[index] = work(index)
        except BaseException as error:  # noqa: BLE001  # whatever it is, it is reported
            errors.append(error)

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_PATIENCE_S)
    if errors:
        raise errors[0]
    if len(results) < n:
        raise CaseFailed(f"{n} threads to finish", f"{len(results)} did in {_PATIENCE_S:g} s")
    return [results[index] for index in range(n)]


def in_processes(f: BackendFixture, job: Job, n: int, *args: Any) -> list[Any]:
    """`job(b, index, *args)` in `n` processes, each with a backend of its own on the present store."""
    context = nursery()
    pipes, processes = [], []
    try:
        for index in range(n):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_run_job, args=(os.getpgrp(), f.opener(), job, index, args, theirs)
            )
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        for pipe in pipes:
            _take(pipe)  # each is ready
        for pipe in pipes:
            pipe.send("go")
        return [_take(pipe) for pipe in pipes]
    finally:
        for process in processes:
            process.join(5)
            process.kill()
            process.join()


def _run_job(
    group: int, opener: Opener, job: Job, index: int, args: tuple[Any, ...], pipe: Connection
) -> None:
    os.setpgid(0, group)  # whoever ends the suite ends this as well
    try:
        b = opener()
        last_seq(b, "ready")
        pipe.send(("ready", None))
        pipe.recv()
        pipe.send(("done", job(b, index, *args)))
    except Exception as error:  # noqa: BLE001  # whatever it is, it is reported
        pipe.send(("failed", "".join(traceback.format_exception(error))))


def _take(pipe: Connection) -> Any:
    if not pipe.poll(_PATIENCE_S):
        raise CaseFailed("a process to answer", f"nothing in {_PATIENCE_S:g} s")
    try:
        kind, value = pipe.recv()
    except EOFError:
        raise CaseFailed("a process to answer", "it ended") from None
    if kind == "failed":
        raise CaseFailed("the work of another process to succeed", value)
    return value


class Writer:
    """A process that writes without end and reports each acknowledged write."""

    def __init__(self, f: BackendFixture, job: Job) -> None:
        context = nursery()
        self._acks, theirs = context.Pipe(duplex=False)
        self._process = context.Process(target=_write, args=(os.getpgrp(), f.opener(), job, theirs))
        self._process.start()
        theirs.close()
        self.acknowledged: list[Any] = []

    def wait_for(self, n: int) -> None:
        """Until `n` more writes are acknowledged."""
        wanted = len(self.acknowledged) + n
        while len(self.acknowledged) < wanted:
            if not self._acks.poll(_PATIENCE_S):
                raise CaseFailed(
                    f"{wanted} acknowledged writes", f"{len(self.acknowledged)} in {_PATIENCE_S:g} s"
                )
            try:
                self._receive()
            except EOFError:
                raise CaseFailed(
                    f"{wanted} acknowledged writes", f"it ended after {len(self.acknowledged)}"
                ) from None

    def kill(self) -> list[Any]:
        """SIGKILL, and everything that was acknowledged before it."""
        self._process.kill()
        self._process.join()
        try:
            while True:
                self._receive()
        except EOFError:
            return self.acknowledged

    def _receive(self) -> None:
        ack = self._acks.recv()
        if isinstance(ack, str):
            raise CaseFailed("the writes of another process to succeed", ack)
        self.acknowledged.append(ack)


@contextmanager
def writing(f: BackendFixture, job: Job) -> Iterator[Writer]:
    writer = Writer(f, job)
    try:
        yield writer
    finally:
        writer.kill()


def _write(group: int, opener: Opener, job: Job, acks: Connection) -> None:
    """A write whose outcome is unknown, or that was refused because the host is gone, is not acknowledged."""
    os.setpgid(0, group)
    try:
        b = opener()
        for ack in job(b):
            acks.send(ack)
    except (OutcomeUnknown, StoreUnavailable):
        return
    except Exception as error:  # noqa: BLE001  # whatever it is, it is reported
        acks.send("".join(traceback.format_exception(error)))


# What many processes do to one store


def append_many(b: Backend, index: int, stream: str, n: int) -> list[int]:
    return [append(b, stream, "added", i, {"by": index, "i": i}).seq for i in range(n)]


def append_blocks(b: Backend, index: int, stream: str, n: int, size: int) -> None:
    for block in range(n):
        append_batch(b, stream, [("added", i, {"by": index, "block": block}) for i in range(size)])


def increment_many(b: Backend, _index: int, key: str, n: int) -> None:
    for _ in range(n):
        kv_update(b, key, 0, lambda value: value + 1)


def claim_marks(b: Backend, index: int, stream: str, through: int) -> list[int]:
    """Try to write each mark once; those that were won."""
    won = []
    for mark in range(through):
        while last_seq(b, stream) < mark:
            append_expect(b, stream, last_seq(b, stream), "filler", 0, {"by": index})
        outcome = append_expect(b, stream, mark, "claimed", 0, {"by": index})
        if not is_conflict(outcome):
            won.append(mark)
    return won


def append_once_each(b: Backend, index: int, stream: str, keys: list[str]) -> list[int]:
    return [append_once(b, stream, key, "added", index, {"key": key}).seq for key in keys]  # type: ignore[union-attr]  # equal data never conflicts


def gappend_many(b: Backend, index: int, n: int) -> None:
    for i in range(n):
        gappend(b, f"s-{index}", "added", i, {"i": i})


def put_new_each(b: Backend, index: int, keys: list[str]) -> list[str]:
    return [key for key in keys if not is_conflict(kv_put_new(b, key, index))]


def await_event(b: Backend, _index: int, stream: str) -> list[int]:
    return [event.seq for event in poll(consumer(b, "waiter", stream), timeout_s=60)]


# What a process does until it is killed; each yields what was acknowledged


def append_for_ever(b: Backend) -> Iterator[int]:
    for i in range(1_000_000):
        yield append(b, "s", "added", i, {"n": i + 1, "fill": "x" * (i % 997)}).seq


def append_blocks_for_ever(b: Backend) -> Iterator[int]:
    for block in range(1_000_000):
        yield append_batch(b, "s", [("added", i, {"block": block}) for i in range(7)])[-1].seq


def commit_for_ever(b: Backend) -> Iterator[int]:
    """Two streams, a key and a position that move together."""
    for i in range(1, 1_000_000):
        made: list[Any] = [
            Append("left", "t", i, {"n": i}, globally=True),
            Append("right", "t", i, {}),
            Put("n", i),
        ]
        commit(b, [ExpectKey("n", i - 1 if i > 1 else ABSENT)], made)
        yield i


def append_once_for_ever(b: Backend) -> Iterator[int]:
    for i in range(1, 1_000_000):
        append_once(b, "s", f"key-{i}", "added", i, {"n": i})
        yield i


def increment_for_ever(b: Backend) -> Iterator[int]:
    for _ in range(1_000_000):
        yield kv_update(b, "n", 0, lambda value: value + 1)


def compact_for_ever(b: Backend) -> Iterator[int]:
    for i in range(1, 1_000_000):
        append(b, "s", "added", i, {"n": i})
        if i % 5 == 0:
            compact(b, "s", "total", _total, 0)
        yield i


def consume_for_ever(b: Backend) -> Iterator[int]:
    """Each event of `in` gives one of `out`, in the commit that moves the cursor."""
    c = consumer(b, "worker", "in")
    for i in range(1, 1_000_000):
        append(b, "in", "added", i, {"n": i})
        for event in poll(c):
            commit(b, [], [Append("out", "made", event.at, {"n": event.data["n"]}), MoveCursor(c, event.seq)])
        yield i


def _total(value: Any, event: Any) -> Any:
    return value + event.data["n"]
