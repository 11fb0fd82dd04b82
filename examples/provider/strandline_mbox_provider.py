"""A provider that brings in mail of mbox files, one row a mail.

    [datasets.mail]
    columns = { id = "string", sent = "timestamp", sender = "string", subject = "string", body = "string" }
    timestamp = "sent"
    identity = { key = "id" }

    [backfill.mail]
    type = "mbox"
    path = "mail"             # a folder of *.mbox, from the node's folder on
    dataset = "mail"

A mail is known by its Message-ID, so one that stands in two files, or came in live, is one row. A file that
grows by its end yields the same rows and new ones behind them: Strandline knows which it has.
"""

import mailbox
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

from strandline.errors import UsageError
from strandline.sources.provider import Chunk, Item, ProviderOptions, Window

CHUNK_ROWS = 1_000


@dataclass(frozen=True, slots=True)
class MboxProvider:
    """Where the files are. It keeps nothing."""

    folder: Path
    dataset: str

    def items(self, window: Window) -> Iterator[Item]:
        """One a file. The id is the same in every run, also when the folder was moved."""
        for path in sorted(self.folder.glob("**/*.mbox")):
            changed = datetime.fromtimestamp(path.stat().st_mtime, UTC)
            if window.has(changed):
                id_ = path.relative_to(self.folder).as_posix()
                yield Item(id_, self.dataset, source="mail", modified=changed, size=path.stat().st_size)

    def rows(self, item: Item) -> Iterator[Chunk]:
        """In the order of the file, a chunk at a time: a mailbox may be larger than memory."""
        chunk: list[dict[str, Any]] = []
        with closing(mailbox.mbox(self.folder / item.id, create=False)) as box:
            for mail in box:
                chunk.append(_row(mail))
                if len(chunk) == CHUNK_ROWS:
                    yield chunk
                    chunk = []
        if chunk:
            yield chunk


def _row(mail: mailbox.mboxMessage) -> dict[str, Any]:
    """Without a Message-ID it has no identity, and is never taken for another."""
    return {
        "id": mail["Message-ID"],
        "sent": _sent(mail["Date"]),
        "sender": mail["From"],
        "subject": mail["Subject"],
        "body": mail.get_payload() if not mail.is_multipart() else None,
    }


def _sent(text: str | None) -> datetime | None:
    try:
        found = parsedate_to_datetime(text) if text else None
    except ValueError:
        return None
    return found if found is None or found.tzinfo else found.replace(tzinfo=UTC)


def configure(options: ProviderOptions) -> MboxProvider:
    """The keys of the table that are not common to all providers."""
    keys = dict(options.keys)
    try:
        folder, dataset = options.home / keys.pop("path"), keys.pop("dataset")
    except KeyError as error:
        raise UsageError(f"provider {options.instance!r} lacks {error}", hint="path and dataset") from error
    if keys:
        raise UsageError(
            f"provider {options.instance!r} does not know {', '.join(keys)}", hint="path and dataset"
        )
    return MboxProvider(folder, dataset)
