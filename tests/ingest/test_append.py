"""Append: durable, numbered, all or nothing (L-SPOOL, L-SEQ, L-SCH)."""

import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from strandline.base.ranges import Range
from strandline.config.keys import SpoolSection
from strandline.errors import (
    NotFoundError,
    NotStorable,
    OutcomeUnknown,
    StoreUnavailable,
    StrandlineError,
    UsageError,
)
from strandline.ingest.append import (
    Busy,
    ExpectationUnmet,
    RequestIdReused,
    SpoolFull,
    append,
    drop_quarantined,
    retry_quarantined,
    segment_key,
)
from strandline.ingest.quarantine import entries, rows_of
from strandline.persist import ABSENT, AtomicBackend, ExpectKey, Put, kv_get, last_seq, mem_backend, read
from strandline.rows.dataset import Column, Dataset, SchemaBreaking, SourceInvalid, Strand
from strandline.rows.validate import BadRows, RowTooLarge
from strandline.state.context import Site
from strandline.state.dataset_versions import DatasetUnknown, recorded
from tests.conftest import open_backend
from tests.sites import StillClock, make_site, spooled_rows


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def b(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AtomicBackend]:
    with closing(open_backend(request.param, tmp_path)) as opened:
        yield opened


@pytest.fixture
def site(b: AtomicBackend, tmp_path: Path) -> Site:
    return make_site(b, tmp_path / "content")


@pytest.fixture
def here(tmp_path: Path) -> Site:
    """Where the store does not matter."""
    return make_site(mem_backend(), tmp_path / "content")


def nothing_written(site: Site) -> bool:
    """No event, no key, no segment that a flush would land."""
    return not site.b.streams() and not site.b.kv_keys()


def test_rows_are_numbered_in_the_order_handed_in(site: Site) -> None:  # L-SPOOL-1, L-SEQ-2
    first = append(site, "logs", [{"n": 1}, {"n": 2}], source="web-1")
    second = append(site, "logs", [{"n": 3}], source="web-1")

    assert first.ranges == {"web-1": Range(0, 2)}
    assert second.ranges == {"web-1": Range(2, 3)}
    assert spooled_rows(site, "logs", "web-1") == [(1, {"n": 1}), (2, {"n": 2}), (3, {"n": 3})]


def test_a_batch_of_several_sources_is_one_segment_and_one_commit(site: Site) -> None:  # L-SPOOL-1, L-SPOOL-2
    rows = [{"source": "b", "n": 1}, {"source": "a", "n": 2}, {"source": "b", "n": 3}]

    receipt = append(site, "logs", rows)

    assert receipt.ranges == {"b": Range(0, 2), "a": Range(0, 1)}
    assert spooled_rows(site, "logs", "b") == [(1, {"n": 1}), (2, {"n": 3})]
    assert spooled_rows(site, "logs", "a") == [(1, {"n": 2})]
    assert {event.data["segment"].cid for each in "ab" for event in read(site.b, f"strand/logs/{each}")} == {
        receipt.segment
    }


def test_equal_rows_in_two_appends_are_two_segments(here: Site) -> None:  # L-SPOOL-2, F-47
    first, second = (append(here, "logs", [{"n": 1}], source="a") for _ in range(2))

    assert first.segment != second.segment
    assert len(spooled_rows(here, "logs", "a")) == 2


def test_an_append_of_no_rows_writes_nothing(here: Site) -> None:  # L-SPOOL-2
    receipt = append(here, "logs", [])

    assert receipt.rows == 0
    assert receipt.segment is None
    assert nothing_written(here)


def test_the_receipt_tells_what_was_written(here: Site) -> None:  # L-SPOOL-1
    receipt = append(here, "logs", [{"n": 1}], source="a", request_id="r1")

    assert (receipt.dataset, receipt.request_id, receipt.rows) == ("logs", "r1", 1)
    assert receipt.bytes > 0
    assert receipt.segment is not None
    assert here.content.has(receipt.segment)
    assert not receipt.is_repeat
    assert receipt.quarantined == 0


# Requests


