"""What happens to a commit before any lock is taken: names checked, values checked and encoded, all of it or
none."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import repeat
from operator import is_
from typing import Any, Final, TypeAlias, cast
from zlib import crc32

from strandline.errors import NotStorable, UsageError
from strandline.persist.backend import (
    Append,
    Delete,
    Expectation,
    ExpectKey,
    ExpectSeq,
    Once,
    Put,
    Redact,
    Truncate,
    Write,
)
from strandline.persist.core.block import Block, PutText, crc_before_data, is_same_at, put_text
from strandline.persist.event import ABSENT, Scalar
from strandline.persist.reserved import (
    COMMIT_SCOPE,
    FLOOR,
    GLOBAL,
    HOLD,
    ONCE,
    SNAPSHOT,
    SNAPSHOT_OF,
    reserved_key,
)
from strandline.persist.value import (
    MAX_COMMIT_BYTES,
    MAX_SEQ,
    check_at,
    check_key,
    check_name,
    check_seq,
    encode,
    encoder_of,
)

_BETWEEN: Final = "\0\0"  # the parts of a digest; no part holds two NULs in a row: JSON escapes them
_HASHED_AT_ONCE: Final = 64

Step: TypeAlias = Block | PutText | Delete | Truncate | Redact


@dataclass(slots=True)
class Prepared:
    """A commit that is known to be storable: names checked, values encoded, appends to one stream joined to
    blocks."""

    preconditions: Sequence[Expectation]
    expected_texts: list[str | None]  # beside each precondition: the encoded value that a key must have
    writes: Sequence[Write]
    steps: list[Step]
    size: int
    once: Once | None
    once_key: str
    digest: str


def prepare(
    preconditions: Iterable[Expectation],
    writes: Iterable[Write],
    once: Once | None = None,
    *,
    is_sent: bool = False,
) -> Prepared:
    """Check and encode everything, or raise before anything is written. What `is_sent` has no digest: whoever
    gets it makes that."""
    preconditions, writes = list(preconditions), list(writes)
    expected_texts = [_expected_text(expectation) for expectation in preconditions]
    is_batch = len(writes) > 1 and set(map(type, writes)) == {Append}
    is_hashed = once is not None and not is_sent
    made = _prepare_alike(writes, is_hashed) if is_batch else None
    steps, size, digest = made or _prepare_each(writes, is_hashed)
    if size > MAX_COMMIT_BYTES:
        raise NotStorable(
            f"a commit of {size:,} bytes is over the limit of {MAX_COMMIT_BYTES:,}",
            hint="split it into several",
        )
    if once is None:
        return Prepared(preconditions, expected_texts, writes, steps, size, None, "", "")
    scope, key = _check_once(once, steps)
    return Prepared(
        preconditions,
        expected_texts,
        writes,
        steps,
        size,
        (scope, key),
        reserved_key(ONCE, scope, key),
        digest,
    )


def _prepare_alike(writes: Sequence[Write], is_hashed: bool) -> tuple[list[Step], int, str] | None:
    """The same as _prepare_each, column by column and so in less time, for appends to one stream that are of
    one type, and all or none in the global order; None for others."""
    streams, types, times, datas, globals_ = zip(*writes, strict=True)
    stream, type_, globally, ats = streams[0], types[0], globals_[0], list(times)
    if not (
        {*map(type, streams), *map(type, types)} == {str}
        and streams.count(stream) == types.count(type_) == len(writes)
        and all(map(is_, globals_, repeat(globally)))
    ):
        return None
    check_appendable(stream), check_name("type", type_), _check_flag(globally)
    is_at_once = _are_same(ats)
    befores: Iterable[int] = (
        repeat(crc_before_data(stream, type_, check_at(ats[0])))
        if is_at_once
        else [crc_before_data(stream, type_, check_at(at)) for at in ats]
    )
    encoded = encoder_of(datas)
    texts: list[str] = []
    crcs: list[int] = []
    size = len(writes) * (len(stream) + len(type_))
    for data, before in zip(map(encoded, datas), befores, strict=False):
        texts.append(data.decode())
        crcs.append(crc32(data, before))
        size += len(data)
    digest = ""
    if is_hashed:
        hashing, between = sha256(), ""
        identity = _append_identity(stream, type_, globally)
        for start in range(0, len(texts), _HASHED_AT_ONCE):  # by pieces that the processor still has at hand
            piece = (_BETWEEN + identity).join(texts[start : start + _HASHED_AT_ONCE])
            hashing.update(f"{between}{identity}{piece}".encode())
            between = _BETWEEN
        digest = hashing.hexdigest()
    block = Block(stream, [type_] * len(texts), ats, texts, crcs, list(globals_), is_uniform=is_at_once)
    return [block], size, digest


def _are_same(ats: list[Scalar]) -> bool:
    """Whether is_same_at holds for all, if that can be told in C."""
    at = ats[0]
    return all(map(is_, ats, repeat(at))) or (set(map(type, ats)) == {int} and ats.count(at) == len(ats))


def _prepare_each(writes: Sequence[Write], is_hashed: bool) -> tuple[list[Step], int, str]:
    """The steps of the writes, their size in bytes, and their digest if it `is_hashed`."""
    steps: list[Step] = []
    hashed: list[bytes] = []
    size = 0
    stream: Any = prepare  # what no event has
    block = cast("Block", None)
    type_: Any = prepare
    at: Any = None
    globally: Any = None
    encoded = encode if len(writes) == 1 else encoder_of([w[3] for w in writes if type(w) is Append])
    for write in writes:
        if type(write) is Append:
            if write[0] != stream:
                stream, type_ = check_appendable(write[0]), prepare
                block = Block(stream, [], [], [], [], [])
                steps.append(block)
            if not (
                (write[1] is type_ or (type(write[1]) is str and write[1] == type_))
                and (write[2] is at or is_same_at(write[2], at))
                and write[4] is globally
            ):
                type_, at, globally = check_name("type", write[1]), check_at(write[2]), _check_flag(write[4])
                block.is_uniform = not block.texts
                before, label = crc_before_data(stream, type_, at), len(stream) + len(type_)
                identity = _append_identity(stream, type_, globally)
            data = encoded(write[3])
            size += len(data) + label
            block.types.append(type_)
            block.ats.append(at)
            block.texts.append(data.decode())
            block.crcs.append(crc32(data, before))
            block.globally.append(globally)
            if is_hashed:
                hashed.append(identity.encode() + data)
        else:
            stream = prepare
            step, said = _prepare_other(write)
            size += len(said)
            steps.append(step)
            if is_hashed:
                hashed.append(_identity(write, said))
    digest = sha256(_BETWEEN.encode().join(filter(None, hashed))).hexdigest() if is_hashed else ""
    return steps, size, digest


def check_appendable(stream: object) -> str:
    """`stream` itself, if events may be appended to it."""
    name = check_name("stream", stream)
    if name == GLOBAL:
        raise UsageError(
            "stream '$global' takes no events of its own", hint="append to another stream with globally=True"
        )
    return name


def _check_flag(globally: object) -> bool:
    if type(globally) is not bool:
        raise UsageError(f"globally is {globally!r:.80}", hint="True or False")
    return globally


def _append_identity(stream: str, type_: str, globally: bool) -> str:
    """What an append adds to the digest before its data."""
    return f"append\0{stream}\0{type_}\0{globally}\0"


def _expected_text(expectation: Expectation) -> str | None:
    if isinstance(expectation, ExpectSeq):
        check_name("stream", expectation.stream)
        check_seq("an expected seq", expectation.seq)
        return None
    if not isinstance(expectation, ExpectKey):
        raise UsageError(f"{expectation!r:.80} is no precondition", hint="use ExpectSeq or ExpectKey")
    check_key(expectation.key)
    return None if expectation.value is ABSENT else encode(expectation.value).decode()


def _prepare_other(write: Write) -> tuple[Step, bytes]:
    match write:
        case Put(key, value):
            step = put_text(check_key(key), value)
            return step, f"put\0{key}\0{step.text}".encode()
        case Delete(key):
            check_key(key)
            return write, f"delete\0{key}".encode()
        case Truncate(stream, n):
            check_name("stream", stream)
            if type(n) is not int:
                raise UsageError(f"truncation point {n!r:.80} is no int", hint="give the last seq to remove")
            cut = Truncate(stream, max(0, min(n, MAX_SEQ)))  # hashed as it is sent
            return cut, f"truncate\0{stream}\0{cut.n}".encode()
        case Redact(stream, seq, path):
            check_name("stream", stream)
            check_seq("seq", seq, least=1)
            if not all(type(step) in (str, int) for step in path):
                raise UsageError(
                    f"path {path!r:.80} is no list of keys and indexes", hint="such as ['name', 0]"
                )
            return Redact(stream, seq, list(path)), b"redact\0" + encode([stream, seq, list(path)])
    raise UsageError(f"{write!r:.80} is no write", hint="use Append, Put, Delete, Truncate or Redact")


def _identity(write: Write, identity: bytes) -> bytes:
    """What a repeat must have in common with the first: what the caller said, not what the store adds to it.

    The store's own bookkeeping beside a snapshot or a cursor depends on what is there at the time.
    """
    if isinstance(write, (Put, Delete)) and write.key.startswith(
        (FLOOR + "/", SNAPSHOT_OF + "/", HOLD + "/")
    ):
        return b""
    if isinstance(write, Put) and write.key.startswith(SNAPSHOT + "/") and isinstance(write.value, dict):
        return f"put\0{write.key}\0".encode() + encode(write.value.get("state"))
    return identity


def _check_once(once: Once, steps: list[Step]) -> Once:
    if not (isinstance(once, (tuple, list)) and len(once) == 2):
        raise UsageError(f"once is {once!r:.80}", hint="once is (scope, key)")
    scope, key = check_name("stream", once[0]), check_name("idempotency key", once[1])
    if scope == COMMIT_SCOPE:
        return scope, key
    for step in steps:
        if type(step) is Block and step.stream == scope:
            return scope, key
    raise UsageError(
        f"once names the scope {scope!r}, to which the commit appends nothing",
        hint=f"the scope is a stream that the commit appends to, or {COMMIT_SCOPE!r}",
    )
