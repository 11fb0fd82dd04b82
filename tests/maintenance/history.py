"""A simulated table that has a history: snapshots that hold files, branches, expiry, with Iceberg's rules;
and retention's and compaction's ways to it. It keeps count of what it must never do."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final

from strandline.base.ranges import Range
from strandline.errors import NotFoundError, UnavailableError
from strandline.lake.metadata.iceberg import SnapshotGone
from strandline.lake.ports.prune import (
    Condition,
    Count,
    FileBounds,
    PrunePart,
    RowPlace,
    RowsToDelete,
    TableFiles,
    TimeColumn,
)
from strandline.lake.ports.rewrite import Bin, DataFile, Listing, MainMoved, Repeats, RewriteDiffers, Stretch
from strandline.lake.ports.snapshots import KnownSnapshot
from strandline.lake.ports.stage import BURNED, LandingSnapshots, Published, Staged
from strandline.rows.dataset import Dataset
from strandline.state.landing import FixedInput, FlushLanding, Landing
from tests.simulation import DATASET, SimTable, TableError, TableRow, World

ROW_BYTES: Final = 100
_END: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class File:
    """Rows of one source in one bucket of seqs, in order."""

    rows: tuple[TableRow, ...]
    snapshot: int

    @property
    def seqs(self) -> Range:
        return Range(self.rows[0].seq - 1, self.rows[-1].seq)


@dataclass(frozen=True, slots=True)
class Snapshot:
    id: int
    parent: int
    at: int
    files: tuple[File, ...]
    wap: str | None = None
    version: int = 0
    added: int = 0

    def rows(self) -> list[TableRow]:
        return [row for file in self.files for row in file.rows]


@dataclass(frozen=True, slots=True)
class Frame:
    """A DataFrame in small: its columns are known, and its rows are computed by whoever asks for them."""

    columns: tuple[str, ...]
    rows: Callable[[], list[dict[str, Any]]]

    def count(self) -> int:
        return len(self.rows())


class HistoryTable(SimTable):
    """`landed` is all that main ever had, `deleted` (by a purge `purged`) and `repeated` what it has no more,
    `gone_at` when it went, and `wrongs` what it was made to do against its promises: a row back, a row gone
    without a reason."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.snapshots: dict[int, Snapshot] = {}
        self.branches: dict[str, int] = {}
        self.main = 0
        self.pointer = 0
        self.landed: set[TableRow] = set()
        self.deleted: set[TableRow] = set()
        self.purged: set[TableRow] = set()
        self.repeated: set[TableRow] = set()
        self.gone_at: dict[TableRow, int] = {}
        self.wrongs: list[str] = []

    @property
    def rows(self) -> list[TableRow]:
        return self.snapshots[self.main].rows() if self.main else []

    @property
    def current(self) -> int:
        return self.main

    def ancestry(self, of: int) -> Iterator[Snapshot]:
        """Newest first, as far as it has not expired."""
        while found := self.snapshots.get(of):
            yield found
            of = found.parent

    def call(self, name: str, act: Callable[[], None]) -> None:
        """As the lake does: what goes wrong is an UnavailableError."""
        with _answering():
            self._call(name, act)

    def effect(self, name: str) -> None:
        self._world.effect(f"table.{name}")

    def deliver_late(self) -> None:
        with suppress(
            SnapshotGone
        ):  # a purge has expired what it began with, and nobody waits for the answer
            super().deliver_late()

    # Commits

    def snapshot_of(self, parent: int, files: Iterable[File], **facts: Any) -> Snapshot:
        """A new one that is neither main nor a branch yet; files of snapshot 0 are its own."""
        id_ = next(self._ids)
        own = tuple(File(file.rows, file.snapshot or id_) for file in files)
        made = Snapshot(id_, parent, self._world.now_us, own, **facts)
        self.snapshots[id_] = made
        self.pointer += 1
        return made

    def files_of(self, snapshot: int) -> tuple[File, ...]:
        return self.snapshots[snapshot].files if snapshot else ()

    def move(self, to: int, *, gone: set[TableRow] | None = None) -> None:
        """Main is another snapshot now. What it has no more are deleted rows, or else repeats."""
        before, after = set(self.rows), set(self.snapshots[to].rows())
        if back := after & (self.deleted | self.repeated):
            self.wrongs.append(f"rows are back: {sorted(back, key=_place)[:3]}")
        missing = before - after
        if gone is None:
            firsts = {(row.source, row.key): row.seq for row in sorted(after, key=_place, reverse=True)}
            for row in missing:
                if firsts.get((row.source, row.key), row.seq) >= row.seq:
                    self.wrongs.append(f"{row} went and repeats nothing")
            self.repeated |= missing
        else:
            if missing != gone:
                self.wrongs.append(f"{sorted(missing ^ gone, key=_place)[:3]}: not what was to go")
            self.deleted |= missing
        self.gone_at |= dict.fromkeys(missing, self._world.now_us)
        self.landed |= after
        self.main = to
        self.pointer += 1

    # Landing

    def stage(self, landing: Landing, *, settle: Any = None) -> None:
        rows = list(self._landing_rows(landing))
        if landing.dataset.dedupe_on_flush:
            rows = self._without_known(rows, landing)

        def act() -> None:
            files = [*self.files_of(self.main), *cut(rows, landing.dataset.seq_bucket)]
            facts = {"wap": landing.id, "version": landing.version, "added": len(rows)}
            self.snapshot_of(self.main, files, **facts)

        self._call("stage", act)

    def _landing_rows(self, landing: Landing) -> Iterator[TableRow]:
        """Of a load too it is told who brought it."""
        rows = super()._landing_rows(landing)
        if isinstance(landing, FlushLanding):
            yield from rows
        else:
            given = self.inputs.get(landing.input.table, ())
            yield from (replace(row, by=each.get("by") or "") for row, each in zip(rows, given, strict=False))

    def fix_input(
        self, df: Any, dataset: Dataset, load_id: str, *, source: str | None
    ) -> tuple[FixedInput, Dataset]:
        return super().fix_input(_computed(df), dataset, load_id, source=source)

    def columns_of(self, df: Any) -> dict[str, str]:
        return dict.fromkeys(df.columns, "any") if isinstance(df, Frame) else super().columns_of(df)

    def count_of(self, df: Any) -> int:
        return len(_computed(df))

    def look(self, dataset: str, id: str) -> LandingSnapshots:
        self.effect("look")
        if not self.is_made:
            raise NotFoundError("no table")
        history = {each.id: each for each in self.ancestry(self.main)}
        shown = next((each for each in history.values() if each.wap == id), None)
        staged = tuple(
            Staged(each.id, each.version, each.added, is_behind=each.parent != self.main)
            for each in self.snapshots.values()
            if each.wap == id and each.id not in history
        )
        published = None if shown is None else Published(shown.id, shown.version, shown.added, 0, 1)
        return LandingSnapshots(published, staged)

    def _pick(self, snapshot: int) -> None:
        found = self.snapshots.get(snapshot)
        if found is None:
            raise TableError("no such snapshot")
        if any(each.wap == found.wap for each in self.ancestry(self.main)):
            self.refused += 1
            raise TableError("duplicate WAP commit")
        if found.parent != self.main:
            own = (File(file.rows, 0) for file in found.files if file.snapshot == found.id)
            files = [*self.files_of(self.main), *own]
            facts = {"wap": found.wap, "version": found.version, "added": found.added}
            found = self.snapshot_of(self.main, files, **facts)
        self.move(found.id, gone=set())

    def burn(self, dataset: str, id: str) -> None:
        self.effect("burn")
        if not any(each.wap == id for each in self.ancestry(self.main)):
            made = self.snapshot_of(self.main, self.files_of(self.main), wap=id, version=BURNED)
            self.move(made.id, gone=set())


