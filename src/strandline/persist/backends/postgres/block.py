"""One block of a stream, the most usual commit of all, as one plain statement: quicker than a function.

Its rows are numbered, and put in line for the global order, once the stream's row is locked. Where it expects
the stream's seq or has a key, and that is not met or known, or another takes the key meanwhile, nothing is
written and the statement gives no row: then commit_group decides (see group.py).
"""

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Final, NamedTuple, TypeAlias

from strandline.persist.backend import ExpectSeq
from strandline.persist.backends.postgres.connection import Statement
from strandline.persist.backends.postgres.pack import TYPES, int_, ints, real, reals, texts
from strandline.persist.backends.postgres.rows import SEAM, at_columns, split_ats
from strandline.persist.commit import Prepared, PutText, Row, is_same_at, key_crc, pointer_runs, pointer_sum
from strandline.persist.event import Scalar
from strandline.persist.reserved import COMMIT_SCOPE
from strandline.persist.value import encode

Values: TypeAlias = dict[str, bytes | None]

MOST_IN_A_RUN: Final = 1000  # of which a reader takes whole ones
TAKEN: Final = "22012"  # another took the key between our look and our insert: the statement divides by none


def _block(events: str, line: str = "", *, is_careful: bool = False) -> str:
    """The statement; it gives the first seq. `patience` is the lock_timeout in milliseconds; null leaves it
    as it is. If it `is_careful`, it looks at the `expected` seq and the `key`, each of which may be null."""
    queued = f"""), queued as (
            insert into in_line (stream_id, seq, count, crc, at_int, at_real, at_text)
            select head.id, head.before + v.place, v.count, v.crc, v.at_int, v.at_real, v.at_text
            from head, {line}
    """
    only_if = """
            and (%(expected)b::bigint is null or %(expected)b = 0
                or exists (select from stream where name = %(stream)b))
            and (%(key)b::text is null or not exists (select from kv where key = %(key)b))
    """
    marked = """), marker as (
            insert into kv (key, sum, text, seqs)
            select %(key)b, %(key_crc)b + before + 1, %(marker)b, array[before + 1] from head
            where %(key)b is not null on conflict (key) do nothing returning key
    """
    return f"""
        with head as (
            insert into stream as s (name, last_seq) select %(stream)b, %(count)b
            where set_config(
                'lock_timeout', coalesce(%(patience)b, current_setting('lock_timeout')), true
            ) <> '' {only_if if is_careful else ""}
            on conflict (name) do update set last_seq = s.last_seq + excluded.last_seq
            {"where %(expected)b is null or s.last_seq = %(expected)b" if is_careful else ""}
            returning s.id, s.last_seq - %(count)b as before
        {marked if is_careful else ""}), stored as (
            insert into event (stream_id, seq, sum, at_int, at_real, type, at_text, data)
            select head.id, head.before + v.place, v.crc + head.before + v.place,
                v.at_int, v.at_real, v.type, v.at_text, v.data
            from head, {events}
        {queued if line else ""})
        select before + 1 {_OR_TAKEN if is_careful else ""} from head
    """


