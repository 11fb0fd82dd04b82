"""What a commit stores, ready for any backend: blocks of events and values of keys, each with its checksum.

A checksum adds up with what only the store knows: an event's with its seq, a pointer's with its seq and
position. So a server can complete it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Final, NamedTuple
from zlib import crc32

from strandline.persist.backend import Append
from strandline.persist.event import Event, Scalar, Storable, make_event
from strandline.persist.reserved import GLOBAL
from strandline.persist.value import encode

MAX_RUN: Final = 2**16
# What each pointer of a run but the last adds to its sum. It is more than all the rest, so that a division
# gives how many they are, and odd, so that one flipped bit makes no other length.
RUN_STEP: Final = 2**40 - 87


@dataclass(slots=True)
class Block:
    """Events that are appended to one stream, one after the other, column by column: `texts` are their data
    encoded, `crcs` their checksums but for the seqs. It `is_uniform` if all have the same type and time, and
    all or none are in the global order."""

    stream: str
    types: list[str]
    ats: list[Scalar]
    texts: list[str]
    crcs: list[int]
    globally: list[bool]
    is_uniform: bool = True

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def is_of_one_type(self) -> bool:
        return self.is_uniform or self.types.count(self.types[0]) == len(self.types)

    @property
    def is_at_once(self) -> bool:
        """Whether all have the same time."""
        return self.is_uniform or all(is_same_at(at, self.ats[0]) for at in self.ats)

    def events(self, first: int, appends: Iterator[Append]) -> list[Event]:
        """What the caller gets back, from what it gave, under seqs from `first` on."""
        stream = self.stream
        return [
            make_event(stream, seq, type_, at, append[3])
            for seq, type_, at, append in zip(count(first), self.types, self.ats, appends, strict=False)
        ]


def block_of(stream: str, type_: str, at: Scalar, data: Storable) -> Block:
    """One checked event that is not in the global order."""
    text = encode(data)
    return Block(stream, [type_], [at], [text.decode()], [event_crc(stream, type_, at, text)], [False])


class PutText(NamedTuple):
    """The value of a key, encoded."""

    key: str
    text: str
    crc: int


def put_text(key: str, value: Storable) -> PutText:
    text = encode(value)
    return PutText(key, text.decode(), key_crc(key, text))


def event_crc(stream: str, type_: str, at: Scalar, data: bytes) -> int:
    """The checksum of an event without its seq; what is stored is this plus the seq."""
    return crc32(data, crc_before_data(stream, type_, at))


def crc_before_data(stream: str, type_: str, at: Scalar) -> int:
    """The part of it that events which are alike share."""
    stamp = '"' + at if type(at) is str else repr(at)
    return crc32(f"{stream}\0{type_}\0{stamp}\0".encode())


def key_crc(key: str, text: bytes) -> int:
    return crc32(text, crc32(f"{key}\0".encode()))


def pointer_sum(position: int, stream: str, seq: int, at: Scalar) -> int:
    """The checksum of a pointer."""
    stamp = '"' + at if type(at) is str else repr(at)
    return crc32(f"{GLOBAL}\0{stream}\0{stamp}".encode()) + 3 * seq + position


def run_sum(position: int, stream: str, seq: int, at: Scalar, count: int) -> int:
    """The checksum of a run of pointers: that of its last one, and how many they are."""
    return pointer_sum(position, stream, seq, at) + (count - 1) * RUN_STEP


def run_length(sum_: int, last_sum: int) -> int:
    """How many pointers a run says that it has, from its checksum and that of its last one; 0 if it is
    damaged."""
    more, rest = divmod(sum_ - last_sum, RUN_STEP)
    return 0 if rest or not 0 <= more < MAX_RUN else more + 1


def pointer_runs(block: Block, most: int) -> Iterable[tuple[int, int, Scalar]]:
    """(index of the first, count, at) of events that are in the global order one after the other, with the
    same time; `most` of them at a time."""
    if block.is_uniform and len(block) <= most:  # as nearly all are
        return [(0, len(block), block.ats[0])] if block.globally[0] else []
    return _pointer_runs(block, most)


def _pointer_runs(block: Block, most: int) -> Iterator[tuple[int, int, Scalar]]:
    for start, end in _alike(block):
        if block.globally[start]:
            for first in range(start, end, most):
                yield first, min(most, end - first), block.ats[start]


def _alike(block: Block) -> Iterator[tuple[int, int]]:
    """From where to where events have the same time, and are in the global order or not."""
    if block.is_uniform:
        yield 0, len(block)
        return
    start, ats, globally = 0, block.ats, block.globally
    for place in range(1, len(block)):
        if globally[place] is not globally[start] or not is_same_at(ats[place], ats[start]):
            yield start, place
            start = place
    yield start, len(block)


def is_same_at(left: Scalar, right: Scalar) -> bool:
    """1 is not 1.0, 0.0 is not -0.0."""
    if left is right:
        return True
    return type(left) is type(right) and left == right and (left != 0 or repr(left) == repr(right))
