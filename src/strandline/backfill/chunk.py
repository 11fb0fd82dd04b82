"""Chunks: what an item's rows are cut into, and the mark that says for good that one is written.

    backfilled/<provider>/<digest of dataset and item>/<ordinal>    {"rows": 10000, "digest": "9f2c…",
                                                                    "waiting": {source: {lo, hi, removed}}}

The mark is of the chunk as it was yielded, before anything was left out, and goes into the transaction that
writes what is left. If rows of the chunk had not landed by then, `waiting` says where in their strands they
may be, so that a later run notices if an operator has given them up (see `lost_rows.py`). The next run cuts
the item where the marks say it was cut, so that an item that grew comes in the same chunks and new ones
behind them.

    backfilled/<provider>/<digest of dataset and item>/frame    {"version": "4096:…", "rows": 1000000, …}

That of an item which came whole, as a frame (see `frame.py`). An item may change from one to the other, as a
file does that grows: where rows have no identity, nothing but its version tells then what is written of it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final
from urllib.parse import quote

import msgspec
import orjson
import pyarrow as pa

from strandline.errors import UnavailableError, UsageError
from strandline.ingest.load import has_landed
from strandline.lake.ports.lookup import has_identity
from strandline.persist import ABSENT, AtomicBackend, ExpectKey, Put
from strandline.rows.batches import ArrowBatch
from strandline.rows.validate import rows_digest
from strandline.sources.provider import Chunk, Item
from strandline.state.context import Site
from strandline.state.flush_plan import readable

BUNDLE_ROWS: Final = 250_000
BUNDLE_BYTES: Final = 64 * 1024 * 1024


class ItemChanged(UsageError):
    """An item that was written before has other rows now, or comes in another way, and nothing tells which of
    them are new."""

    def __init__(self, item: str, dataset: str, how: str = "has changed since it was written") -> None:
        super().__init__(
            f"{item!r} {how}, and rows of {dataset!r} have no identity",
            hint="give the dataset an identity, or have the provider cut it into items that do not change"
            " (a Parquet file comes whole from `frame_bytes` on)",
        )
        self.item, self.dataset = item, dataset


class Waiting(msgspec.Struct, frozen=True):
    """Rows of a chunk are in `(lo, hi]` of a strand and had not landed; `removed` rows had been removed from
    the strand by then."""

    lo: int
    hi: int
    removed: int


class ChunkMark(msgspec.Struct, frozen=True):
    """A chunk that is written."""

    rows: int
    digest: str
    waiting: dict[str, Waiting] = {}

    def is_of(self, other: "ChunkMark | None") -> bool:
        """Whether it is of the same rows."""
        return other is not None and (self.rows, self.digest) == (other.rows, other.digest)


class FrameMark(msgspec.Struct, frozen=True):
    """A frame that is written; with `request`, one whose load has its numbers and may have been released."""

    version: str
    rows: int
    request: str = ""


@dataclass(frozen=True, slots=True)
class ChunkPart:
    """A chunk of an item that is not written yet, and the mark that stood in its place. With `is_again` it
    was written, and rows of it were given up since."""

    item: Item
    key: str
    rows: Chunk
    bytes: int
    mark: ChunkMark
    before: Any
    is_again: bool = False

    @property
    def expected(self) -> ExpectKey:
        return ExpectKey(self.key, ABSENT if self.before is None else self.before)

    @property
    def write(self) -> Put:
        return self.write_with({})

    def write_with(self, waiting: Mapping[str, Waiting]) -> Put:
        """Return the write of the mark. `waiting` is of all chunks that are written together."""
        data: dict[str, Any] = {"rows": self.mark.rows, "digest": self.mark.digest}
        if waiting:
            data["waiting"] = {source: msgspec.structs.asdict(each) for source, each in waiting.items()}
        return Put(self.key, data)


def mark_key(instance: str, item: Item, ordinal: int) -> str:
    digest = sha256(f"{item.dataset}\0{item.id}".encode()).hexdigest()
    return f"backfilled/{quote(instance, safe='')}/{digest}/{ordinal}"


def frame_key(instance: str, item: Item) -> str:
    return f"{mark_key(instance, item, 0).rpartition('/')[0]}/frame"


def frame_mark(key: str, value: Any) -> FrameMark | None:
    if value is None:
        return None
    with readable(key, None):
        return msgspec.convert(value, FrameMark)


def refuse_cut(b: AtomicBackend, instance: str, item: Item) -> None:
    """An item without identity that is to come whole, and came in chunks before. Raises ItemChanged."""
    if b.kv_get(mark_key(instance, item, 0)) is not None:
        raise ItemChanged(item.id, item.dataset, "was written in chunks and comes whole now")


def rows_whole(site: Site, instance: str, item: Item) -> int | None:
    """How many rows of an item without identity came whole, as it is now; None where none did. Raises
    ItemChanged where it came in another version."""
    key = frame_key(instance, item)
    kept = frame_mark(key, site.b.kv_get(key))
    if kept is None or has_identity(site.schema(item.dataset).dataset):
        return None
    landed = has_landed(site, item.dataset, kept.request) if kept.request else True
    if landed is None:
        raise UnavailableError(
            f"{item.id!r} was being written whole, and its load is open",
            hint=f"`strandline flush {item.dataset}` finishes it; then run the backfill again",
        )
    if not landed:  # it was given up: none of its rows came
        return None
    if kept.version == item.version:
        return kept.rows
    raise ItemChanged(item.id, item.dataset, "was written whole and comes in chunks now")


def parts(
    b: AtomicBackend,
    instance: str,
    item: Item,
    chunks: Iterable[Chunk],
    *,
    is_lost: Callable[[ChunkMark], bool] = lambda _: False,
) -> Iterator[ChunkPart | int]:
    """The chunks of an item that are not written yet, or of which rows are lost; an integer is so many rows
    of one that is."""
    stream = _Stream(chunks)
    ordinal = 0
    while True:
        key = mark_key(instance, item, ordinal)
        before = b.kv_get(key)
        kept = None if before is None else _mark(key, before)
        rows = stream.take(None if kept is None else kept.rows)
        if rows is None:
            return
        digest, size = measured(rows)
        mark = ChunkMark(count(rows), digest)
        is_known = mark.is_of(kept)
        if is_known and not (kept is not None and kept.waiting and is_lost(kept)):
            yield mark.rows
        else:
            yield ChunkPart(item, key, rows, size, mark, before, is_known)
        ordinal += 1


def _mark(key: str, value: Any) -> ChunkMark:
    with readable(key, None):
        return msgspec.convert(value, ChunkMark)


def count(rows: Chunk) -> int:
    return len(rows) if isinstance(rows, list) else int(rows.num_rows)


def measured(rows: Chunk) -> tuple[str, int]:
    """The digest of the rows, however they are cut, and about how many bytes they take. Mappings and tables
    of the same rows differ: a provider stays with one kind."""
    if not isinstance(rows, list):
        table = rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])
        if all(_is_flat(column.type) or column.null_count == len(column) for column in table.columns):
            return rows_digest(table), int(table.nbytes)
    digest, size = sha256(), 0
    for row in rows if isinstance(rows, list) else ArrowBatch(rows).rows():
        text = _text_of(row)
        digest.update(text)
        digest.update(b"\n")
        size += len(text)
    return digest.hexdigest(), size


def _is_flat(type_: Any) -> bool:
    """Whether `rows_digest` knows its values."""
    is_text = type_ in (pa.string(), pa.binary())
    return is_text or pa.types.is_primitive(type_) or pa.types.is_decimal128(type_)


def _text_of(row: Any) -> bytes:
    try:
        return orjson.dumps(row, default=repr, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
    except TypeError:  # an integer beyond 64 bits, or nested too deep
        return repr(row).encode(errors="backslashreplace")


class _Stream:
    """Chunks as they come, taken in other sizes where that is wanted."""

    def __init__(self, chunks: Iterable[Chunk]) -> None:
        self._chunks = (each for each in chunks if count(each))
        self._rest: Chunk | None = None

    def take(self, wanted: int | None) -> Chunk | None:
        """So many rows, or fewer at the end; without a number what is left of the chunk, or the next one.
        None behind the last row."""
        first = self._rest if self._rest is not None else next(self._chunks, None)
        self._rest = None
        if first is None or wanted is None:
            return first
        taken = [first]
        while (have := sum(map(count, taken))) < wanted and (more := next(self._chunks, None)) is not None:
            taken.append(more)
        if have > wanted:
            keep = count(taken[-1]) - (have - wanted)
            taken[-1], self._rest = _cut(taken[-1], keep)
        return joined(taken)


def _cut(rows: Chunk, at: int) -> tuple[Chunk, Chunk]:
    return (rows[:at], rows[at:]) if isinstance(rows, list) else (rows.slice(0, at), rows.slice(at))


def can_join(rows: Chunk, other: Chunk) -> bool:
    if isinstance(rows, list) or isinstance(other, list):
        return isinstance(rows, list) and isinstance(other, list)
    return bool(rows.schema.equals(other.schema))


def joined(chunks: Sequence[Chunk]) -> Chunk:
    """One chunk out of several; of different kinds they become mappings."""
    if len(chunks) == 1:
        return chunks[0]
    if any(isinstance(each, list) or not can_join(chunks[0], each) for each in chunks):
        return [
            row for each in chunks for row in (each if isinstance(each, list) else ArrowBatch(each).rows())
        ]
    return pa.concat_tables(
        [each if isinstance(each, pa.Table) else pa.Table.from_batches([each]) for each in chunks]
    )
