"""Dead letters, once they are written: listed, shown, sent once more, or dropped. They are written in
`letters`."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from strandline.base.ranges import Range
from strandline.delivery.dead_letter_files import DeadLetter, letters_of
from strandline.delivery.instance import check_destination
from strandline.delivery.owed import Terms
from strandline.delivery.session import Sender
from strandline.errors import NotFoundError
from strandline.persist import Append, Conflict, ExpectKey, ExpectSeq
from strandline.persist.value import MAX_SEQ
from strandline.rows.dataset import SOURCE, Dataset
from strandline.sinks.sink import DONE, Outcome, Shipment, Sink
from strandline.state.context import Site
from strandline.state.dataset_versions import recorded_version
from strandline.state.lease import LeaseLost, held
from strandline.state.sink_progress import UnitReceipt, event_of

if TYPE_CHECKING:
    import pyarrow as pa

WAIT_S: Final = 5.0  # for a run of the sink to end


class LetterUnknown(NotFoundError):
    """No dead letter of this id waits for a decision."""

    def __init__(self, id_: str) -> None:
        super().__init__(
            f"no dead letter {id_!r:.200} waits for a decision",
            hint="`strandline dlq list` shows those that do",
        )
        self.id = id_


@dataclass(frozen=True, slots=True)
class Retried:
    """What became of a dead letter that was sent once more; `outcomes` are those that say why it stays."""

    letter: DeadLetter
    rows: int
    requests: int
    outcomes: tuple[Outcome, ...] = ()

    @property
    def is_sent(self) -> bool:
        return not self.outcomes


def waiting(site: Site, instance: str | None = None) -> list[DeadLetter]:
    """The dead letters of one instance, or of all, oldest first."""
    lines = site.standing.lines()
    names = lines.instances() if instance is None else [instance]
    found = [
        letter
        for name in names
        for strand, line in lines.of(name).items()
        for letter in letters_of(site.b, name, strand, line)
    ]
    return sorted(found, key=lambda each: (each.at, each.id))


def letter_named(site: Site, id_: str) -> DeadLetter:
    instance, _, _ = id_.partition("/")
    found = next((each for each in waiting(site, instance) if each.id == id_), None)
    if found is None:
        raise LetterUnknown(id_)
    return found


def body_of(site: Site, letter: DeadLetter) -> bytes:
    """Its rows as they would have been sent, one JSON object a line."""
    body = site.content.get(letter.body.cid)
    if body is None:
        raise NotFoundError(
            f"the rows of dead letter {letter.id} are not in the content store",
            hint="put them back from a copy, or drop it and rewind the sink, which sends them from the table",
        )
    return body


def retry(site: Site, sink: Sink, terms: Terms, sender: Sender, id_: str) -> Retried:
    """Send a dead letter once more: the same range in the same epoch, so what a destination has of it already
    it takes for a repeat. A crash before the record leaves the letter, and the next try says so."""
    check_destination(site, sink, terms)
    with held(site.b, site.clock, f"sink/{terms.name}", timeout_s=WAIT_S) as lease:
        letter = letter_named(site, id_)
        dataset = recorded_version(site.b, letter.strand.dataset, letter.schema)
        shipment = Shipment(terms.name, sender.origin, sender.node, dataset, sender.signal(dataset.name))
        outcomes = _sent(site, sink, shipment, letter)
        requests = sum(each.requests for each in outcomes)
        if left := tuple(each for each in outcomes if each.status not in DONE):
            return Retried(letter, 0, requests, left)
        _settle(site, letter, _settled(site, letter, "sent", "by command", outcomes), lease.guard)
        return Retried(letter, letter.rows, requests)


def drop(site: Site, id_: str, *, reason: str) -> DeadLetter:
    """Give the rows of a dead letter up for this sink. They stay in the table; the body goes with the next
    sweep."""
    instance, _, _ = id_.partition("/")
    with held(site.b, site.clock, f"sink/{instance}", timeout_s=WAIT_S) as lease:
        letter = letter_named(site, id_)
        _settle(site, letter, _settled(site, letter, "dropped", reason, ()), lease.guard)
        return letter


def _settled(site: Site, letter: DeadLetter, how: str, reason: str, outcomes: tuple[Outcome, ...]) -> Append:
    units = [
        list(UnitReceipt(each.lo, each.hi, each.rows, each.bytes, each.digest, each.target))
        for each in outcomes
        if each.rows
    ]
    facts = {"letter": letter.event, "how": how, "reason": reason, "units": units}
    return event_of(letter.stream, "settled", site.clock.now_us(), **facts)


def _settle(site: Site, letter: DeadLetter, write: Append, guard: ExpectKey) -> None:
    """Under the lease only the instance's own records move, so a conflict is a lease that was lost."""
    line = site.standing.lines().line(letter.instance, letter.strand)
    outcome = site.b.commit([guard, ExpectSeq(letter.stream, line.event)], [write])
    if isinstance(outcome, Conflict):
        raise LeaseLost(f"sink/{letter.instance}")


# Sending


def _sent(site: Site, sink: Sink, shipment: Shipment, letter: DeadLetter) -> tuple[Outcome, ...]:
    """As one unit, whatever the sink would cut now: so its id is the one that it had."""
    from strandline.sinks.unit_runner import IntentPart, deliver

    source, whole = letter.strand.source, Range(letter.lo, letter.hi)
    limits = replace(sink.limits(0), unit_rows=len(whole))
    part = IntentPart(
        *(letter.intent, letter.epoch, source, whole.lo, whole.hi, whole.lo, (whole,), limits),
        through=MAX_SEQ,  # later intents have gone past it
    )
    rows = _batch(shipment.dataset, letter, body_of(site, letter), with_row_id=sink.wants_row_id)
    return tuple(told.outcome for told in deliver(sink, shipment, {source: part}, [rows]))


def _batch(dataset: Dataset, letter: DeadLetter, body: bytes, *, with_row_id: bool) -> "pa.RecordBatch":
    """The rows as a sink gets them: the dataset's columns, `source`, `_sl_seq`."""
    import pyarrow as pa

    from strandline.rows.columns import arrow_type
    from strandline.rows.row_files import parse_row
    from strandline.rows.validate import accept, raise_refusals
    from strandline.sinks.ndjson import ROW_ID
    from strandline.sinks.unit_runner import SEQ

    accepted = accept(dataset, [parse_row(line) for line in body.splitlines()], source=letter.strand.source)
    if accepted.refusals:
        raise_refusals(dataset, accepted.refusals)
    table, count = accepted.table, accepted.table.num_rows
    columns: dict[str, Any] = {}
    for column in dataset.columns:
        if column.name != SOURCE:
            type_, is_there = arrow_type(column.type), column.name in table.column_names
            columns[column.name] = table[column.name].cast(type_) if is_there else pa.nulls(count, type_)
    columns[SOURCE] = pa.array([letter.strand.source] * count, pa.string())
    seqs = [seq for each in letter.seqs for seq in range(each.lo + 1, each.hi + 1)]
    columns[SEQ] = pa.array(seqs, pa.int64())
    if with_row_id:  # it is not in the body, and the receiver makes its own
        columns[ROW_ID] = pa.nulls(count, pa.string())
    return pa.table(columns).combine_chunks().to_batches()[0]
