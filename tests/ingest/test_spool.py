"""The spool as an operator sees it (L-SPOOL-7, L-SPOOL-10), and bad rows in quarantine (L-SPOOL-9)."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from strandline.base.ranges import Range
from strandline.errors import NotFoundError, UnavailableError, UsageError
from strandline.ingest.append import append, retry_quarantined
from strandline.ingest.quarantine import entries, refused_of, rows_of
from strandline.ingest.spool import declare_lost, spool_lines
from strandline.persist import Append, BlobRef, blob_store, mem_backend
from strandline.rows.dataset import Strand
from strandline.rows.values import TooDeep, Unstorable
from strandline.state.strand_entries import Flushed, Held, append_of
from strandline.storage import ContentStore, open_content
from tests.sites import StillClock, make_site


class Counting(ContentStore):
    """The folder's store, which counts what is read and does not answer for what is `down`."""

    @classmethod
    def over(cls, folder: Path) -> "Counting":
        opened = open_content(folder)
        opened.__class__ = cls
        assert isinstance(opened, cls)
        opened.reads, opened.down = [], set()
        return opened

    reads: list[str]
    down: set[str]

    def get_stream(self, ref: BlobRef, *args: Any, **more: Any) -> Iterator[bytes]:
        self.reads.append(ref.cid)
        if ref.cid in self.down:
            raise UnavailableError("the bucket does not answer", hint="try again")
        return super().get_stream(ref, *args, **more)


def many(count: int) -> list[dict[str, Any]]:
    return [{"n": i, "source": f"s{i:03}"} for i in range(count)]


def test_a_segment_of_many_sources_is_read_once(tmp_path: Path) -> None:  # L-SPOOL-7, L-SPOOL-10
    content = Counting.over(tmp_path)
    site = make_site(mem_backend(), content)
    receipt = append(site, "logs", many(50))

    lines = list(spool_lines(site, "logs", check=True))

    assert len(lines) == 50
    assert {line.segment for line in lines} == {receipt.segment}
    assert content.reads == [receipt.segment]


def test_storage_that_does_not_answer_is_told_line_by_line_and_is_no_verdict(
    tmp_path: Path,
) -> None:  # L-SPOOL-10
    content = Counting.over(tmp_path)
    site = make_site(mem_backend(), content)
    shared = append(site, "logs", many(2)).segment
    append(site, "logs", [{"n": 9}], source="z")
    assert shared is not None
    content.down.add(shared)

    lines = list(spool_lines(site, "logs", check=True))

    assert [(line.source, line.fault, type(line.unread)) for line in lines] == [
        ("s000", None, UnavailableError),
        ("s001", None, UnavailableError),
        ("z", None, type(None)),
    ]


def test_rows_that_land_while_they_are_looked_at_are_left_out(tmp_path: Path) -> None:  # L-SPOOL-10
    b, content = mem_backend(), Counting.over(tmp_path)
    site = make_site(b, content)
    append(site, "logs", [{"n": 1}], source="a")
    append(site, "logs", [{"n": 2}], source="b")
    lines = spool_lines(site, "logs", check=True)
    first = next(lines)
    for path in tmp_path.rglob("*"):  # all of it landed and was swept
        if path.is_file():
            path.unlink()
    b.commit([], [append_of("strand/logs/b", Flushed(1, (Range(0, 1),), 1, 1, 2), 1)])

    assert first.fault is None
    assert list(lines) == []


def test_a_segment_that_was_put_back_is_not_given_up(tmp_path: Path) -> None:  # L-SPOOL-13
    b = mem_backend()
    site = make_site(b, tmp_path)
    receipt = append(site, "logs", [{"n": 1}], source="a")
    assert receipt.segment is not None
    b.commit([], [append_of("strand/logs/a", Held(receipt.segment, 0, 1, "missing"), 1)])

    with pytest.raises(UsageError, match="is whole again: nothing of it is lost") as caught:
        declare_lost(site, "logs", receipt.segment, reason="by mistake")
    other = "sha256-" + "0" * 64
    with pytest.raises(NotFoundError, match=f"waits for segment {other}"):
        declare_lost(site, "logs", other, reason="by mistake")

    assert caught.value.hint == "`strandline flush logs` lands its rows"
    assert site.standing.strand_state(Strand("logs", "a")).pending_rows == 1


# Quarantine


def test_every_row_in_quarantine_has_its_reason(tmp_path: Path) -> None:  # L-SPOOL-9
    site = make_site(mem_backend(), tmp_path)
    append(site, "logs", [{"n": 1}])
    rows = [{"n": f"bad {i}"} for i in range(250)]

    append(site, "logs", rows, on_bad="quarantine")

    (entry,) = entries(site.b, "logs")
    refused = refused_of(site.content, entry)
    assert [each.row for each in refused] == rows
    assert [each.reason for each in refused] == [
        f"row {i}, column 'n': str 'bad {i}' does not fit bigint" for i in range(250)
    ]
    assert len(entry.reasons) == 100


def test_an_entry_of_an_older_strandline_is_still_read(tmp_path: Path) -> None:
    site = make_site(mem_backend(), tmp_path)
    old = blob_store(site.content, b'{"n":"x"}\n{"n":"y"}\n', "application/x-ndjson")
    data = {"rows": old, "count": 2, "reasons": ["why"], "source": None}
    site.b.commit([], [Append("quarantine/logs", "quarantined", 1, data, globally=True)])

    (entry,) = entries(site.b, "logs")

    assert refused_of(site.content, entry) == [({"n": "x"}, "why"), ({"n": "y"}, None)]


def test_what_no_column_keeps_is_kept_whole_in_quarantine_and_refused_again(
    tmp_path: Path,
) -> None:  # L-SPOOL-9
    site = make_site(mem_backend(), tmp_path, clock=StillClock())
    value: Any = 1
    for _ in range(3_000):
        value = [value]
    at = pa.array([1_700_000_000_123_456_789], pa.timestamp("ns", "UTC"))
    append(site, "deep", [{"v": value, "ok": datetime(2026, 1, 1, tzinfo=UTC)}], on_bad="quarantine")
    append(site, "fine", pa.table({"at": at}), on_bad="quarantine")

    (deep,), (fine,) = entries(site.b, "deep"), entries(site.b, "fine")
    (deep_row,), (fine_row,) = rows_of(site.content, deep), rows_of(site.content, fine)
    again = retry_quarantined(site, "deep", deep.entry)

    assert deep_row == {
        "v": TooDeep("[" * 3_000 + "1" + "]" * 3_000),
        "ok": datetime(2026, 1, 1, tzinfo=UTC),
    }
    assert fine_row == {"at": Unstorable("2023-11-14T22:13:20.123456789Z, finer than a microsecond")}
    assert (again.rows, again.quarantined) == (0, 1)
