"""Makes docs/reference/*.md from docstrings and `--help`; `--check` says whether they are stale.

python tools/reference.py [--check]
"""

import dataclasses
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

import strandline
import strandline.node.node as node_module
from strandline import errors, persist
from strandline.cli import cli
from strandline.delivery.api import Deliveries, SyncReport
from strandline.delivery.result import SyncResult
from strandline.flush.flush import FlushReport, FlushResult
from strandline.ingest.append import Receipt
from strandline.ingest.buffered_writer import Ack, BufferedWriter
from strandline.ingest.load import LoadResult
from strandline.ingest.quarantine import QuarantineEntry
from strandline.lake.metadata.explain import ScanPlan
from strandline.read.read import Page, Scan

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
NODE_VALUES = (
    Receipt,
    Ack,
    BufferedWriter,
    FlushReport,
    FlushResult,
    LoadResult,
    Page,
    Scan,
    ScanPlan,
    QuarantineEntry,
    SyncReport,
    SyncResult,
    Deliveries,
)
MADE = "<!-- made by tools/reference.py from the code: change that, then `make docs` -->"


def main() -> int:
    _import_all()
    pages = {
        "persist.md": persist_page(),
        "node.md": node_page(),
        "errors.md": errors_page(),
        "command-line.md": command_line_page(),
    }
    stale = [name for name, text in pages.items() if not _is_same(FOLDER / name, text)]
    if "--check" in sys.argv:
        for name in stale:
            print(f"docs/reference/{name} is stale: run `make docs`", file=sys.stderr)
        return 1 if stale else 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in stale:
        (FOLDER / name).write_text(pages[name], encoding="utf-8")
    print(f"{len(stale)} of {len(pages)} pages changed")
    return 0


def _import_all() -> None:
    """So that every error is known, wherever it is defined."""
    for module in pkgutil.walk_packages(strandline.__path__, "strandline."):
        if not module.name.endswith(("__main__", "pytest_plugin")):
            importlib.import_module(module.name)


def _is_same(path: Path, text: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") == text


def persist_page() -> str:
    """Every public name, in the room where it is defined."""
    rooms: dict[str, list[str]] = {}
    for name in persist.__all__:
        member = getattr(persist, name)
        home = getattr(member, "__module__", "strandline.persist.event")
        if home != "strandline.errors":
            rooms.setdefault(home, []).append(name)
    lines = [MADE, "", "# `strandline.persist`", "", _text(persist), ""]
    lines += ["Errors are in [errors.md](errors.md).", ""]
    for home in sorted(rooms, key=lambda home: home.rpartition(".")[2]):
        lines += [f"## `{home.rpartition('.')[2]}`", "", _text(sys.modules[home]), ""]
        for name in rooms[home]:
            lines += _entry(name, getattr(persist, name))
    return "\n".join(lines)


def node_page() -> str:
    """`strandline.open`, the methods of a node, and what they give."""
    lines = [MADE, "", "# `strandline.open` and the node", "", _text(node_module), ""]
    lines += ["Errors are in [errors.md](errors.md), settings in [configure](../how-to/configure.md).", ""]
    lines += ["## The node", "", *_entry("open", node_module.open_node)]
    for name, method in vars(node_module.Node).items():
        if not name.startswith("_") and inspect.isfunction(method):
            lines += _entry(f"Node.{name}", method)
    lines += ["## What they give", ""]
    for value in NODE_VALUES:
        lines += _entry(value.__name__, value)
    return "\n".join(lines)


def _entry(name: str, member: Any) -> Iterator[str]:
    yield f"### `{name}`"
    yield ""
    if callable(member):
        yield "```python"
        yield _signature(name, member)
        yield "```"
    if getattr(member, "_is_protocol", False):
        for method, function in inspect.getmembers(member, inspect.isfunction):
            if not method.startswith("_"):
                yield f"- `{_signature(method, function, width=10_000)}`: {' '.join(_text(function).split())}"
        yield ""
    text = _text(member) if callable(member) else "Stands for a key that is not there."
    if text and not text.startswith(f"{name}("):  # what a dataclass writes by itself says nothing new
        yield text
    yield ""


def _signature(name: str, member: Any, *, width: int = 100) -> str:
    if getattr(member, "_is_protocol", False):
        return f"class {name}(Protocol)"
    is_value = dataclasses.is_dataclass(member) or hasattr(member, "_fields")
    if inspect.isclass(member) and not is_value and "__init__" not in vars(member):
        return name
    signature = str(inspect.signature(member)).removesuffix(" -> None") if inspect.isclass(member) else None
    shown = signature or str(inspect.signature(member))
    shown = re.sub(
        r"strandline\.(?:\w+\.)+(?=[A-Z])|strandline\.persist\.\w+\.|strandline\.\w+\.|collections\.abc\.|typing\.|pathlib\.",
        "",
        shown,
    )
    line = f"{name}{shown}"
    if len(line) <= width:
        return line
    inside, _, after = shown.rpartition(")")
    return f"{name}(\n    " + ",\n    ".join(_arguments(inside[1:])) + f",\n){after}"


def _arguments(text: str) -> list[str]:
    parts, depth, current = [], 0, ""
    for character in text:
        depth += (character in "[({") - (character in "])}")
        if character == "," and depth == 0:
            parts.append(current.strip())
            current = ""
        else:
            current += character
    return [*parts, current.strip()]


def errors_page() -> str:
    """Every error with its kind, what it is, and what else it counts as."""
    lines = [
        MADE,
        "",
        "# Errors",
        "",
        _text(errors),
        "",
        "| kind | class | meaning | counts as |",
        "|---|---|---|---|",
    ]
    for kind, cls in sorted(errors.KINDS.items()):
        bases = [
            base.__name__
            for base in cls.__mro__[1:]
            if issubclass(base, errors.StrandlineError) and base is not errors.StrandlineError
        ]
        lines.append(
            f"| `{kind}` | `{cls.__name__}` | {' '.join(_text(cls).split())} | {', '.join(bases) or '–'} |"
        )
    return "\n".join([*lines, ""])


def command_line_page() -> str:
    """The help of every command, as a terminal shows it."""
    lines = [MADE, "", "# Command line", ""]
    context = click.Context(cli, info_name="strandline", terminal_width=100, max_content_width=100)
    return "\n".join([*lines, *_help(cli, context)])


def _help(command: click.Command, context: click.Context) -> Iterator[str]:
    yield f"## `{context.command_path}`"
    yield ""
    yield "```text"
    yield command.get_help(context)
    yield "```"
    yield ""
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _help(
                inner,
                click.Context(
                    inner, info_name=name, parent=context, terminal_width=100, max_content_width=100
                ),
            )


def _text(member: Any) -> str:
    return inspect.cleandoc(member.__doc__ or "")


if __name__ == "__main__":
    sys.exit(main())