def test_a_repeated_request_gives_the_first_receipt_and_writes_nothing(site: Site) -> None:  # L-SPOOL-5
    first = append(site, "logs", [{"n": 1}], source="a", request_id="r1")
    before = last_seq(site.b, Strand("logs", "a").ledger)

    again = append(site, "logs", [{"n": 1}], source="a", request_id="r1")

    assert again.is_repeat
    assert again.ranges == first.ranges
    assert again.segment == first.segment
    assert last_seq(site.b, Strand("logs", "a").ledger) == before


def test_a_request_id_with_other_rows_is_refused(site: Site) -> None:  # L-SPOOL-5
    append(site, "logs", [{"n": 1}], source="a", request_id="r1")

    with pytest.raises(RequestIdReused):
        append(site, "logs", [{"n": 2}], source="a", request_id="r1")
    with pytest.raises(RequestIdReused):
        append(site, "logs", [{"n": 1}], source="b", request_id="r1")
    assert len(spooled_rows(site, "logs", "a")) == 1


def test_a_repeat_is_known_after_the_schema_grew(here: Site) -> None:  # L-SPOOL-5, L-SCH-5
    declared = Dataset("logs", (Column("n", "int"),))
    site = make_site(here.b, here.content, datasets=[declared])
    first = append(site, "logs", [{"n": 1}], source="a", request_id="r1")
    append(site, "logs", [{"n": 2**40, "more": "x"}], source="a")

    assert append(site, "logs", [{"n": 1}], source="a", request_id="r1").ranges == first.ranges


def test_the_same_request_id_in_two_datasets_is_two_requests(here: Site) -> None:  # L-SPOOL-5
    append(here, "logs", [{"n": 1}], source="a", request_id="r1")

    assert not append(here, "events", [{"n": 1}], source="a", request_id="r1").is_repeat


@pytest.mark.parametrize("request_id", ["", "x" * 241, 5, "é" * 100])
def test_a_request_id_that_cannot_be_kept_is_refused(here: Site, request_id: Any) -> None:
    with pytest.raises(UsageError, match="request id"):
        append(here, "logs", [{"n": 1}], request_id=request_id)
    assert nothing_written(here)


def test_an_append_whose_answer_was_lost_is_written_once(here: Site) -> None:  # L-SPOOL-3, L-CTL-2
    lossy = Lossy(here.b, lose_after=1)

    receipt = append(make_site(lossy, here.content), "logs", [{"n": 1}], source="a")

    assert receipt.ranges == {"a": Range(0, 1)}
    assert lossy.commits == 2
    assert spooled_rows(here, "logs", "a") == [(1, {"n": 1})]


def test_an_outcome_that_cannot_be_learnt_names_the_request_to_repeat(here: Site) -> None:  # L-SPOOL-3
    lossy = Lossy(here.b, lose_before=99)

    with pytest.raises(OutcomeUnknown, match="request_id=") as caught:
        append(make_site(lossy, here.content), "logs", [{"n": 1}], source="a")

    assert caught.value.once is not None
    again = append(here, "logs", [{"n": 1}], source="a", request_id=caught.value.once[1])
    assert again.ranges == {"a": Range(0, 1)}


def test_a_store_that_fails_after_a_lost_answer_leaves_the_outcome_unknown(here: Site) -> None:  # L-SPOOL-3
    class Failing(Lossy):
        def commit(self, *args: Any, **options: Any) -> Any:
            if self.commits:
                raise StoreUnavailable("down")
            return super().commit(*args, **options)

    failing = Failing(here.b, lose_after=1)

    with pytest.raises(OutcomeUnknown) as caught:
        append(make_site(failing, here.content), "logs", [{"n": 1}], source="a")

    assert caught.value.once is not None
    assert append(here, "logs", [{"n": 1}], source="a", request_id=caught.value.once[1]).is_repeat


