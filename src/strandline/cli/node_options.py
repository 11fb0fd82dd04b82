"""The options that every command over a node has, and what they open."""

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from strandline.config.config import FILE_NAME, Config, find_home, load_config
from strandline.config.home import HOME_VARIABLE
from strandline.state.context import Site, open_site
from strandline.state.lease import holder_of

if TYPE_CHECKING:
    from strandline.node.node import Node


_TOLD: Final = "strandline.told"


@dataclass(frozen=True, slots=True)
class Home:
    """The node that a command was told to use, not opened yet."""

    named: str | None

    def config(self) -> Config:
        """As the file says now. What is odd in it is told once in a command."""
        found = load_config(find_home(self.named) / FILE_NAME)
        context = click.get_current_context(silent=True)
        told: set[str] = set() if context is None else context.meta.setdefault(_TOLD, set())
        for each in found.warnings:
            if each not in told:
                note(each)
                told.add(each)
        return found

    @contextmanager
    def site(self) -> Iterator[Site]:
        """Its store and its content: for commands that look, and need neither Arrow nor Spark."""
        opened = open_site(self.config())
        try:
            yield opened
        finally:
            opened.b.close()

    @contextmanager
    def node(self) -> "Iterator[Node]":
        """With every verb. Spark is that of the node's daemon, if one runs; else it is started by the first
        that needs it, and says so on a terminal."""
        from strandline.daemon.presence import shared_spark
        from strandline.node.node import Node

        config = self.config()
        if config.spark.remote is None and (remote := shared_spark(config.home)) is not None:
            config = msgspec.structs.replace(config, own_remote=remote)
        tell = _tell if sys.stderr.isatty() else None
        with _warnings_as_notes(), Node(config, tell=tell) as opened:
            yield opened


@contextmanager
def _warnings_as_notes() -> Iterator[None]:
    """What Strandline warns of is for a person to read, without the line of code that does."""
    with warnings.catch_warnings():
        warnings.filterwarnings("always", category=UserWarning, module=r"strandline\.")
        show = warnings.showwarning

        def told(message: Any, category: type[Warning], *place: Any, **more: Any) -> None:
            if category.__module__.startswith("strandline."):
                note(str(message))
            else:
                show(message, category, *place, **more)

        warnings.showwarning = told
        yield


def _tell(what: str) -> None:
    click.echo(f"{what} …", err=True)


def note(text: str) -> None:
    """What a person should know beside the data."""
    click.echo(f"note: {text}", err=True)


def note_holder(site: Site, scope: str) -> None:
    """Say for whom the command is about to wait, if somebody holds the lease."""
    if (who := holder_of(site.b, site.clock, scope)) is not None:
        note(f"waiting for {who}, which holds {scope}")


def output_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """--json, handed on as `as_json`; --debug is for the command itself."""

    @click.option("--json", "as_json", is_flag=True, help="Print JSON, whose fields only ever get more.")
    @click.option("--debug", is_flag=True, help="Show the stack trace of an error.")
    @wraps(function)
    def with_output(**rest: Any) -> Any:
        del rest["debug"]  # Command looks at it
        return function(**rest)

    return with_output


def home_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """--home, handed on as `home`, and the options of `output_options`."""

    @click.option(
        "--home",
        "home_",
        metavar="FOLDER",
        help=f"The node's folder; else {HOME_VARIABLE}, else this folder or the nearest above it that has a "
        f"{FILE_NAME}.",
    )
    @output_options
    @wraps(function)
    def with_home(*, home_: str | None, **rest: Any) -> Any:
        return function(home=Home(home_), **rest)

    return with_home