_OR_TAKEN: Final = "/ case when %(key)b is null then 1 else (select count(*) from marker) end"
_ATS: Final = "%(at_int)b::bigint as at_int, %(at_real)b::float8 as at_real, %(at_text)b::text as at_text"
_ONE: Final = f"(select 1 as place, %(crc)b as crc, {_ATS}, %(type)b as type, %(data)b as data) v"
_ONE_IN_LINE: Final = f"(select 1 as place, 1 as count, %(pointer)b as crc, {_ATS}) v"
_MANY: Final = """
    unnest(%(crcs)b, %(at_ints)b, %(at_reals)b, %(at_texts)b, %(types)b, %(datas)b)
    with ordinality as v (crc, at_int, at_real, at_text, type, data, place)
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


def _statement(is_one: bool, is_global: bool, is_careful: bool) -> Statement:
    line = (_ONE_IN_LINE if is_one else _MANY_IN_LINE) if is_global else ""
    text = _block(_ONE if is_one else _MANY, line, is_careful=is_careful)
    return Statement(f"block_{is_one:d}{is_global:d}{is_careful:d}", text, _TYPES)


_BLOCKS: Final = {kind: _statement(*kind) for kind in product((True, False), repeat=3)}


def blocks(prepared: Prepared) -> list[tuple[str, list[Row]]]:
    """The steps of a commit that append, each a stream and its rows."""
    return [step for step in prepared.steps if isinstance(step, tuple) and not isinstance(step, PutText)]


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


class Block(NamedTuple):
    """What is appended to one stream, and on what condition."""

    stream: str
    rows: Sequence[Row]
    expected: int | None = None
    marker: PutText | None = None


def lone_block(group: Sequence[Prepared]) -> Block | None:
    """A group that is one block and nothing else but what this statement can look at."""
    prepared = group[0]
    if len(group) > 1 or len(prepared.steps) != 1 or len(prepared.preconditions) > 1:
        return None
    found = blocks(prepared)
    if not found:
        return None
    stream, rows = found[0]
    expected = None
    for expectation in prepared.preconditions:
        if not isinstance(expectation, ExpectSeq) or expectation.stream != stream:
            return None
        expected = expectation.seq
    if prepared.once is None:
        return Block(stream, rows, expected)
    if prepared.once[0] == COMMIT_SCOPE or not all(is_same_at(row.at, rows[0].at) for row in rows):
        return None
    text = marker_text(prepared.digest, [(stream, rows[0].at, len(rows))])
    marker = PutText(prepared.once_key, text, key_crc(prepared.once_key, text.encode()))
    return Block(stream, rows, expected, marker)


def block_query(block: Block, *, patience_ms: int | None = None) -> tuple[Statement, Values]:
    """The statement that appends a block, and what it takes; it gives the first seq, or no row."""
    stream, rows, expected, marker = block
    is_careful = expected is not None or marker is not None
    values: Values = {
        "stream": stream.encode(),
        "count": int_(len(rows)),
        "patience": None if patience_ms is None else str(patience_ms).encode(),
    }
    if is_careful:
        values["expected"] = None if expected is None else int_(expected)
        values["key"] = marker and marker.key.encode()
        values["marker"] = marker and marker.text.encode()
        values["key_crc"] = int_(marker.crc if marker else 0)
    if len(rows) == 1:
        ((type_, at, data, crc, is_global),) = rows
        at_int, at_real, at_text = at_columns(at)
        values["crc"] = int_(crc)
        values["at_int"] = None if at_int is None else int_(at_int)
        values["at_real"] = None if at_real is None else real(at_real)
        values["at_text"] = None if at_text is None else at_text.encode()
        values["type"] = type_.encode()
        values["data"] = data.encode()
        values["pointer"] = int_(pointer_crc(stream, at)) if is_global else None
        return _BLOCKS[True, is_global, is_careful], values
    types, ats, datas, crcs, flags = zip(*rows, strict=True)
    at_ints, at_reals, at_texts = split_ats(ats)
    values["crcs"] = ints(crcs)
    values["at_ints"] = ints(at_ints)
    values["at_reals"] = reals(at_reals)
    values["at_texts"] = texts(at_texts)
    values["types"] = texts(types)
    values["datas"] = texts(datas)
    if not any(flags):
        return _BLOCKS[False, False, is_careful], values
    indexes, counts, run_ats = zip(*pointer_runs(rows, MOST_IN_A_RUN), strict=True)
    at_ints, at_reals, at_texts = split_ats(run_ats)
    values["run_places"] = ints([index + 1 for index in indexes])
    values["run_counts"] = ints(counts)
    values["run_crcs"] = ints([pointer_crc(stream, at) for at in run_ats])
    values["run_at_ints"] = ints(at_ints)
    values["run_at_reals"] = reals(at_reals)
    values["run_at_texts"] = texts(at_texts)
    return _BLOCKS[False, True, is_careful], values
