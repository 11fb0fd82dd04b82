"""One round of a run: intents for some strands of a dataset, one job, one record."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa

from strandline.base.failpoint import reach
from strandline.base.ranges import Range, RangeSet
from strandline.delivery.dead_letter_files import lettered
from strandline.delivery.owed import Owed, mean_row_bytes, next_intent, passable
from strandline.delivery.policy import current_version, rules_of, withhold_sql
from strandline.delivery.result import NOT_TAKEN, StrandResult
from strandline.delivery.session import DeliverySession
from strandline.delivery.verdict import Verdict, judge
from strandline.errors import HeldError, StrandlineError
from strandline.lake.ports.deliver import JobsCancelled, PolicyUnreadable
from strandline.observe.span import traceparent
from strandline.persist import Append, ExpectSeq
from strandline.persist.backend import Expectation, Write
from strandline.rows.dataset import Dataset, Strand
from strandline.sinks.sink import OtherLife, Outcome, RangesUnavailable, Shipment, Status
from strandline.sinks.unit_runner import SEQ, IntentPart, Told
from strandline.state.dataset_versions import recorded_version
from strandline.state.sink_progress import (
    Intent,
    SinkProgress,
    delivered,
    event_of,
    failed,
    instance_stream,
    intended,
)

MOST_STRANDS: Final = 200  # in one job
MOST_TEXT: Final = 2048
ASK_AGAIN_US: Final = 600_000_000


class Rounds:
    """The rounds of one run."""

    def __init__(self, session: DeliverySession, until: Mapping[Strand, int]) -> None:
        self._session, self._site, self._until = session, session.site, until
        self._untried: set[str] = set()  # intents of which nothing can have left yet
        self._told: set[str] = set()  # intents of which it is known what the destination has
        self._is_renewed = False
        self.not_taken: dict[Strand, StrandResult] = {}

    def run(self, batch: Sequence[Owed]) -> list[Strand]:
        """Deliver the next of these strands, all of one dataset; their intents, if they have any, are of one
        schema and policy. Returns those that got on."""
        name = batch[0].strand.dataset
        dataset = self._site.known(name).dataset
        if (reason := self._session.sink.cannot_take(dataset)) is not None:
            self._decline(batch, reason)
            return []
        if not self._can_read_policy(batch, dataset) or not self._intend(batch, dataset):
            return []  # nothing may leave now; or an operator was at work: look again
        taken = {each.strand: self._session.line(each.strand) for each in batch}
        taken = {strand: line for strand, line in taken.items() if line.intent is not None}
        if not taken:
            return [each.strand for each in batch]  # there were gaps only
        intent = next(iter(taken.values())).intent
        assert intent is not None
        shipment = self._shipment(name, intent.schema)
        taken = self._learnt(shipment, taken)
        parts = [self._part(strand, line) for strand, line in taken.items() if line.left()]
        return self._carry(shipment, parts, taken, intent.policy) if parts else list(taken)

    def _decline(self, batch: Sequence[Owed], reason: str) -> None:
        """Told once. What is recorded keeps these strands from being due again."""
        at, text = self._site.clock.now_us(), reason[:MOST_TEXT]
        lines = {each.strand: each.line for each in batch}
        for strand in lines:
            told = StrandResult(strand.dataset, strand.source, NOT_TAKEN, text, is_held=True)
            self.not_taken[strand] = told
        held = {"kind": NOT_TAKEN, "text": text}
        writes = [event_of(self._session.stream(strand), "held", at, **held) for strand in lines]
        self._session.commit(self._seen(lines), writes)

    def _shipment(self, name: str, schema: int) -> Shipment:
        sender = self._session.sender
        dataset = recorded_version(self._site.b, name, schema)
        of = (self._session.terms.name, sender.origin, sender.node, dataset, sender.signal(name))
        return Shipment(*of, traceparent=traceparent())

    # Intents

    def _can_read_policy(self, batch: Sequence[Owed], dataset: Dataset) -> bool:
        """Before an intent is made: one that names a policy that cannot be read could never be finished."""
        withhold = withhold_sql(self._session.sender.rules, dataset.name)
        bare = {each.strand: each.line for each in batch if each.line.intent is None}
        if withhold is None or not bare:
            return True
        try:
            self._session.courier().check(dataset, withhold)
        except PolicyUnreadable as error:
            at, held = self._site.clock.now_us(), {"kind": error.kind, "text": str(error)[:MOST_TEXT]}
            writes = [event_of(self._session.stream(strand), "held", at, **held) for strand in bare]
            self._session.commit(self._seen(bare), writes)
            return False
        return True

    def _intend(self, batch: Sequence[Owed], dataset: Dataset) -> bool:
        """Make intents durable for the strands that have none, and pass gaps; False if a stream moved."""
        site, at = self._site, self._site.clock.now_us()
        bare = [replace(each, until=self._until[each.strand]) for each in batch if each.line.intent is None]
        if not bare:
            return True
        policy = current_version(site.b, self._session.sender.rules, at)
        limits = self._session.sink.limits(mean_row_bytes(site.b, dataset.name))
        writes: list[Write] = []
        for each in bare:
            stream = self._session.stream(each.strand)
            if (end := passable(each)) > each.line.mark:
                gap = {"lo": each.line.mark, "hi": end, "epoch": each.line.epoch, "reason": "it has no rows"}
                writes.append(event_of(stream, "passed", at, **gap))
            intent = next_intent(
                each,
                self._session.terms,
                limits,
                schema=dataset.version,
                policy=policy,
                at=at,
                draw=site.random_hex,
            )
            if intent is not None:
                writes.append(intended(stream, intent))
                self._untried.add(intent.id)
                if intent.lo >= each.line.high:
                    self._told.add(intent.id)
        reach("intent.write")
        conflict = self._session.commit(self._seen({each.strand: each.line for each in bare}), writes)
        reach("intent.written")
        return conflict is None

    def _seen(self, lines: Mapping[Strand, SinkProgress]) -> list[Expectation]:
        return [ExpectSeq(self._session.stream(strand), line.event) for strand, line in lines.items()]

    # What the destination has already

    def _learnt(self, shipment: Shipment, taken: Mapping[Strand, SinkProgress]) -> dict[Strand, SinkProgress]:
        """Where an intent is taken up again, what the destination has of it counts as done."""
        taken = {strand: line for strand, line in taken.items() if self._is_our_life(shipment, strand, line)}
        if not self._session.sink.asks_first:
            return taken
        kept: dict[Strand, SinkProgress] = {}
        for strand, line in taken.items():
            intent, learnt = line.intent, line
            assert intent is not None
            if intent.id not in self._told:
                try:
                    learnt = self._learn(shipment, strand, line, intent)
                except StrandlineError as error:
                    self._fail(shipment, strand, line, error)
                    continue
                self._told.add(intent.id)
            if learnt.intent is not None:
                kept[strand] = learnt
        return kept

    def _is_our_life(self, shipment: Shipment, strand: Strand, line: SinkProgress) -> bool:
        """Return whether the destination is where our records say. If it is not, hold the strand.

        A destination that refuses other lives by itself has nothing to answer. Any other is asked once for a
        process and strand, and again after a while, because a machine that is resumed twice keeps what its
        processes remember.
        """
        intent, now = line.intent, self._site.clock.now_us()
        assert intent is not None
        key = (self._session.terms.name, strand)
        if (
            intent.id not in self._untried
            or now - self._site.compared_at.get(key, -ASK_AGAIN_US) < ASK_AGAIN_US
        ):
            return True
        through = max(self._reached(strand), line.high)
        try:
            ahead = self._session.sink.ahead(shipment, strand.source, intent.epoch, intent.chain_hi, through)
        except StrandlineError:
            return True  # the first unit meets the same fault, and names it in the words of the sink
        self._session.result.requests += ahead.requests
        if ahead.seq is not None:
            self._fail(shipment, strand, line, self._other_life(strand, ahead.seq, through))
            return False
        self._site.compared_at[key] = now
        return True

    def _other_life(self, strand: Strand, newest: int, through: int) -> OtherLife:
        place = (self._session.terms.name, strand.dataset, strand.source)
        return OtherLife(*place, newest=newest, through=through)

    def _reached(self, strand: Strand) -> int:
        """How far other sinks of this node have brought a strand to the same destination."""
        lines, mine = self._site.standing.lines(), self._session.terms.name
        names = [
            name
            for name in lines.instances()
            if name != mine and self._session.sink.is_at(lines.instance(name).fingerprint)
        ]
        reached = [lines.line(name, strand) for name in names]
        return max((max(each.high, each.intent.hi if each.intent else 0) for each in reached), default=0)

    def _learn(self, shipment: Shipment, strand: Strand, line: SinkProgress, intent: Intent) -> SinkProgress:
        self._session.result.requests += 1
        holdings = self._session.sink.holdings(shipment, strand.source, intent.epoch)
        if holdings is None:
            return line
        through = self._part(strand, line).through
        if holdings.newest is not None and holdings.newest[0] > through and holdings.newest[1] != intent.id:
            raise self._other_life(strand, holdings.newest[0], through)
        there = RangeSet.of(Range(each.lo, each.hi) for each in holdings.stored)
        if intent.ranges is None:  # it has these too, of other epochs
            there = RangeSet.of([*there.ranges, *line.released.ranges])
        known = [found for each in line.left() for found in there.within(each)]
        withhold = withhold_sql(rules_of(self._site.b, intent.policy), strand.dataset)
        is_apart = not line.is_told and bool(
            withhold or line.withheld.ranges
        )  # from what is sent from now on
        if known or is_apart:
            at, withheld = self._site.clock.now_us(), self._withheld(shipment, strand, line, known, withhold)
            write = delivered(self._session.stream(strand), intent.id, at, known=known, withheld=withheld)
            self._session.commit(self._seen({strand: line}), [write])
        return self._session.line(strand)

    def _withheld(
        self,
        shipment: Shipment,
        strand: Strand,
        line: SinkProgress,
        known: Sequence[Range],
        withhold: str | None,
    ) -> list[Range]:
        """What stayed here of the ranges that a destination has: it knows them by their bounds alone. Of
        those that it had before the intent, that is recorded; the others it has of this one."""
        assert line.intent is not None
        since = 0 if line.is_told or line.intent.ranges is not None else line.high
        new = [
            found for each in known if (found := each.meets(Range(since, max(since, each.hi)))) is not None
        ]
        if withhold is None or not new:
            return []
        return self._session.courier().withheld(shipment.dataset, strand.source, new, withhold)

    def _fail(self, shipment: Shipment, strand: Strand, line: SinkProgress, error: StrandlineError) -> None:
        """A strand of which nothing was told: as if its next unit had failed, and it may have arrived."""
        part = self._part(strand, line)
        self._told.discard(part.intent)
        outcomes = [Outcome(each.lo, each.hi, "put_off") for each in part.ranges]
        status: Status = "held" if isinstance(error, HeldError) else "failed"
        first = replace(outcomes[0], status=status, kind=error.kind, text=str(error)[:MOST_TEXT])
        if isinstance(error, RangesUnavailable):
            first = replace(first, status=error.status, http_status=error.http_status, wait_s=error.wait_s)
        if isinstance(error, OtherLife):
            first = replace(first, text=error.text)
        outcomes[0] = first
        told = [Told(strand.source, each) for each in outcomes]
        verdict = judge(line, part, told, self._session.sink.patience, self._site.clock.now_us())
        self._record(shipment, self._renewed({strand: (line, verdict)}))

    def _renewed(
        self, verdicts: Mapping[Strand, tuple[SinkProgress, Verdict]]
    ) -> Mapping[Strand, tuple[SinkProgress, Verdict]]:
        """Where a destination denies what it is asked, once in a run: the credential is read anew, and those
        strands are tried again at once."""
        if self._is_renewed or not any(verdict.is_denied for _, verdict in verdicts.values()):
            return verdicts
        self._is_renewed = True
        self._session.sink = self._session.sink.renewed()
        return {strand: (line, _tried_anew(verdict)) for strand, (line, verdict) in verdicts.items()}

    def _part(self, strand: Strand, line: SinkProgress) -> IntentPart:
        """What of an open intent is not done, and up to where earlier intents may have gone.

        Numbers that were raised after a restore name rows that the destination may have, because rows leave
        from the tables, and the raise is above all of theirs. Rows that are released were passed before.
        """
        intent, raised = line.intent, self._site.standing.strand_state(strand).raised
        assert intent is not None
        through = max(line.high, raised, intent.hi if intent.ranges is not None else 0)
        return replace(part_of(strand, line), through=through)

    # The job

    def _carry(
        self,
        shipment: Shipment,
        parts: Sequence[IntentPart],
        lines: Mapping[Strand, SinkProgress],
        policy: int,
    ) -> list[Strand]:
        session, name = self._session, shipment.dataset.name
        withhold = withhold_sql(rules_of(self._site.b, policy), name)
        reach("deliver.job")
        try:
            carried = session.courier().carry(session.sink, shipment, parts, withhold=withhold)
        except JobsCancelled:  # no failure of the destination's: the intent stays as it is
            raise
        except StrandlineError as error:
            self._untried -= {part.intent for part in parts}
            for strand in (Strand(name, part.source) for part in parts):
                self._fail(shipment, strand, lines[strand], error)
            return []
        reach("deliver.done")
        session.result.counters = session.result.counters + carried.counters
        session.result.requests += sum(each.outcome.requests for each in carried.told)
        now = self._site.clock.now_us()
        verdicts = {}
        is_first = {part.intent for part in parts} & self._untried
        self._untried -= is_first
        for part in parts:
            told = sorted(_of(carried.told, part.source), key=lambda each: each.outcome.lo)
            strand = Strand(name, part.source)
            line = lines[strand]
            verdicts[strand] = (line, judge(line, part, told, session.sink.patience, now))
        return self._record(shipment, self._renewed(verdicts), is_first)

    # The record

    def _record(
        self,
        shipment: Shipment,
        verdicts: Mapping[Strand, tuple[SinkProgress, Verdict]],
        is_first: Collection[str] = (),
    ) -> list[Strand]:
        """One transaction. A strand whose stream an operator moved meanwhile is left out, to be looked at
        again. Returns those that got on."""
        at, session = self._site.clock.now_us(), self._session
        writes = {
            strand: self._writes(shipment, strand, line, verdict, at, is_first)
            for strand, (line, verdict) in verdicts.items()
        }
        writes = {strand: each for strand, each in writes.items() if each}
        whole = self._instance_hold([verdict for _, verdict in verdicts.values()], at)
        while writes or whole:
            seen = self._seen({strand: verdicts[strand][0] for strand in writes})
            reach("deliver.record")
            conflict = session.commit(seen, [*(write for each in writes.values() for write in each), *whole])
            reach("deliver.recorded")
            if conflict is None:
                break
            writes.pop(next(strand for strand in writes if session.stream(strand) == conflict.name))
        for strand in writes:
            session.result.add(verdicts[strand][1])
        return [strand for strand in writes if verdicts[strand][1].has_progress]

    def _instance_hold(self, verdicts: Iterable[Verdict], at: int) -> list[Append]:
        holds = (verdict.hold for verdict in verdicts)
        hold = next((each for each in holds if each is not None and each.scope == "instance"), None)
        stream = instance_stream(self._session.terms.name)
        return [] if hold is None else [event_of(stream, "held", at, kind=hold.kind, text=hold.text)]

    def _writes(
        self,
        shipment: Shipment,
        strand: Strand,
        line: SinkProgress,
        verdict: Verdict,
        at: int,
        is_first: Collection[str],
    ) -> list[Append]:
        intent, stream = line.intent, self._session.stream(strand)
        assert intent is not None
        writes: list[Append] = []
        if verdict.receipts or verdict.void or verdict.withheld:
            done = delivered(
                stream,
                intent.id,
                at,
                units=verdict.receipts,
                void=verdict.void,
                withheld=verdict.withheld,
                is_repeat=intent.id not in is_first,
            )
            writes.append(done)
        for outcome in verdict.given_up:
            seqs = Range(outcome.lo, outcome.hi)
            rows = _without(
                self._session.courier().fetch(shipment.dataset, strand.source, seqs), verdict.withheld
            )
            writes.append(lettered(self._site.content, stream, intent, outcome, shipment, rows, at))
        if verdict.trouble is not None:
            writes.append(failed(stream, verdict.trouble))
        if verdict.hold is not None and verdict.hold.scope == "strand":
            writes.append(event_of(stream, "held", at, kind=verdict.hold.kind, text=verdict.hold.text))
        return writes


def part_of(strand: Strand, line: SinkProgress) -> IntentPart:
    """What of an open intent is not done."""
    intent = line.intent
    assert intent is not None
    return IntentPart(
        intent.id,
        intent.epoch,
        strand.source,
        intent.lo,
        intent.hi,
        intent.chain_hi,
        tuple(line.left()),
        intent.limits,
        is_sparse=intent.ranges is not None,
    )


def _without(rows: pa.Table, withheld: Sequence[Range]) -> pa.Table:
    """What is withheld is no part of a dead letter: it would leave with it."""
    kept = RangeSet.of(withheld)
    seqs = rows.column(SEQ).to_pylist()
    return rows.filter(pa.array([seq not in kept for seq in seqs], pa.bool_())) if withheld else rows


def _of(told: Iterable[Told], source: str) -> list[Told]:
    return [each for each in told if each.source == source]


def _tried_anew(verdict: Verdict) -> Verdict:
    """With the credential read anew it is tried at once."""
    return replace(verdict, trouble=None) if verdict.is_denied else verdict
