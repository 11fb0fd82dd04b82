"""What a store is doing when its disk fails: short runs of steps, and every state that they come by.

Each step runs on the store under test and on the in-memory reference, which notes what a reader sees after
each of its commits. So for any moment it is known which states are right: the one after the last step that
was acknowledged, and those that the step under way may have reached.
"""

import atexit
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeAlias

import apsw

from strandline.conformance.suites.given import total
from strandline.conformance.suites.histories import state_of
from strandline.errors import StrandlineError
from strandline.persist import (
    ABSENT,
    Append,
    AtomicBackend,
    Conflict,
    Delete,
    Event,
    ExpectKey,
    ExpectSeq,
    MoveCursor,
    Put,
    Truncate,
    ack,
    append,
    append_batch,
    append_batch_once,
    append_expect,
    append_once,
    backup,
    checkpoint,
    commit,
    compact,
    consumer,
    erase_stream,
    global_trim,
    hold,
    kv_cas,
    kv_put,
    kv_update,
    last_seq,
    once_forget,
    redact,
    restore,
    truncate_through,
)
from strandline.persist.backend import Backend, Commit, Expectation, Gathering, Once, Outcome, Record, Write
from strandline.persist.backends.memory import MemoryBackend
from strandline.persist.backends.sqlite import SqliteBackend, backend
from strandline.persist.core.lift import atomic
from tests.faults.disk import scratch_folder

# Pages a checkpoint, instead of thousands, so that some come in the middle of a short run: after each commit
# or two, or with commits in the log that are not in the file yet.
OFTEN: Final = 6
SOMETIMES: Final = 16
NEVER: Final = 0  # SQLite's own pace: the log only grows, and is emptied when the store is closed
PACES: Final = {OFTEN: "many checkpoints", SOMETIMES: "some checkpoints", NEVER: "no checkpoints"}
PROBE: Final = "probe"  # the stream of a commit that is made after a fault
SWEEP_ROWS: Final = 10  # a sweep and a restore go in several steps, as large ones do
LARGE: Final = "x" * 20_000  # five pages


def seen_in(b: Backend) -> dict[str, Any]:
    """All that a reader can see; the lineage that cursors carry, which is random, is left out."""
    state = state_of(b)
    return {**state, "keys": repr(state["keys"]).replace(atomic(b).info()["lineage"], "lineage")}


def without_probe(found: dict[str, Any]) -> dict[str, Any]:
    """The same without the one event of the stream PROBE."""
    streams, events = found["counts"]
    named = {
        part: {name: of for name, of in found[part].items() if name != PROBE} for part in ("streams", "holds")
    }
    return {**found, **named, "counts": (streams - 1, events - 1)}


class Reference(MemoryBackend):
    """The reference, which notes what a reader sees after each commit."""

    def __init__(self) -> None:
        super().__init__()
        self.states = [seen_in(self)]

    def commit(
        self, preconditions: Sequence[Expectation], writes: Sequence[Write], *, once: Once | None = None
    ) -> Outcome:
        outcome = super().commit(preconditions, writes, once=once)
        self.states.append(seen_in(self))
        return outcome

    def commit_each(self, commits: Sequence[Commit]) -> list[Outcome | Exception]:
        """In one transaction: what is between two of them is nothing that a crash may leave."""
        before = len(self.states)
        outcomes: list[Outcome | Exception] = [
            self.commit(preconditions, writes, once=once) for preconditions, writes, once in commits
        ]
        del self.states[before:-1]
        return outcomes

    def append(self, stream: str, event: Event) -> int:
        seq = super().append(stream, event)
        self.states.append(seen_in(self))
        return seq

    def truncate_through(self, stream: str, n: int) -> None:
        super().truncate_through(stream, n)
        self.states.append(seen_in(self))

    def kv_put(self, key: str, value: Any) -> None:
        super().kv_put(key, value)
        self.states.append(seen_in(self))

    def kv_delete(self, key: str) -> None:
        super().kv_delete(key)
        self.states.append(seen_in(self))

    def load(self, records: Iterable[Record]) -> Mapping[str, int]:
        counts = super().load(records)
        self.states.append(seen_in(self))
        return counts


