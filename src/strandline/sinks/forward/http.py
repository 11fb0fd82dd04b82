"""Requests of the forward sink: one connection that is kept, bounded waits, answers read whole."""

import re
import ssl
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, RemoteDisconnected
from typing import Any, Final
from urllib.parse import urlsplit

import orjson

CONNECT_S: Final = 10.0
READ_S: Final = 60.0
MAX_TEXT_BYTES: Final = 2048

_MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
_BLOCK_BYTES: Final = 64 * 1024
_MAX_WAIT_S: Final = 1e9
_SECONDS: Final = re.compile(r"[0-9]{1,18}")
_KIND: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")
_STALE: Final = (RemoteDisconnected, ConnectionResetError, BrokenPipeError)


class NoAnswer(Exception):
    """The request may or may not have arrived: nothing came back. `kind` is of the failure."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind, self.text = kind, text


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. `wait_s` is what it asks for, None if that is nothing to go by."""

    status: int
    body: bytes
    wait_s: float | None

    def members(self) -> dict[str, Any]:
        """Of its JSON object; none if it is no such thing."""
        try:
            found = orjson.loads(self.body)
        except orjson.JSONDecodeError:
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def kind(self) -> str:
        error = self.members().get("error")
        return error if isinstance(error, str) and _KIND.fullmatch(error) else f"http_{self.status}"


class Peer:
    """A receiver. The connection is made by the first request and kept for the next."""

    def __init__(self, url: str, token: str | None) -> None:
        parts = urlsplit(url)
        self._is_tls, self._host, self._port = parts.scheme == "https", parts.hostname or "", parts.port
        self._base, self._token = parts.path.rstrip("/"), token
        self._connection: HTTPConnection | None = None
        self._context: ssl.SSLContext | None = None

    def ask(self, method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> Answer:
        """One request. A kept connection that the other side has closed meanwhile is made anew, once: a
        repeat does no harm. Redirects are answers like any other. Raises NoAnswer."""
        try:
            was_kept = self._connection is not None
            try:
                return self._asked(method, path, headers, body)
            except _STALE:
                self.close()
                if not was_kept:
                    raise
                return self._asked(method, path, headers, body)
        except (OSError, HTTPException, UnicodeError) as error:  # the last of a host that is no name
            self.close()
            raise NoAnswer(_kind_of(error), f"{type(error).__name__}: {error}"[:MAX_TEXT_BYTES]) from error

    def text_of(self, answer: Answer) -> str:
        """How the answer begins; should it repeat the token, without that."""
        text = answer.body[:MAX_TEXT_BYTES].decode(errors="replace")
        return text.replace(self._token, "…") if self._token else text

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _asked(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        connection = self._connected()
        sent = {**headers, **({"Authorization": f"Bearer {self._token}"} if self._token else {})}
        if method == "POST":
            sent["Content-Length"] = str(len(body))
        try:
            connection.request(method, self._base + path, body=_pieces(body) if body else None, headers=sent)
        except (BrokenPipeError, ConnectionResetError) as error:
            # It may have answered before it had read all, and closed.
            try:
                return self._read(connection.getresponse())
            except (OSError, HTTPException):
                raise error from None
            finally:
                self.close()
        return self._read(connection.getresponse())

    def _connected(self) -> HTTPConnection:
        if self._connection is None:
            connection = self._made()
            connection.connect()
            connection.sock.settimeout(READ_S)
            self._connection = connection
        return self._connection

    def _made(self) -> HTTPConnection:
        if not self._is_tls:
            return HTTPConnection(self._host, self._port, timeout=CONNECT_S)
        self._context = self._context or ssl.create_default_context()
        return HTTPSConnection(self._host, self._port, timeout=CONNECT_S, context=self._context)

    def _read(self, response: HTTPResponse) -> Answer:
        """All of it, so that the connection can be kept; but not for ever, and not without end."""
        body, until = bytearray(), time.monotonic() + READ_S
        while block := response.read1(_BLOCK_BYTES):
            body += block
            if len(body) > _MAX_ANSWER_BYTES or time.monotonic() > until:
                raise TimeoutError("the answer does not end")
        response.close()  # read1 leaves it open at its end, and the connection takes no other request
        wait_s = retry_after_s(response.getheader("Retry-After"), response.getheader("Date"))
        if response.will_close:
            self.close()
        return Answer(response.status, bytes(body), wait_s)


def retry_after_s(text: str | None, date: str | None) -> float | None:
    """Seconds or an HTTP date as a wait above zero; None for anything else. A date counts from that of the
    answer, whose clock it was made by."""
    text = (text or "").strip()
    if _SECONDS.fullmatch(text):
        wait_s = float(text)
    else:
        until = _instant(text)
        if until is None:
            return None
        wait_s = (until - (_instant(date or "") or datetime.now(UTC))).total_seconds()
    return min(wait_s, _MAX_WAIT_S) if wait_s > 0 else None


def _instant(text: str) -> datetime | None:
    try:
        found = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _pieces(body: bytes) -> Iterator[memoryview]:
    """Each within its own timeout, so that a slow line does not fail for a large body."""
    view = memoryview(body)
    for first in range(0, len(view), _BLOCK_BYTES):
        yield view[first : first + _BLOCK_BYTES]


def _kind_of(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return "tls_failed"
    return "timeout" if isinstance(error, TimeoutError) else "unreachable"