def _computed(df: Any) -> Any:
    return df.rows() if isinstance(df, Frame) else df


@contextmanager
def _answering() -> Iterator[None]:
    try:
        yield
    except TableError as error:
        raise UnavailableError(str(error), hint="later") from error


def _place(row: TableRow) -> tuple[str, int]:
    return row.source, row.seq


def cut(rows: Iterable[TableRow], seq_bucket: int) -> Iterator[File]:
    """Files of new rows."""
    ordered = sorted(rows, key=_place)
    for _, group in groupby(ordered, lambda row: (row.source, row.seq // seq_bucket)):
        yield File(tuple(group), 0)


# Retention


class SimUpkeep:
    """See Upkeep."""

    def __init__(self, table: HistoryTable) -> None:
        self._table = table

    def pointers(self) -> Mapping[str, str]:
        return {DATASET: str(self._table.pointer)} if self._table.is_made else {}

    def files(self, dataset: str, times: Sequence[TimeColumn] = ()) -> TableFiles:
        table = self._table
        table.effect("bounds")
        bounds = (_bounds(file) for file in table.files_of(table.main))
        return TableFiles(str(table.pointer), tuple(bounds), frozenset({"key"}))

    def first_rows(self, dataset: str, count: int, among: RowsToDelete | None = None) -> RowPlace | None:
        self._table.effect("first")
        rows = [row for row in self._table.rows if among is None or is_doomed(row, among)]
        places = sorted(RowPlace(row.at, row.source, row.seq) for row in rows)[:count]
        return places[-1] if places else None

    def count(self, dataset: str, doomed: RowsToDelete, bands: Mapping[str, Sequence[Range]]) -> list[Count]:
        self._table.effect("count")
        rows = [row for row in self._table.rows if is_doomed(row, doomed)]
        counts = []
        for source in sorted({row.source for row in rows}):
            for band in bands.get(source, [Range(0, _END)]):
                some = [row for row in rows if row.source == source and row.seq in band]
                if some:
                    seqs = Range(min(row.seq for row in some) - 1, max(row.seq for row in some))
                    flushes = Range(min(row.flush for row in some) - 1, max(row.flush for row in some))
                    counts.append(Count(source, band, len(some), seqs, flushes))
        return counts

    def delete(self, dataset: str, doomed: RowsToDelete) -> None:
        table = self._table

        def act() -> None:
            """In both its forms: by the seqs of each strand, and by the flush number where that is told."""
            gone = {row for row in table.rows if is_doomed(row, doomed)}
            if gone != {row for row in table.rows if is_doomed(row, doomed, by_flush=True)}:
                table.wrongs.append("a flush number does not say the same as seqs")
            files = []
            for file in table.files_of(table.main):
                left = tuple(row for row in file.rows if row not in gone)
                if left:
                    files.append(file if left == file.rows else File(left, 0))
            if gone:
                table.move(table.snapshot_of(table.main, files).id, gone=gone)

        table.call("delete", act)


def _bounds(file: File) -> FileBounds:
    times = [row.at for row in file.rows]
    source, count = file.rows[0].source, len(file.rows)
    return FileBounds((source, source), file.seqs, (min(times), max(times)), (), count, ROW_BYTES * count)


def is_doomed(row: TableRow, doomed: RowsToDelete, *, by_flush: bool = False) -> bool:
    return any(_holds(row, part.condition) and _is_of(row, part, by_flush) for part in doomed.parts)


def _is_of(row: TableRow, part: PrunePart, by_flush: bool) -> bool:
    if by_flush and part.through is not None:
        return row.source in part.strands and row.flush <= part.through
    return row.source in part.strands and row.seq in part.strands[row.source]


def _holds(row: TableRow, condition: Condition) -> bool:
    place = RowPlace(row.at, row.source, row.seq)
    is_old = condition.older_than is not None and row.at < condition.older_than
    is_first = condition.first is not None and place <= condition.first
    is_within = condition.within is None or place <= condition.within
    return row.at < condition.taken_before and (is_old or is_first) and is_within


# Compaction


class SimRewriter:
    """See Rewriter."""

    def __init__(self, table: HistoryTable, seq_bucket: int) -> None:
        self._table, self._seq_bucket = table, seq_bucket

    def pointer(self, dataset: str) -> str | None:
        return str(self._table.pointer) if self._table.is_made else None

    def files(self, dataset: Dataset, *, snapshot: int | None = None) -> Listing:
        table = self._table
        table.effect("files")
        if snapshot is not None:
            self._there(snapshot)
        at = table.main if snapshot is None else snapshot
        files = tuple(self._told(file) for file in table.files_of(at))
        return Listing(str(table.pointer), at or None, files, len(table.snapshots))

    def branches(self, dataset: str) -> dict[str, int]:
        self._table.effect("branches")
        return dict(self._table.branches)

    def _told(self, file: File) -> DataFile:
        count = len(file.rows)
        return DataFile(self._bin(file), file.seqs.lo, file.seqs.hi, count, ROW_BYTES * count, file.snapshot)

    def _bin(self, file: File) -> Bin:
        first = file.rows[0]
        return Bin(first.source, first.seq - first.seq % self._seq_bucket)

    def ancestry(self, dataset: str, snapshot: int | None = None) -> list[int]:
        self._table.effect("ancestry")
        return [each.id for each in self._table.ancestry(snapshot or self._table.main)]

    def repeats(self, dataset: Dataset, base: int, asked: Sequence[Stretch]) -> list[Repeats]:
        self._table.effect("repeats")
        found = self._repeated(base, asked)
        bucket = self._seq_bucket
        return [
            Repeats(source, first, min(seqs) - 1, max(seqs), len(seqs))
            for (source, first), group in groupby(
                sorted(found, key=_place), lambda row: (row.source, row.seq - row.seq % bucket)
            )
            if (seqs := [row.seq for row in group])
        ]

    def _repeated(self, base: int, asked: Sequence[Stretch]) -> set[TableRow]:
        """Rows of the stretches, up to V, that repeat one with a lower seq among those that are looked at."""
        rows = sorted(self._there(base).rows(), key=_place)
        looked = [row for row in rows if any(self._is_looked_at(row, each) for each in asked)]
        lowest: dict[tuple[str, str], int] = {}
        for row in looked:
            lowest.setdefault((row.source, row.key), row.seq)
        return {
            row
            for row in looked
            if row.seq > lowest[row.source, row.key]
            and any(self._is_in(row, each) and row.seq <= each.visible for each in asked)
        }

    def _there(self, snapshot: int) -> Snapshot:
        if snapshot not in self._table.snapshots:
            raise SnapshotGone(DATASET, snapshot)
        return self._table.snapshots[snapshot]

    def _is_in(self, row: TableRow, each: Stretch) -> bool:
        first = row.seq - row.seq % self._seq_bucket
        return (row.source, first) == each.bin and each.lo < row.seq <= each.hi

    def _is_looked_at(self, row: TableRow, each: Stretch) -> bool:
        first = each.bin.first if each.since else 0
        is_near = first <= row.seq < each.bin.first + self._seq_bucket
        return row.source == each.bin.place and is_near and each.since < row.seq <= min(each.hi, each.visible)

    def branch(self, dataset: str, name: str, base: int) -> None:
        table = self._table

        def act() -> None:
            if name in table.branches or base not in table.snapshots:
                raise TableError("there is such a branch, or no such snapshot")
            table.branches[name] = base
            table.pointer += 1

        table.call("branch", act)

    def remove_repeats(self, dataset: Dataset, branch: str, base: int, asked: Sequence[Stretch]) -> None:
        def act() -> None:
            gone = self._repeated(base, asked)
            files = []
            for file in self._table.files_of(self._head(branch)):
                left = tuple(row for row in file.rows if row not in gone)
                if left:
                    files.append(file if left == file.rows else File(left, 0))
            self._commit(branch, files)

        self._table.call("repeats", act)

    def rewrite(self, dataset: Dataset, branch: str, asked: Sequence[Stretch], *, target_bytes: int) -> None:
        def act() -> None:
            files = list(self._table.files_of(self._head(branch)))
            for each in asked:
                taken = [file for file in files if all(self._is_in(row, each) for row in file.rows)]
                rows = [row for file in taken for row in file.rows]
                files = [file for file in files if file not in taken]
                files += cut(rows, self._seq_bucket)
            self._commit(branch, files)

        self._table.call("rewrite", act)

    def _head(self, branch: str) -> int:
        if branch not in self._table.branches:
            raise TableError("no such branch")
        return self._table.branches[branch]

    def _commit(self, branch: str, files: Iterable[File]) -> None:
        self._table.branches[branch] = self._table.snapshot_of(self._head(branch), files).id

    def check(
        self, dataset: Dataset, base: int, head: int, asked: Sequence[Stretch], *, has_repeats: bool
    ) -> None:
        self._table.effect("check")
        gone = self._repeated(base, asked) if has_repeats else set()
        before, after = (
            [row for row in self._there(each).rows() if any(self._is_in(row, s) for s in asked)]
            for each in (base, head)
        )
        wanted = sorted((row for row in before if row not in gone), key=_place)
        if wanted != sorted(after, key=_place):
            raise RewriteDiffers(dataset.name, len(after), len(wanted))

    def land(self, dataset: str, branch: str, base: int) -> None:
        table = self._table

        def act() -> None:
            head = self._head(branch)
            if table.main not in [each.id for each in table.ancestry(head)]:
                raise TableError("main is no ancestor of the branch")
            if head != table.main:
                table.move(head)

        try:
            table.call("land", act)
        except UnavailableError as error:
            if self.ancestry(dataset)[:1] != [base]:
                raise MainMoved(dataset) from error
            raise

    def drop(self, dataset: str, branch: str) -> None:
        table = self._table

        def act() -> None:
            if table.branches.pop(branch, None) is not None:
                table.pointer += 1

        table.call("drop", act)

    def snapshots(self, dataset: str) -> list[KnownSnapshot]:
        table = self._table
        table.effect("snapshots")
        current = {each.id for each in table.ancestry(table.main)}
        heads = set(table.branches.values())
        named = heads | {each.id for head in heads for each in table.ancestry(head) if each.id not in current}
        return [
            KnownSnapshot(each.id, each.at, each.wap, each.id in current, each.id in named)
            for each in sorted(table.snapshots.values(), key=lambda each: (each.at, each.id))
        ]

    def expire(self, dataset: str, ids: Iterable[int]) -> None:
        table, doomed = self._table, [*ids]

        def act() -> None:
            if {table.main, *table.branches.values()} & set(doomed):
                raise TableError("it is still named")
            for each in doomed:
                table.snapshots.pop(each, None)
            table.pointer += 1

        table.call("expire", act)

    def remove_orphans(self, dataset: str) -> int:
        self._table.effect("orphans")
        return 0
