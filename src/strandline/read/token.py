"""Tokens: "everything up to here", as text that a caller keeps and hands back.

    slc1.<base64url of canonical JSON>.<first 16 hex of its sha-256>
    {"dataset":"logs","origin":"…","seq":"4711","source":"web-1","v":1}     a place in one strand
    {"dataset":"logs","flush":"12","origin":"…","source":"*","v":1}         a place between flushes, over
    all sources

A token that is not whole, or that belongs elsewhere, is refused: it never means "from the start".
"""

import base64
import binascii
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

import orjson

from strandline.errors import UsageError

_PREFIX: Final = "slc1"
_ALL: Final = "*"


class InvalidToken(UsageError):
    """A token that cannot be read here."""

    def __init__(self, found: str) -> None:
        super().__init__(
            f"the token is not valid here: {found}",
            hint="hand back a token as it was given, to the same dataset and source; "
            "leave it out to read from the start",
        )


@dataclass(frozen=True, slots=True)
class ReadToken:
    """A place: a seq of one strand, or with no source a flush number of the dataset."""

    origin: str
    dataset: str
    source: str | None
    at: int

    def text(self) -> str:
        place = (
            {"source": _ALL, "flush": str(self.at)}
            if self.source is None
            else {"source": self.source, "seq": str(self.at)}
        )
        body = {"v": 1, "origin": self.origin, "dataset": self.dataset, **place}
        packed = (
            base64.urlsafe_b64encode(orjson.dumps(body, option=orjson.OPT_SORT_KEYS)).rstrip(b"=").decode()
        )
        return f"{_PREFIX}.{packed}.{_sum(packed)}"


def read_token(text: object, *, origin: str, dataset: str, source: str | None) -> ReadToken:
    """The token, which must be of this origin, dataset and strand (None: of all sources)."""
    if type(text) is not str or text.count(".") != 2:
        raise InvalidToken(f"{text!r:.60} has not the form of one")
    prefix, packed, sum_ = text.split(".")
    if prefix != _PREFIX:
        raise InvalidToken(f"its version is {prefix!r:.20}, this Strandline knows {_PREFIX}")
    if _sum(packed) != sum_:
        raise InvalidToken("its checksum does not match")
    token = _unpacked(packed)
    for what, found, wanted in (
        ("origin", token.origin, origin),
        ("dataset", token.dataset, dataset),
        ("source", token.source, source),
    ):
        if found != wanted:
            raise InvalidToken(f"it is of {what} {_shown(found)}, not {_shown(wanted)}")
    return token


def _unpacked(packed: str) -> ReadToken:
    try:
        body: Any = orjson.loads(base64.urlsafe_b64decode(packed + "=" * (-len(packed) % 4)))
        if "flush" in body:
            if body["source"] != _ALL:
                raise InvalidToken("a flush number goes with all sources")
            source, at = None, body["flush"]
        else:
            source, at = body["source"], body["seq"]
        if not (type(at) is str and at.isdecimal()):
            raise InvalidToken(f"its place is {at!r:.40}")
        return ReadToken(body["origin"], body["dataset"], source, int(at))
    except (binascii.Error, orjson.JSONDecodeError, KeyError, TypeError, UnicodeError) as error:
        raise InvalidToken("its content cannot be read") from error


def _sum(packed: str) -> str:
    return sha256(packed.encode()).hexdigest()[:16]


def _shown(value: str | None) -> str:
    return "all sources" if value is None else repr(value)