class Bench:
    """The store that a run is on, in a folder; it can be closed and opened again."""

    def __init__(self, folder: Path | None, *, checkpoints: int = OFTEN, synchronous: str = "FULL") -> None:
        self.folder, self.checkpoints, self.synchronous = folder, checkpoints, synchronous
        self.backups: list[str] = []
        self.b: AtomicBackend = Reference()
        backend.SWEEP_ROWS = SWEEP_ROWS  # type: ignore[misc]
        if folder is not None:
            self.b = self._opened()

    def _opened(self) -> SqliteBackend:
        assert self.folder is not None
        opened = SqliteBackend(self.folder / "store.db", busy_timeout_s=1, synchronous=self.synchronous)
        if self.checkpoints:
            opened._writer.pragma("wal_autocheckpoint", self.checkpoints)
        return opened

    def reopen(self) -> None:
        if self.folder is not None:
            self.b.close()
            self.b = self._opened()

    def back_up(self, name: str) -> None:
        """Into a file beside the store."""
        if self.folder is not None:
            backup(self.b, self.folder / name)
        self.backups.append(name)

    def scrub(self) -> None:
        self.b.scrub()

    def rewrite(self) -> None:
        self.b.scrub(rewrite=True)

    def is_copied(self) -> bool:
        """Whether all of the log is in the file by now, as SQLite counts it."""
        assert isinstance(self.b, SqliteBackend)
        [(_, all_, copied)] = self.b._writer.execute("PRAGMA wal_checkpoint(NOOP)").fetchall()
        return bool(all_ == copied)

    def revive(self) -> None:
        """As `reopen`, but the log stays where it is, as a process leaves it that is killed."""
        if isinstance(self.b, SqliteBackend):
            self.b._writer.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        self.reopen()


Step: TypeAlias = Callable[[Bench], object]
# Once these are done, what was in the log is in the file.
SETTLING: Final[tuple[Step, ...]] = (Bench.reopen, Bench.scrub, Bench.rewrite)


def on(call: Callable[..., object], *arguments: Any, **options: Any) -> Step:
    """The step that makes this call on the store."""
    return lambda bench: call(bench.b, *arguments, **options)


def appends() -> Iterator[Step]:
    for n in range(6):
        yield on(append, "ab"[n % 2], "t", n, {"n": n})


def batches() -> Iterator[Step]:
    for n in range(4):
        specs = [("t", n, {"n": n, "text": "y" * 900})] * 9
        yield on(append_batch, "s", specs, globally=True)


def large_values() -> Iterator[Step]:
    for n in range(3):
        yield on(append, "s", "t", n, {"n": n, "text": LARGE})
        yield on(kv_put, "k", {"n": n, "text": LARGE})


def units() -> Iterator[Step]:
    """Two streams, the global order and two keys in one commit."""
    for n in range(4):
        writes = [
            Append("left", "t", n, {"n": n}, globally=True),
            Put("k", n),
            Append("right", "t", n, {"n": n}, globally=True),
            Delete("gone") if n % 2 else Put("gone", n),
        ]
        yield on(commit, [ExpectSeq("left", n)], writes)


def groups() -> Iterator[Step]:
    """Commits of several callers in one transaction; each second one is refused for the one before it."""
    for n in range(4):
        yield on(
            together,
            ([ExpectSeq("a", n)], [Append("a", "t", n, {"n": n}, globally=True), Put("n", n)], None),
            ([ExpectSeq("a", n)], [Append("a", "t", n, {"n": n}), Put("n", "refused")], None),
            ([], [Append("b", "t", n, {"n": n, "text": "g" * 900})], ("b", f"key {n}")),
            ([ExpectKey("n", "refused")], [Put("k", "refused")], None),
            ([], [Put("k", n)], None),
        )


def together(b: AtomicBackend, *commits: Commit) -> None:
    """All in one group. Where it fails, nobody in it may have been told of an outcome, nor of a conflict."""
    assert isinstance(b, Gathering)
    outcomes = b.commit_each(commits)
    errors = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    if errors:
        assert len(errors) == len(outcomes), f"of one group some were answered, and some not: {outcomes}"
        raise errors[0]
    assert [isinstance(outcome, Conflict) for outcome in outcomes] == [False, True, False, True, False]


def expectations() -> Iterator[Step]:
    for n in range(4):
        yield on(append_expect, "s", n, "t", n, {"n": n})
        yield on(append_expect, "s", 99, "t", 0, {"n": 0})


