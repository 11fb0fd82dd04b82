"""What commands print: values in the canonical encoding, tables on a terminal, aligned text in a pipe."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import click

from strandline.persist.event import Compacted, Conflict, Event
from strandline.persist.value import encode_wire


def json_text(value: Any) -> str:
    return encode_wire(value).decode()


def print_json(value: Any) -> None:
    _write(json_text(value))


def _write(line: str) -> None:
    """Not flushed line by line, unlike click.echo: a read may print millions."""
    sys.stdout.write(line + "\n")


def shown(name: str) -> str:
    """A name as it is, or quoted where it holds what a terminal would act on."""
    return name if name.isprintable() else ascii(name)


def print_event(event: Event, as_json: bool) -> None:
    if as_json:
        print_json(event.to_dict())
    else:
        _write(_line(event))


def print_positioned(position: int, event: Event | Compacted, as_json: bool) -> None:
    if as_json:
        rest = event.to_dict() if isinstance(event, Event) else compacted(event)
        print_json({"position": position, **rest})
    elif isinstance(event, Event):
        _write(f"{position:>8}  {shown(event.stream)}  {_line(event)}")
    else:
        _write(f"{position:>8}  {shown(event.stream)}  {event.seq:>8}  (gone)")


def compacted(event: Compacted) -> dict[str, Any]:
    return {"stream": event.stream, "seq": event.seq, "compacted": True}


def print_conflict(path: str, conflict: Conflict, as_json: bool) -> int:
    """A conflict is an outcome: --json gives it on stdout as well. The exit code is 1."""
    actual = compacted(conflict.actual) if isinstance(conflict.actual, Compacted) else conflict.actual
    if isinstance(actual, Event):
        actual = actual.to_dict()
    if as_json:
        facts = {"expected": conflict.expected, "actual": actual}
        print_json({"conflict": {**facts, "reason": conflict.reason, "name": conflict.name}})
    click.echo(
        f"{path}: conflict: {conflict.reason} on {shown(conflict.name)!r}: "
        f"expected {json_text([conflict.expected])[1:-1]}, found {json_text([actual])[1:-1]}",
        err=True,
    )
    return 1


def print_table(headers: Sequence[str], rows: Sequence[Sequence[Any]], *, with_headers: bool = True) -> None:
    cells = [[_cell(value) for value in row] for row in rows]
    is_number = [all(isinstance(row[i], int) for row in rows) for i in range(len(headers))]
    if sys.stdout.isatty():
        _print_rich(headers, cells, is_number, with_headers)
        return
    lines = [list(headers), *cells] if with_headers else cells
    widths = [max((len(line[i]) for line in lines), default=0) for i in range(len(headers))]
    for line in lines:
        parts = [
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, is_number, strict=True)
        ]
        click.echo("  ".join(parts).rstrip())


def print_facts(facts: Mapping[str, Any]) -> None:
    """One fact a line, for people."""
    width = max(map(len, facts), default=0)
    for name, value in facts.items():
        text = f"{value:,}" if type(value) is int else value if isinstance(value, str) else json_text(value)
        click.echo(f"{name.ljust(width)}  {shown(text)}")


@contextmanager
def progress(what: str) -> Iterator["Progress"]:
    """Shows on a terminal that something goes on, and how far it is."""
    if not sys.stderr.isatty():
        yield Progress(None, what)
        return
    from rich.console import Console

    with Console(stderr=True).status(what) as status:
        yield Progress(status, what)


class Progress:
    def __init__(self, status: Any, what: str) -> None:
        self._status, self._what, self.count = status, what, 0

    def step(self) -> None:
        self.count += 1
        if self._status is not None and self.count % 1000 == 0:
            self._status.update(f"{self._what}: {self.count:,}")

    def show(self, text: str) -> None:
        if self._status is not None:
            self._status.update(f"{self._what}: {text}")


@contextmanager
def bar(what: str, total: Callable[[], int]) -> Iterator["Bar"]:
    """As `progress`, where it is known how many there are, at most. They are counted for a terminal alone."""
    if not sys.stderr.isatty():
        yield Bar(None)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}", markup=False),  # as text: a name may look like markup
        BarColumn(),
        MofNCompleteColumn(separator=" of "),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        shown.add_task(what, total=total() or None)
        yield Bar(shown)


class Bar:
    """Threads may share it: each tells how far its own part is."""

    def __init__(self, shown: Any) -> None:
        self._shown = shown
        self._done: dict[str, int] = {}

    def show(self, part: str, done: int) -> None:
        self._done[part] = done
        if self._shown is not None:
            self._shown.update(self._shown.task_ids[0], completed=sum(list(self._done.values())))


def _line(event: Event) -> str:
    return f"{event.seq:>8}  {_cell(event.at)}  {shown(event.type)}  {json_text(event.data)}"


def _cell(value: Any) -> str:
    return shown(value) if isinstance(value, str) else json_text(value)


def _print_rich(
    headers: Sequence[str], cells: list[list[str]], is_number: list[bool], with_headers: bool
) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=with_headers)
    for header, right in zip(headers, is_number, strict=True):
        table.add_column(header, justify="right" if right else "left", overflow="fold")
    for row in cells:
        table.add_row(*map(Text, row))  # as text: a name may look like markup
    Console().print(table)
