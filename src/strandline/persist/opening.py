"""Where a store is opened: the one place that knows concrete backends."""

import os
from typing import TYPE_CHECKING, Any, cast

from strandline.errors import UsageError
from strandline.persist.backend import AtomicBackend, Backend
from strandline.persist.backends.memory import MemoryBackend

if TYPE_CHECKING:
    from pathlib import Path

_SCHEMES = (
    "memory:, sqlite:///relative/path, sqlite:////absolute/path, a plain path, postgresql://…, http(s)://…"
)


def mem_backend() -> MemoryBackend:
    """A fresh, empty store in memory."""
    return MemoryBackend()


def open_store(target: "str | Path | Backend | None" = None, **options: Any) -> AtomicBackend:
    """Open a store by URL or path; a backend object comes back as it is, and nothing at all is a fresh one
    in memory.

    Options by keyword: `create=False` opens only what is there. SQLite: `synchronous`, `busy_timeout_s`.
    Postgres: `schema`. HTTP: `token`, `timeout_s`, `retries`.
    """
    if target is None:
        return _opened(MemoryBackend, options)
    if isinstance(target, os.PathLike):
        return _open_sqlite(os.fspath(target), options)
    if not isinstance(target, str):
        if not hasattr(target, "last_seq"):
            raise UsageError(f"store {target!r:.80} is no backend", hint=f"one of {_SCHEMES}, or a backend")
        if options:
            raise UsageError(f"options {sorted(options)} for a backend that is open", hint="leave them out")
        return cast("AtomicBackend", target)
    if (path := sqlite_path(target)) is not None:
        return _open_sqlite(path, options)
    scheme = target.partition(":")[0]
    match scheme:
        case "memory":
            return _opened(MemoryBackend, options)
        case "postgresql" | "postgres":
            from strandline.persist.backends.postgres import PostgresBackend

            return _opened(PostgresBackend, options, target)
        case "http" | "https":
            from strandline.persist.backends.remote import RemoteBackend

            return _opened(RemoteBackend, options, target)
    raise UsageError(f"store {target!r} has the unknown scheme {scheme!r}", hint=f"one of {_SCHEMES}")


def sqlite_path(target: str) -> str | None:
    """The file of a SQLite store that is named by URL or path; None if it is a store of another kind."""
    scheme, separator, rest = target.partition(":")
    if not separator or "/" in scheme or len(scheme) == 1:
        return _not_empty(target)
    if scheme != "sqlite":
        return None
    if not rest.startswith("///") or len(rest) == 3:
        raise UsageError(f"store {target!r} names no file", hint="sqlite:///relative or sqlite:////absolute")
    from urllib.parse import unquote

    return unquote(rest[3:])


def durable_backend(
    url: str, *, token: str | None = None, timeout_s: float = 30, retries: int = 3
) -> AtomicBackend:
    """The client of a host over HTTP: `io_backend` over the production transport. It holds no state."""
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"{url!r} is no host", hint="http(s)://…, as `strandline persist serve` prints it")
    return open_store(url, token=token, timeout_s=timeout_s, retries=retries)


def _open_sqlite(path: str, options: dict[str, Any]) -> AtomicBackend:
    from strandline.persist.backends.sqlite import SqliteBackend

    return _opened(SqliteBackend, options, path)


def _opened(kind: Any, options: dict[str, Any], *args: Any) -> AtomicBackend:
    import inspect

    known = inspect.signature(kind).parameters
    if kind is MemoryBackend:
        options = {name: value for name, value in options.items() if name != "create"}
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise UsageError(
            f"{kind.__name__} has no option {unknown[0]!r}",
            hint=f"it has {', '.join(sorted(known)[:8]) or 'none'}",
        )
    return cast("AtomicBackend", kind(*args, **options))


def _not_empty(target: str) -> str:
    if not target:
        raise UsageError("the store's name is empty", hint=f"one of {_SCHEMES}")
    return target
