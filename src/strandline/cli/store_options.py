"""The options that every command over a store has, and what they open."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import click

from strandline.errors import UsageError
from strandline.persist.backend import AtomicBackend
from strandline.persist.opening import open_store

TOKEN_VARIABLE = "STRANDLINE_TOKEN"
STORE_VARIABLE = "STRANDLINE_STORE"


@dataclass(frozen=True, slots=True)
class Target:
    """The store that a command was told to use, not opened yet."""

    url: str
    schema: str | None
    token_file: Path | None

    @property
    def is_http(self) -> bool:
        return self.url.startswith(("http://", "https://"))

    @property
    def is_postgres(self) -> bool:
        return self.url.startswith(("postgresql://", "postgres://"))

    @property
    def token(self) -> str | None:
        """From the file, else from the environment; never from the command line, which others can read."""
        if self.token_file is None:
            return os.environ.get(TOKEN_VARIABLE) or None
        try:
            token = self.token_file.read_text().strip()
        except (OSError, UnicodeError) as error:
            raise UsageError(
                f"cannot read the token file {self.token_file}: {error}", hint="name another"
            ) from error
        if not token:
            raise UsageError(f"the token file {self.token_file} is empty", hint="put the token into it")
        return token

    def options(self) -> dict[str, Any]:
        if self.schema is not None and not self.is_postgres:
            raise UsageError("--schema is for a store in Postgres", hint="leave it out")
        if self.token_file is not None and not self.is_http:
            raise UsageError("--token-file is for a store over HTTP", hint="leave it out")
        options: dict[str, Any] = {"schema": self.schema} if self.schema is not None else {}
        return {**options, "token": self.token} if self.is_http else options

    @contextmanager
    def opened(self, *, create: bool = False) -> Iterator[AtomicBackend]:
        b = open_store(self.url, create=create, **self.options())
        try:
            yield b
        finally:
            b.close()


def store_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """--store and its like, handed on as `target`; --json as `as_json`; --debug is for the command itself."""

    @click.option(
        "--store",
        "store",
        envvar=STORE_VARIABLE,
        metavar="URL",
        show_envvar=True,
        help="The store's URL or path.",
    )
    @click.option("--schema", metavar="NAME", help="The schema of a store in Postgres.")
    @click.option(
        "--token-file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help=f"Holds the token of a store over HTTP; without it {TOKEN_VARIABLE} does.",
    )
    @click.option("--json", "as_json", is_flag=True, help="Print JSON, whose fields only ever get more.")
    @click.option("--debug", is_flag=True, help="Show the stack trace of an error.")
    @wraps(function)
    def with_target(*, store: str | None, schema: str | None, token_file: Path | None, **rest: Any) -> Any:
        del rest["debug"]  # Command looks at it
        if not store:
            raise UsageError("no store is named", hint=f"--store URL, or {STORE_VARIABLE} in the environment")
        return function(target=Target(store, schema, token_file), **rest)

    return with_target
