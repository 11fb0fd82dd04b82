"""Purge: rows go wherever this node has them, and it is told where they went before.

    flush       what is pending lands first: segments are never edited
    intend      which rows go, by source and seq, and which sinks have passed them, as an event: it is decided
    delete      those rows, in one commit of the table
    record      what went, in the stream of the dataset and in each ledger
    quarantine  entries lose the rows of which it holds; what cannot be judged stays, and is told
    sweep       the segments of the dataset that have landed, without a grace period
    expire      the snapshots of the table in which the rows still are
    files       that no snapshot names, as a killed job leaves them

Lines and numbers stay where they are. A crash after the intent leaves it open: the next purge, or the next
run of retention, deletes the same rows again, which removes nothing twice, and records them. All that comes
after the record may be done again at any time, so a purge that was cut short is finished by repeating it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from strandline.base.failpoint import reach
from strandline.base.predicate import why_unsteady
from strandline.base.ranges import Range
from strandline.config.keys import CompactionSection
from strandline.errors import UsageError
from strandline.lake.ports.purge import PredicateUnreadable, PurgeAsked, Purger
from strandline.maintenance.open_run import OtherRunOpen, check_no_rewrite, opened_by
from strandline.maintenance.purge_files import UnnamedFiles, purge_files
from strandline.maintenance.purge_intent import BY, AlreadyDelivered, PurgeRun, intent_data, run_of
from strandline.maintenance.purge_quarantine import Quarantined, purge_quarantine
from strandline.maintenance.snapshot_expiry import expirable
from strandline.maintenance.sweeps.landed_segments import SCOPE, sweep_dataset
from strandline.persist import Append, Conflict, ExpectSeq
from strandline.rows.dataset import Strand, encode_source
from strandline.state.context import Site
from strandline.state.flush_plan import readable
from strandline.state.lease import Lease, LeaseLost, held
from strandline.state.retention_events import retention_stream
from strandline.state.sink_progress import sink_stream
from strandline.state.strand_entries import ControlUnreadable, Removed, append_of

if TYPE_CHECKING:
    from strandline.lake.ports.snapshots import KnownSnapshot

WAIT_S: Final = 60.0  # for another who keeps house
_ONLY_NOW: Final = CompactionSection(min_snapshots=1, max_snapshot_age_h=0, max_snapshots=1)


@dataclass(frozen=True, slots=True)
class HeldSegment:
    """A damaged segment that nobody can look into: it may hold such rows."""

    source: str
    segment: str
    rows: int


@dataclass(frozen=True, slots=True)
class PurgeResult:
    """`rows` went from the table, by source in `strands`; with `is_dry` they would.

    `letters` are dead letters that wait and may hold some of them. `snapshots` were let go; `snapshots_left`
    still have such rows, as long as the flushes and loads `open_numbers` are open. `pending` rows were not
    looked at, as nothing is flushed in a dry run.
    """

    dataset: str
    where: str | None
    source: str | None
    rows: int = 0
    strands: Mapping[str, int] = field(default_factory=dict)
    left: tuple[AlreadyDelivered, ...] = ()
    quarantined: Quarantined = field(default_factory=Quarantined)
    held: tuple[HeldSegment, ...] = ()
    letters: tuple[str, ...] = ()
    segments: int = 0
    snapshots: int = 0
    snapshots_left: int = 0
    open_numbers: tuple[int, ...] = ()
    files: UnnamedFiles = field(default_factory=UnnamedFiles)
    pending: int = 0
    is_resumed: bool = False
    is_dry: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether nothing of what was asked for is left, as far as this node can tell."""
        unsure = self.quarantined.undecided or self.held or self.letters
        is_left = self.snapshots_left or self.open_numbers or self.pending or self.files.is_left
        return not (unsure or is_left)


def purge(
    site: Site,
    purger: Purger,
    dataset: str,
    *,
    where: str | None = None,
    source: str | None = None,
    flush: Callable[[], object],
    is_dry: bool = False,
    timeout_s: float = WAIT_S,
) -> PurgeResult:
    """Take out the rows of a source, those for which `where` is true, or those for which both hold.

    `flush` lands what is pending. LeaseHeld if another keeps house for longer than `timeout_s`.
    """
    if where is None and source is None:
        raise UsageError("a purge of everything", hint="say which rows go: `where`, `source`, or both")
    if where is not None and (reason := why_unsteady(where)) is not None:
        raise PredicateUnreadable(dataset, where, reason)
    known = site.known(dataset).dataset
    if not is_dry:
        flush()
    has_table = site.standing.numbers(dataset).has_landed
    if where is not None and has_table:
        purger.check(known, where)
    purging = _Purging(site, purger, dataset, where, source, timeout_s)
    if is_dry:
        return purging.tried(has_table=has_table)
    return purging.run(has_table=has_table)