def keys() -> Iterator[Step]:
    yield on(kv_cas, "k", ABSENT, 0)
    for n in range(4):
        yield on(kv_cas, "k", n, n + 1)
        yield on(kv_update, "n", 0, lambda value: value + 1)
    yield on(commit, [ExpectKey("k", 4)], [Delete("k")])


def repeats() -> Iterator[Step]:
    for n in range(4):
        yield on(append_once, "s", f"key {n}", "t", n, {"n": n}, globally=True)
        yield on(append_once, "s", f"key {n}", "t", n + 1, {"n": n}, globally=True)
    yield on(append_batch_once, "s", "block", [("t", 1, {"n": 1})] * 5)
    yield on(once_forget, "s", 2)


def truncations() -> Iterator[Step]:
    for n in range(3):
        yield on(append_batch, "s", [("t", 1, {"n": 1, "text": "z" * 500})] * 12)
        yield on(truncate_through, "s", 12 * n + 6)
    yield lambda bench: truncate_through(bench.b, "s", last_seq(bench.b, "s"))
    yield on(append, "s", "t", 2, {"n": 2})


def compactions() -> Iterator[Step]:
    yield on(hold, "s", "h", 5)
    for n in range(3):
        yield on(append_batch, "s", [("t", n, {"n": n})] * 6, globally=True)
        yield on(compact, "s", "snap", total, 0)
    yield on(checkpoint, "s", "snap", total, 0)
    yield on(global_trim, 4)


def erasures() -> Iterator[Step]:
    yield on(append_batch, "s", [("t", n, {"n": n, "p": "secret"}) for n in range(5)])
    yield on(append_once, "s", "key", "t", 1, {"n": 1, "p": "secret"})
    yield on(redact, "s", 2, ["p"], 7, reason="asked to")
    yield on(erase_stream, "s", 8, reason="asked to")
    yield on(append, "s", "t", 9, {"n": 9})


def cursors() -> Iterator[Step]:
    yield on(append_batch, "s", [("t", n, {"n": n}) for n in range(6)])
    yield on(consumer, "reader", "s", start=0)
    for n in (1, 3):
        yield on(acknowledge, n)
    yield lambda bench: commit(bench.b, [], [MoveCursor(consumer(bench.b, "reader", "s"), 5), Put("sum", 15)])


def acknowledge(b: AtomicBackend, seq: int) -> None:
    ack(consumer(b, "reader", "s"), seq)


def rewrites() -> Iterator[Step]:
    """VACUUM writes the whole file anew; a scrub empties the log."""
    yield on(append_batch, "s", [("t", 1, {"n": 1, "text": "w" * 700})] * 12)
    yield on(commit, [], [Truncate("s", 9), Put("k", 1)])
    yield Bench.rewrite
    yield on(append, "s", "t", 2, {"n": 2})
    yield Bench.scrub
    yield on(append, "s", "t", 3, {"n": 3})


def reopenings() -> Iterator[Step]:
    for n in range(3):
        yield on(append, "s", "t", n, {"n": n}, globally=True)
        yield Bench.reopen
    yield on(truncate_through, "s", 3)
    yield Bench.reopen
    yield on(append, "s", "t", 9, {"n": 9})


def left_logs() -> Iterator[Step]:
    """The first to commit to a store with a log writes that again; here it is a commit or a conflict."""
    yield on(append_batch, "s", [("t", 0, {"n": 0, "text": "l" * 700})] * 12)
    for n in range(1, 3):
        yield Bench.revive
        yield on(append, "s", "t", n, {"n": n})
    yield Bench.revive
    yield on(append_expect, "s", 99, "t", 0, {"n": 0})
    yield Bench.reopen
    yield on(truncate_through, "s", 6)
    yield Bench.revive
    yield on(append, "s", "t", 9, {"n": 9})


def backups() -> Iterator[Step]:
    for n in range(2):
        yield on(append_batch, "s", [("t", n, {"n": n, "text": "b" * 500})] * 12, globally=True)
        yield backed_up(f"backup {n}.db")
    yield on(truncate_through, "s", 20)
    yield backed_up("backup 2.db")


def backed_up(name: str) -> Step:
    return lambda bench: bench.back_up(name)


def restores() -> Iterator[Step]:
    path = filled_file()
    yield on(restore, path)
    yield on(append, "s", "t", 9, {"n": 9})


