"""Dead letters: what a destination will not take. The rows are kept as they would have been sent, and the
line passes them only with this record."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from strandline.base.ranges import Range, RangeSet, pairs_of, ranges_of
from strandline.persist import Append, AtomicBackend, BlobRef
from strandline.rows.dataset import Strand
from strandline.sinks.sink import Outcome, Shipment
from strandline.state.sink_progress import Intent, SinkProgress, delivered, event_of, sink_stream
from strandline.state.strand_entries import ControlUnreadable
from strandline.storage import ContentStore

if TYPE_CHECKING:
    import pyarrow as pa

MIME: Final = "application/x-ndjson"
MOST_ANSWER: Final = 2048


def lettered(
    content: ContentStore,
    stream: str,
    intent: Intent,
    outcome: Outcome,
    shipment: Shipment,
    rows: "pa.Table",
    at: int,
) -> Append:
    """The write that gives a range up. Its rows are durable in the content store when this returns; where
    they were removed meanwhile, nothing is owed."""
    from strandline.sinks.ndjson import ndjson_lines

    if not rows.num_rows:
        return delivered(stream, intent.id, at, void=[Range(outcome.lo, outcome.hi)])
    body = content.put_stream(
        (
            ndjson_lines(shipment.dataset, batch, with_source=False, with_row_id=False)
            for batch in rows.to_batches()
        ),
        MIME,
    )
    return event_of(
        stream,
        "lettered",
        at,
        intent=intent.id,
        lo=outcome.lo,
        hi=outcome.hi,
        epoch=intent.epoch,
        seqs=pairs_of(_seqs(rows).ranges),
        rows=rows.num_rows,
        schema=intent.schema,
        kind=outcome.kind,
        http_status=outcome.http_status,
        answer=outcome.text[:MOST_ANSWER],
        body=body,
        unit=outcome.target,
    )


def _seqs(rows: "pa.Table") -> RangeSet:
    """Which line of the body is which row."""
    from strandline.sinks.unit_runner import SEQ

    return RangeSet.of(Range(seq - 1, seq) for seq in rows.column(SEQ).to_pylist())


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter that waits for a decision: rows (lo, hi] of a strand, and why they were not taken."""

    instance: str
    strand: Strand
    event: int
    at: int
    lo: int
    hi: int
    epoch: int
    rows: int
    schema: int
    http_status: int
    kind: str
    answer: str
    body: BlobRef
    unit: str
    intent: str
    seqs: tuple[Range, ...]

    @property
    def id(self) -> str:
        """`<instance>/<dataset>/<source>:<event>`, the source as in names of streams."""
        return f"{self.stream.removeprefix('sink/')}:{self.event}"

    @property
    def stream(self) -> str:
        return sink_stream(self.instance, self.strand.dataset, self.strand.source)


def letters_of(b: AtomicBackend, instance: str, strand: Strand, line: SinkProgress) -> Iterator[DeadLetter]:
    """Those of a line, oldest first. Raises ControlUnreadable."""
    stream = sink_stream(instance, strand.dataset, strand.source)
    for seq in line.letters:
        event = b.event_at(stream, seq)
        if event is None:
            raise ControlUnreadable(stream, seq, "it is gone")
        data: Any = event.data
        names = (
            "lo",
            "hi",
            "epoch",
            "rows",
            "schema",
            "http_status",
            "kind",
            "answer",
            "body",
            "unit",
            "intent",
        )
        try:
            facts = {name: data[name] for name in names}
            seqs = ranges_of(data["seqs"])
        except (TypeError, ValueError, KeyError) as error:
            raise ControlUnreadable(stream, seq, str(error)) from error
        yield DeadLetter(instance, strand, seq, int(event.at), **facts, seqs=seqs)
