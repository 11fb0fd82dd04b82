"""Backfill over real Spark: what is left out, what never is, and what comes between (L-BF-1 to L-BF-10)."""

import io
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strandline.backfill import write as write_module
from strandline.backfill.frame import write_frame
from strandline.backfill.result import BackfillCounts
from strandline.errors import UnavailableError, UsageError
from strandline.ingest.spool import declare_lost
from strandline.lake.jobs import lookup as lookup_module
from strandline.lake.jobs import lookup_frame
from strandline.lake.ports.lookup import SpooledRun
from strandline.node.node import Node
from strandline.persist import BlobRef, blob_store
from strandline.rows.dataset import Strand
from strandline.sources.provider import Item, Window
from strandline.state.pending_rows import Pending, pending
from strandline.state.strand_entries import Spooled, append_of
from strandline.storage import ContentStore
from strandline.storage.segment import MIME
from strandline.storage.segment_fault import segment_fault
from strandline.storage.segment_reader import open_segment
from tests.backfill.rig import Given, backfill, given, hook, left_out, numbers, open_here, parts, table
from tests.shares import some


def test_rows_enter_like_any_other_and_known_keys_are_left_out(node: Node) -> None:  # L-BF-1, L-BF-3
    node.append("parts", parts(1, 2), source="a")
    node.flush("parts")
    node.append("parts", parts(3), source="a")

    result = backfill(node, given(1, 2, 3, 4, 5, 4))

    assert left_out(result) == (2, 1, 1, 0)
    assert (result.tally.written, result.status, result.tally.doubts) == (2, "done", 0)
    assert table(node) == [("a", n) for n in (1, 2, 3, 4, 5)]


def test_identity_is_judged_within_a_strand(node: Node) -> None:  # L-BF-2
    node.append("parts", parts(1), source="a")
    node.flush("parts")

    result = backfill(node, given(1, source="b"))

    assert result.tally.written == 1
    assert table(node) == [("a", 1), ("b", 1)]


def test_key_and_legacy_forms_of_a_key_match_each_other(node: Node) -> None:  # L-BF-2
    node.append("parts", [{"message": "m", "place": 1, "n": 1}], source="a")
    node.flush("parts")
    node.append("parts", [{"id": "m#2", "n": 2}], source="a")
    old = [
        {"id": "m#1", "n": 11},
        {"message": "m", "place": 2, "n": 12},
        {"message": "m", "place": 3, "n": 3},
    ]

    result = backfill(node, Given({"item": [[*old, {"id": "m#3", "n": 13}]]}))

    assert left_out(result) == (1, 1, 1, 0)
    assert numbers(node) == [1, 2, 3]


def test_rows_that_landed_before_their_dataset_had_an_identity_are_known_by_it(
    node: Node,
) -> None:  # L-BF-2, L-BF-9
    node.append("late", parts(1, 2), source="a")
    node.flush("late")
    node.append("late", parts(3), source="a")

    with open_here(node.config.home, '[datasets.late]\nidentity = { key = "id" }\n') as grown:
        result = backfill(grown, given(1, 2, 3, 4, dataset="late"))

        assert left_out(result) == (2, 1, 0, 0)
        assert numbers(grown, "late") == [1, 2, 3, 4]


def test_a_row_without_identity_is_never_left_out(node: Node) -> None:  # L-BF-3
    node.append("parts", [{"n": 1}], source="a")
    node.append("logs2", [{"n": 1}], source="a")

    first = backfill(node, Given({"item": [[{"n": 1}, {"n": 1}]]}))
    second = backfill(node, Given({"item": [[{"n": 1}, {"n": 1}]]}, dataset="logs2"))

    assert (first.tally.written, second.tally.written) == (2, 2)
    assert numbers(node) == [1, 1, 1]
    assert numbers(node, "logs2") == [1, 1, 1]