@cache
def filled_file() -> Path:
    """A backup with a little of everything, in several chunks of a restore."""
    folder = scratch_folder()
    atexit.register(shutil.rmtree, folder)
    with closing(MemoryBackend()) as b:
        append_batch(b, "s", [("t", n, {"n": n, "text": "r" * 300}) for n in range(25)], globally=True)
        append_once(b, "a", "key", "t", 1, {"n": 1, "text": LARGE})
        commit(b, [], [Put(f"key {n}", {"n": n}) for n in range(12)])
        truncate_through(b, "s", 3)
        backup(b, folder / "filled.db")
    return folder / "filled.db"


def names() -> Iterator[Step]:
    """Many streams, types and keys: pages and indexes split."""
    for n in range(3):
        writes: list[Write] = [
            Append(f"stream {n} {i} {'n' * 200}", f"type {i} {'n' * 100}", i, {"n": i}) for i in range(12)
        ]
        writes += [Put(f"key {n} {i} {'k' * 200}", i) for i in range(12)]
        yield on(commit, [], writes)


WORKLOADS: Final[dict[str, Callable[[], Iterator[Step]]]] = {
    run.__name__: run
    for run in (
        appends, batches, large_values, units, groups, expectations, keys, repeats, truncations, compactions,
        erasures, cursors, rewrites, reopenings, left_logs, backups, restores, names,
    )
}  # fmt: skip
UNCHECKED: Final = (
    "appends",
    "batches",
    "truncations",
    "reopenings",
    "left_logs",
    "units",
    "groups",
    "compactions",
)
FULLER: Final = ("large_values", "batches", "names")
# Here a step is more than its commits: an erasure removes the bytes after them, a compaction looks for holds
# between them, a restore reads what it has written. Where that fails it says so, and is finished by a repeat
# (P-ERA-1, P-CMP-8), or is looked at (P-OPS-2).
OF_PARTS: Final = ("erasures", "compactions", "restores")
RUNS: Final = [
    *((name, OFTEN) for name in WORKLOADS),
    *((name, SOMETIMES) for name in FULLER),
    *((name, NEVER) for name in UNCHECKED),
]


@dataclass(frozen=True, slots=True)
class Course:
    """The states of a run: after the first `n` steps the reader sees `states[marks[n]]`."""

    states: list[dict[str, Any]]
    marks: list[int]
    has_parts: bool = False
    backups: dict[str, int] = field(default_factory=dict)  # the step that made each

    def is_one_commit(self, acked: int) -> bool:
        """Whether the step after those is one commit and nothing else."""
        if self.has_parts or acked + 1 == len(self.marks):
            return False
        return self.marks[acked + 1] == self.marks[acked] + 1

    def allows(self, found: dict[str, Any], acked: int, *, at_least: int | None = None) -> bool:
        """Whether a reader may see this when `acked` steps were acknowledged, and one more may be on its
        way; those after `at_least` may be gone."""
        last = self.marks[min(acked + 1, len(self.marks) - 1)]
        first = self.marks[acked if at_least is None else at_least]
        return found in self.states[first : last + 1]

    def is_after(self, found: dict[str, Any], acked: int) -> bool:
        """Whether this is what `acked` steps left, and nothing of the next."""
        return found == self.states[self.marks[acked]]

    def fault_of_backups(self, folder: Path, acked: int) -> str | None:
        """What is wrong with the backups in this folder: one that is there is whole, and one that was
        acknowledged is there."""
        for name, number in self.backups.items():
            if not (folder / name).exists():
                if number <= acked:
                    return f"{name}, made by step {number}, is gone after {acked} acknowledged steps"
                continue
            try:
                with closing(SqliteBackend(folder / name, create=False, read_only=True)) as copy:
                    found, damage = seen_in(copy), copy.verify()
            except StrandlineError as error:
                return f"{name} cannot be read: {error}"
            if damage or not self.is_after(found, number):
                return f"{name} is not what step {number} found: {damage or str(found)[:300]}"
        return None


def course_of(workload: str) -> Course:
    bench = Bench(None)
    assert isinstance(bench.b, Reference)
    marks, backups = [0], dict[str, int]()
    for number, step in enumerate(WORKLOADS[workload](), 1):
        step(bench)
        marks.append(len(bench.b.states) - 1)
        backups |= {name: number for name in bench.backups if name not in backups}
    return Course(bench.b.states, marks, has_parts=workload in OF_PARTS, backups=backups)
