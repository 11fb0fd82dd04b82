"""What the tests share in which a process dies while it keeps a node small or fills it up: a node with a
history, and the promises that hold whatever happened (design.md, section 9)."""

import json
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import pytest

from strandline.delivery.audit.prove import prove
from strandline.lake.jobs.count_rows import census
from strandline.node.node import Node
from strandline.read.visible import visible
from strandline.rows.dataset import Strand
from strandline.state.archive import past_events
from strandline.state.strand_entries import Removed, entry_of
from tests.crash.pipeline_case import DATASET, Case

DAY_S: Final = 86_400.0
SECRET: Final = "secret"
SETTINGS: Final = """
[datasets.logs]
columns = { key = "string", n = "bigint" }
identity = { key = "key" }
dedupe_on_flush = false
[compaction]
file_count = 3
min_snapshots = 1
max_snapshot_age_h = 0
[sinks.archive]
type = "blob"
destination = "local"
dir = "archive"
encoder = "jsonl"
max_object_rows = 2
[backfill.chunks]
type = "files"
path = "chunks"
dataset = "logs"
source = "web-1"
window_days = 0
[backfill.frames]
type = "files"
path = "frames"
dataset = "logs"
source = "web-1"
window_days = 0
frame_bytes = 1
"""


# What is promised


@dataclass
class Books:
    """Every row that was handed in, by its `n`, which no two rows share; and how all stood before a verb."""

    case: Case
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    table: list[dict[str, Any]] = field(default_factory=list)
    visible: dict[str | None, int] = field(default_factory=dict)
    marks: dict[str, int] = field(default_factory=dict)
    tokens: dict[str | None, tuple[str, set[int]]] = field(default_factory=dict)
    delivered: Counter[int] = field(default_factory=Counter)

    def append(self, node: Node, source: str, *keys: str) -> None:
        rows: list[dict[str, Any]] = [
            {"key": key, "n": len(self.rows) + at} for at, key in enumerate(keys, 1)
        ]
        node.append(DATASET, rows, source=source)
        self.rows |= {row["n"]: {**row, "source": source} for row in rows}

    def note_tokens(self, node: Node) -> None:
        """Readers who have read all that is there."""
        for source in ("web-1", "web-2", None):
            seen = {row["n"] for row in self.rows.values() if source in (None, row["source"])}
            self.tokens[source] = (node.end(DATASET, source=source), seen)

    def note(self, node: Node) -> None:
        self.table, self.visible, self.marks = table_of(node), visible_in(node), marks_in(node)
        self.delivered = self.archived()

    def archived(self) -> Counter[int]:
        lines = [
            json.loads(line)
            for path in (self.case.home / "archive").rglob("*.jsonl")
            for line in path.read_text().splitlines()
        ]
        return Counter(row["n"] for row in lines)

    # What holds while a verb that died is not done again

    def check_between(self, node: Node, gone: set[int]) -> None:
        """What stays is there, once and as it was; what goes is there, or a record says that it goes."""
        now = by_n(table_of(node))
        for row in self.table:
            assert row["n"] in now or row["n"] in gone, f"row {row['n']} is lost"
            assert now.get(row["n"], row) == row, "a row has changed"
        self._check_places(node, now)
        check_proof(node)

    # What holds at the end

    def check(self, node: Node, gone: set[int]) -> None:
        """`gone` have left the table, and all else that was handed in is there once."""
        now = by_n(table_of(node))
        assert set(now) == self.rows.keys() - gone
        for row in self.table:
            assert now.get(row["n"], row) == row, "a row has changed"
        self._check_places(node, now)
        self._check_removed(node, gone)
        assert branches_of(node) == set()
        self._check_readers(node, gone)
        self._check_deliveries(node, gone)
        check_proof(node)

    def _check_places(self, node: Node, rows: dict[int, dict[str, Any]]) -> None:
        """No number was given twice; V did not go back, and what sinks have passed stays where it was."""
        assert len({(row["source"], row["_sl_seq"]) for row in rows.values()}) == len(rows), "a seq names two"
        now = visible_in(node)
        assert all(now[source] >= at for source, at in self.visible.items()), "V went back"
        assert marks_in(node) == self.marks, "a sink was moved"

    def _check_removed(self, node: Node, gone: set[int]) -> None:
        """The ledgers count each row that went once."""
        wanted = Counter(self.rows[n]["source"] for n in gone)
        for source in ("web-1", "web-2"):
            ledger = past_events(node.site, Strand(DATASET, source).ledger)
            entries = [entry for entry in map(entry_of, ledger) if isinstance(entry, Removed)]
            assert sum(entry.rows for entry in entries) == wanted[source], entries
            assert len({entry.run for entry in entries}) == len(entries) <= 1, "it was recorded twice"

    def _check_readers(self, node: Node, gone: set[int]) -> None:
        for source, (token, seen) in self.tokens.items():
            scan = node.scan(DATASET, source=source, since=token, refresh="never")
            found = Counter(row["n"] for page in scan for row in page.rows)
            mine = {n for n, row in self.rows.items() if source in (None, row["source"])}
            assert found == Counter(mine - seen - gone), f"the reader of {source} missed or repeated rows"

    def _check_deliveries(self, node: Node, gone: set[int]) -> None:
        node.deliveries.sync("archive")
        assert self.archived() == self.delivered | Counter(self.rows.keys() - gone)


