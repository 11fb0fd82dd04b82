"""Reads what can be read of a damaged store: with the page check off, and past the pages that are malformed.

A row is named by its number, so a walk that meets a page it cannot read asks for the numbers behind it, one
by one, until it is past that page. What it could not read is named too, one finding for each run of numbers.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, Final, TypeAlias

import apsw

from strandline.persist.audit import audit, is_sound_event
from strandline.persist.backend import Damage, Record
from strandline.persist.backends.sqlite.read import is_damage
from strandline.persist.backends.sqlite.records import unrolled
from strandline.persist.backends.sqlite.transaction import SEQ_BITS, SEQ_MASK
from strandline.persist.reserved import GLOBAL

EXACT_PROBES: Final = 10_000  # more events than two leaf pages hold; beyond, a probe may skip 1 in so many
NEIGHBOURS: Final = 300
_MOST_STREAMS: Final = (1 << 63 - SEQ_BITS) - 1

Read: TypeAlias = Callable[[int, int], Iterable[tuple[Any, ...]]]  # rows from a number on, at most so many


class Unread:
    """What a survey could not read."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._runs: dict[str, list[tuple[int, int]]] = {}
        self.damage: list[Damage] = []

    def add(self, what: str, name: str, first: int, last: int) -> None:
        more = f"it and {last - first:,} more up to seq {last}" if last > first else "it"
        self._runs.setdefault(name, []).append((first, last))
        self.damage.append(Damage(what, name, first, f"{more} cannot be read: the page is malformed"))

    def add_elsewhere(self, found: str) -> None:
        self.damage.append(Damage("file", self._file, 0, f"{found} cannot be read"))

    def has(self, damage: Damage) -> bool:
        """Whether a finding is about what is named here already."""
        runs = self._runs.get(damage.name, []) if damage.what in ("event", "pointer") else []
        return any(first <= damage.seq <= last for first, last in runs)


def survey(connection: apsw.Connection, lineage: str, file: str) -> list[Damage]:
    """Everything that is damaged, missing or not to be read."""
    unread = Unread(file)
    found = audit(surveyed(connection, lineage, unread))
    return [*(damage for damage in found if not unread.has(damage)), *unread.damage]


def surveyed(connection: apsw.Connection, lineage: str, unread: Unread) -> Iterator[Record]:
    """All records that can be read, as of one instant; texts as the bytes that are there. In the place of a
    run that cannot be read come its first and its last without content: so nothing in it counts as
    missing twice. The instant ends with the connection, for which there is no other use."""
    connection.execute("BEGIN")
    yield Record("meta", ("lineage", lineage))
    yield Record("meta", ("format", connection.pragma("user_version")))
    types = dict(_small_table(connection, "types", "id, name", unread))
    yield from _keys(connection, unread)
    streams = _small_table(connection, "streams", "id, name, mark, truncated", unread)
    for id_, *head in sorted(streams, key=lambda row: str(row[1])):
        name, mark, truncated = head
        if not (type(name) is str and type(mark) is int and type(truncated) is int):
            unread.add_elsewhere(f"the marks of stream {name!r}")
            continue
        yield Record("stream", (name, mark, truncated))
        for seq, type_, *rest in _events(connection, id_, name, mark, truncated, unread):
            yield Record("event", (name, seq, types.get(type_), *rest))
    heads = {id_: head for id_, *head in streams}
    _, mark, truncated = next((head for head in heads.values() if head[0] == GLOBAL), (GLOBAL, 0, 0))
    for pointer in _pointers(connection, mark, truncated, unread, heads):
        yield Record("pointer", pointer)


def _events(
    connection: apsw.Connection, id_: int, stream: str, mark: int, truncated: int, unread: Unread
) -> Iterator[tuple[Any, ...]]:
    base = id_ << SEQ_BITS

    def read(first: int, limit: int) -> Iterable[tuple[Any, ...]]:
        return connection.execute(
            "SELECT id & ?, type, at, CAST(data AS BLOB), sum FROM events NOT INDEXED"
            " WHERE id BETWEEN ? AND ? ORDER BY id LIMIT ?",
            (SEQ_MASK, base + first, base + SEQ_MASK, limit),
        )

    def skip(first: int, last: int) -> Iterator[tuple[Any, ...]]:
        unread.add("event", stream, first, last)
        yield from ((seq, None, None, None, None) for seq in sorted({first, last}))

    return _walk(read, min(max(truncated, 0), SEQ_MASK) + 1, min(mark, SEQ_MASK), skip)


def _pointers(
    connection: apsw.Connection, mark: int, truncated: int, unread: Unread, heads: dict[int, list[Any]]
) -> Iterator[tuple[Any, ...]]:
    def read(first: int, limit: int) -> Iterable[tuple[Any, ...]]:
        rows = connection.execute(
            "SELECT position, event >> ?, event & ?, at, sum FROM pointers"
            " WHERE position >= ? ORDER BY position LIMIT ?",
            (SEQ_BITS, SEQ_MASK, first, limit),
        )
        for position, id_, *rest in rows:
            yield from unrolled(position, heads.get(id_, [None])[0], *rest)

    def skip(first: int, last: int) -> Iterator[tuple[Any, ...]]:
        unread.add("pointer", GLOBAL, first, last)
        yield from ((position, None, None, None, None) for position in sorted({first, last}))

    return _walk(read, truncated + 1, mark, skip)


