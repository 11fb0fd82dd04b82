"""Old rows go: by age, or by number and size, once every sink that is waited for has them.

    look     from the store and the table's metadata alone: which strands may have rows to lose. Mostly none,
             and then nothing else is done.
    intend   the bounds of what goes and the count of it, as an event: by now it is decided
    delete   those rows, in one commit of the table
    record   what went, and where: in the stream of the dataset, in each ledger, and in the stream of each
             sink that had not delivered them

A crash after the intent leaves it open. Whoever comes next deletes the same bounds again, which removes
nothing twice, and records the counts of the intent: what is gone cannot be counted. A purge that was cut
short is ended in the same way.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from strandline.base.failpoint import reach
from strandline.base.ranges import Range
from strandline.errors import UnavailableError
from strandline.lake.ports.prune import (
    Condition,
    PrunePart,
    RowPlace,
    RowsToDelete,
    TableFiles,
    TimeColumn,
    Upkeep,
)
from strandline.lake.ports.purge import Purger
from strandline.maintenance.open_run import BY, check_no_rewrite, opened_by
from strandline.maintenance.purge import finish_purge
from strandline.maintenance.purge_intent import BY as PURGE
from strandline.maintenance.retention.last_look import LastLook, keeping, kept_of
from strandline.maintenance.retention.missed_rows import Lack, lacking, rows_of, stood
from strandline.maintenance.retention.prune_candidates import Ripe, ripe, ripens_at
from strandline.maintenance.retention.prune_intent import (
    Gone,
    PruneIntent,
    bands,
    evicted,
    open_run,
    run_data,
    sum_of,
)
from strandline.maintenance.retention.rules import RetentionRules
from strandline.maintenance.retention.sink_marks import Marks
from strandline.observe.span import span
from strandline.persist import Append, Conflict, ExpectSeq
from strandline.persist.backend import Expectation, Write
from strandline.rows.dataset import Strand
from strandline.state.context import Site
from strandline.state.lease import Lease, LeaseLost, held
from strandline.state.retention_events import retention_stream
from strandline.state.sink_progress import event_of, sink_stream
from strandline.state.strand_entries import Removed, append_of

WAIT_S: Final = 30.0  # for another who keeps house
_TRIES: Final = 20


@dataclass(frozen=True, slots=True)
class PruneResult:
    """`strands` are those that lost rows, or with `is_dry` would. `evicted` of the rows were not delivered by
    some sink. `held` rows, at most, could go and wait for a sink, by its name."""

    dataset: str
    cutoff: int | None = None
    rows: int = 0
    evicted: int = 0
    strands: Mapping[str, Gone] = field(default_factory=dict)
    held: Mapping[str, int] = field(default_factory=dict)
    is_resumed: bool = False
    is_dry: bool = False

    def with_(self, run: PruneIntent, *, is_resumed: bool = False) -> "PruneResult":
        lost = dict(self.strands)
        for source, gone in run.gone().items():
            before = lost.get(source, gone)
            seqs = Range(min(before.seqs.lo, gone.seqs.lo), max(before.seqs.hi, gone.seqs.hi))
            lost[source] = Gone(
                seqs, gone.rows + (self.strands[source].rows if source in self.strands else 0)
            )
        return replace(
            self,
            rows=self.rows + run.rows,
            evicted=self.evicted + run.evicted,
            strands=lost,
            is_resumed=self.is_resumed or is_resumed,
        )


def prune(
    site: Site,
    upkeep: Upkeep,
    dataset: str,
    rules: RetentionRules,
    *,
    pointer: str | None,
    purger: Callable[[], Purger],
    is_dry: bool = False,
    timeout_s: float = WAIT_S,
) -> PruneResult:
    """Take out what may go now. `pointer` names the newest commit of the table, None if there is no table.
    `purger` is asked for where a purge was cut short.

    Where nothing may, that costs a few reads of the store. LeaseHeld if another keeps house for longer than
    `timeout_s`.
    """
    now = site.clock.now_us()
    nothing = PruneResult(dataset, rules.cutoff(now), is_dry=is_dry)
    is_open = bool(site.standing.prunings().of(dataset).open)
    if pointer is None or not (rules.is_limited or is_open):
        return nothing
    kept, marks = kept_of(site.b, dataset), Marks(site, rules, dataset)
    if not is_open and kept is not None and kept.is_idle(pointer, rules.text(), marks, now):
        if not is_dry:
            site.b.commit([], [keeping(dataset, replace(kept, at=now, cutoff=rules.cutoff(now)))])
        return replace(nothing, held=kept.held(marks))
    if is_dry:
        return _Pruning(site, upkeep, purger, dataset, rules, now).tried(nothing)
    with (
        span("prune", dataset=dataset) as told,
        held(site.b, site.clock, f"maintain/{dataset}", timeout_s=timeout_s) as lease,
    ):
        result = _Pruning(site, upkeep, purger, dataset, rules, now).run(lease, nothing)
        told.set(rows=result.rows, evicted=result.evicted)
        return result


class _Pruning:
    """One run over one dataset: what a crash left, then age, then number and size."""

    def __init__(
        self,
        site: Site,
        upkeep: Upkeep,
        purger: Callable[[], Purger],
        dataset: str,
        rules: RetentionRules,
        now: int,
    ) -> None:
        self._site, self._upkeep, self._purger, self._dataset = site, upkeep, purger, dataset
        self._rules, self._now, self._stream = rules, now, retention_stream(dataset)
        self._seen: TableFiles | None = None  # until something is deleted

    def run(self, lease: Lease, result: PruneResult) -> PruneResult:
        if event := self._site.standing.prunings().of(self._dataset).open:
            result = self._ended(lease, event, result)
        if not self._rules.is_limited:
            return result
        check_no_rewrite(self._site, self._dataset)
        for condition_of in (self._by_age, self._by_count):
            for _ in range(_TRIES):
                files = self._files()
                decided = self._decide(files, condition_of(files))
                if decided is None:
                    break
                if (intended := self._intend(lease, *decided)) is not None:
                    result = result.with_(self._delete_and_record(lease, intended))
                    break
            else:
                raise _restless(self._dataset)
        return self._remember(result)

    def _ended(self, lease: Lease, event: int, result: PruneResult) -> PruneResult:
        """What a crash left. The rows of a purge are none of retention, and are not counted here."""
        if opened_by(self._site.b, self._dataset, event)[0] == PURGE:
            finish_purge(self._site, self._purger(), self._dataset, lease)
            return replace(result, is_resumed=True)
        left = open_run(self._site.b, self._dataset, event)
        return result.with_(self._delete_and_record(lease, left), is_resumed=True)

    def tried(self, result: PruneResult) -> PruneResult:
        """What a run would do, at most; nothing is written. Here what is too old and what is too many is one,
        where a run looks what is too many after what was too old has gone."""
        files = self._files()
        condition = Condition(self._resident(), self._rules.cutoff(self._now), self._first(files))
        if (decided := self._decide(files, condition)) is not None:
            result = result.with_(decided[0])
        kept = self._look(files)
        return replace(result, held=kept.held(self._marks()))

    # What may go

    def _files(self) -> TableFiles:
        if self._seen is None:
            self._seen = self._upkeep.files(self._dataset, self._rules.times)
        return self._seen

    def _marks(self) -> Marks:
        return Marks(self._site, self._rules, self._dataset)

    def _by_age(self, _: TableFiles) -> Condition | None:
        cutoff = self._rules.cutoff(self._now)
        return None if cutoff is None else Condition(self._resident(), older_than=cutoff)

    def _by_count(self, files: TableFiles) -> Condition | None:
        first = self._first(files)
        return None if first is None else Condition(self._resident(), first=first)

    def _resident(self) -> int:
        return self._now - self._rules.residence_us

    def _first(self, files: TableFiles) -> RowPlace | None:
        """The last row that is too many, in the order in which they came. Looked for once in a table."""
        excess = self._rules.excess(files)
        if not excess:
            return None
        kept = kept_of(self._site.b, self._dataset)
        seen = (files.pointer, self._rules.text())
        if kept is not None and kept.first is not None and (kept.pointer, kept.rules) == seen:
            return kept.first
        return self._upkeep.first_rows(self._dataset, excess)

    def _decide(self, files: TableFiles, condition: Condition | None) -> tuple[PruneIntent, Marks] | None:
        """What goes and how many they are; None if nothing does."""
        if condition is None:
            return None
        numbers = self._site.standing.numbers(
            self._dataset
        )  # before V: all that these landed is visible then
        marks = self._marks()
        found = ripe(files, condition, sorted(marks.strand_states))
        free = {
            source: Range(0, marks.through(source))
            for source, each in found.items()
            if each.seqs.lo < marks.through(source)
        }
        # Not where rows have landed above V, as a load does beside rows that wait: its flush number is lower.
        whole = {} if numbers.open else {s: r for s, r in free.items() if r.hi == marks.landed(s)}
        rest = {source: each for source, each in free.items() if source not in whole}
        parts = [PrunePart(condition, whole, numbers.last), PrunePart(condition, rest)]
        if self._rules.is_evicting:
            parts += self._evictions(files, condition, found, marks)
        doomed = RowsToDelete(self._times(files), tuple(part for part in parts if part.strands))
        if not doomed.parts:
            return None
        cuts = {source: bands(marks, source) for source in doomed.strands()}
        counts = tuple(self._upkeep.count(self._dataset, doomed, cuts))
        through = {source: each.hi for source, each in free.items()}
        run = PruneIntent(self._site.random_hex(), doomed, counts, through)
        return (replace(run, evicted=evicted(run, marks)), marks) if counts else None

    def _times(self, files: TableFiles) -> tuple[TimeColumn, ...]:
        """A column that the table does not have yet dates no row of it."""
        return tuple(each for each in self._rules.times if each.name in files.columns)

    def _evictions(
        self, files: TableFiles, condition: Condition, found: Mapping[str, Ripe], marks: Marks
    ) -> Iterator[PrunePart]:
        """Rows that wait for a sink and need not any longer."""
        rules = self._rules
        waiting = _waiting(found, marks)
        if rules.hold_us:
            late = rules.held_for_long(condition)
            strands = _waiting(ripe(files, late, sorted(marks.strand_states)), marks)
            if strands:
                yield PrunePart(late, strands)
        if rules.hold_bytes and waiting and (over := self._over(files, condition, waiting)):
            among = RowsToDelete(self._times(files), (PrunePart(condition, waiting),))
            within = self._upkeep.first_rows(self._dataset, over, among)
            if within is not None:
                yield PrunePart(replace(condition, within=within), waiting)

    def _over(self, files: TableFiles, condition: Condition, waiting: Mapping[str, Range]) -> int:
        """How many rows wait above the limit in bytes, by what a row takes on average."""
        most = self._rules.hold_bytes * files.rows // max(files.bytes, 1)
        if sum(map(len, waiting.values())) <= most:
            return 0
        among = RowsToDelete(self._times(files), (PrunePart(condition, waiting),))
        return max(sum(each.rows for each in self._upkeep.count(self._dataset, among, {})) - most, 0)

    # Doing it

    def _intend(self, lease: Lease, run: PruneIntent, marks: Marks) -> PruneIntent | None:
        """What is durable. None where a sink was moved back meanwhile, to before what would go."""
        sources = list(run.by_source())
        for _ in range(_TRIES):
            run = replace(run, stood=stood(run, marks))
            data = run_data(run, self._rules.cutoff(self._now))
            event = Append(self._stream, "intended", self._now, data, globally=True)
            before = self._site.standing.prunings().of(self._dataset).event
            expected: list[Expectation] = [
                lease.guard,
                ExpectSeq(self._stream, before),
                *marks.expected(sources),
            ]
            reach("retention.intend")
            outcome = self._site.b.commit(expected, [event])
            if not isinstance(outcome, Conflict):
                reach("retention.intended")
                return run
            if outcome.name == lease.guard.key:
                raise LeaseLost(lease.scope)
            moved = self._marks()
            if any(moved.through(source) < through for source, through in run.free.items()):
                return None
            marks = moved  # sinks got on: what goes may go all the more
        raise _restless(self._dataset)

    def _delete_and_record(self, lease: Lease, run: PruneIntent) -> PruneIntent:
        lease.renew()
        reach("retention.delete")
        self._upkeep.delete(self._dataset, run.doomed)
        reach("retention.deleted")
        for _ in range(_TRIES):
            event = self._site.standing.prunings().of(self._dataset).open
            if not event:
                return run  # the answer was lost, and it is recorded
            marks, self._seen = self._marks(), None  # the files are looked at after V, each time
            lacks = lacking(self._site, self._dataset, run, marks)
            run = replace(run, evicted=rows_of(lacks))
            writes = list(self._writes(run, marks, lacks))
            expected: list[Expectation] = [
                lease.guard,
                ExpectSeq(self._stream, event),
                *marks.expected(run.by_source()),
            ]
            reach("retention.record")
            outcome = self._site.b.commit(expected, writes)
            if not isinstance(outcome, Conflict):
                reach("retention.recorded")
                return run
            if outcome.name == lease.guard.key:
                raise LeaseLost(lease.scope)
        raise _restless(self._dataset)

    def _writes(
        self, run: PruneIntent, marks: Marks, lacks: Mapping[str, Mapping[str, Lack]]
    ) -> Iterator[Write]:
        """V first, then the files: what was visible then is in them, or gone."""
        at, flushes = self._site.clock.now_us(), run.flushes()
        lowest = _lowest(self._files(), sorted(marks.strand_states))
        for source, counts in run.by_source().items():
            strand, gone, most = Strand(self._dataset, source), sum_of(counts), marks.visible(source)
            bare = min(lowest.get(source, most), most)
            entry = Removed(run.id, BY, gone.seqs.lo, gone.seqs.hi, gone.rows, bare)
            yield append_of(strand.ledger, entry, at)
            for name, lack in lacks[source].items():
                stream = sink_stream(name, self._dataset, source)
                lo = max(lack.lo, gone.seqs.lo)
                yield event_of(stream, "evicted", at, run=run.id, lo=lo, hi=gone.seqs.hi, rows=lack.rows)
        data = {
            "run": run.id,
            "by": BY,
            "rows": run.rows,
            "evicted": run.evicted,
            "flush_lo": flushes.lo,
            "flush_hi": flushes.hi,
        }
        yield Append(self._stream, "pruned", at, data, globally=True)

    # What the next look need not look for

    def _look(self, files: TableFiles) -> LastLook:
        rules, marks = self._rules, self._marks()
        first = self._first(files)
        condition = Condition(self._resident(), rules.cutoff(self._now), first)
        found = ripe(files, condition, sorted(marks.strand_states))
        waiting = {source: each for source, each in found.items() if each.seqs.hi > marks.through(source)}
        return LastLook(
            self._now,
            rules.cutoff(self._now),
            files.pointer,
            rules.text(),
            ripens_at(files, rules, first, self._now),
            first,
            waiting,
            self._is_over_limit(files, condition, waiting, marks),
        )

    def _is_over_limit(
        self, files: TableFiles, condition: Condition, waiting: Mapping[str, Ripe], marks: Marks
    ) -> bool:
        rules = self._rules
        held = sum(
            each.above(marks.through(source), marks.visible(source)) for source, each in waiting.items()
        )
        if rules.hold_bytes and held * files.bytes > rules.hold_bytes * files.rows:
            return True
        late = (
            ripe(files, rules.held_for_long(condition), sorted(marks.strand_states)) if rules.hold_us else {}
        )
        return bool(_waiting(late, marks))

    def _remember(self, result: PruneResult) -> PruneResult:
        kept = self._look(self._files())
        self._site.b.commit([], [keeping(self._dataset, kept)])
        return replace(result, held=kept.held(self._marks()))


def _waiting(found: Mapping[str, Ripe], marks: Marks) -> dict[str, Range]:
    """What of the strands is visible and not delivered."""
    return {
        source: Range(through, marks.visible(source))
        for source, each in found.items()
        if (through := marks.through(source)) < min(marks.visible(source), each.seqs.hi)
    }


def _lowest(files: TableFiles, sources: Sequence[str]) -> dict[str, int]:
    """By source: no row that is left has a number at or below it."""
    everything = Condition(2**62, older_than=2**62)
    return {source: each.seqs.lo for source, each in ripe(files, everything, sources).items()}


def _restless(dataset: str) -> UnavailableError:
    return UnavailableError(
        f"the sinks of dataset {dataset!r} kept moving while retention was to begin",
        hint="nothing was done; the next run tries again",
    )
