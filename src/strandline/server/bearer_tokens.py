"""Who may send: bearer tokens, kept as hashes, each for some datasets and some origins.

    token/<id>    {"name", "hash", "datasets", "origins", "at", "revoked_at"}

A token is `slt_<id>_<secret>`, the secret 256 random bits, so that one SHA-256 hides it well enough. The id
is no secret: it finds the record, and it is what lists and logs show. None for datasets or origins is all.
"""

import hmac
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from typing import Any, Final

from strandline.errors import CorruptionError, NotFoundError, StrandlineError, UsageError
from strandline.persist import ABSENT, AtomicBackend, Conflict, ExpectKey, Put
from strandline.rows.dataset import check_dataset_name
from strandline.rows.unit import check_origin

_TOKEN: Final = re.compile(r"slt_([0-9a-f]{12})_[A-Za-z0-9_-]{43}")
_KEY: Final = "token/"
_PAGE: Final = 500


class Unauthorized(StrandlineError):
    """No token, or none that is known."""

    def __init__(self) -> None:
        super().__init__(
            "the token is missing, unknown or revoked", hint="`Authorization: Bearer …`; see `server token`"
        )


class OutOfScope(StrandlineError):
    """A token that is for other datasets or origins."""

    def __init__(self, what: str, name: str) -> None:
        super().__init__(
            f"this token is not for {what} {name!r}", hint="use another, or have one made for it"
        )
        self.what, self.name = what, name


@dataclass(frozen=True, slots=True)
class BearerToken:
    """What is kept of a token."""

    id: str
    name: str
    hash: str
    datasets: tuple[str, ...] | None
    origins: tuple[str, ...] | None
    at: int
    revoked_at: int | None = None

    def check(self, *, origin: str, datasets: Iterable[str] = ()) -> None:
        """OutOfScope unless it is for all of them."""
        if self.origins is not None and origin not in self.origins:
            raise OutOfScope("origin", origin)
        for each in datasets:
            if not self.covers(each):
                raise OutOfScope("dataset", each)

    def covers(self, dataset: str) -> bool:
        return self.datasets is None or dataset in self.datasets


def new_token(
    b: AtomicBackend,
    name: str,
    *,
    at: int,
    datasets: Sequence[str] | None = None,
    origins: Sequence[str] | None = None,
) -> tuple[BearerToken, str]:
    """A new token and its text, which nothing can show again."""
    if not name or len(name) > 128 or not name.isprintable():
        raise UsageError(f"token name {name!r:.80} is no name", hint="who uses it, in a short text")
    token_id, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
    text = f"slt_{token_id}_{secret}"
    made = BearerToken(
        token_id,
        name,
        _hash(text),
        None if datasets is None else tuple(check_dataset_name(each) for each in datasets),
        None if origins is None else tuple(check_origin(each) for each in origins),
        at,
    )
    outcome = b.commit([ExpectKey(_KEY + token_id, ABSENT)], [Put(_KEY + token_id, _data(made))])
    if isinstance(outcome, Conflict):  # 48 random bits met themselves
        return new_token(b, name, at=at, datasets=datasets, origins=origins)
    return made, text


def tokens(b: AtomicBackend) -> Iterator[BearerToken]:
    """All, those that were revoked included, by id."""
    after = ""
    while page := b.kv_scan(_KEY, after=after, limit=_PAGE):
        yield from (_token(key, value) for key, value in page)
        after = page[-1][0]


def token_of(b: AtomicBackend, token_id: str) -> BearerToken:
    """The token with that id, or NotFoundError."""
    return _token(*_record(b, token_id))


def revoke(b: AtomicBackend, token_id: str, *, at: int) -> BearerToken:
    """From now on it opens nothing; its record stays. Again, it changes nothing."""
    while True:
        key, value = _record(b, token_id)
        found = _token(key, value)
        if found.revoked_at is not None:
            return found
        revoked = replace(found, revoked_at=at)
        if not isinstance(b.commit([ExpectKey(key, value)], [Put(key, _data(revoked))]), Conflict):
            return revoked


def _record(b: AtomicBackend, token_id: str) -> tuple[str, Any]:
    key = _KEY + token_id
    value = b.kv_get(key) if re.fullmatch(r"[0-9a-f]{12}", token_id) else None
    if value is None:
        raise NotFoundError(
            f"there is no token {token_id!r:.80}", hint="`strandline server token list` shows their ids"
        )
    return key, value


class Gate:
    """Knows tokens: those of the store, looked up each time, and those of the configuration, which may send
    anything."""

    def __init__(self, b: AtomicBackend, configured: Sequence[str] = ()) -> None:
        self._b = b
        self._configured = [
            BearerToken(f"configured-{n}", "configured", _hash(text), None, None, 0)
            for n, text in enumerate(configured, 1)
        ]

    def token(self, authorization: Sequence[str]) -> BearerToken:
        """Of all values of the header. Raises Unauthorized, which never says why."""
        if len(authorization) != 1 or not authorization[0].startswith("Bearer "):
            raise Unauthorized
        text = authorization[0].removeprefix("Bearer ")
        hash_ = _hash(text)
        for each in self._configured:
            if hmac.compare_digest(each.hash, hash_):
                return each
        if (match := _TOKEN.fullmatch(text)) is None:
            raise Unauthorized
        value = self._b.kv_get(_KEY + match[1])
        if value is None:
            raise Unauthorized
        found = _token(_KEY + match[1], value)
        if found.revoked_at is not None or not hmac.compare_digest(found.hash, hash_):
            raise Unauthorized
        return found


def _hash(text: str) -> str:
    return sha256(text.encode(errors="replace")).hexdigest()


def _data(token: BearerToken) -> dict[str, Any]:
    data = {name: list(each) if isinstance(each, tuple) else each for name, each in asdict(token).items()}
    del data["id"]
    return data


def _token(key: str, value: Any) -> BearerToken:
    try:
        lists = {
            name: None if value[name] is None else tuple(value[name]) for name in ("datasets", "origins")
        }
        return BearerToken(id=key.removeprefix(_KEY), **{**value, **lists})
    except (TypeError, KeyError) as error:
        raise CorruptionError(
            f"{key!r} is no record of a token", hint="a newer Strandline may have written it: upgrade"
        ) from error
