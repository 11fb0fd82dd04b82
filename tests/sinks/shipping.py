"""What tests of sinks send: rows that follow from their seq, in batches, and the parts that ask for them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from strandline.base.ranges import Range
from strandline.rows.dataset import Column, Dataset
from strandline.rows.validate import arrow_schema
from strandline.sinks.sink import Limits, Shipment, Sink
from strandline.sinks.unit_runner import IntentPart, Told, deliver

DATASET: Final = Dataset(
    "logs",
    (
        Column("n", "bigint", required=True),
        Column("text", "string"),
        Column("at", "timestamp"),
        Column("price", "decimal(10,2)"),
        Column("raw", "binary"),
        Column("more", "json"),
        Column("rate", "double"),
    ),
    version=3,
)
SHIPMENT: Final = Shipment("archive", "origin-1", "node-1", DATASET, "logs")
START: Final = datetime(2026, 3, 1, 10, tzinfo=UTC)


def row(seq: int) -> dict[str, Any]:
    return {
        "n": seq,
        "text": f'row {seq}, "quoted"' if seq % 3 else None,
        "at": START + timedelta(microseconds=seq),
        "price": Decimal(seq).scaleb(-2),
        "raw": bytes([seq % 256]),
        "more": f'{{"seq":{seq}}}',
        "rate": seq / 7,
    }


def batch(
    source: str, seqs: Sequence[int], *, dataset: Dataset = DATASET, withheld: Iterable[int] | None = None
) -> pa.RecordBatch:
    """Rows as a sink gets them: the dataset's columns and `source`, then what is ours."""
    rows = [{**row(seq), "source": source} for seq in seqs]
    schema = arrow_schema(dataset)
    made = pa.RecordBatch.from_pylist(
        [{**each, "_sl_seq": seq} for each, seq in zip(rows, seqs, strict=True)],
        pa.schema([*list(schema)[1:], schema.field(0), pa.field("_sl_seq", pa.int64(), nullable=False)]),
    )
    if withheld is None:
        return made
    kept = set(withheld)
    return made.append_column("_sl_withheld", pa.array([seq in kept for seq in seqs], pa.bool_()))


def batches(source: str, seqs: Sequence[int], *, size: int = 7, **options: Any) -> Iterator[pa.RecordBatch]:
    for first in range(0, len(seqs), size):
        yield batch(source, seqs[first : first + size], **options)


def part(
    source: str,
    since: int,
    until: int,
    limits: Limits,
    *,
    intent: str = "intent-1",
    chain_hi: int | None = None,
    epoch: int = 0,
    ranges: Sequence[Range] | None = None,
) -> IntentPart:
    asked = tuple(ranges) if ranges is not None else (Range(since, until),)
    return IntentPart(
        intent, epoch, source, since, until, since if chain_hi is None else chain_hi, asked, limits
    )


def ship(
    sink: Sink, asked: IntentPart, seqs: Sequence[int], *, dataset: Dataset = DATASET, **options: Any
) -> list[Told]:
    """Deliver the rows of one strand that are there."""
    shipment = replace(SHIPMENT, dataset=dataset)
    rows = batches(asked.source, seqs, dataset=dataset, **options)
    return list(deliver(sink, shipment, {asked.source: asked}, rows))