@dataclass(frozen=True, slots=True)
class _Purging:
    site: Site
    purger: Purger
    dataset: str
    where: str | None
    source: str | None
    timeout_s: float

    def tried(self, *, has_table: bool) -> PurgeResult:
        run = self._decide() if has_table else None
        result = replace(self._result(run), is_dry=True, pending=self._pending())
        return replace(result, quarantined=self._quarantine(is_dry=True))

    def run(self, *, has_table: bool) -> PurgeResult:
        result = self._result(None)
        if has_table:
            with held(self.site.b, self.site.clock, self._scope, timeout_s=self.timeout_s) as lease:
                before = finish_purge(self.site, self.purger, self.dataset, lease)
                check_no_rewrite(self.site, self.dataset)
                run = self._decide()
                if run.found:
                    self._intend(lease, run)
                    _delete_and_record(self.site, self.purger, self.dataset, lease, run)
                result = replace(self._result(_joined(before, run)), is_resumed=before is not None)
        with held(self.site.b, self.site.clock, SCOPE, timeout_s=self.timeout_s) as lease:
            result = replace(result, quarantined=self._quarantine(is_dry=False))
            reach("purge.quarantine")
            result = replace(result, segments=sweep_dataset(self.site, lease, self.dataset).segments)
            reach("purge.swept")
        return self._expired(result) if has_table else result

    @property
    def _scope(self) -> str:
        return f"maintain/{self.dataset}"

    # What goes

    def _decide(self) -> PurgeRun:
        """V before the numbers: what is visible by then has a number among them."""
        visible = {
            source: strand_state.visible_through
            for source, strand_state in self.site.standing.strand_states(self.dataset).items()
        }
        numbers = self.site.standing.numbers(self.dataset)
        asked = PurgeAsked(self.where, self.source, numbers.visible)
        known = self.site.known(self.dataset).dataset
        found = tuple(self.purger.count(known, asked))
        if self.where is not None:
            asked = replace(asked, rows={each.source: each.ranges for each in found})
        marks = self._marks({each.source for each in found})
        passed = self.purger.passed(known, asked, marks) if found else {}
        left = tuple(AlreadyDelivered(name, source, rows) for (name, source), rows in sorted(passed.items()))
        is_all = self.where is None and not numbers.open
        bare = {each.source: visible.get(each.source, 0) for each in found} if is_all else {}
        return PurgeRun(self.site.random_hex(), asked, found, left, bare)

    def _marks(self, sources: set[str]) -> dict[tuple[str, str], int]:
        """Up to where each sink has delivered; of an open intent nobody knows how much has left."""
        lines, found = self.site.standing.lines(), {}
        for name in lines.instances():
            for strand, line in lines.of(name).items():
                done = [line.mark, line.high, *(each.hi for each in line.done.ranges)]
                if strand.dataset == self.dataset and strand.source in sources and max(done):
                    found[name, strand.source] = max(done)
        return found

    def _result(self, run: PurgeRun | None) -> PurgeResult:
        numbers = self.site.standing.numbers(self.dataset)
        result = PurgeResult(
            self.dataset,
            self.where,
            self.source,
            held=tuple(self._held()),
            letters=tuple(self._letters(run)),
            open_numbers=tuple(sorted(numbers.open)),
        )
        if run is None:
            return result
        strands: dict[str, int] = {}
        for each in run.found:
            strands[each.source] = strands.get(each.source, 0) + each.rows
        return replace(result, rows=run.rows, strands=strands, left=run.left)

    def _held(self) -> Iterator[HeldSegment]:
        for source, strand_state in sorted(self.site.standing.pending(self.dataset).items()):
            if self.source in (None, source):
                for hold in strand_state.holds:
                    yield HeldSegment(source, hold.segment, hold.hi - hold.lo)

    def _letters(self, run: PurgeRun | None) -> Iterator[str]:
        """Those that wait and hold rows of what was asked for, or may; all of its strands if nothing was
        found: an earlier purge may have taken the rows."""
        lines, found = (
            self.site.standing.lines(),
            {each.source: each.seqs for each in run.found} if run else {},
        )
        for name in lines.instances():
            for strand, line in sorted(lines.of(name).items()):
                if strand.dataset != self.dataset or self.source not in (None, strand.source):
                    continue
                stream = sink_stream(name, strand.dataset, strand.source)
                for seq in line.letters:
                    event: Any = self.site.b.event_at(stream, seq)
                    if event is None:
                        raise ControlUnreadable(stream, seq, "it is gone")
                    with readable(stream, seq):
                        rows = Range(event.data["lo"], event.data["hi"])
                    if not found or rows.meets(found.get(strand.source, Range(0, 0))):
                        yield f"{name}/{strand.dataset}/{encode_source(strand.source)}:{seq}"

    def _pending(self) -> int:
        waiting = self.site.standing.pending(self.dataset)
        return sum(each.pending_rows for source, each in waiting.items() if self.source in (None, source))

    def _quarantine(self, *, is_dry: bool) -> Quarantined:
        return purge_quarantine(
            self.site, self.purger, self.dataset, where=self.where, source=self.source, is_dry=is_dry
        )

    # Doing it

    def _intend(self, lease: Lease, run: PurgeRun) -> None:
        data = intent_data(self.site.content, run)
        stream, at = retention_stream(self.dataset), self.site.clock.now_us()
        before = self.site.standing.prunings().of(self.dataset).event
        reach("purge.intend")
        intended = Append(stream, "intended", at, data, globally=True)
        outcome = self.site.b.commit([lease.guard, ExpectSeq(stream, before)], [intended])
        if isinstance(outcome, Conflict):
            raise LeaseLost(lease.scope)  # under it nobody else writes that stream
        reach("purge.intended")

    def _expired(self, result: PurgeResult) -> PurgeResult:
        with held(self.site.b, self.site.clock, self._scope, timeout_s=self.timeout_s):
            doomed = expirable(self.site, self.dataset, _ONLY_NOW, self._snapshots)
            for ids in (doomed.staged, doomed.published):
                if ids:
                    self.purger.expire(self.dataset, ids)
            reach("purge.expired")
            files = purge_files(self.site, self.purger, self.dataset)
        left = max(len(self._snapshots()) - 1, 0)
        return replace(result, snapshots=len(doomed), snapshots_left=left, files=files)

    def _snapshots(self) -> "Sequence[KnownSnapshot]":
        return self.purger.snapshots(self.dataset)