def _small_table(
    connection: apsw.Connection, table: str, columns: str, unread: Unread
) -> list[tuple[Any, ...]]:
    """The rows of a table that is held in memory anyway, by id."""

    def read(first: int, limit: int) -> Iterable[tuple[Any, ...]]:
        return connection.execute(
            f"SELECT {columns} FROM {table} NOT INDEXED WHERE id >= ? ORDER BY id LIMIT ?", (first, limit)
        )

    def skip(first: int, last: int) -> Iterator[tuple[Any, ...]]:
        to = "the end" if last == _MOST_STREAMS else last
        unread.add_elsewhere(f"what the table of {table} has from row {first} to {to}")
        return iter(())

    return list(_walk(read, 1, _MOST_STREAMS, skip))


def _keys(connection: apsw.Connection, unread: Unread) -> Iterator[Record]:
    """Keys have no numbers to go on by: what follows a malformed page is read from the other end."""
    columns, before, after = "SELECT name, CAST(value AS BLOB), sum FROM keys", "", None
    try:
        for name, *rest in connection.execute(f"{columns} ORDER BY name"):
            yield Record("key", (name if type(name) is str else repr(name), *rest))
            before = name
        return
    except (apsw.Error, UnicodeDecodeError) as error:
        _raise_unless_damage(error)
    try:
        for name, *rest in connection.execute(f"{columns} WHERE name > ? ORDER BY name DESC", (before,)):
            yield Record("key", (name if type(name) is str else repr(name), *rest))
            after = name
    except (apsw.Error, UnicodeDecodeError) as error:
        _raise_unless_damage(error)
    until = "" if after is None else f" and before {after!r}"
    unread.add_elsewhere(f"keys after {before!r}{until}")


def _walk(
    read: Read, first: int, last: int, skip: Callable[[int, int], Iterable[tuple[Any, ...]]]
) -> Iterator[tuple[Any, ...]]:
    """All rows from `first` on, with `skip(from, to)` in the place of a run that cannot be read."""
    while True:
        begun = first
        try:
            for row in read(first, -1):
                if row[0] >= first:  # a damaged number may go back, and must not take the walk with it
                    yield row
                    first = row[0] + 1
            return
        except (apsw.Error, UnicodeDecodeError) as error:
            _raise_unless_damage(error)
        if first > last:
            return  # the page is another one's
        until = _readable_from(read, first + 1 if first == begun else first, last)
        if until > first:
            yield from skip(first, until - 1)
        if until > last:
            return
        first = until


def _readable_from(read: Read, first: int, last: int) -> int:
    """The least number from `first` on at which reading works again, `last` + 1 if at none."""
    failed = first - 1
    while failed < last:
        number = min(failed + 1 + (failed - first + 1) // EXACT_PROBES, last)
        if _is_readable(read, number):
            return _least_readable(read, failed, number)
        failed = number
    return last + 1


def _least_readable(read: Read, failed: int, readable: int) -> int:
    while readable - failed > 1:
        middle = (failed + readable) // 2
        if _is_readable(read, middle):
            readable = middle
        else:
            failed = middle
    return readable


def _is_readable(read: Read, number: int) -> bool:
    try:
        list(read(number, 1))
    except (apsw.Error, UnicodeDecodeError) as error:
        _raise_unless_damage(error)
        return False
    return True


def _raise_unless_damage(error: Exception) -> None:
    if isinstance(error, apsw.Error) and not is_damage(error):
        raise error


def damaged_beside(connection: apsw.Connection, stream: str, seq: int) -> list[tuple[str, int]]:
    """The other events that may share a page with this one and do not match their checksums.

    A row takes 14 bytes or more, so that no page holds NEIGHBOURS of them.
    """
    found = connection.execute("SELECT id FROM streams WHERE name = ?", (stream,)).fetchone()
    if found is None:
        return []
    beside = (
        "SELECT s.name, e.id & ?, t.name, e.at, CAST(e.data AS BLOB), e.sum FROM events e"
        " LEFT JOIN streams s ON s.id = e.id >> ? LEFT JOIN types t ON t.id = e.type"
    )
    rows: list[Any] = []
    for side in ("e.id < ? ORDER BY e.id DESC", "e.id > ? ORDER BY e.id"):
        bounds = (SEQ_MASK, SEQ_BITS, (found[0] << SEQ_BITS) + seq, NEIGHBOURS)
        with suppress(apsw.CorruptError):  # the next page is malformed: then this one ends here
            rows.extend(connection.execute(f"{beside} WHERE {side} LIMIT ?", bounds))
    return [(row[0], row[1]) for row in rows if row[0] is not None and not is_sound_event(*row)]