def table_of(node: Node) -> list[dict[str, Any]]:
    """The whole table, seqs, ids and flush numbers with it."""
    dataset = node.site.known(DATASET).dataset
    return list(node.reader.rows(dataset, internal=True).toArrow().to_pylist())


def by_n(rows: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    found = {row["n"]: row for row in rows}
    assert len(found) == len(rows), "a row is there twice"
    return found


def visible_in(node: Node) -> dict[str | None, int]:
    return {source: visible(node.site, DATASET, source) for source in ("web-1", "web-2", None)}


def marks_in(node: Node) -> dict[str, int]:
    lines = node.site.standing.lines().of("archive")
    return {strand.source: line.mark for strand, line in lines.items()}


def branches_of(node: Node) -> set[str]:
    return set(node.keeping.rewriter.branches(DATASET))


def check_proof(node: Node) -> None:
    deliveries = node.deliveries
    sinks = [(deliveries.sink(name), deliveries.terms(name)) for name in deliveries.names()]
    proofs = list(prove(node.site, partial(census, node.reader), sinks, deliveries.sender))
    assert [each.status for each in proofs] == ["ok"] * 2, proofs


# A node with a history


@pytest.fixture
def books(case: Case) -> Books:
    """Rows of long ago that a sink has, rows of long ago that it lacks, and rows of today: in each strand a
    file of each. Some of today repeat others; one is in quarantine, one has not landed yet."""
    with (case.home / "strandline.toml").open("a") as file:
        file.write(SETTINGS)
    books = Books(case)
    with case.node() as node:
        books.append(node, "web-1", "a", SECRET, "c")
        books.append(node, "web-2", "a", "b")
        node.flush(DATASET)
        node.deliveries.sync("archive")
        books.append(node, "web-1", "d", "e")
        books.append(node, "web-2", SECRET, "c")
        node.flush(DATASET)
        books.note_tokens(node)
    case.ahead_s += 91 * DAY_S
    with case.node() as node:
        books.append(node, "web-1", "d", "f", SECRET, "g", "e")
        books.append(node, "web-2", "d", "b")
        node.flush(DATASET)
        bad = [{"key": SECRET, "n": "none"}, {"key": "h", "n": "none"}]
        node.append(DATASET, bad, source="web-2", on_bad="quarantine")
        books.append(node, "web-1", "i")
        books.note(node)
    return books