# What is decided comes to its end


def _delete_and_record(site: Site, purger: Purger, dataset: str, lease: Lease, run: PurgeRun) -> None:
    lease.renew()
    purger.delete(dataset, run.asked)
    reach("purge.deleted")
    stream, at = retention_stream(dataset), site.clock.now_us()
    event = site.standing.prunings().of(dataset).open
    writes = [
        append_of(
            Strand(dataset, each.source).ledger,
            Removed(run.id, BY, each.seqs.lo, each.seqs.hi, each.rows, run.bare.get(each.source, 0)),
            at,
        )
        for each in run.found
    ]
    data = {
        "run": run.id,
        "by": BY,
        "rows": run.rows,
        "evicted": 0,
        "flush_lo": min(each.flushes.lo for each in run.found),
        "flush_hi": max(each.flushes.hi for each in run.found),
    }
    writes.append(Append(stream, "pruned", at, data, globally=True))
    if isinstance(site.b.commit([lease.guard, ExpectSeq(stream, event)], writes), Conflict):
        raise LeaseLost(lease.scope)
    reach("purge.recorded")


def finish_purge(site: Site, purger: Purger, dataset: str, lease: Lease) -> PurgeRun | None:
    """Delete and record what a purge that was cut short had decided, under `maintain/<dataset>`; None if
    there is none. OtherRunOpen where something else was cut short."""
    stream = retention_stream(dataset)
    event = site.standing.prunings().of(dataset).open
    if not event:
        return None
    by, data = opened_by(site.b, dataset, event)
    if by != BY:
        raise OtherRunOpen(dataset, by)
    with readable(stream, event):
        run = run_of(site.content, data)
    _delete_and_record(site, purger, dataset, lease, run)
    return run


def _joined(before: PurgeRun | None, run: PurgeRun) -> PurgeRun:
    """What was asked for in both, if the one that was cut short asked for the same."""
    is_same = before is not None and (before.asked.where, before.asked.source) == (
        run.asked.where,
        run.asked.source,
    )
    if before is None or not is_same:
        return run
    return replace(run, found=(*before.found, *run.found), left=(*before.left, *run.left))
