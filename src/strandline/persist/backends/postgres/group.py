"""A group of prepared commits as the arguments of one function call, and its answer as their outcomes.

See commit_group in schema/postgres/0001_store.sql, which decides and writes; here is only its form.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from psycopg.types.numeric import Float8, Int8

from strandline.errors import EventCorrupt, StrandlineError
from strandline.persist.backend import Append, Delete, Expectation, ExpectSeq, Outcome, Truncate
from strandline.persist.backends.postgres.pack import Record, ints, reals, record, texts
from strandline.persist.backends.postgres.rows import SEAM, at_columns, split_ats, value_of
from strandline.persist.commit import (
    Prepared,
    PutText,
    Row,
    Step,
    key_crc,
    marker_runs,
    pointer_sum,
    repeated_events,
)
from strandline.persist.event import ABSENT, Compacted, Conflict, Event, Scalar, make_event
from strandline.persist.reserved import COMMIT_SCOPE
from strandline.persist.value import MAX_SEQ, encode

CALL: Final = "select * from commit_group(%b, %b, %b, %b, %b, %b, %b)"


def _block(events: str, line: str = "") -> str:
    """The same for the most usual of all, one block of a stream, nothing expected; it gives the first seq.

    A plain statement is quicker than a function. Its rows are numbered, and put in line for the global order,
    once the stream's row is locked. `patience` is the lock_timeout in milliseconds; null leaves it as it is.
    """
    queued = f"""), queued as (
            insert into queue (stream_id, seq, crc, at_int, at_real, at_text)
            select head.id, head.before + v.place, v.crc, v.at_int, v.at_real, v.at_text
            from head, {line} where v.crc is not null
    """
    return f"""
        with head as (
            insert into stream as s (name, last_seq) select %(stream)b, %(count)b
            where set_config(
                'lock_timeout', coalesce(%(patience)b, current_setting('lock_timeout')), true
            ) <> ''
            on conflict (name) do update set last_seq = s.last_seq + excluded.last_seq
            returning s.id, s.last_seq - %(count)b as before
        ), stored as (
            insert into event (stream_id, seq, sum, at_int, at_real, type, at_text, data)
            select head.id, head.before + v.place, v.crc + head.before + v.place,
                v.at_int, v.at_real, v.type, v.at_text, v.data
            from head, {events}
        {queued if line else ""})
        select before + 1 from head
    """


_ATS: Final = "%(at_int)b::bigint as at_int, %(at_real)b::float8 as at_real, %(at_text)b::text as at_text"
_ONE: Final = f"(select 1 as place, %(crc)b as crc, {_ATS}, %(type)b as type, %(data)b as data) v"
_ONE_IN_LINE: Final = f"(select 1 as place, %(pointer)b as crc, {_ATS}) v"
_MANY: Final = """
    unnest(%(crcs)b, %(at_ints)b, %(at_reals)b, %(at_texts)b, %(types)b, %(data)b)
    with ordinality as v (crc, at_int, at_real, at_text, type, data, place)
"""
_MANY_IN_LINE: Final = """
    unnest(%(pointers)b, %(at_ints)b, %(at_reals)b, %(at_texts)b)
    with ordinality as v (crc, at_int, at_real, at_text, place)
"""
_BLOCKS: Final = {
    (True, False): _block(_ONE),
    (True, True): _block(_ONE, _ONE_IN_LINE),
    (False, False): _block(_MANY),
    (False, True): _block(_MANY, _MANY_IN_LINE),
}


def names_of(group: Iterable[Prepared]) -> tuple[list[str], list[str]]:
    """Every stream and every key that is expected or written, sorted: the order in which rows are locked."""
    streams: set[str] = set()
    keys: set[str] = set()
    for prepared in group:
        for expectation in prepared.preconditions:
            if isinstance(expectation, ExpectSeq):
                streams.add(expectation.stream)
            else:
                keys.add(expectation.key)
        for step in prepared.steps:
            if isinstance(step, (PutText, Delete)):
                keys.add(step.key)
            else:
                streams.add(step[0] if isinstance(step, tuple) else step.stream)
        if prepared.once is not None:
            keys.add(prepared.once_key)
    return sorted(streams), sorted(keys)


def blocks(prepared: Prepared) -> list[tuple[str, list[Row]]]:
    """The steps of a commit that append, each a stream and its rows."""
    return [step for step in prepared.steps if isinstance(step, tuple) and not isinstance(step, PutText)]


def pointer_crc(stream: str, at: Scalar) -> int:
    """What pointer_sum is without seq and position."""
    return pointer_sum(0, stream, 0, at)


def pointer_crcs(stream: str, ats: Sequence[Scalar], flags: Sequence[bool]) -> list[int | None]:
    """The same of the rows that are in the global order."""
    return [pointer_crc(stream, at) if flag else None for at, flag in zip(ats, flags, strict=True)]


class Rows:
    """The rows of many blocks, column by column."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.offsets: list[int] = []
        self.types: list[str] = []
        self.ats: list[Scalar] = []
        self.data: list[str] = []
        self.crcs: list[int] = []
        self.pointers: list[int | None] = []
        self.has_pointers = False

    def add(self, step: int, stream: str, rows: Sequence[Row]) -> None:
        types, ats, data, crcs, flags = zip(*rows, strict=True)
        self.steps += [step] * len(rows)
        self.offsets += range(len(rows))
        self.types += types
        self.ats += ats
        self.data += data
        self.crcs += crcs
        if any(flags):
            self.has_pointers = True
            self.pointers += pointer_crcs(stream, ats, flags)
        else:
            self.pointers += [None] * len(rows)

    def packed(self) -> Record:
        """As the server's event_columns."""
        at_ints, at_reals, at_texts = split_ats(self.ats)
        return record(
            ints(self.steps),
            ints(self.offsets),
            ints(self.crcs),
            ints(self.pointers if self.has_pointers else ()),
            ints(at_ints),
            reals(at_reals),
            texts(at_texts),
            texts(self.types),
            texts(self.data),
        )


def lone_block(group: Sequence[Prepared]) -> tuple[str, list[Row]] | None:
    """The stream and rows of a group that is one block and nothing else."""
    prepared = group[0]
    if len(group) > 1 or len(prepared.steps) != 1 or prepared.preconditions or prepared.once is not None:
        return None
    found = blocks(prepared)
    return found[0] if found else None


def block_query(
    stream: str, rows: Sequence[Row], *, patience_ms: int | None = None
) -> tuple[str, dict[str, Any]]:
    """The statement that appends a block, and what it takes; it gives the first seq."""
    patience = None if patience_ms is None else str(patience_ms)
    if len(rows) == 1:
        ((type_, at, data, crc, is_global),) = rows
        at_int, at_real, at_text = at_columns(at)
        return _BLOCKS[True, is_global], {
            "stream": stream,
            "count": Int8(1),
            "patience": patience,
            "crc": Int8(crc),
            "at_int": None if at_int is None else Int8(at_int),
            "at_real": None if at_real is None else Float8(at_real),
            "type": type_,
            "at_text": at_text,
            "data": data,
            "pointer": Int8(pointer_crc(stream, at)) if is_global else None,
        }
    types, ats, datas, crcs, flags = zip(*rows, strict=True)
    at_ints, at_reals, at_texts = split_ats(ats)
    return _BLOCKS[False, any(flags)], {
        "stream": stream,
        "count": Int8(len(rows)),
        "patience": patience,
        "crcs": ints(crcs),
        "at_ints": ints(at_ints),
        "at_reals": reals(at_reals),
        "types": texts(types),
        "at_texts": texts(at_texts),
        "data": texts(datas),
        "pointers": ints(pointer_crcs(stream, ats, flags)),
    }


def arguments(group: Sequence[Prepared], *, kept: int, patience_ms: int) -> tuple[Any, ...]:
    """What `CALL` takes."""
    streams, keys = names_of(group)
    coder = _Coder(streams, keys)
    for prepared in group:
        coder.add(prepared)
    code, words, rows = ints(coder.code), texts(coder.words), coder.rows.packed()
    return texts(streams), texts(keys), code, words, rows, Int8(kept), str(patience_ms)


class _Coder:
    """Writes the commits of a group, one after the other, as `commit_group` reads them."""

    def __init__(self, streams: Sequence[str], keys: Sequence[str]) -> None:
        self.code: list[int] = []
        self.words: list[str | None] = []
        self.rows = Rows()
        self._streams = {name: place for place, name in enumerate(streams, 1)}
        self._keys = {name: place for place, name in enumerate(keys, 1)}
        self._steps = 0

    def add(self, prepared: Prepared) -> None:
        first_word, first_row = len(self.words), len(self.rows.steps)
        expectations = self._expectations(prepared)
        steps = [part for step in prepared.steps for part in self._step(step)]
        runs, place, crc, is_bounded = self._marker(prepared, first_row)
        self.code += (len(prepared.preconditions), len(prepared.steps), len(runs) // 2)
        self.code += (len(self.words) - first_word, place, crc, is_bounded)
        self.code += expectations
        self.code += steps
        self.code += runs

    def _expectations(self, prepared: Prepared) -> list[int]:
        code: list[int] = []
        for expectation, text in zip(prepared.preconditions, prepared.expected_texts, strict=True):
            if isinstance(expectation, ExpectSeq):
                code += (self._streams[expectation.stream], expectation.seq)
            else:
                code += (-self._keys[expectation.key], 0)
                self.words.append(text)
        return code

    def _step(self, step: Step) -> tuple[int, int, int]:
        self._steps += 1
        if isinstance(step, PutText):
            self.words.append(step.text)
            return 2, self._keys[step.key], step.crc
        if isinstance(step, tuple):
            stream, rows = step
            self.rows.add(self._steps, stream, rows)
            return 1, self._streams[stream], len(rows)
        if isinstance(step, Delete):
            return 3, self._keys[step.key], 0
        assert isinstance(step, Truncate), "redactions are decided apart"
        return 4, self._streams[step.stream], max(0, min(step.n, MAX_SEQ))  # at or below 0 it hides nothing

    def _marker(self, prepared: Prepared, row: int) -> tuple[list[int], int, int, bool]:
        """The marker's value as `decide` would write it, a seam for each seq, and which seqs those are."""
        if prepared.once is None:
            return [], 0, 0, False
        streams = [stream for stream, rows in blocks(prepared) for _ in rows]
        placeless = [Event(s, 0, "", at, None) for s, at in zip(streams, self.rows.ats[row:], strict=True)]
        runs: list[int] = []
        shown: list[str] = []
        for stream, _, at, count in marker_runs(placeless):
            runs += (self.rows.steps[row], self.rows.offsets[row])
            row += count
            shown.append(f"[{encode(stream).decode()},{SEAM},{encode(at).decode()},{count}]")
        text = f'{{"digest":"{prepared.digest}","runs":[{",".join(shown)}]}}'
        self.words.append(text)
        crc = key_crc(prepared.once_key, text.encode())
        return runs, self._keys[prepared.once_key], crc, prepared.once[0] == COMMIT_SCOPE


def outcomes(
    group: Sequence[Prepared],
    answer: tuple[list[Any], ...],
    event_at: Callable[[str, int], Event | None],
) -> list[Outcome | BaseException]:
    """What the function answered, for each commit of the group; what is damaged is told to its own caller."""
    statuses, firsts, *actuals = answer
    results: list[Outcome | BaseException] = []
    step = 0
    for prepared, status, *actual in zip(group, statuses, *actuals, strict=True):
        try:
            if status == 0:
                results.append(stored(prepared, firsts[step : step + len(prepared.steps)]))
            elif status < 0:
                results.append(_repeated(prepared, _value(prepared.once_key, *actual), event_at))
            else:
                results.append(_conflict(prepared.preconditions[status - 1], *actual))
        except StrandlineError as error:
            results.append(error)
        step += len(prepared.steps)
    return results


def stored(prepared: Prepared, firsts: Sequence[int | None]) -> list[Event]:
    appends = (write for write in prepared.writes if type(write) is Append)
    given = (first for first in firsts if first is not None)
    return [
        make_event(stream, seq, row.type, row.at, write.data)
        for (stream, rows), first in zip(blocks(prepared), given, strict=True)
        for seq, (row, write) in enumerate(zip(rows, appends, strict=False), first)
    ]


def _conflict(unmet: Expectation, text: str | None, seqs: str | None, sum_: int | None) -> Conflict:
    if isinstance(unmet, ExpectSeq):
        assert text is not None, "a seq that is not met comes with the one that is there"
        return Conflict(unmet.seq, int(text), "STALE", unmet.stream)
    actual = ABSENT if text is None else _value(unmet.key, text, seqs, sum_)
    return Conflict(unmet.value, actual, "STALE", unmet.key)


def _value(key: str, text: str | None, seqs: str | None, sum_: int | None) -> Any:
    """The value of a key as the function gives it, checked; `seqs` is the text of an array."""
    assert text is not None, "a known `once` comes with its marker"
    assert sum_ is not None, "a value comes with its checksum"
    return value_of(
        key, text, None if seqs is None else [int(seq) for seq in seqs[1:-1].split(",") if seq], sum_
    )


def _repeated(prepared: Prepared, marker: Any, event_at: Callable[[str, int], Event | None]) -> Outcome:
    """As `decide` answers a known `once`; the event under a reused key is read after the commit."""
    assert prepared.once is not None
    scope, key = prepared.once
    try:
        if marker["digest"] == prepared.digest:
            return repeated_events(prepared, marker["runs"])
        if not marker["runs"]:
            return Conflict(key, None, "KEY_REUSED", scope)
        stream, seq = marker["runs"][0][:2]
        return Conflict(key, event_at(stream, seq) or Compacted(stream, seq), "KEY_REUSED", scope)
    except StrandlineError:
        raise
    except (LookupError, TypeError, ValueError) as error:
        raise EventCorrupt(prepared.once_key, None, "it is no marker") from error
