"""Transcripts of coding assistants: JSON lines that a program appends to while it runs, as rows of messages.

Formats grow without notice. A line of a kind that is not known is counted, never fatal; a last line that is
cut short is left for the next run, when it is whole. A row is a part of a message:

    part_id          <message_id>#<part_index>: what live capture would call it, so that the two are one row
    conversation_id  the session;  app  the program, which is the row's source
    role, kind       who speaks; text, thinking, tool_use, tool_result, …
    text, content    what it says, and what it is beside that, as it stands in the transcript
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, Protocol

import orjson

from strandline.errors import NotFoundError, UnavailableError
from strandline.rows.row_files import CHUNK_BYTES, CHUNK_ROWS, MAX_LINE_BYTES
from strandline.sources.provider import Chunk, Item, Window
from strandline.storage.objects import open_objects

BROKEN: Final = "broken line"
UNFINISHED: Final = "unfinished last line"


class TranscriptLine(NamedTuple):
    """A line of a transcript: its number from 1, and what it says."""

    number: int
    data: dict[str, Any]


class Session(Protocol):
    """Reads the lines of one transcript in order."""

    def rows(self, line: TranscriptLine) -> list[dict[str, Any]] | None:
        """What a line says, as rows; None if it is of a kind that is not known."""


class Format(Protocol):
    """A kind of transcript."""

    def session(self, path: str) -> Session:
        """For the file at a path below the folder."""


@dataclass(frozen=True, slots=True)
class Transcripts:
    """The `*.jsonl` files below a folder. `skipped` counts the lines that gave no row, by what they were."""

    root: Path
    dataset: str
    format: Format
    skipped: Counter[str] = field(default_factory=Counter)

    def items(self, window: Window) -> Iterator[Item]:
        if not self.root.is_dir():
            raise NotFoundError(f"there is no folder {self.root}", hint="correct `path` of the provider")
        for found in sorted(open_objects(self.root).scan(), key=lambda each: each.name):
            if found.name.endswith(".jsonl") and found.size and window.has(found.modified):
                yield Item(found.name, self.dataset, None, found.modified, found.size)

    def rows(self, item: Item) -> Iterator[Chunk]:
        session = self.format.session(item.id)
        chunk: list[dict[str, Any]] = []
        size = 0
        for line, length in self._lines(self.root / item.id):
            made = session.rows(line)
            if made is None:
                self.skipped[str(line.data.get("type", "no type"))[:80]] += 1
                continue
            chunk += made
            size += length
            if len(chunk) >= CHUNK_ROWS or size >= CHUNK_BYTES:
                yield chunk
                chunk, size = [], 0
        if chunk:
            yield chunk

    def _lines(self, path: Path) -> Iterator[tuple[TranscriptLine, int]]:
        """With the bytes of each."""
        try:
            with path.open("rb") as file:
                for number, raw in enumerate(_raw_lines(file), 1):
                    data = _object(raw)
                    if data is not None:
                        yield TranscriptLine(number, data), len(raw)
                    elif raw.strip():
                        self.skipped[BROKEN if raw.endswith(b"\n") else UNFINISHED] += 1
        except OSError as error:
            raise UnavailableError(f"{path}: {error.strerror}", hint="try again") from error


def _raw_lines(file: BinaryIO) -> Iterator[bytes]:
    """One that is too long comes cut, and so as broken; its rest is passed by."""
    while raw := file.readline(MAX_LINE_BYTES):
        yield raw if len(raw) < MAX_LINE_BYTES else raw[:1] + b"\n"
        while len(raw) == MAX_LINE_BYTES and not raw.endswith(b"\n"):
            raw = file.readline(MAX_LINE_BYTES)


def _object(raw: bytes) -> dict[str, Any] | None:
    try:
        found = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None


# What all formats share


def part(
    message_id: str,
    index: int,
    *,
    conversation: str | None,
    app: str,
    at: object,
    role: str,
    kind: str,
    text: str | None,
    content: object = None,
    attributes: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """A row of messages; what is not known is left out."""
    row = {
        "ts": instant(at),
        "part_id": f"{message_id}#{index}",
        "message_id": message_id,
        "part_index": index,
        "conversation_id": conversation,
        "app": app,
        "role": role,
        "kind": kind,
        "text": text,
        "content": content if isinstance(content, dict | list) else None,
        "attributes": {name: value for name, value in (attributes or {}).items() if value is not None}
        or None,
    }
    return {name: value for name, value in row.items() if value is not None}


def instant(text: object) -> datetime | None:
    """An ISO time; without a zone it is UTC. None for what is none."""
    if not isinstance(text, str):
        return None
    try:
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def text_of(content: object) -> str | None:
    """A text, or the texts of a list of blocks."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return None
    texts = [block.get("text") for block in content if isinstance(block, dict)]
    found = [text for text in texts if isinstance(text, str)]
    return "\n".join(found) if found else None


def blocks_of(content: object) -> list[dict[str, Any]]:
    """The blocks of a message; what is no list of them is the text of one."""
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
    return [block if isinstance(block, dict) else {"type": "text", "text": block} for block in blocks]


def text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
