"""One block of a stream, the most usual commit of all, as one plain statement: quicker than a function.

Its rows are numbered, and put in line for the global order, once the stream's row is locked. Where it expects
the stream's seq or has a key, and that is not met or known, nothing is written and the statement gives no
row; where another takes the key meanwhile, it fails. Then commit_group decides (see group.py).
"""

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Final, NamedTuple, TypeAlias

from strandline.persist.backend import ExpectSeq
from strandline.persist.backends.postgres.connection import Statement
from strandline.persist.backends.postgres.pack import TYPES, int_, ints, real, reals, texts
from strandline.persist.backends.postgres.rows import SEAM, at_columns, split_ats
from strandline.persist.core.block import Block, PutText, key_crc, pointer_runs, pointer_sum
from strandline.persist.core.prepare import Prepared
from strandline.persist.event import Scalar
from strandline.persist.reserved import COMMIT_SCOPE
from strandline.persist.value import encode

Values: TypeAlias = dict[str, bytes | None]

MOST_IN_A_RUN: Final = 1000  # of which a reader takes whole ones
TAKEN: Final = "23505"  # another took the key between our look and our insert


def _block(events: str, line: str, condition: str) -> str:
    """The statement; it gives the first seq."""
    queued = f"""), queued as (
            insert into in_line (stream_id, seq, count, crc, at_int, at_real, at_text)
            select head.id, head.before + v.place, v.count, v.crc, v.at_int, v.at_real, v.at_text
            from head, {line}
    """
    marked = """), marker as (
            insert into kv (key, sum, text, seqs)
            select %(key)b, %(key_crc)b + before + 1, %(marker)b, array[before + 1] from head
            where %(key)b is not null
    """
    return f"""
        with head as (
            {_HEADS[condition]}
            returning s.id, s.last_seq - %(count)b as before
        {marked if condition else ""}), stored as (
            insert into event (stream_id, seq, sum, at_int, at_real, type, at_text, data)
            select head.id, head.before + v.place, v.crc + head.before + v.place,
                v.at_int, v.at_real, v.type, v.at_text, v.data
            from head, {events}
        {queued if line else ""})
        select before + 1 from head
    """


# `patience` is the lock_timeout in milliseconds; null leaves it as it is.
_PATIENT: Final = (
    "set_config('lock_timeout', coalesce(%(patience)b, current_setting('lock_timeout')), true) <> ''"
)
_NEW_KEY: Final = "(%(key)b::text is null or not exists (select from kv where key = %(key)b))"
# How the stream's row is locked and counted up, by the condition: none; a key that is new or null, and a
# stream that is new if `expected` is 0 rather than null; such a key, and a stream with the seq that is
# expected.
_HEADS: Final = {
    "": f"""
        insert into stream as s (name, last_seq) select %(stream)b, %(count)b where {_PATIENT}
        on conflict (name) do update set last_seq = s.last_seq + excluded.last_seq
    """,
    "new": f"""
        insert into stream as s (name, last_seq) select %(stream)b, %(count)b where {_PATIENT} and {_NEW_KEY}
        on conflict (name) do update set last_seq = s.last_seq + excluded.last_seq
        where %(expected)b::bigint is null or s.last_seq = %(expected)b
    """,
    "next": f"""
        update stream s set last_seq = s.last_seq + %(count)b
        where s.name = %(stream)b and s.last_seq = %(expected)b and {_PATIENT} and {_NEW_KEY}
    """,
}
_ATS: Final = "%(at_int)b::bigint as at_int, %(at_real)b::float8 as at_real, %(at_text)b::text as at_text"
_ONE: Final = f"(select 1 as place, %(crc)b as crc, {_ATS}, %(type)b as type, %(data)b as data) v"
_ONE_IN_LINE: Final = f"(select 1 as place, 1 as count, %(pointer)b as crc, {_ATS}) v"
# What all have in common is said once, in place of a column, which is then empty.
_MANY: Final = """
    (select place, crc, coalesce(at_int, %(at_int)b) as at_int, coalesce(at_real, %(at_real)b) as at_real,
        coalesce(at_text, %(at_text)b) as at_text, coalesce(type, %(type)b) as type, data
    from unnest(%(crcs)b, %(at_ints)b, %(at_reals)b, %(at_texts)b, %(types)b, %(datas)b)
    with ordinality as u (crc, at_int, at_real, at_text, type, data, place)) v
"""
_MANY_IN_LINE: Final = """
    unnest(%(run_places)b, %(run_counts)b, %(run_crcs)b, %(run_at_ints)b, %(run_at_reals)b, %(run_at_texts)b)
    as v (place, count, crc, at_int, at_real, at_text)
"""
_TYPES: Final = (
    dict.fromkeys(("stream", "patience", "key", "marker", "type", "at_text", "data"), TYPES["text"])
    | dict.fromkeys(("count", "expected", "key_crc", "crc", "at_int", "pointer"), TYPES["bigint"])
    | dict.fromkeys(("crcs", "at_ints"), TYPES["bigint[]"])
    | dict.fromkeys(("run_places", "run_counts", "run_crcs", "run_at_ints"), TYPES["bigint[]"])
    | dict.fromkeys(("types", "datas", "at_texts", "run_at_texts"), TYPES["text[]"])
    | dict.fromkeys(("at_reals", "run_at_reals"), TYPES["float8[]"])
    | {"at_real": TYPES["float8"]}
)


