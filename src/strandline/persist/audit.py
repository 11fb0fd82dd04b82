"""Looks at a whole store record by record: what is damaged, what is missing, what was set aside.

Seqs are dense between the truncation point and the mark, so a checksum over each row and a count of the
places between them find a changed, a swapped and a missing event alike. The same walk serves verify, backup
and restore.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from strandline.errors import CorruptionError, EventCorrupt, NotFoundError, UsageError
from strandline.persist.backend import Append, AtomicBackend, Damage, Put, Record, Write
from strandline.persist.core.block import event_crc, key_crc, pointer_sum
from strandline.persist.core.commit import Transaction
from strandline.persist.event import Scalar
from strandline.persist.reserved import GLOBAL, ONCE, QUARANTINE, QUARANTINED, reserved_key
from strandline.persist.value import decode


def audit(records: Iterable[Record]) -> list[Damage]:
    """Everything that is damaged or missing in the records of one `dump`."""
    auditor = Auditor()
    found = [damage for record in records for damage in auditor.look(record)]
    return [*found, *auditor.finish()]


def checked(records: Iterable[Record]) -> Iterator[Record]:
    """The records of a `dump` handed on; the first that is damaged raises instead."""
    auditor = Auditor()
    for record in records:
        _raise_first(auditor.look(record))
        yield record
    _raise_first(auditor.finish())


def _raise_first(found: Iterable[Damage]) -> None:
    for damage in found:
        if damage.what == "event":
            raise EventCorrupt(damage.name, damage.seq, damage.found)
        if damage.what != "quarantined":
            raise CorruptionError(
                f"{damage.what} {damage.name!r} is damaged: {damage.found}",
                hint="`strandline persist verify` lists all damage",
            )


class Auditor:
    """Takes the records of one dump in their order, and says of each what is wrong."""

    def __init__(self) -> None:
        self._quarantined: dict[str, set[int]] = {}
        self._marks: dict[str, int] = {}
        self._stream = _Places("", 0, 0, set())
        self._pointers = _Places(GLOBAL, 0, 0, set())

    def look(self, record: Record) -> Iterator[Damage]:
        kind, body = record
        if kind == "key":
            yield from self._look_at_key(*body)
        elif kind == "stream":
            yield from self._stream.rest()
            self._marks[body[0]] = body[1]
            places = _Places(body[0], body[1], body[2], self._quarantined.get(body[0], set()))
            if places.name == GLOBAL:
                self._pointers, self._stream = places, _Places("", 0, 0, set())
            else:
                self._stream = places
        elif kind == "event":
            stream, seq, type_, at, text, sum_ = body
            yield from self._stream.tick(seq)
            if not is_sound_event(stream, seq, type_, at, text, sum_):
                yield Damage("event", stream, seq, "its checksum does not match")
        elif kind == "pointer":
            position, stream, seq, at, sum_ = body
            yield from self._pointers.tick(position)
            if not _is_sound(lambda: pointer_sum(position, stream, seq, at) == sum_):
                yield Damage("pointer", GLOBAL, position, "its checksum does not match")
            elif seq > self._marks.get(stream, 0):
                yield Damage(
                    "pointer",
                    GLOBAL,
                    position,
                    f"it names seq {seq} of {stream!r}, which was never given out",
                )

    def finish(self) -> Iterator[Damage]:
        yield from self._stream.rest()
        yield from self._pointers.rest()

    def _look_at_key(self, key: str, text: Any, sum_: int) -> Iterator[Damage]:
        if not _is_sound(lambda: key_crc(key, _bytes(text)) == sum_):
            yield Damage(
                "marker" if key.startswith(ONCE + "/") else "key", key, 0, "its checksum does not match"
            )
        elif key.startswith(QUARANTINE + "/"):
            value = decode(text)
            self._quarantined.setdefault(value["stream"], set()).add(value["seq"])


class _Places:
    """The places of one stream that must be filled, ticked off as they come by."""

    def __init__(self, name: str, last: int, truncated: int, aside: set[int]) -> None:
        self.name, self.last, self.truncated, self.aside = name, last, truncated, aside
        self.next = truncated + 1

    def tick(self, seq: int) -> Iterator[Damage]:
        if seq > self.last:
            yield Damage("mark", self.name, self.last, f"an event has seq {seq}, above the mark")
        yield from self._missing(seq)
        self.next = max(self.next, seq + 1)

    def rest(self) -> Iterator[Damage]:
        if self.truncated > self.last:
            yield Damage(
                "mark", self.name, self.last, f"it is truncated through {self.truncated}, above the mark"
            )
        yield from self._missing(self.last + 1)

    def _missing(self, until: int) -> Iterator[Damage]:
        if self.next >= until:
            return
        set_aside = sorted(seq for seq in self.aside if self.next <= seq < until)
        for seq in set_aside:
            yield Damage("quarantined", self.name, seq, "it was set aside; its raw bytes are kept")
        lost = until - self.next - len(set_aside)
        if lost:
            first = next(seq for seq in range(self.next, until) if seq not in self.aside)
            more = (
                f"it and {lost - 1:,} more up to seq {until - 1} are missing" if lost > 1 else "it is missing"
            )
            yield Damage("event", self.name, first, more)


def _bytes(text: Any) -> bytes:
    return text.encode() if isinstance(text, str) else bytes(text)


def is_sound_event(stream: str, seq: int, type_: Any, at: Any, text: Any, sum_: Any) -> bool:
    """Whether a row, whatever it holds by now, is the event that was stored."""
    return _is_sound(lambda: event_crc(stream, type_, at, _bytes(text)) + seq == sum_)


def _is_sound(check: Any) -> bool:
    """A damaged row may hold values of any type, or a name that is gone: what cannot be checked is not
    sound."""
    try:
        return bool(check())
    except (TypeError, ValueError, AttributeError):
        return False


def quarantine_key(stream: str, seq: int) -> str:
    return reserved_key(QUARANTINE, stream, f"{seq:020d}")


def refuse_lost(b: AtomicBackend, stream: str, seq: int) -> None:
    """Raise EventCorrupt for an event whose row is gone, unless it was set aside or truncated."""
    if not b.kv_has(quarantine_key(stream, seq)) and b.truncated_through(stream) < seq:
        raise EventCorrupt(stream, seq, "it is missing")


def quarantine_writes(tx: Transaction, stream: str, seq: int, at: Scalar, raw: Any) -> list[Write]:
    """What keeps the raw bytes of a row and records that it was set aside; the backend removes the row
    beside it. Of a row that is missing nothing is kept but the record."""
    if raw is None and not _is_missing(tx, stream, seq):
        raise NotFoundError(
            f"event {seq} of stream {stream!r} is not stored, so it cannot be set aside",
            hint="`strandline persist verify` lists what is damaged",
        )
    kept = {"stream": stream, "seq": seq, "raw": [_readable(part) for part in raw or ()]}
    return [
        Put(quarantine_key(stream, seq), kept),
        Append(QUARANTINED, "quarantined", at, {"stream": stream, "seq": seq}),
    ]


def _is_missing(tx: Transaction, stream: str, seq: int) -> bool:
    """Whether there should be an event: it was given out, and neither truncated nor set aside before."""
    mark, truncated = tx.head(stream)
    return truncated < seq <= mark and stream != GLOBAL and tx.text(quarantine_key(stream, seq)) is None


def _readable(part: Any) -> str:
    """Raw bytes as hexadecimal: a damaged row need not be text, nor a number."""
    data = part.encode(errors="surrogatepass") if isinstance(part, str) else part
    return data.hex() if isinstance(data, bytes) else repr(part)


def refuse_unless_empty(b: AtomicBackend) -> None:
    if b.stream_scan("", after="", limit=1) or b.kv_scan("", after="", limit=1):
        raise UsageError(
            "the store is not empty", hint="restore into a store of its own, then point the service at it"
        )