def test_a_fold_too_large_to_be_kept_fails_no_append(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise NotStorable("too large")

    monkeypatch.setattr("strandline.state.node_state._LEAST_EVENTS", 1)
    monkeypatch.setattr("strandline.state.node_state.snapshot_save", refuse)

    for n in range(5):
        append(here, "logs", [{"n": n}], source="a")

    assert len(spooled_rows(here, "logs", "a")) == 5


class Lossy:
    """A store that loses answers: those of the first commits before they are done, then of others after."""

    def __init__(self, b: AtomicBackend, *, lose_before: int = 0, lose_after: int = 0) -> None:
        self._b, self._before, self._after, self.commits = b, lose_before, lose_after, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._b, name)

    def commit(self, *args: Any, **options: Any) -> Any:
        self.commits += 1
        if self._before:
            self._before -= 1
            raise OutcomeUnknown("lost before", once=None)
        outcome = self._b.commit(*args, **options)
        if self._after:
            self._after -= 1
            raise OutcomeUnknown("lost after", once=None)
        return outcome


# Many writers


def test_threads_number_one_strand_densely(site: Site) -> None:  # L-SPOOL-4, L-SEQ-3
    def work(name: int) -> None:
        for i in range(10):
            append(site, "logs", [{"who": name, "i": i}], source="a")

    threads = [threading.Thread(target=work, args=(name,)) for name in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    rows = spooled_rows(site, "logs", "a")
    assert [seq for seq, _ in rows] == list(range(1, 61))
    assert {(row["who"], row["i"]) for _, row in rows} == {(w, i) for w in range(6) for i in range(10)}


def test_a_writer_that_keeps_losing_is_busy_and_writes_nothing(here: Site) -> None:  # L-SPOOL-4
    clock = StillClock()
    site = make_site(Contended(here), here.content, clock=clock, spool=SpoolSection(append_timeout_s=1))

    with pytest.raises(Busy, match="strand/logs/a"):
        append(site, "logs", [{"mine": True}], source="a")

    assert sum(clock.slept) > 1
    assert all("mine" not in row for _, row in spooled_rows(here, "logs", "a"))


class Contended:
    """A store where somebody else always appends first."""

    def __init__(self, other: Site) -> None:
        self._other = other

    def __getattr__(self, name: str) -> Any:
        return getattr(self._other.b, name)

    def commit(self, *args: Any, **options: Any) -> Any:
        append(self._other, "logs", [{"theirs": 1}], source="a")
        return self._other.b.commit(*args, **options)


def test_a_segment_that_the_sweep_declared_dead_is_written_anew(here: Site) -> None:  # L-SPOOL-14
    class Sweeping:
        """A store in which the sweep is always a moment faster, once."""

        def __init__(self) -> None:
            self.killed: list[str] = []

        def __getattr__(self, name: str) -> Any:
            return getattr(here.b, name)

        def commit(self, expected: Any, writes: Any, **options: Any) -> Any:
            key = next(each.key for each in expected if getattr(each, "key", "").startswith("segment/"))
            if not self.killed:
                self.killed.append(key)
                here.b.kv_put(key, "dead")
            return here.b.commit(expected, writes, **options)

    sweeping = Sweeping()

    receipt = append(make_site(sweeping, here.content), "logs", [{"n": 1}], source="a")  # type: ignore[arg-type]

    assert receipt.segment is not None
    assert segment_key(receipt.segment) != sweeping.killed[0]
    assert kv_get(here.b, segment_key(receipt.segment)) == "named"
    assert spooled_rows(here, "logs", "a") == [(1, {"n": 1})]


# What is refused


@pytest.mark.parametrize(
    "source",
    ["", "x" * 1_000, "é" * 50, "nul\0", "\ud800"],
    ids=["empty", "long", "long encoded", "nul", "surrogate"],
)
def test_a_source_that_could_never_land_is_refused(here: Site, source: str) -> None:  # L-SCH-2
    with pytest.raises(SourceInvalid):
        append(here, "logs", [{"n": 1}], source=source)
    assert nothing_written(here)


@pytest.mark.parametrize(
    "source", ["../../x", "a/b", "a_b", "a%2Fb", "it's", 'a "quote"', "two\nlines", ".", ".."]
)
def test_any_other_source_has_a_strand_of_its_own(here: Site, source: str) -> None:  # L-SCH-2, F-35
    others = ["../../x", "a/b", "a_b", "a%2Fb", "it's", 'a "quote"', "two\nlines", ".", ".."]
    for each in others:
        append(here, "logs", [{"of": each}], source=each)

    assert spooled_rows(here, "logs", source) == [(1, {"of": source})]
    assert len([each for each in here.b.streams() if each.startswith("strand/")]) == len(others)


def test_a_row_with_another_source_than_the_call_is_refused(here: Site) -> None:  # L-SPOOL-8
    with pytest.raises(StrandlineError, match="row 1"):
        append(here, "logs", [{"n": 1}, {"n": 2, "source": "b"}], source="a")
    assert nothing_written(here)


@pytest.mark.parametrize("name", ["_sl_seq", "_sl_mine", "_file", "_pos", "_row_id", "_SL_x"])
def test_a_reserved_column_is_refused(here: Site, name: str) -> None:  # L-STAMP-8
    with pytest.raises(StrandlineError, match=name):
        append(here, "logs", [{name: 1}], source="a")
    assert nothing_written(here)


def test_a_value_that_does_not_fit_refuses_the_whole_batch(here: Site) -> None:  # L-SPOOL-9, L-SCH-6
    append(here, "logs", [{"n": 1}], source="a")

    with pytest.raises(SchemaBreaking, match=r"row 1.*column 'n'") as caught:
        append(here, "logs", [{"n": 2}, {"n": "three"}, {"n": 4}], source="a")

    assert (caught.value.row, caught.value.column) == (1, "n")
    assert len(spooled_rows(here, "logs", "a")) == 1


@pytest.mark.parametrize("value", [float("nan"), 1.5, True, "7", 2**63])
def test_nothing_is_coerced_into_an_int(here: Site, value: Any) -> None:  # L-SPOOL-8
    append(here, "logs", [{"n": 1}], source="a")

    with pytest.raises(StrandlineError):
        append(here, "logs", [{"n": value}], source="a")
    assert len(spooled_rows(here, "logs", "a")) == 1


def test_a_row_that_is_too_large_is_refused(here: Site) -> None:  # L-SPOOL-12
    with pytest.raises(RowTooLarge, match="row 0"):
        append(here, "logs", [{"text": "x" * 20 * 1024 * 1024}], source="a")
    assert nothing_written(here)


def test_a_full_spool_takes_nothing_more_and_discards_nothing(here: Site) -> None:  # L-SPOOL-12
    site = make_site(here.b, here.content, spool=SpoolSection(max_bytes=1, flush_bytes=1))
    append(site, "logs", [{"n": 1}], source="a")

    with pytest.raises(SpoolFull):
        append(site, "logs", [{"n": 2}], source="a")
    assert spooled_rows(here, "logs", "a") == [(1, {"n": 1})]


def test_a_strict_node_refuses_a_dataset_that_nobody_declared(here: Site) -> None:  # L-SPOOL-12
    site = make_site(here.b, here.content, datasets=[Dataset("known")], is_strict=True)

    append(site, "known", [{"n": 1}], source="a")
    with pytest.raises(DatasetUnknown):
        append(site, "unknown", [{"n": 1}], source="a")


# The schema of record


def test_a_dataset_that_nobody_declared_is_inferred_and_recorded(site: Site) -> None:  # L-SPOOL-12, L-SCH-4
    append(
        site,
        "logs",
        [
            {
                "s": "x",
                "i": 1,
                "f": 1.5,
                "ok": True,
                "at": datetime(2026, 1, 1, tzinfo=UTC),
                "day": date(2026, 1, 1),
                "money": Decimal("1.50"),
                "raw": b"\0",
                "open": {"b": [1, 2], "a": None},
            }
        ],
        source="a",
    )

    found = recorded(site.b, "logs")
    assert found is not None
    assert {column.name: column.type for column in found.dataset.columns} == {
        "s": "string",
        "i": "bigint",
        "f": "double",
        "ok": "boolean",
        "at": "timestamp",
        "day": "date",
        "money": "decimal(38,2)",
        "raw": "binary",
        "open": "json",
    }
    assert found.dataset.version == found.event == 1


def test_growth_and_the_rows_that_need_it_are_one_transaction(site: Site) -> None:  # L-SCH-5, L-SCH-8
    append(site, "logs", [{"n": 1}], source="a")
    append(site, "logs", [{"n": 2, "more": "x"}], source="a")

    found = recorded(site.b, "logs")
    assert found is not None
    assert [column.name for column in found.dataset.columns] == ["n", "more"]
    assert found.dataset.version == 2
    with pytest.raises(StrandlineError):
        append(site, "logs", [{"n": "text", "never": 1}], source="a")
    assert recorded(site.b, "logs") == found


def test_of_two_writers_that_grow_one_column_apart_one_is_refused(b: AtomicBackend, tmp_path: Path) -> None:
    """L-SCH-9: the second reads again, and its value does not fit what the first made of the column."""
    one, two = (make_site(b, tmp_path / "content") for _ in range(2))
    append(one, "logs", [{"n": 1}], source="a")
    two.schema("logs")
    append(one, "logs", [{"n": 1, "x": "text"}], source="a")

    with pytest.raises(SchemaBreaking):
        append(two, "logs", [{"n": 1, "x": 5}], source="a")
    append(two, "logs", [{"n": 1, "y": 5}], source="a")
    found = recorded(b, "logs")
    assert found is not None
    assert [column.name for column in found.dataset.columns] == ["n", "x", "y"]


def test_arrow_tables_are_rows_too(here: Site) -> None:
    table = pa.table({"n": pa.array([1, 2], pa.int32()), "s": ["x", None]})

    receipt = append(here, "logs", table, source="a")

    assert receipt.rows == 2
    assert spooled_rows(here, "logs", "a") == [(1, {"n": 1, "s": "x"}), (2, {"n": 2})]


# Quarantine


def test_bad_rows_go_to_quarantine_and_the_others_are_numbered(site: Site) -> None:  # L-SPOOL-9, F-22
    append(site, "logs", [{"n": 1}], source="a")
    bad = {"n": "three", "raw": b"\1", "at": datetime(2026, 1, 1, tzinfo=UTC), "d": Decimal("1.0")}

    receipt = append(site, "logs", [{"n": 2}, bad, {"n": 4}], source="a", on_bad="quarantine")

    assert (receipt.rows, receipt.quarantined) == (2, 1)
    assert receipt.ranges == {"a": Range(1, 3)}
    (entry,) = entries(site.b, "logs")
    assert entry.count == 1
    assert "column 'n'" in entry.reasons[0]
    assert rows_of(site.content, entry) == [bad]


def test_a_batch_of_bad_rows_alone_writes_no_segment(here: Site) -> None:  # L-SPOOL-2, L-SPOOL-9
    receipt = append(here, "logs", [{"_sl_seq": 1}], source="a", on_bad="quarantine")

    assert (receipt.rows, receipt.segment, receipt.quarantined) == (0, None, 1)
    assert [entry.count for entry in entries(here.b, "logs")] == [1]


def test_a_retried_row_leaves_quarantine_as_it_is_numbered(here: Site) -> None:  # L-SPOOL-9
    narrow = Dataset("logs", (Column("n", "int"),))
    append(make_site(here.b, here.content, datasets=[narrow]), "logs", [{"n": 1}], source="a")
    append(here, "logs", [{"n": 1}, {"n": 1.5}], source="a", on_bad="quarantine")
    (entry,) = entries(here.b, "logs")

    receipt = retry_quarantined(here, "logs", entry.entry)

    assert (receipt.rows, receipt.quarantined) == (0, 1)  # it still does not fit: a new entry, nothing lost
    (again,) = entries(here.b, "logs")
    assert again.entry != entry.entry
    assert rows_of(here.content, again) == [{"n": 1.5}]


def test_a_value_that_could_only_be_shown_is_never_stored(here: Site) -> None:  # L-SPOOL-9, G-3
    append(here, "logs", [{"text": "good"}, {"text": ("a", "tuple")}], source="a", on_bad="quarantine")
    (entry,) = entries(here.b, "logs")

    receipt = retry_quarantined(here, "logs", entry.entry)

    assert (receipt.rows, receipt.quarantined) == (0, 1)
    assert [row for _, row in spooled_rows(here, "logs", "a")] == [{"text": "good"}]


def test_a_dropped_entry_is_gone_with_a_reason(here: Site) -> None:  # L-SPOOL-9
    append(here, "logs", [{"_pos": 1}], source="a", on_bad="quarantine")
    (entry,) = entries(here.b, "logs")

    assert drop_quarantined(here, "logs", entry.entry, reason="a test row") == 1

    assert entries(here.b, "logs") == []
    assert read(here.b, "quarantine/logs")[-1].data["reason"] == "a test row"
    with pytest.raises(NotFoundError):
        retry_quarantined(here, "logs", entry.entry)


def test_a_repeat_of_a_request_with_bad_rows_quarantines_nothing_twice(here: Site) -> None:  # L-SPOOL-5
    for _ in range(2):
        append(here, "logs", [{"n": 1}, {"_pos": 1}], source="a", request_id="r", on_bad="quarantine")

    assert [entry.count for entry in entries(here.b, "logs")] == [1]


BAD = [{"n": 1}, {"n": "two"}, {"n": 3}]


@pytest.mark.parametrize("form", [list, pa.Table.from_pylist])
def test_a_repeat_is_known_when_its_bad_rows_fit_by_now(
    here: Site, form: Any
) -> None:  # L-SPOOL-5, L-SPOOL-9
    rows = form([{"n": 1, "k": None}, {"n": 2, "k": "large"}, {"n": 3, "k": None}])
    small = make_site(here.b, here.content, spool=SpoolSection(max_row_bytes=12))
    first = append(small, "logs", rows, request_id="r", on_bad="quarantine")
    assert (first.rows, first.quarantined) == (2, 1)

    again = append(here, "logs", rows, request_id="r", on_bad="quarantine")

    assert (again.is_repeat, again.rows, again.quarantined) == (True, 2, 1)
    assert [seq for seq, _ in spooled_rows(here, "logs", "unknown")] == [1, 2]
    assert len(entries(here.b, "logs")) == 1


@pytest.mark.parametrize(
    "rows", [[*BAD, {"n": 4}], BAD[:2], [BAD[0], {"n": "other"}, BAD[2]], [{"n": 9}, *BAD[1:]], BAD[::-1]]
)
def test_a_request_with_bad_rows_is_reused_for_no_others(here: Site, rows: Any) -> None:  # L-SPOOL-5
    append(here, "logs", [{"n": 0}])
    append(here, "logs", BAD, request_id="r", on_bad="quarantine")

    with pytest.raises(RequestIdReused):
        append(here, "logs", rows, request_id="r", on_bad="quarantine")


def test_a_marker_of_an_older_version_still_tells_a_repeat(here: Site) -> None:  # L-SPOOL-5
    append(here, "logs", [{"n": 0}])
    append(here, "logs", BAD, request_id="r", on_bad="quarantine")
    marker: Any = kv_get(here.b, "request/logs/r")
    here.b.kv_put(
        "request/logs/r",
        {name: value for name, value in marker.items() if not name.startswith("refused")},
    )

    assert append(here, "logs", BAD, request_id="r", on_bad="quarantine").is_repeat


def test_what_is_expected_of_a_key_is_held_and_written_along(here: Site) -> None:  # L-CTL-2, L-SRV-2
    append(here, "logs", [{"n": 1}], expected=[ExpectKey("k", ABSENT)], also=[Put("k", 1)])
    append(here, "logs", [], expected=[ExpectKey("k", 1)], also=[Put("k", 2)])

    with pytest.raises(ExpectationUnmet) as caught:
        append(here, "logs", [{"n": 2}], expected=[ExpectKey("k", 1)], also=[Put("k", 3)])

    assert caught.value.conflict.name == "k"
    assert kv_get(here.b, "k") == 2
    assert len(spooled_rows(here, "logs", "unknown")) == 1


def test_refusals_are_named_up_to_a_hundred(here: Site) -> None:  # L-SPOOL-9
    append(here, "logs", [{"n": 1, "_": None}], source="a")

    with pytest.raises((BadRows, SchemaBreaking)) as caught:
        append(here, "logs", [{"n": "x"}] * 250, source="a")

    assert "row 99" in str(caught.value)
    assert "row 101," not in str(caught.value)