def _statement(is_one: bool, is_global: bool, condition: str) -> Statement:
    line = (_ONE_IN_LINE if is_one else _MANY_IN_LINE) if is_global else ""
    text = _block(_ONE if is_one else _MANY, line, condition)
    return Statement(f"block_{is_one:d}{is_global:d}{condition}", text, _TYPES)


_BLOCKS: Final = {kind: _statement(*kind) for kind in product((True, False), (True, False), _HEADS)}


def blocks(prepared: Prepared) -> list[Block]:
    """The steps of a commit that append."""
    return [step for step in prepared.steps if isinstance(step, Block)]


def pointer_crc(stream: str, at: Scalar) -> int:
    """What pointer_sum is without seq and position."""
    return pointer_sum(0, stream, 0, at)


def pointer_crcs(stream: str, ats: Sequence[Scalar], flags: Sequence[bool]) -> list[int | None]:
    """The same of the rows that are in the global order."""
    return [pointer_crc(stream, at) if flag else None for at, flag in zip(ats, flags, strict=True)]


def marker_text(digest: str, runs: Iterable[tuple[str, Scalar, int]]) -> str:
    """A marker as `decide` would write it, a seam for each seq."""
    shown = (
        f"[{encode(stream).decode()},{SEAM},{encode(at).decode()},{count}]" for stream, at, count in runs
    )
    return f'{{"digest":"{digest}","runs":[{",".join(shown)}]}}'


class Lone(NamedTuple):
    """A block that is the whole of a commit, and on what condition it is stored."""

    block: Block
    expected: int | None = None
    marker: PutText | None = None


def lone_block(group: Sequence[Prepared]) -> Lone | None:
    """A group that is one block and nothing else but what this statement can look at."""
    prepared = group[0]
    if len(group) > 1 or len(prepared.steps) != 1 or len(prepared.preconditions) > 1:
        return None
    (block,) = prepared.steps
    if not isinstance(block, Block):
        return None
    expected = None
    for expectation in prepared.preconditions:
        if not isinstance(expectation, ExpectSeq) or expectation.stream != block.stream:
            return None
        expected = expectation.seq
    if prepared.once is None:
        return Lone(block, expected)
    if prepared.once[0] == COMMIT_SCOPE or not block.is_at_once:
        return None
    text = marker_text(prepared.digest, [(block.stream, block.ats[0], len(block))])
    marker = PutText(prepared.once_key, text, key_crc(prepared.once_key, text.encode()))
    return Lone(block, expected, marker)


def block_query(lone: Lone, *, patience_ms: int | None = None) -> tuple[Statement, Values]:
    """The statement that appends a block, and what it takes; it gives the first seq, or no row."""
    block, expected, marker = lone
    condition = "next" if expected else "" if expected is None and marker is None else "new"
    values: Values = {
        "stream": block.stream.encode(),
        "count": int_(len(block)),
        "patience": None if patience_ms is None else str(patience_ms).encode(),
    }
    if condition:
        values["expected"] = None if expected is None else int_(expected)
        values["key"] = marker and marker.key.encode()
        values["marker"] = marker and marker.text.encode()
        values["key_crc"] = int_(marker.crc if marker else 0)
    is_one_type, is_one_at = block.is_of_one_type, block.is_at_once
    values["type"] = block.types[0].encode() if is_one_type else None
    values |= _at_in_common(block.ats[0] if is_one_at else None)
    if len(block) == 1:
        values["crc"] = int_(block.crcs[0])
        values["data"] = block.texts[0].encode()
        if block.globally[0]:
            values["pointer"] = int_(pointer_crc(block.stream, block.ats[0]))
        return _BLOCKS[True, block.globally[0], condition], values
    values["crcs"] = ints(block.crcs).data
    values["datas"] = texts(block.texts).data
    values["types"] = texts(() if is_one_type else block.types).data
    values |= _at_columns("", () if is_one_at else block.ats)
    if True not in block.globally:
        return _BLOCKS[False, False, condition], values
    indexes, counts, run_ats = zip(*pointer_runs(block, MOST_IN_A_RUN), strict=True)
    values["run_places"] = ints([index + 1 for index in indexes]).data
    values["run_counts"] = ints(counts).data
    values["run_crcs"] = ints([pointer_crc(block.stream, at) for at in run_ats]).data
    values |= _at_columns("run_", run_ats)
    return _BLOCKS[False, True, condition], values


def _at_in_common(at: Scalar | None) -> Values:
    at_int, at_real, at_text = (None, None, None) if at is None else at_columns(at)
    return {
        "at_int": None if at_int is None else int_(at_int),
        "at_real": None if at_real is None else real(at_real),
        "at_text": None if at_text is None else at_text.encode(),
    }


def _at_columns(prefix: str, ats: Sequence[Scalar]) -> Values:
    at_ints, at_reals, at_texts = split_ats(ats)
    return {
        f"{prefix}at_ints": ints(at_ints).data,
        f"{prefix}at_reals": reals(at_reals).data,
        f"{prefix}at_texts": texts(at_texts).data,
    }
