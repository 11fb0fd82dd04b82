"""Purge: rows go from table, spool and quarantine, and it says what it cannot reach (L-POL-3)."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from strandline.cli.verbs.purge import _left as told_left
from strandline.errors import UsageError
from strandline.ingest.append import append
from strandline.ingest.quarantine import entries, rows_of
from strandline.ingest.spool import spool_lines
from strandline.lake.jobs import purge as purge_job
from strandline.lake.jobs.deliver import SparkCourier
from strandline.lake.jobs.purge import SparkPurger
from strandline.lake.ports.purge import PredicateUnreadable, TooScattered
from strandline.maintenance import purge as purge_module
from strandline.maintenance import purge_intent
from strandline.maintenance.open_run import OtherRunOpen
from strandline.maintenance.purge import PurgeResult, purge
from strandline.node.status import status_of
from strandline.persist import Append, blob_store
from strandline.rows.dataset import Column, Strand
from strandline.sinks.blob.blob_sink import BlobSink
from strandline.state.dataset_versions import declared
from tests.delivery.rig import blob_rows, once
from tests.maintenance.calm import Crash, crash_at, open_letter
from tests.maintenance.house import House
from tests.shares import some

SECRET = "a-secret-that-nobody-else-has"


@pytest.fixture
def purged(house: House) -> Callable[..., PurgeResult]:
    def run(**options: Any) -> PurgeResult:
        purger = SparkPurger(lambda: house.spark, house.lake)
        return purge(house.site, purger, house.dataset, flush=house.flush, **options)

    return run


def values(house: House) -> list[int]:
    return sorted(row[0] for row in house.sql("SELECT n FROM {table}"))


def bytes_under(*folders: Path) -> bytes:
    return b"".join(path.read_bytes() for folder in folders for path in folder.rglob("*") if path.is_file())


def table_folder(house: House) -> Path:
    where = house.sql("DESCRIBE EXTENDED {table}")
    location = next(row[1] for row in where if row[0] == "Location")
    return Path(location.removeprefix("file:"))


def test_rows_of_a_predicate_go_and_what_is_pending_lands_first(
    house: House, purged: Callable[..., PurgeResult]
) -> None:  # L-POL-3
    house.land(4)
    house.append(3, "web-2")

    done = purged(where="n IN (2, 6)")

    assert (done.rows, done.strands) == (2, {"web-1": 1, "web-2": 1})
    assert values(house) == [1, 3, 4, 5, 7]
    assert not house.site.standing.pending(house.dataset)
    strand_state = house.site.standing.strand_state(Strand(house.dataset, "web-1"))
    assert (strand_state.hi, strand_state.visible_through, strand_state.removed_rows, strand_state.front) == (
        4,
        4,
        1,
        0,
    )
    assert house.site.standing.prunings().of(house.dataset).open == 0
    assert done.is_whole


def test_bytes_are_gone_from_every_file_of_table_and_content(
    house: House, purged: Callable[..., PurgeResult]
) -> None:  # L-POL-3
    house.land(2, note="harmless")
    house.land(2, note=SECRET)
    house.append(1, note=SECRET)
    folders = (table_folder(house), house.folder / "content")
    assert SECRET.encode() in bytes_under(*folders)

    done = purged(where=f"note = '{SECRET}'")

    assert (done.rows, done.segments, done.snapshots_left) == (3, 3, 0)
    assert SECRET.encode() not in bytes_under(*folders)
    assert values(house) == [1, 2]
    house.land(1)
    assert values(house) == [1, 2, 6]


def test_a_source_goes_whole_and_its_numbers_go_on(
    house: House, purged: Callable[..., PurgeResult]
) -> None:  # L-POL-3, L-SEQ-1
    house.land(3, "web-1")
    house.land(2, "web-2")

    done = purged(source="web-1")

    assert (done.strands, values(house)) == ({"web-1": 3}, [4, 5])
    strand_state = house.site.standing.strand_state(Strand(house.dataset, "web-1"))
    assert (strand_state.hi, strand_state.bare) == (3, 3)
    house.land(1, "web-1")
    assert house.seqs("web-1") == [4]


def test_it_says_what_had_left_and_through_which_sink_and_lines_stay(
    house: House, purged: Callable[..., PurgeResult], tmp_path: Path
) -> None:  # L-POL-3
    archive = BlobSink("local", dir=str(tmp_path / "out"), encoder="jsonl")
    house.land(4)
    house.sync(archive)
    house.land(3)
    before = house.line()

    done = purged(where="n IN (2, 3, 6)")

    assert [(each.sink, each.source, each.rows) for each in done.left] == [("centre", "web-1", 2)]
    assert house.line() == before
    house.sync(archive)
    assert house.line().mark == 7
    assert blob_rows(tmp_path / "out") == once([1, 2, 3, 4, 5, 7])


def test_an_open_intent_loses_the_rows_and_its_line_passes_them(
    house: House, purged: Callable[..., PurgeResult], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:  # L-POL-3, L-WM-11
    archive = BlobSink("local", dir=str(tmp_path / "out"), encoder="jsonl", max_object_rows=2)
    house.land(5)
    with monkeypatch.context() as patched:
        patched.setattr(SparkCourier, "carry", _crash)
        with pytest.raises(Crash):
            house.sync(archive)
    house.clock.forward(hours=1)
    assert house.line().intent is not None

    purged(where="n IN (1, 2, 3)")
    house.sync(archive)

    assert (house.line().mark, house.line().intent) == (5, None)
    assert blob_rows(tmp_path / "out") == once([4, 5])


def _crash(*_: Any, **__: Any) -> None:
    raise Crash


def test_quarantined_rows_go_too_and_those_that_cannot_be_judged_are_told(
    house: House, purged: Callable[..., PurgeResult]
) -> None:  # L-POL-3, L-SPOOL-9
    house.land(1, note="x")
    rows = [
        {"n": "no number", "note": SECRET},
        {"n": "no number", "note": "fine"},
        {"n": 5, "note": {"odd": SECRET}},
    ]
    append(house.site, house.dataset, rows, source="web-1", on_bad="quarantine")

    before = bytes_under(house.folder / "content")
    tried = purged(where=f"note = '{SECRET}'", is_dry=True)
    assert (tried.quarantined.rows, tried.quarantined.undecided) == (1, 1)
    assert len(entries(house.site.b, house.dataset)) == 1
    assert bytes_under(house.folder / "content") == before

    done = purged(where=f"note = '{SECRET}'")

    assert (done.quarantined.rows, done.quarantined.undecided, done.is_whole) == (1, 1, False)
    (left,) = entries(house.site.b, house.dataset)
    assert rows_of(house.site.content, left) == rows[1:]
    assert left.source == "web-1"

    assert purged(source="web-1").quarantined.rows == 2
    assert not entries(house.site.b, house.dataset)
    assert SECRET.encode() not in bytes_under(house.folder / "content")


def test_a_held_segment_is_told(house: House, purged: Callable[..., PurgeResult]) -> None:  # L-POL-3
    house.land(1)
    house.append(2)
    (line,) = spool_lines(house.site, house.dataset)
    digest = line.segment.removeprefix("sha256-")
    (house.folder / "content" / "sha256" / digest[:2] / digest).write_bytes(b"damaged")

    done = purged(where="n = 1")

    assert [(each.source, each.segment, each.rows) for each in done.held] == [("web-1", line.segment, 2)]
    assert (done.rows, done.is_whole) == (1, False)


def test_a_dead_letter_that_may_hold_such_rows_is_told(
    house: House, purged: Callable[..., PurgeResult]
) -> None:  # L-POL-3
    house.land(3)
    body = blob_store(house.site.content, b"{}", "application/x-ndjson")
    letter = open_letter(house.site, house.dataset, body)

    assert purged(where="n = 3").letters == ()
    done = purged(where="n = 1")

    assert (done.letters, done.is_whole) == ((letter,), False)


def test_a_dry_run_counts_and_changes_nothing(
    house: House, purged: Callable[..., PurgeResult]
) -> None:  # L-POL-3
    house.land(3)
    house.append(1)
    before = house.site.b.last_seq("$global")

    tried = purged(where="n < 3", is_dry=True)

    assert (tried.rows, tried.pending, tried.is_dry) == (2, 1, True)
    assert house.site.b.last_seq("$global") == before
    assert values(house) == [1, 2, 3]


def test_a_predicate_that_does_not_tell_is_refused(
    house: House, purged: Callable[..., PurgeResult]
) -> None:  # L-POL-3
    house.land(2)

    unsteady = (
        "rand() < 0.5",
        "n < now()",
        "n < unix_timestamp()",
        "note < curdate()",
        "note = uuid()",
        "note = input_file_name()",
        "note = session_user()",
        "note = version()",
        "note = reflect('java.util.UUID', 'randomUUID')",
        "note = java_method('java.util.UUID', 'randomUUID')",
        "note < current_timestamp",
        "n IN (SELECT 1)",
    )
    for where in ("nobody = 1", "n +", "n", "_sl_seq = 1", *unsteady):
        with pytest.raises(PredicateUnreadable):
            purged(where=where)

    assert values(house) == [1, 2]


def test_what_goes_is_what_was_counted_whatever_the_predicate_says_later(
    house: House, purged: Callable[..., PurgeResult], monkeypatch: pytest.MonkeyPatch
) -> None:  # L-POL-3, G-2: the settings of the session that ends a purge are not those that began it
    house.land(4, at="2026-03-01T23:30:00Z")
    house.land(4, at="2026-03-02T12:00:00Z")
    where = "CAST(CAST(at AS TIMESTAMP) AS DATE) = '2026-03-01'"
    with monkeypatch.context() as patched:
        patched.setattr(purge_module, "reach", lambda name: _crash() if name == "purge.intended" else None)
        with pytest.raises(Crash):
            purged(where=where)
    house.clock.forward(hours=1)
    house.site = house.another_site()
    house.spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")  # where all of them are on the 2nd
    try:
        house.prune()
    finally:
        house.spark.conf.set("spark.sql.session.timeZone", "UTC")

    assert house.site.standing.prunings().of(house.dataset).rows == 4
    assert house.strand_state().removed_rows == 4
    assert values(house) == [5, 6, 7, 8]


@pytest.mark.parametrize("most", [0, 2], ids=["as keys", "as text"])
def test_scattered_rows_of_many_sources_go_and_no_other(
    house: House, purged: Callable[..., PurgeResult], monkeypatch: pytest.MonkeyPatch, most: int
) -> None:  # L-POL-3
    monkeypatch.setattr(purge_job, "_MOST_IN_TEXT", most * 100)
    monkeypatch.setattr(purge_intent, "_MOST_IN_EVENT", most * 100)
    for source in ("web-1", "web-'2'"):
        house.land(20, source)

    done = purged(where="n % 3 = 0 OR n IN (7, 8)")

    assert (done.rows, done.strands) == (15, {"web-1": 8, "web-'2'": 7})
    assert values(house) == [n for n in range(1, 41) if n % 3 and n not in (7, 8)]
    assert done.is_whole


def test_rows_in_too_many_places_for_one_purge_are_refused(
    house: House, purged: Callable[..., PurgeResult], monkeypatch: pytest.MonkeyPatch
) -> None:  # L-POL-3
    monkeypatch.setattr(purge_job, "MOST_RANGES", 3)
    house.land(10)

    with pytest.raises(TooScattered, match="too many separate places"):
        purged(where="n % 2 = 0")

    assert purged(where="n < 8").rows == 7


def test_a_column_that_is_declared_and_not_in_the_table_yet_does_not_stop_it(
    house: House, purged: Callable[..., PurgeResult]
) -> None:  # L-POL-3, L-SCH-5
    house.land(3)
    known = house.site.known(house.dataset).dataset
    wider = replace(known, columns=(*known.columns, Column("later", "bigint")), version=known.version + 1)
    house.site.b.commit([], [declared(wider, house.clock.now_us())])

    assert purged(where="n = 1").rows == 1
    assert purged(where="later = 5").rows == 0
    assert purged(where="later IS NULL AND n = 2").rows == 1
    assert values(house) == [3]


def test_a_column_may_have_the_name_of_a_function(
    house: House, purged: Callable[..., PurgeResult]
) -> None:  # L-POL-3
    house.land(1, random="x", now=1)
    house.land(1, random="y", now=2)

    assert purged(where="random = 'x' AND now = 1").rows == 1


def test_a_purge_of_everything_is_refused(purged: Callable[..., PurgeResult]) -> None:  # L-POL-3
    with pytest.raises(UsageError, match="everything"):
        purged()


def test_a_dataset_without_a_table_is_purged_of_its_quarantine(
    house: House, purged: Callable[..., PurgeResult]
) -> None:  # L-POL-3
    rows: list[dict[str, Any]] = [{"n": {1, 2}}]
    append(house.site, house.dataset, rows, source="web-1", on_bad="quarantine")

    assert purged(source="web-1").quarantined.rows == 1


def test_what_retention_has_begun_is_finished_first(
    house: House, purged: Callable[..., PurgeResult]
) -> None:  # L-RET-7
    house.land(1)
    intended = {"run": "r", "by": "retention"}
    house.site.b.commit([], [Append(f"retention/{house.dataset}", "intended", 1, intended, globally=True)])

    with pytest.raises(OtherRunOpen):
        purged(where="n = 1")


def test_what_keeps_old_snapshots_is_named_with_the_command_that_ends_it() -> None:
    """L-OBS-5: a flush or load by its number, or a rewrite, which a flush does not end."""
    kept = PurgeResult("logs", None, "web-1", snapshots_left=2)

    (rewrite,) = told_left(kept)
    (numbers,) = told_left(replace(kept, open_numbers=(3, 4)))

    assert rewrite == "old snapshots stay while a rewrite is open: `strandline maintain logs`, then again"
    assert numbers == "old snapshots stay while 3, 4 is open: `strandline flush logs`, then again"


@pytest.mark.parametrize("point", ["purge.intended", "purge.deleted"])
def test_a_purge_that_was_killed_is_ended_by_the_next_run_of_retention(
    house: House, purged: Callable[..., PurgeResult], monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """L-RET-1, L-OBS-5: the limits hold on, and the command that status names repairs it."""
    house.land(4)
    with monkeypatch.context() as patched:
        patched.setattr(purge_module, "reach", lambda name: _crash() if name == point else None)
        with pytest.raises(Crash):
            purged(where="n IN (2, 3)")
    house.clock.forward(hours=1)
    house.site = house.another_site()
    (told,) = (each for each in status_of(house.config(), house.site).causes if each.kind == "retention_open")
    assert told.repair == f"`strandline retention run {house.dataset}`"

    result = house.prune()

    assert (result.is_resumed, result.rows, values(house)) == (True, 0, [1, 4])
    pruning = house.site.standing.prunings().of(house.dataset)
    assert (pruning.open, pruning.rows, house.strand_state().removed_rows) == (0, 2, 2)
    assert "retention_open" not in [each.kind for each in status_of(house.config(), house.site).causes]
    house.clock.forward(days=91)
    assert (house.prune().rows, values(house)) == (2, [])


@pytest.mark.parametrize("points", some([range(1, 9), range(2, 9, 3)], range(2, 9, 3)), ids=["each", "some"])
@pytest.mark.parametrize(
    "module", ["strandline.maintenance.purge", "strandline.maintenance.purge_quarantine"]
)
def test_a_purge_that_was_cut_short_anywhere_is_finished_by_repeating_it(
    house: House,
    purged: Callable[..., PurgeResult],
    monkeypatch: pytest.MonkeyPatch,
    module: str,
    points: Sequence[int],
) -> None:  # L-POL-3
    """One failpoint after the other, on one table: each crash is followed by a restart."""
    for times, nth in enumerate(points, start=1):
        house.land(2, note="harmless")
        house.append(2, note=SECRET)
        append(house.site, house.dataset, [{"n": "?", "note": SECRET}], source="q", on_bad="quarantine")
        crashed = ""
        with crash_at(monkeypatch, module, nth):
            try:
                purged(where=f"note = '{SECRET}'")
            except Crash as crash:
                crashed = str(crash)
        house.clock.forward(hours=1)
        house.site = house.another_site()

        done = purged(where=f"note = '{SECRET}'")

        assert done.is_whole
        assert house.sql(f"SELECT count(*) FROM {{table}} WHERE note = '{SECRET}'")[0][0] == 0
        assert SECRET.encode() not in bytes_under(table_folder(house), house.folder / "content")
        assert not house.site.standing.prunings().of(house.dataset).open
        assert house.site.standing.prunings().of(house.dataset).rows == 2 * times
        assert house.site.standing.strand_state(Strand(house.dataset, "web-1")).removed_rows == 2 * times
        if not crashed:
            break
