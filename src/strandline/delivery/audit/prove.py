"""The whole way of every strand, from its numbers to its destinations, each step against the next.

    ledger        numbers given out once, without a gap; each one below V settled
    spool         what has not landed can
    table         each landed seq has its row, or a record says it was removed; no seq has two, none is
                  strange
    records       everything below a line is accounted for
    table again   below a line it has no row that was neither delivered, withheld nor given up
    destination   it has what the receipts say, and nothing else

The table costs one aggregation over two columns of it (`strandline.lake.jobs.count_rows`), and none if
nothing of the dataset has landed; a pending segment is read; a destination is asked once for each strand and
epoch. Nothing is written, and it may run beside everything else: what was not there yet when it began is no
fault.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from strandline.base.ranges import Range, RangeSet
from strandline.delivery.audit import explain_missing
from strandline.delivery.audit.account import Account, Epoch
from strandline.delivery.audit.compare import Fault, FaultKind
from strandline.delivery.audit.verify import StrandVerdict, strands_of, verify_strand
from strandline.delivery.instance import check_destination
from strandline.delivery.owed import Terms
from strandline.errors import HistoryGap, StrandlineError
from strandline.persist import AtomicBackend
from strandline.rows.dataset import Dataset, Strand
from strandline.sinks.sink import Sink
from strandline.state.archive import past_events
from strandline.state.compaction_events import maintain_stream
from strandline.state.context import Site
from strandline.state.flush_plan import Numbers, flush_stream, number_of
from strandline.state.pending_rows import pending
from strandline.state.retention_events import retention_stream
from strandline.state.strand_entries import (
    NUMBERING,
    ControlUnreadable,
    Flushed,
    Landed,
    Lost,
    Raised,
    Released,
    Removed,
    entry_of,
)
from strandline.storage.segment_fault import segment_fault

if TYPE_CHECKING:
    from strandline.delivery.session import Sender
    from strandline.lake.jobs.count_rows import Counted

_SHOWN: Final = 10  # ranges of one kind of fault, of one strand
_TRIES: Final = 3  # where rows are removed meanwhile


@dataclass(frozen=True, slots=True)
class Proof:
    """What was found of one strand. `faults` are those of ledger, spool and table; each sink has its own."""

    dataset: str
    source: str
    numbered: int = 0
    visible_through: int = 0
    pending: int = 0  # rows that have not landed
    gaps: int = 0  # numbers without a row: released, lost, raised over
    landed: int = 0  # numbers whose rows have landed
    rows: int = 0  # in the table
    left_out: int = 0  # landed and not in the table: repeats, and what a settle hook dropped
    removed: int = 0  # rows that retention, purge or compaction took out
    sinks: tuple[StrandVerdict, ...] = ()
    faults: tuple[Fault, ...] = ()
    unknown: str = ""

    @property
    def status(self) -> Literal["ok", "fault", "unknown"]:
        states = {each.status for each in self.sinks}
        if self.faults or "fault" in states:
            return "fault"
        return "unknown" if self.unknown or "unknown" in states else "ok"


def prove(
    site: Site,
    census: "Callable[[Dataset], Mapping[str, Counted]]",
    sinks: Sequence[tuple[Sink, Terms]],
    sender: "Sender",
    *,
    dataset: str | None = None,
) -> Iterator[Proof]:
    """A proof, or its failure, for each strand of one dataset or of all. `census` counts a table."""
    names = site.standing.datasets() if dataset is None else [site.known(dataset).dataset.name]
    for name in names:
        yield from _Proving(site, sinks, sender, name).proofs(census)


@dataclass(slots=True)
class _Books:
    """A ledger, read from its first event."""

    hi: int = 0
    landed: dict[int, list[Range]] = field(default_factory=dict)  # by the number that landed them
    gaps: RangeSet = field(default_factory=RangeSet)
    raised: RangeSet = field(default_factory=RangeSet)
    removed: list[Removed] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)

    def all_landed(self) -> RangeSet:
        return RangeSet.of(each for ranges in self.landed.values() for each in ranges)

    def settled(self) -> RangeSet:
        return RangeSet.of([*self.all_landed().ranges, *self.gaps.ranges, *self.raised.ranges])


def read_ledger(site: Site, strand: Strand) -> _Books:
    books = _Books()
    for event in past_events(site, strand.ledger):
        entry = entry_of(event)
        if isinstance(entry, NUMBERING):
            if entry.lo != books.hi:
                lo, hi = sorted((entry.lo, books.hi))
                text = f"event {event.seq} numbers ({entry.lo}, {entry.hi}], after numbers up to {books.hi}"
                books.faults.append(Fault("not_dense", lo, hi, text))
            books.hi = max(books.hi, entry.hi)
        match entry:
            case Flushed():
                books.landed.setdefault(entry.number, []).extend(entry.ranges)
            case Landed():
                books.landed.setdefault(entry.number, []).append(Range(entry.lo, entry.hi))
            case Released() | Lost():
                books.gaps = books.gaps.with_(Range(entry.lo, entry.hi))
            case Raised():
                books.raised = books.raised.with_(Range(entry.lo, entry.hi))
            case Removed():
                books.removed.append(entry)
    return books


class _Proving:
    """One dataset."""

    def __init__(
        self, site: Site, sinks: Sequence[tuple[Sink, Terms]], sender: "Sender", dataset: str
    ) -> None:
        self._site, self._sender, self._dataset = site, sender, dataset
        self._sinks = [(sink, terms) for sink, terms in sinks if self._concerns(terms)]
        self._faults: dict[str, list[Fault]] = {}  # by source

    def _concerns(self, terms: Terms) -> bool:
        return bool(strands_of(self._site, terms, self._dataset))

    def _changes(self) -> tuple[int, int]:
        """Moves with every run that removes rows, when it is decided and when it is done."""
        standing = self._site.standing
        return standing.prunings().of(self._dataset).event, standing.rewrites().of(self._dataset).event

    def proofs(
        self, census: "Callable[[Dataset], Mapping[str, Counted]]", tries_left: int = _TRIES
    ) -> Iterator[Proof]:
        site, name, changes = self._site, self._dataset, self._changes()
        numbers = site.standing.numbers(name)  # what is closed by now must be in the table
        sources = set(site.standing.strand_states(name))
        books: dict[str, _Books] = {}
        unknown: dict[str, str] = {}
        for source in sorted(sources):
            try:
                books[source] = read_ledger(site, Strand(name, source))
            except (ControlUnreadable, HistoryGap) as error:
                unknown[source] = error.message
        counted, no_census = self._counted(census, books, is_all=not unknown)
        if self._changes() != changes and tries_left:
            yield from self.proofs(census, tries_left - 1)  # rows were removed meanwhile: look again
            return
        if not no_census:
            self._compare_table(books, counted, numbers, unread=unknown)
        for source in sorted(sources | set(counted)):
            yield self._proof(
                Strand(name, source),
                books.get(source, _Books()),
                counted.get(source),
                unknown.get(source, "") or no_census or _not_compared(source, books, unknown),
                is_counted=not no_census and source not in unknown,
            )

    def _counted(
        self,
        census: "Callable[[Dataset], Mapping[str, Counted]]",
        books: Mapping[str, _Books],
        *,
        is_all: bool,
    ) -> "tuple[Mapping[str, Counted], str]":
        """Where nothing has landed no table is looked at. Why it was not, where it could not be."""
        if is_all and not any(each.landed or each.raised.ranges for each in books.values()):
            return {}, ""
        try:
            return census(self._site.known(self._dataset).dataset), ""
        except StrandlineError as error:
            return {}, f"the table was not counted: {error.kind}: {error.message}"

    def _fault(self, source: str, kind: FaultKind, ranges: Iterable[Range], text: str) -> None:
        found = self._faults.setdefault(source, [])
        for each in list(ranges)[:_SHOWN]:
            found.append(Fault(kind, each.lo, each.hi, text))

    # The table

    def _compare_table(
        self,
        books: Mapping[str, _Books],
        counted: "Mapping[str, Counted]",
        numbers: Numbers,
        *,
        unread: Mapping[str, str],
    ) -> None:
        """A flush says of all its strands together how many rows it left out: where the ledger of one could
        not be read, what is missing of the others cannot be told."""
        if not unread:
            self._missing_rows(books, counted, numbers)
        for source, found in counted.items():
            if source in unread:
                continue
            known = books.get(source, _Books())
            self._strange_rows(source, known, found)
            bare = max((entry.bare for entry in known.removed), default=0)
            text = f"rows at or below {bare:,}, where a record says that none is left"
            self._fault(source, "row_unexpected", found.seqs.within(Range(0, bare)), text)
            for seq in found.twice:
                self._fault(source, "seq_twice", [Range(seq - 1, seq)], "more than one row has this number")

    def _missing_rows(
        self, books: Mapping[str, _Books], counted: "Mapping[str, Counted]", numbers: Numbers
    ) -> None:
        """What a flush landed is there, but for as many rows as its record says that it left out, and as
        ledgers say were removed since."""
        under_way = self._under_way()
        strands = {
            source: explain_missing.StrandRows(
                {
                    number: ranges
                    for number, ranges in each.landed.items()
                    if number not in numbers.open and number <= numbers.last  # else recorded meanwhile
                },
                counted[source].seqs if source in counted else RangeSet(),
                [
                    *(explain_missing.Took(Range(entry.lo, entry.hi), entry.rows) for entry in each.removed),
                    *under_way.get(source, ()),
                ],
                each.raised,
            )
            for source, each in books.items()
        }
        for found in explain_missing.unexplained(strands, self._left_out()):
            self._fault(found.source, found.kind, found.ranges, found.text)

    def _under_way(self) -> dict[str, list[explain_missing.Took]]:
        """What retention, a purge or a compaction has decided to remove, and may have removed."""
        b, name, standing = self._site.b, self._dataset, self._site.standing
        found: list[tuple[str, int, int, int]] = []
        if event := standing.prunings().of(name).open:
            data = _data_at(b, retention_stream(name), event)
            found += [(source, lo, hi, rows) for source, _, _, lo, hi, _, _, rows in data.get("counts", ())]
            found += [(source, lo, hi, rows) for source, rows, lo, hi, _, _ in data.get("found", ())]
        if event := standing.rewrites().of(name).staged:
            data = _data_at(b, maintain_stream(name), event)
            found += [(source, lo, hi, rows) for source, _, lo, hi, rows in data.get("repeats", ())]
        taken: dict[str, list[explain_missing.Took]] = {}
        for source, lo, hi, rows in found:
            taken.setdefault(source, []).append(explain_missing.Took(Range(lo, hi), rows, is_open=True))
        return taken

    def _left_out(self) -> dict[int, int]:
        """By number: repeats of known rows, and rows that a settle hook dropped."""
        found: dict[int, int] = {}
        for event in past_events(self._site, flush_stream(self._dataset)):
            if event.type in ("committed", "landed"):
                data = event.data
                found[number_of(event)] = int(data["duplicates"]) + int(data.get("dropped", 0))
        return found

    def _strange_rows(self, source: str, books: _Books, found: "Counted") -> None:
        if not _strange(books, found.seqs):
            return
        strand = Strand(self._dataset, source)
        books = read_ledger(self._site, strand)  # some may have landed since
        for each in _strange(books, found.seqs):
            above, below = _split(each, books.hi)
            text = f"rows without a number of ours: those end at {books.hi:,}"
            self._fault(source, "row_unexpected", above, text)
            gone = [gap for part in below for gap in books.gaps.within(part)]
            self._fault(source, "row_unexpected", gone, "rows whose numbers were released or lost")
            if not self._site.standing.numbers(self._dataset).open:  # else they are published, not recorded
                rest = [hole for part in below for hole in books.gaps.holes(part)]
                self._fault(source, "row_unexpected", rest, "rows that no entry says have landed")

    # One strand

    def _proof(
        self, strand: Strand, books: _Books, found: "Counted | None", unknown: str, *, is_counted: bool
    ) -> Proof:
        strand_state = self._site.standing.strand_state(strand)
        landed, settled = books.all_landed(), books.settled()
        faults = [*books.faults, *self._faults.get(strand.source, ())]
        if is_counted:
            # The state was read later than the ledger, and a strand only ever gets on.
            for hole in settled.holes(Range(0, min(strand_state.visible_through, books.hi)))[:_SHOWN]:
                if self._is_still_open(strand, hole):
                    text = f"V is {strand_state.visible_through:,}, and no entry says what became of it"
                    faults.append(Fault("not_settled", hole.lo, hole.hi, text))
        faults += self._spool_faults(strand)
        there = RangeSet() if found is None else found.seqs
        verdicts = [
            self._sink_verdict(sink, terms, strand, there, is_counted=is_counted)
            for sink, terms in self._sinks
            if terms.covers(strand.dataset) or strand in self._site.standing.lines().of(terms.name)
        ]
        lacking = sum(len(hole) for each in landed.ranges for hole in there.holes(each))
        removed = sum(each.rows for each in books.removed)
        return Proof(
            strand.dataset,
            strand.source,
            books.hi,
            strand_state.visible_through,
            strand_state.pending_rows,
            len(books.gaps) + len(books.raised),
            len(landed),
            0 if found is None else found.rows,
            0 if unknown else max(lacking - removed, 0),
            removed,
            tuple(verdicts),
            tuple(faults),
            unknown,
        )

    def _is_still_open(self, strand: Strand, hole: Range) -> bool:
        return bool(read_ledger(self._site, strand).settled().holes(hole))

    def _spool_faults(self, strand: Strand) -> Iterator[Fault]:
        """Each pending segment is read: what is acknowledged and has not landed must be able to."""
        strand_state = self._site.standing.strand_state(strand)
        if not strand_state.pending_rows:
            return
        for each in pending(self._site.b, strand, strand_state):
            reason = segment_fault(self._site.content, each.entry.segment, each.entry.of)
            if reason is not None:
                text = f"segment {each.entry.segment.cid}: {reason}"
                yield Fault("segment_damaged", each.lo, each.hi, text)

    def _sink_verdict(
        self, sink: Sink, terms: Terms, strand: Strand, there: RangeSet, *, is_counted: bool
    ) -> StrandVerdict:
        try:
            if self._site.standing.lines().instance(terms.name).is_open:
                check_destination(self._site, sink, terms)
        except StrandlineError as error:
            line = self._site.standing.lines().line(terms.name, strand)
            most = self._site.standing.strand_state(strand).visible_through
            return StrandVerdict(
                terms.name, strand.dataset, strand.source, line.mark, most, unknown=error.message
            )
        verdict, account = verify_strand(self._site, sink, terms, self._sender, strand)
        if account is None or not is_counted:
            return verdict
        return replace(verdict, faults=(*verdict.faults, *behind_line(account, there)))


def _not_compared(source: str, books: Mapping[str, _Books], unread: Mapping[str, str]) -> str:
    """Why it is not known whether rows of a strand are missing, where the ledger of another is unread."""
    if not unread or source not in books or not (books[source].landed or books[source].raised.ranges):
        return ""
    first = min(unread)
    return f"rows that the table lacks were not looked for: the ledger of {first!r}: {unread[first]}"


def _data_at(b: AtomicBackend, stream: str, seq: int) -> Any:
    found = b.event_at(stream, seq)
    return {} if found is None else found.data


def _split(range_: Range, seq: int) -> tuple[list[Range], list[Range]]:
    """What of a range lies above a seq, and what does not."""
    low, high = min(max(range_.lo, seq), range_.hi), range_.hi
    above, below = Range(low, high), Range(range_.lo, low)
    return [above] if len(above) else [], [below] if len(below) else []


def _strange(books: _Books, seqs: RangeSet) -> list[Range]:
    known = RangeSet.of([*books.all_landed().ranges, *books.raised.ranges])
    return [hole for each in seqs.ranges for hole in known.holes(each)]


def behind_line(account: Account, there: RangeSet) -> Iterator[Fault]:
    """Rows in the table that the line has passed, and that no record says were sent, withheld or given up."""
    for number, epoch in sorted(account.epochs.items()):
        if epoch.is_release:
            yield from _released(there, number, epoch)
            continue
        for posted in epoch.posted:
            kept = sum(map(len, posted.withheld))
            told = f"{posted.receipt.rows:,} were delivered and {kept:,} withheld"
            yield from _more(there, number, posted.range, posted.receipt.rows + kept, told)
        for void in epoch.void:
            kept = sum(map(len, void.withheld))
            told = f"it had none to deliver, and {kept:,} withheld" if kept else "it had none to deliver"
            yield from _more(there, number, void.range, kept, told)
        for letter in epoch.letters.values():
            kept = sum(map(len, epoch.withheld.within(letter.range)))
            told = f"{letter.rows:,} were given up and {kept:,} withheld"
            yield from _more(there, number, letter.range, letter.rows + kept, told)
        for gap in epoch.passed:
            yield from _more(there, number, gap, 0, "the line passed it as a gap")


def _released(there: RangeSet, number: int, epoch: Epoch) -> Iterator[Fault]:
    """Of a release only the rows that were asked for count, all together."""
    kept, letters = len(epoch.withheld), sum(each.rows for each in epoch.letters.values())
    sent = sum(each.receipt.rows for each in epoch.posted)
    count = sum(len(found) for each in epoch.crossed.ranges for found in there.within(each))
    if not epoch.known and count > sent + kept + letters:
        whole = Range(epoch.crossed.ranges[0].lo, epoch.crossed.ranges[-1].hi)
        text = f"the table has {count:,} of the rows that were released; {sent:,} were delivered"
        yield Fault("behind_line", whole.lo, whole.hi, text, number)


def _more(there: RangeSet, epoch: int, range_: Range, most: int, told: str) -> Iterator[Fault]:
    found = there.within(range_)
    count = sum(map(len, found))
    if count > most:
        # Of a range without any, exactly those; else it cannot be told which of them came later.
        for each in found[:_SHOWN] if most == 0 else [range_]:
            yield Fault("behind_line", each.lo, each.hi, f"the table has {count:,} rows of it; {told}", epoch)
