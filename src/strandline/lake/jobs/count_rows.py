"""Which numbers a table has rows of, exactly: one aggregation over two of its columns.

Seqs are taken in blocks of 32,768. Each task makes a bitmap of 4 KiB a block, and only those are shuffled,
not the rows. A block comes back as its lowest and highest seq where all between them are there, else as its
bitmap: so a dense strand of a billion rows is 30,000 short rows, and one with holes 4 KiB a block.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import DataFrame

from strandline.base.ranges import Range, RangeSet
from strandline.lake.jobs.scan import LakeReader, ScanRange, pieces_sql
from strandline.lake.jobs.table_schema import SEQ
from strandline.rows.dataset import SOURCE, Dataset

BLOCK: Final = 32_768  # bits of a bitmap of Spark's
_BLOCK: Final = "block"
_MOST_TWICE: Final = 100
_NAMES: Final = {
    "min(lowest)": "lowest",
    "max(highest)": "highest",
    "bitmap_construct_agg(bit)": "bits",
    "count(1)": "rows",
}


@dataclass(frozen=True, slots=True)
class Counted:
    """What a table has of one strand. `twice` are seqs of more than one row: the first hundred."""

    rows: int = 0
    seqs: RangeSet = field(default_factory=RangeSet)
    twice: tuple[int, ...] = ()


def census(reader: LakeReader, dataset: Dataset) -> Mapping[str, Counted]:
    """By source, of the table as it is now. Raises what the reader does, TableMissing among it.

    It reads the columns `source` and `_sl_seq` of every file, once; where seqs are there twice, those blocks
    again.
    """
    snapshot = reader.current_snapshot(dataset)
    if snapshot is None:
        return {}
    seqs = reader.rows(dataset, columns=[SOURCE], internal=True, snapshot=snapshot).select(SOURCE, SEQ)
    found: dict[str, list[Range]] = {}
    rows: dict[str, int] = {}
    double: list[tuple[str, int]] = []
    with reader.reading(dataset, snapshot):
        for row in _blocks(seqs).toLocalIterator():
            source, block = row[SOURCE], row[_BLOCK]
            rows[source] = rows.get(source, 0) + row["rows"]
            kept = found.setdefault(source, [])
            if row["bits"] is None:
                kept.append(Range(row["lowest"] - 1, row["highest"]))
            else:
                kept += _ranges(bytes(row["bits"]), block * BLOCK)
            if row["rows"] != row["distinct"]:
                double.append((source, block))
        twice = _twice(seqs, double[:_MOST_TWICE])
    return {
        source: Counted(rows[source], RangeSet.of(ranges), tuple(twice.get(source, ())))
        for source, ranges in found.items()
    }


def _blocks(seqs: DataFrame) -> DataFrame:
    places = seqs.selectExpr(
        SOURCE,
        f"({SEQ} - 1) div {BLOCK} AS {_BLOCK}",
        f"{SEQ} AS lowest",
        f"{SEQ} AS highest",
        f"bitmap_bit_position({SEQ}) AS bit",
    )
    counted = places.groupBy(SOURCE, _BLOCK).agg(
        {"lowest": "min", "highest": "max", "bit": "bitmap_construct_agg", "*": "count"}
    )
    named = counted.toDF(*(_NAMES.get(name, name) for name in counted.columns))
    return named.selectExpr(
        SOURCE,
        _BLOCK,
        "rows",
        "lowest",
        "highest",
        "bitmap_count(bits) AS distinct",
        "if(bitmap_count(bits) = highest - lowest + 1, NULL, bits) AS bits",
    )


def _twice(seqs: DataFrame, blocks: Sequence[tuple[str, int]]) -> dict[str, list[int]]:
    """The seqs in these blocks that more than one row has."""
    if not blocks:
        return {}
    pieces = [ScanRange(source, Range(block * BLOCK, (block + 1) * BLOCK)) for source, block in blocks]
    counted = seqs.where(pieces_sql(pieces)).groupBy(SOURCE, SEQ).count().where("count > 1")
    found: dict[str, list[int]] = {}
    for row in counted.sort(SOURCE, SEQ).limit(_MOST_TWICE).collect():
        found.setdefault(row[SOURCE], []).append(row[SEQ])
    return found


def _ranges(bits: bytes, before: int) -> Iterator[Range]:
    """The seqs of a bitmap, whose first bit is the seq after `before`."""
    word = int.from_bytes(bits, "little")
    at = 0
    while word:
        skipped = (word & -word).bit_length() - 1
        word >>= skipped
        length = (~word & (word + 1)).bit_length() - 1
        word >>= length
        at += skipped
        yield Range(before + at, before + at + length)
        at += length