def test_a_clean_rerun_writes_nothing_also_of_rows_without_identity(node: Node) -> None:  # L-BF-10
    provider = Given({"x": [[{"n": 1}], [{"n": 1}]], "y": [parts(5, 6)]})
    first = backfill(node, provider)

    again = backfill(node, provider)

    assert (first.tally.written, again.tally.written) == (4, 0)
    assert left_out(again) == (0, 0, 0, 4)
    assert numbers(node) == [1, 1, 5, 6]


def test_an_item_that_grew_comes_in_its_old_chunks_and_new_ones(node: Node) -> None:  # L-BF-10
    rows = [{"n": n} for n in range(7)]
    backfill(node, Given({"log": [rows[:3]]}))

    again = backfill(node, Given({"log": [rows[:5], rows[5:]]}))  # its last chunk was not full then

    assert (again.tally.chunk_known, again.tally.written) == (3, 4)
    assert numbers(node) == list(range(7))


def test_a_run_that_was_cut_short_is_completed_by_the_next(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L-BF-10: killed between two bundles."""
    monkeypatch.setattr(write_module, "BUNDLE_ROWS", 2)
    provider = Given({"x": [[{"n": 1}, {"n": 1}], [{"n": 2}, {"n": 2}], parts(3, 4)]})
    hook(monkeypatch, "backfill.appended", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        backfill(node, provider)

    again = backfill(node, provider)

    assert (again.tally.chunk_known, again.tally.written) == (2, 4)
    assert numbers(node) == [1, 1, 2, 2, 3, 4]


# What comes between


PLACES = ("ledgers", "spooled", "committed", "append")


def appended(node: Node, *ids: int) -> Callable[[], object]:
    return lambda: node.append("parts", parts(*ids), source="a")


def landed(node: Node, *ids: int) -> Callable[[], object]:
    def act() -> None:
        node.append("parts", parts(*ids), source="a")
        node.flush("parts")

    return act


def loaded(node: Node, *ids: int) -> Callable[[], object]:
    rows = [(f"k{id_}", id_) for id_ in ids]
    return lambda: node.load("parts", node.spark.createDataFrame(rows, "id string, n bigint"), source="a")


@pytest.mark.parametrize("how", some([appended, landed, loaded], landed))
def test_a_row_that_comes_between_the_lookups_or_before_the_append_is_seen(
    node: Node, monkeypatch: pytest.MonkeyPatch, how: Callable[..., Callable[[], object]]
) -> None:  # F-24, L-BF-4
    for at, place in enumerate(PLACES):
        known, between, new, other = (10 * at + n for n in (1, 2, 3, 9))
        node.append("parts", parts(known), source="a")
        hook(monkeypatch, f"backfill.{place}", how(node, between, other))

        result = backfill(node, Given({place: [parts(known, between, new)]}))

        assert (place, result.tally.written) == (place, 1)

    assert numbers(node) == [10 * at + n for at in range(len(PLACES)) for n in (1, 2, 3, 9)]


def test_without_dedupe_on_flush_a_row_that_comes_between_is_still_one_row(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:  # F-24: the check alone must see it, the second net is off
    for place in PLACES:
        key = {"id": place, "n": 1}
        hook(monkeypatch, f"backfill.{place}", partial(node.append, "twice", [key], source="a"))
        backfill(node, Given({place: [[key, {"id": f"{place}-new", "n": 2}]]}, dataset="twice"))

    assert [row[0] for row in table(node, "twice", "n")] == [1] * 4 + [2] * 4


def test_a_row_that_is_flushed_between_the_lookups_is_seen(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F-24: it leaves the spool before the spool is read, or after, and is in the table when that is."""
    for place in PLACES:
        node.append("twice", [{"id": place, "n": 1}], source="a")
        hook(monkeypatch, f"backfill.{place}", lambda: node.flush("twice"))
        result = backfill(node, Given({place: [[{"id": place, "n": 2}]]}, dataset="twice"))
        assert result.tally.written == 0

    assert [row[0] for row in table(node, "twice", "n")] == [1] * 4


def test_a_key_that_comes_in_live_during_a_run_and_is_yielded_later_is_one_row(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:  # F-25, L-BF-6
    monkeypatch.setattr(write_module, "BUNDLE_ROWS", 1)

    def live(item: str, ordinal: int) -> None:
        if ordinal == 1:
            node.append("twice", [{"id": "k2", "n": 0}], source="a")

    chunks = [parts(1), parts(2), parts(3)]
    result = backfill(node, Given({"item": chunks}, dataset="twice", before=live))

    assert (result.tally.written, result.tally.spooled) == (2, 1)
    assert [row[0] for row in table(node, "twice", "n")] == [0, 1, 3]


@pytest.mark.slow
def test_a_chunk_that_keeps_losing_is_put_off_to_the_end_and_reported_if_it_still_loses(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:  # L-BF-6
    live = iter(range(1_000, 2_000))
    hook(
        monkeypatch, "backfill.append", lambda: node.append("parts", parts(next(live)), source="a"), times=25
    )

    result = backfill(node, Given({"x": [parts(1)]}))

    assert (result.status, result.tally.written) == ("done", 1)
    hook(
        monkeypatch, "backfill.append", lambda: node.append("parts", parts(next(live)), source="a"), times=99
    )
    lost = backfill(node, Given({"y": [parts(2)]}))
    assert (lost.status, [each.kind for each in lost.tally.failures]) == ("partial", ["overtaken"])


# Doubt


def spoil(node: Node, how: str) -> Callable[[], object]:
    """Damage the only spooled segment, in one of the ways that L-SPOOL-7 knows; gives what puts it back."""
    (found,) = spooled(node)
    (path,) = (node.config.home / "content").rglob(found.entry.segment.cid.removeprefix("sha256-"))
    whole = path.read_bytes()
    if how == "missing":
        path.unlink()
    elif how == "truncated":
        path.write_bytes(whole[:-7])
    elif how == "grown":
        path.write_bytes(whole + b"\0")
    else:
        path.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    return lambda: path.write_bytes(whole)


def spooled(node: Node) -> list[Pending]:
    strand = Strand("parts", "a")
    return list(pending(node.site.b, strand, node.site.standing.strand_state(strand)))


def test_rows_in_a_damaged_segment_count_as_unseen_and_the_doubt_is_told(node: Node) -> None:
    """F-23, L-BF-5: put back, there is still one row of each."""
    for at, how in enumerate(("missing", "truncated", "grown", "changed")):
        known, also, new = (10 * at + n for n in (1, 2, 3))
        node.append("parts", parts(known, also), source="a")
        put_back = spoil(node, how)

        result = backfill(node, Given({how: [parts(known, also, new)]}))

        tally = result.tally
        assert (how, tally.written, tally.spooled, tally.doubts) == (how, 3, 0, 1)
        (told,) = tally.doubt_texts
        assert told.startswith("segment ")
        put_back()
        assert numbers(node)[-3:] == [known, also, new]

    assert len(numbers(node)) == 12


def segment_bytes(format_: str, *ids: int) -> bytes:
    """Rows of `parts` as a segment of some format version."""
    buffer = io.BytesIO()
    rows = pa.Table.from_pylist(parts(*ids))
    pq.write_table(rows.replace_schema_metadata({"strandline.format": format_}), buffer)
    return buffer.getvalue()


def spool_bytes(node: Node, source: str, data: bytes, rows: int) -> str:
    """Have the ledger name a segment whose bytes are these, digest and all."""
    ref = blob_store(node.site.content, data, MIME)
    entry = Spooled(ref, rows, 0, len(data), 0, rows)
    node.site.b.commit([], [append_of(Strand("parts", source).ledger, entry, node.site.clock.now_us())])
    return ref.cid


def by_chunks(node: Node, source: str, *ids: int) -> BackfillCounts:
    return backfill(node, Given({source: [parts(*ids)]}, source=source)).tally


def by_frame(node: Node, source: str, *ids: int) -> BackfillCounts:
    rows = [(f"k{id_}", id_) for id_ in ids]
    df = node.spark.createDataFrame(rows, "id string, n bigint")
    item = Item(source, "parts", source, version="1", is_frame=True)
    return write_frame(node.site, node.tables, node.backfills.lookup(), "test", item, df, is_dry=False)


@pytest.mark.parametrize("keys", [1, 1_000_000])
def test_a_frame_counts_what_it_leaves_out_and_why(
    node: Node, keys: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L-BF-3, L-BF-12, also where nothing is left; whether keys go to the tasks or are shuffled."""
    monkeypatch.setattr(lookup_frame, "MANY_KEYS", keys)
    node.append("parts", parts(1, 2, 3), source="a")
    node.flush("parts")
    node.append("parts", parts(4, 5), source="a")

    def counted(item: str, *ids: int) -> tuple[int, ...]:
        rows = [(f"k{id_}", id_) for id_ in ids]
        df = node.spark.createDataFrame(rows, "id string, n bigint")
        asked = Item(item, "parts", "a", version="1", is_frame=True)
        lookup = node.backfills.lookup()
        found = write_frame(node.site, node.tables, lookup, "test", asked, df, is_dry=False)
        return found.written, found.committed, found.spooled, found.in_chunk

    assert counted("all known", 1, 2, 3, 4, 5, 5) == (0, 3, 3, 0)
    assert counted("nothing", *()) == (0, 0, 0, 0)
    assert counted("some", 1, 2, 4, 6, 7, 7, 7) == (2, 2, 1, 2)
    assert counted("new", 8, 9) == (2, 0, 0, 0)
    node.flush("parts")
    assert numbers(node) == list(range(1, 10))


def test_rows_in_a_segment_that_flush_cannot_read_count_as_unseen_by_chunks_and_frames(node: Node) -> None:
    """F-23, L-BF-5, L-SPOOL-7: its digest is right. Given up, there is still one row of each."""
    footless = segment_bytes("1", 1, 2)[:-8] + b"\0" * 8
    forms = {"footer is unreadable": footless, "format version is 2": segment_bytes("2", 1, 2)}
    for fault, data in forms.items():
        for write in (by_chunks, by_frame):
            source = f"{write.__name__} {fault}"
            segment = spool_bytes(node, source, data, 2)

            tally = write(node, source, 1, 2, 3)

            assert (source, tally.written, tally.spooled, tally.doubts) == (source, 3, 0, 1)
            (told,) = tally.doubt_texts
            assert told.startswith(f"segment {segment}: ")
            assert fault in told
            node.flush("parts")
            declare_lost(node.site, "parts", segment, reason="nobody can read it")
            assert [n for each, n in table(node) if each == source] == [1, 2, 3]


@pytest.mark.slow
def test_a_segment_that_storage_does_not_answer_for_is_asked_for_again_by_chunks_and_frames(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L-BF-8: after its retries its rows are written, and the doubt is told."""
    left = [0]

    def failing(content: ContentStore, ref: BlobRef) -> Any:
        if left[0]:
            left[0] -= 1
            raise UnavailableError("the bucket does not answer", hint="wait")
        return open_segment(content, ref)

    monkeypatch.setattr(lookup_module, "open_segment", failing)
    for write in (by_chunks, by_frame):
        for failures, expected in ((2, (1, 1, 0)), (99, (2, 0, 1))):
            source = f"{write.__name__} {failures}"
            node.append("parts", parts(1), source=source)
            left[0] = failures

            tally = write(node, source, 1, 2)

            left[0] = 0
            assert (source, tally.written, tally.spooled, tally.doubts) == (source, *expected)
            assert all("the bucket does not answer" in told for told in tally.doubt_texts)
            assert [n for each, n in table(node) if each == source] == [1, 2]  # the second net, L-FLUSH-9


def test_a_segment_with_another_number_of_rows_than_the_ledgers_name_is_not_believed(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:  # F-23, L-SPOOL-7
    node.append("parts", parts(1, 2), source="a")
    (found,) = spooled(node)
    assert segment_fault(node.site.content, found.entry.segment, 3) == "it has 2 rows, the ledgers name 3"
    real = SpooledRun.__init__
    monkeypatch.setattr(SpooledRun, "__init__", lambda self, a, b, of, *rest: real(self, a, b, of + 1, *rest))

    result = backfill(node, given(1, 2))

    assert (result.tally.written, result.tally.doubts) == (2, 1)


def test_a_lookup_that_fails_writes_the_rows_after_its_retries_and_is_counted(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:  # L-BF-8
    node.append("parts", parts(1), source="a")
    node.flush("parts")
    asked = []

    def fail(*_: object, **__: object) -> None:
        asked.append(1)
        raise UnavailableError("the table does not answer", hint="wait")

    with monkeypatch.context() as broken:
        broken.setattr("strandline.lake.jobs.lookup.SparkLookup.committed", fail)
        result = backfill(node, given(1, 2))

    assert len(asked) == 3
    assert (result.tally.written, result.tally.doubts) == (2, 1)
    assert numbers(node) == [1, 2]  # the second net, L-FLUSH-9


def test_a_failing_item_is_reported_and_the_run_goes_on(node: Node) -> None:  # L-BF-8, L-BF-12
    chunks: dict[str, list[Any]] = {
        "x": [parts(1), OSError("gone")],
        "y": [parts(2)],
        "z": [[{"n": "no number"}, {"n": 3}]],
    }

    result = backfill(node, Given(chunks))

    assert result.status == "partial"
    assert [(each.item, each.text) for each in result.tally.failures] == [("x", "OSError: gone")]
    assert (result.tally.items, result.tally.written, result.tally.quarantined) == (3, 3, 1)
    assert numbers(node) == [1, 2, 3]


def test_a_listing_that_breaks_off_fails_the_run_and_what_came_before_it_is_written(node: Node) -> None:
    """L-BF-12"""

    class Broken(Given):
        def items(self, window: Window) -> Iterator[Item]:
            yield from super().items(window)
            raise OSError("the listing broke off")

    result = backfill(node, Broken({"x": [parts(1)]}))

    assert (result.status, result.tally.written) == ("failed", 1)
    assert result.error is not None
    assert result.error.text == "OSError: the listing broke off"


# Windows


def test_a_window_that_ends_before_it_begins_is_wrong_use() -> None:  # L-BF-11
    now = datetime.now(UTC)
    with pytest.raises(UsageError, match="begins"):
        Window(now, now - timedelta(seconds=1))


def test_what_changed_a_moment_ago_waits_for_the_next_run(node: Node) -> None:  # L-BF-11
    now = datetime.now(UTC)
    modified = {"old": now - timedelta(seconds=200), "new": now - timedelta(seconds=100)}

    result = backfill(node, Given({"old": [parts(1)], "new": [parts(2)]}, modified=modified))

    assert (result.tally.items, result.tally.waiting, result.tally.written) == (1, 1, 1)


def test_a_dry_run_counts_and_writes_nothing(node: Node) -> None:  # L-BF-11
    node.append("parts", parts(1), source="a")
    position = node.site.b.last_seq("strand/parts/a")

    result = backfill(node, given(1, 2, 2), is_dry=True)

    assert (result.is_dry, result.tally.written, left_out(result)) == (True, 1, (0, 1, 1, 0))
    assert node.site.b.last_seq("strand/parts/a") == position
    assert backfill(node, given(1, 2, 2)).tally.chunk_known == 0


def test_rows_of_many_sources_in_one_chunk_are_told_apart(node: Node) -> None:  # L-BF-2
    node.append("parts", parts(1), source="b")
    rows = [{**row, "source": source} for row in parts(1, 2) for source in ("c", "b", "a")]

    result = backfill(node, Given({"item": [rows]}, source=None))

    assert (result.tally.written, result.tally.spooled) == (5, 1)
    assert table(node) == [("a", 1), ("a", 2), ("b", 1), ("b", 2), ("c", 1), ("c", 2)]
