"""Retention beside sinks, with real Spark: what a sink has not delivered stays, and where it goes all the
same the sink's own stream says so."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from strandline.config.config import Config
from strandline.delivery.api import Deliveries
from strandline.delivery.owed import Terms
from strandline.delivery.sink_history import history
from strandline.ingest.append import append
from strandline.node.status import Status, status_of
from strandline.persist import Event, read
from strandline.rows.dataset import Strand
from strandline.sinks.blob.blob_sink import BlobSink
from strandline.sinks.sink import Outcome
from strandline.state.sink_progress import SinkProgress, event_of, sink_stream
from tests.delivery.destinations import Server, ServerSink
from tests.delivery.rig import blob_rows, once
from tests.maintenance.house import House, at_point, blob_sink
from tests.simulation import World


def status(house: House, config: Config) -> Status:
    return status_of(config, house.site)


def evictions(house: House, name: str = "archive", source: str = "web-1") -> list[dict[str, Any]]:
    events: list[Event] = list(read(house.site.b, sink_stream(name, house.dataset, source)))
    return [dict(event.data) for event in events if event.type == "evicted"]


def line(house: House, name: str = "archive") -> SinkProgress:
    return house.site.standing.lines().line(name, Strand(house.dataset, "web-1"))


def test_a_sink_that_was_down_gets_all_its_rows_and_then_they_go(each_house: House, tmp_path: Path) -> None:
    """F-18, L-RET-4, L-RET-10, L-OBS-5: the window passes, retention runs, the sink comes back."""
    house = each_house
    config = house.config(blob_sink(tmp_path))
    values = house.land(20) + house.land(10)
    house.clock.forward(days=95)

    result = house.prune(config)

    assert (result.rows, dict(result.held)) == (0, {"archive": 30})
    assert len(house.seqs()) == 30
    found = status(house, config)
    assert found.datasets[0].retention.held == {"archive": 30}
    assert found.datasets[0].retention.looked_at == house.clock.now
    assert ("degraded", "retention_blocked") in [(each.level, each.kind) for each in found.causes]

    house.deliver(config)
    assert blob_rows(tmp_path) == once(values)
    after = house.prune(config)
    assert (after.rows, dict(after.held), after.evicted) == (30, {}, 0)
    assert line(house).mark == 30
    found = status(house, config)
    assert (found.health, found.datasets[0].retention.rows) == ("ok", 30)
    assert {each.status for each in house.proof(config)} == {"ok"}


def test_rows_go_up_to_the_lowest_mark_of_those_that_are_waited_for(house: House, tmp_path: Path) -> None:
    """L-RET-4, L-RET-9: a disabled sink counts as well, a forgotten one does not, and one that starts now is
    owed nothing of before."""
    text = blob_sink(tmp_path) + blob_sink(tmp_path, "off", enabled=False)
    config = house.config(text + blob_sink(tmp_path, "late", start="now"))
    house.land(20)
    house.deliver(config)
    house.land(10)
    house.clock.forward(days=95)

    held = house.prune(config).held
    assert dict(held) == {"archive": 10, "off": 30}
    causes = [each.text for each in status(house, config).causes if each.kind == "retention_blocked"]
    assert any("off, which is not enabled" in text for text in causes)

    waits = house.config(text, wait_for_sinks=("archive",))
    assert house.prune(waits).rows == 20
    assert house.seqs() == list(range(21, 31))
    assert [each["rows"] for each in evictions(house, "off")] == [20]  # it was not waited for
    assert evictions(house) == evictions(house, "late") == []
    house.deliver(config)
    assert house.prune(config).rows == 0
    without = house.config(blob_sink(tmp_path) + blob_sink(tmp_path, "late", start="now"))
    assert house.prune(without).rows == 10


def test_a_forgotten_sink_blocks_nothing(house: House, tmp_path: Path) -> None:
    """L-RET-9: until it delivers again."""
    config = house.config(blob_sink(tmp_path))
    house.land(5)
    house.deliver(config)
    house.land(5)
    house.clock.forward(days=95)
    assert house.prune(config).rows == 5
    Deliveries(config, house.site, lambda: house.courier).forget("archive", reason="it is gone")
    assert house.prune(config).rows == 5


def test_a_hold_limit_keeps_and_says_so_or_evicts_and_records_it(house: House, tmp_path: Path) -> None:
    """L-RET-5, L-RET-6, G-2, L-WM-11: range and count in the stream of each sink that had not passed; its
    line goes over them without a job."""
    sinks = blob_sink(tmp_path)
    house.land(10)
    config = house.config(sinks, max_hold_days=7.0)
    house.deliver(config)
    values = house.land(20)
    house.clock.forward(days=50)
    values_kept = house.land(5)
    house.clock.forward(days=46)

    assert house.prune(config).rows == 10
    assert not status(house, config).datasets[0].retention.is_over_limit
    house.clock.forward(days=2)
    assert house.prune(config).rows == 0
    assert status(house, config).datasets[0].retention.is_over_limit

    evicting = house.config(sinks, max_hold_days=7.0, on_hold_limit="evict")
    result = house.prune(evicting)

    assert (result.rows, result.evicted) == (20, 20)
    (told,) = evictions(house)
    assert (told["lo"], told["hi"], told["rows"]) == (10, 30, 20)
    texts = [each.text for each in history(house.site, "archive")]
    assert "retention took up to 20 rows of (10, 30] before they were delivered" in texts
    assert line(house).evicted == status(house, config).sinks[0].strands[0].evicted == 20
    assert house.site.standing.prunings().of(house.dataset).evicted == 20
    house.deliver(config)
    delivered = blob_rows(tmp_path)
    assert delivered == once([*range(1, 11), *values_kept])
    assert not set(delivered) & set(values)
    proofs = house.proof(config)
    assert [each.status for each in proofs] == ["ok"]
    assert (proofs[0].removed, proofs[0].sinks[0].evicted) == (30, 20)


def test_rows_that_wait_for_sinks_take_no_more_than_max_hold_bytes(house: House, tmp_path: Path) -> None:
    """L-RET-5: the first that came in go."""
    sinks = blob_sink(tmp_path)
    for _ in range(4):
        house.land(50)
        house.clock.forward(hours=1)
    house.clock.forward(days=95)
    whole = sum(row[0] for row in house.sql("SELECT file_size_in_bytes FROM {table}.files"))
    config = house.config(sinks, max_hold_bytes=whole // 2, on_hold_limit="evict")

    result = house.prune(config)

    assert 95 <= result.rows == result.evicted <= 105
    assert house.seqs()[0] == result.rows + 1
    assert house.prune(config).rows == 0


def test_without_waiting_what_a_sink_misses_is_counted_all_the_same(
    each_house: House, tmp_path: Path
) -> None:
    """L-RET-6, on classic Spark and on Connect."""
    house = each_house
    config = house.config(blob_sink(tmp_path), wait_for_sinks="none")
    house.land(10)
    house.deliver(config)
    house.land(20)
    house.clock.forward(days=95)

    result = house.prune(config)

    assert (result.rows, result.evicted, dict(result.held)) == (30, 20, {})
    assert [(each["lo"], each["hi"], each["rows"]) for each in evictions(house)] == [(10, 30, 20)]
    assert house.deliver(config).rows == 0
    assert line(house).mark == 30
    assert [each.status for each in house.proof(config)] == ["ok"]


def test_both_kinds_of_sinks_deliver_once_across_a_run_that_takes_rows_of_an_open_intent(
    house: House, tmp_path: Path
) -> None:
    """L-ACC-2, L-WM-11: the unit shrinks, or is void, and the line goes on."""
    archive = BlobSink("local", dir=str(tmp_path / "blobs"), encoder="jsonl", max_object_rows=40)
    world = World(0)
    world.is_calm = True
    server = Server(world)
    terms = {name: Terms(name, include=(house.dataset,)) for name in ("archive", "centre")}
    _land(house, 1, 60)
    house.clock.forward(days=93)
    _land(house, 61, 120)
    folder = tmp_path / "blobs" / house.dataset / "source=web-1"
    folder.mkdir(parents=True)
    blocked = folder / f"{40:020}-{80:020}.jsonl"
    blocked.write_text("something else\n")  # holds one unit back, and with it the line
    house.site.compared_at["archive", Strand(house.dataset, "web-1")] = house.clock.now_us()  # it came since
    server.answers = [*[None] * 8, *[Outcome(0, 0, "failed", kind="connection")] * 20]
    house.sync(archive, terms["archive"])
    house.sync(ServerSink(server), terms["centre"])
    assert (line(house).mark, line(house, "centre").mark) == (40, 40)
    assert line(house).intent is not None
    assert line(house, "centre").intent is not None

    result = house.prune(house.config())  # of a file without sinks: nothing is waited for

    assert (result.rows, house.seqs()) == (60, list(range(61, 121)))
    blocked.unlink()
    stream = sink_stream("archive", house.dataset, "web-1")
    house.site.b.commit([], [event_of(stream, "resumed", 1, reason="the file is gone")])
    house.clock.forward(hours=1)
    server.answers.clear()
    _land(house, 121, 125)
    house.sync(archive, terms["archive"])
    house.sync(ServerSink(server), terms["centre"])
    left = [*range(1, 41), *range(61, 126)]
    assert Counter(int(key) for _, key in server.rows) == once(left)
    assert blob_rows(tmp_path / "blobs") == once(left)
    assert (line(house).mark, line(house, "centre").mark) == (125, 125)


def _land(house: House, first: int, last: int) -> None:
    rows = [{"n": n, "key": str(n)} for n in range(first, last + 1)]
    append(house.site, house.dataset, rows, source="web-1")
    house.flush()


def test_a_sink_that_is_moved_back_while_a_run_is_decided_keeps_its_rows(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L-CTL-2: what was decided on its mark is decided again."""
    config = house.config(blob_sink(tmp_path))
    house.land(20)
    house.deliver(config)
    house.clock.forward(days=95)
    deliveries = Deliveries(config, house.site, lambda: house.courier)
    at_point(monkeypatch, "retention.intend", lambda: deliveries.rewind("archive", to=5, reason="once more"))

    result = house.prune(config)

    assert (result.rows, dict(result.held)) == (5, {"archive": 15})
    assert house.seqs() == list(range(6, 21))
