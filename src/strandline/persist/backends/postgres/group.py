"""A group of prepared commits as the arguments of one function call, and its answer as their outcomes.

See commit_group in schema/postgres/0001_store.sql, which decides and writes; here is only its form.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from psycopg.types.numeric import Int8

from strandline.errors import EventCorrupt, StrandlineError
from strandline.persist.backend import Append, Delete, Expectation, ExpectSeq, Outcome, Truncate
from strandline.persist.backends.postgres.block import blocks, marker_text, pointer_crcs
from strandline.persist.backends.postgres.connection import Connection
from strandline.persist.backends.postgres.pack import CompositeValue, ints, reals, record, texts
from strandline.persist.backends.postgres.rows import split_ats, value_of
from strandline.persist.core.block import Block, PutText, key_crc
from strandline.persist.core.commit import Repeated, events_of, marker_runs
from strandline.persist.core.prepare import Prepared, Step
from strandline.persist.event import ABSENT, Compacted, Conflict, Event, Scalar
from strandline.persist.reserved import COMMIT_SCOPE
from strandline.persist.value import MAX_SEQ

_CALL: Final = "select * from commit_group(%b, %b, %b, %b, %b, %b, %b)"


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
                streams.add(step.stream)
        if prepared.once is not None:
            keys.add(prepared.once_key)
    return sorted(streams), sorted(keys)


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

    def add(self, step: int, block: Block) -> None:
        self.steps += [step] * len(block)
        self.offsets += range(len(block))
        self.types += block.types
        self.ats += block.ats
        self.data += block.texts
        self.crcs += block.crcs
        if True in block.globally:
            self.has_pointers = True
            self.pointers += pointer_crcs(block.stream, block.ats, block.globally)
        else:
            self.pointers += [None] * len(block)

    def packed(self) -> CompositeValue:
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


def arguments(group: Sequence[Prepared], *, kept: int, patience_ms: int) -> tuple[Any, ...]:
    """What `call` takes."""
    streams, keys = names_of(group)
    coder = _Coder(streams, keys)
    for prepared in group:
        coder.add(prepared)
    code, words, rows = ints(coder.code), texts(coder.words), coder.rows.packed()
    return texts(streams), texts(keys), code, words, rows, Int8(kept), str(patience_ms)


def call(connection: Connection, arguments: tuple[Any, ...]) -> tuple[list[Any], ...]:
    """Have the server decide and write; what it answers."""
    answer = connection.execute(_CALL, arguments, binary=True, prepare=True).fetchone()
    assert answer is not None, "a function answers"
    return answer


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
        if isinstance(step, Block):
            self.rows.add(self._steps, step)
            return 1, self._streams[step.stream], len(step)
        if isinstance(step, Delete):
            return 3, self._keys[step.key], 0
        assert isinstance(step, Truncate), "redactions are decided apart"
        return 4, self._streams[step.stream], max(0, min(step.n, MAX_SEQ))  # at or below 0 it hides nothing

    def _marker(self, prepared: Prepared, row: int) -> tuple[list[int], int, int, bool]:
        """The marker's value as `decide` would write it, a seam for each seq, and which seqs those are."""
        if prepared.once is None:
            return [], 0, 0, False
        streams = [block.stream for block in blocks(prepared) for _ in block.texts]
        placeless = [Event(s, 0, "", at, None) for s, at in zip(streams, self.rows.ats[row:], strict=True)]
        runs: list[int] = []
        shown: list[tuple[str, Scalar, int]] = []
        for stream, _, at, count in marker_runs(placeless):
            runs += (self.rows.steps[row], self.rows.offsets[row])
            row += count
            shown.append((stream, at, count))
        text = marker_text(prepared.digest, shown)
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
        event
        for block, first in zip(blocks(prepared), given, strict=True)
        for event in block.events(first, appends)
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
            return Repeated(events_of(prepared, marker["runs"]))
        if not marker["runs"]:
            return Conflict(key, None, "KEY_REUSED", scope)
        stream, seq = marker["runs"][0][:2]
        return Conflict(key, event_at(stream, seq) or Compacted(stream, seq), "KEY_REUSED", scope)
    except StrandlineError:
        raise
    except (LookupError, TypeError, ValueError) as error:
        raise EventCorrupt(prepared.once_key, None, "it is no marker") from error
