"""A sink's records against themselves and against its destination: what is missing, double, strange, altered.

Two kinds of destinations tell what they have. One keeps ranges: then all that was acknowledged must be in
them, and nothing else. The other keeps objects, each under the name of its unit: then each receipt must have
its object, with the rows and the digest that it had, and each object a receipt. An object without one is no
stranger where a try that was cut short may have written it: of an open intent, of one that was given up, or
of a unit that a later try found empty.

It reads the store and asks the destination once for each strand and epoch. No table is looked at (that is
`prove`), nothing is written, and it may run beside a delivery.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

from strandline.base.ranges import Range, RangeSet
from strandline.delivery.audit.account import Account, Epoch, account_of
from strandline.delivery.audit.compare import DROPPED, Compared, Fault, FaultKind, compare
from strandline.delivery.instance import check_destination
from strandline.delivery.owed import Terms, covered
from strandline.errors import HistoryGap, StrandlineError
from strandline.rows.dataset import Strand
from strandline.sinks.sink import Shipment, Sink
from strandline.state.archive import past_events
from strandline.state.context import Site
from strandline.state.sink_progress import instance_stream, sink_stream
from strandline.state.strand_entries import ControlUnreadable

if TYPE_CHECKING:
    from strandline.delivery.session import Sender

_TRIES: Final = 3


@dataclass(frozen=True, slots=True)
class StrandVerdict:
    """What was found of one strand. `unknown` says why something could not be checked."""

    instance: str
    dataset: str
    source: str
    mark: int
    visible_through: int
    epochs: tuple[int, ...] = ()
    units: int = 0
    rows: int = 0
    withheld: int = 0
    letters: int = 0  # rows in dead letters that were not sent since
    skipped: int = 0  # seqs that an operator had the line go over
    evicted: int = 0  # rows that retention took before they were delivered, at most
    unrecorded: int = 0  # objects and ranges of tries that were cut short
    elsewhere: int = 0  # units that went to a destination that it had before
    faults: tuple[Fault, ...] = ()
    unknown: str = ""

    @property
    def status(self) -> Literal["ok", "fault", "unknown"]:
        return "fault" if self.faults else "unknown" if self.unknown else "ok"


def verify(
    site: Site, sink: Sink, terms: Terms, sender: "Sender", *, dataset: str | None = None
) -> Iterator[StrandVerdict]:
    """A verdict for each strand that the instance takes, or has ever delivered of, in order of their names.

    Raises DestinationChanged where the name now means another destination: then there is nothing to compare.
    """
    if site.standing.lines().instance(terms.name).is_open:
        check_destination(site, sink, terms)
    return (
        verify_strand(site, sink, terms, sender, strand)[0] for strand in strands_of(site, terms, dataset)
    )


def strands_of(site: Site, terms: Terms, dataset: str | None = None) -> list[Strand]:
    found = {strand for strand, _ in covered(site, terms)} | set(site.standing.lines().of(terms.name))
    return sorted(strand for strand in found if dataset in (None, strand.dataset))


def verify_strand(
    site: Site, sink: Sink, terms: Terms, sender: "Sender", strand: Strand
) -> tuple[StrandVerdict, Account | None]:
    """Its account comes along, None if that cannot be read. Where a delivery goes on meanwhile it looks
    again: what changes under way is no fault."""
    stream = sink_stream(terms.name, strand.dataset, strand.source)
    for _ in range(_TRIES):
        event = site.b.last_seq(stream)
        verdict, account = _look(site, sink, terms, sender, strand)
        if not verdict.faults or site.b.last_seq(stream) == event:
            break
    return verdict, account


def _look(
    site: Site, sink: Sink, terms: Terms, sender: "Sender", strand: Strand
) -> tuple[StrandVerdict, Account | None]:
    lines = site.standing.lines()
    line, first = lines.line(terms.name, strand), lines.instance(terms.name).epoch
    most = site.standing.strand_state(strand).visible_through
    verdict = StrandVerdict(terms.name, strand.dataset, strand.source, line.mark, most)
    try:
        account = account_of(site, terms.name, strand, line, first)
    except (ControlUnreadable, HistoryGap) as error:
        kind: FaultKind = "history_gap" if isinstance(error, HistoryGap) else "control_unreadable"
        return replace(verdict, faults=(Fault(kind, 0, line.mark, error.message),)), None
    verdict = _counted(verdict, account)
    epochs = account.epochs or {line.epoch: Epoch()}
    faults, unknown = list(record_faults(account, line.mark)), ""
    compared: list[Compared] = []
    try:
        for number, epoch in sorted(epochs.items()):
            holdings = sink.holdings(_shipment(site, terms, sender, strand), strand.source, number)
            if holdings is None:
                unknown = "the destination does not tell what it has"
                break
            others = _others(site, sink, terms, strand, number)
            compared.append(compare(number, epoch, holdings, bound_at=_bound_at(site, terms), others=others))
    except StrandlineError as error:
        unknown = f"{error.kind}: {error.message}"
    faults += [fault for each in compared for fault in each.faults]
    untold = sum(each.untold for each in compared)
    if untold and not unknown:
        unknown = f"{untold:,} objects tell neither their rows nor their digest"
    verdict = replace(
        verdict,
        unrecorded=sum(each.unrecorded for each in compared),
        elsewhere=sum(each.elsewhere for each in compared),
        faults=tuple(faults),
        unknown=unknown,
    )
    return verdict, account


def record_faults(account: Account, mark: int) -> Iterator[Fault]:
    """What the records of a strand say against themselves."""
    if account.line.mark != mark:
        lo, hi = sorted((account.line.mark, mark))
        text = f"the stream puts the line at {account.line.mark}, and the global order at {mark}"
        yield Fault("hole", lo, hi, text, account.line.epoch)
    for number, epoch in sorted(account.epochs.items()):
        settled = epoch.settled()
        for each in epoch.crossed.ranges:
            for hole in settled.holes(each):
                text = "the line is past it, and no record says what became of it"
                yield Fault("hole", hole.lo, hole.hi, text, number)
        for twice in epoch.twice:
            yield Fault("settled_twice", twice.lo, twice.hi, "two records settle it", number)


def _counted(verdict: StrandVerdict, account: Account) -> StrandVerdict:
    epochs = account.epochs.values()
    letters = [letter for epoch in epochs for letter in epoch.letters.values()]
    return replace(
        verdict,
        epochs=tuple(sorted(account.epochs)),
        units=sum(len(epoch.posted) for epoch in epochs),
        rows=sum(each.receipt.rows for epoch in epochs for each in epoch.posted),
        withheld=len(account.line.withheld),
        letters=sum(letter.rows for letter in letters if letter.how in ("", DROPPED)),
        skipped=sum(len(each) for epoch in epochs for each in epoch.skipped),
        evicted=account.line.evicted,
    )


def _shipment(site: Site, terms: Terms, sender: "Sender", strand: Strand) -> Shipment:
    dataset = site.known(strand.dataset).dataset
    return Shipment(terms.name, sender.origin, sender.node, dataset, sender.signal(strand.dataset))


def _bound_at(site: Site, terms: Terms) -> int:
    """When the instance got the destination that it has, if not with its first event."""
    events = past_events(site, instance_stream(terms.name))
    return max((int(each.at) for each in events if each.type == "bound"), default=0)


def _others(site: Site, sink: Sink, terms: Terms, strand: Strand, number: int) -> RangeSet:
    """What other instances have brought to the same destination: it tells strands and epochs apart, and not
    who sent them."""
    lines = site.standing.lines()
    names: Iterable[str] = [
        name
        for name in lines.instances()
        if name != terms.name and sink.is_at(lines.instance(name).fingerprint)
    ]
    found = RangeSet()
    for name in names:
        account = account_of(site, name, strand, lines.line(name, strand), lines.instance(name).epoch)
        epoch = account.epochs.get(number, Epoch())
        ranges = [*epoch.settled().ranges, *(Range(each.lo, each.hi) for each in epoch.unsure)]
        found = RangeSet.of([*found.ranges, *ranges])
    return found
