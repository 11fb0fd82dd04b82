"""The body of a unit: unpacked within its limit, compared with its headers, read into rows."""

from hashlib import sha256
from typing import Any, Final

import pyarrow as pa

from strandline.errors import UsageError
from strandline.rows.dataset import SOURCE, Refusal
from strandline.rows.row_files import parse_lines, parse_row
from strandline.rows.unit import ROW_ID, UnitHead

ENCODINGS: Final = ("identity", "gzip", "zstd")
_BLOCK_BYTES: Final = 1024 * 1024


class BodyTooLarge(UsageError):
    """A body over the limit, as it came or unpacked."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"the body is over the limit of {limit:,} bytes",
            hint="send fewer rows at once; [server] max_body_bytes raises the limit",
        )
        self.limit = limit


class Integrity(UsageError):
    """A body that is not what its headers say."""

    def __init__(self, found: str, wanted: str) -> None:
        super().__init__(f"{found}, {wanted}; nothing was stored", hint="send the unit again")


class RowRefused(UsageError):
    """Rows that the dataset cannot hold; `lines` counts from 1."""

    def __init__(self, dataset: str, refusals: list[Refusal]) -> None:
        count = "a row" if len(refusals) == 1 else f"{len(refusals):,} rows"
        super().__init__(
            f"dataset {dataset!r} refuses {count}; nothing was stored",
            hint="send the unit without `lines`, or correct them",
        )
        self.lines = sorted({each.row + 1 for each in refusals})
        self.refused = [
            {"line": each.row + 1, "column": each.column, "found": each.found, "wanted": each.wanted}
            for each in refusals[:100]
        ]


def unpacked(body: bytes, encoding: str, limit: int) -> bytes:
    """The body as it was before it was compressed. What is larger than the limit is never held."""
    if encoding == "identity":
        return body
    try:
        stream = pa.CompressedInputStream(pa.BufferReader(body), encoding)
        blocks, size = [], 0
        while block := stream.read(_BLOCK_BYTES):
            size += len(block)
            if size > limit:
                raise BodyTooLarge(limit)
            blocks.append(block)
    except (OSError, pa.ArrowException) as error:
        raise Integrity("the body cannot be unpacked", f"it is no {encoding} or was cut short") from error
    return b"".join(blocks)


def read_rows(unit: UnitHead, body: bytes) -> list[Any]:
    """The rows of a body that is what the headers say, `source` and row ids taken off."""
    if (found := sha256(body).hexdigest()) != unit.sha256:
        raise Integrity(f"the body has SHA-256 {found}", f"the header says {unit.sha256}")
    if body and not body.endswith(b"\n"):
        raise Integrity("the last line of the body does not end", "each does")
    if (count := body.count(b"\n")) != unit.rows:
        raise Integrity(f"the body has {count:,} lines", f"the header says {unit.rows:,} rows")
    rows = parse_lines(body)
    if rows is not None and not any(SOURCE in row or ROW_ID in row for row in rows):
        return rows
    refusals: list[Refusal] = []
    if rows is None:
        rows = _read_each(body, refusals)
    for place, row in enumerate(rows):
        row.pop(ROW_ID, None)
        own = row.pop(SOURCE, None)
        if own not in (None, "", unit.source):
            refusals.append(Refusal(place, SOURCE, f"{own!r:.60}", f"the header, {unit.source!r:.60}"))
    if refusals:
        raise RowRefused(unit.dataset, refusals)
    return rows


def _read_each(body: bytes, refusals: list[Refusal]) -> list[dict[str, Any]]:
    """Line by line; one that is no row counts as empty, and among the refusals."""
    rows: list[dict[str, Any]] = []
    for place, line in enumerate(body.split(b"\n")[:-1]):
        try:
            rows.append(parse_row(line))
        except ValueError as error:
            refusals.append(Refusal(place, "", str(error), "a JSON object with nothing lost"))
            rows.append({})
    return rows
