"""Retention and compaction, each beside what the other or a sink does between two of its steps: on the
simulated table, one process after another."""

from collections.abc import Callable
from typing import Any

import pytest

from strandline.delivery.run import sync
from strandline.flush.flush import flush
from strandline.ingest import append as append_module
from strandline.ingest.append import append
from strandline.ingest.load import load
from strandline.ingest.quarantine import entries, rows_of
from strandline.maintenance.compaction import merge
from strandline.maintenance.open_run import OtherRunOpen
from strandline.maintenance.retention import prune as retention
from strandline.maintenance.retention.rules import RetentionRules
from strandline.persist import read
from strandline.rows.dataset import Dataset, Strand
from strandline.state.sink_progress import sink_stream
from tests.delivery.destinations import Bucket, Server, TableCourier
from tests.delivery.simulated import Destinations, sender
from tests.maintenance.calm import Crash
from tests.maintenance.history import HistoryTable, SimRewriter
from tests.maintenance.simulated import COLLAPSED, KEPT, configured, run_maintenance, run_retention, table_of
from tests.maintenance.simulated_purge import WHERES, run_purge
from tests.simulation import DATASET, World

MINUTE_US = 60_000_000


class Beside:
    """A node on the simulated table, where nothing goes wrong by itself."""

    def __init__(self, declared: Dataset) -> None:
        self.world = World(0, declared=declared, table=HistoryTable)
        self.world.is_calm = True
        self.site = self.world.site()
        self.table = table_of(self.world)
        self.to = Destinations(Server(self.world), Bucket(self.world), set())

    def append(self, *keys: str) -> None:
        append(self.site, DATASET, [{"key": key} for key in keys], source="web-1")

    def land(self, *keys: str) -> None:
        self.append(*keys)
        flush(self.site, self.world.table, DATASET)

    def prune(self, **rules: Any) -> int:
        given = {"keep_us": MINUTE_US, "sinks": (configured("server"),), **rules}
        return run_retention(self.world, self.site, RetentionRules(**given))

    def compact(self) -> int:
        return run_maintenance(self.world, self.site, force=True)

    def sync(self) -> None:
        sink, terms = self.to.sinks(5)[0]
        sync(self.site, lambda: TableCourier(self.world), sink, terms, sender())

    def restarted(self) -> None:
        self.world.now_us += 100_000_000  # leases of the dead one end
        self.site = self.world.site()

    def removed(self) -> int:
        return self.site.standing.strand_state(Strand(DATASET, "web-1")).removed_rows


def at_point(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, act: Callable[[], object]) -> None:
    """Once, when that place is come by."""
    left = [act]

    def reach(found: str) -> None:
        if found == name and left:
            left.pop()()

    monkeypatch.setattr(module, "reach", reach)


def crash() -> None:
    raise Crash


def test_repeats_that_retention_has_counted_are_not_counted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """L-RET-7, L-CMP-3: a run that was cut short counted them before compaction found them."""
    node = Beside(COLLAPSED)
    node.land("a", "b")
    node.land("a", "c")
    node.world.now_us += 10 * MINUTE_US
    at_point(monkeypatch, retention, "retention.intended", crash)
    with pytest.raises(Crash):
        node.prune(sinks=())

    node.restarted()
    node.compact()
    node.prune(sinks=())

    assert node.table.rows == []
    assert node.removed() == 4


def test_a_sink_that_passes_rows_that_have_just_gone_is_told_that_it_lacks_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """L-RET-5, L-RET-6, G-2."""
    node = Beside(KEPT)
    node.land("a", "b", "c")
    node.world.now_us += 10 * MINUTE_US
    at_point(monkeypatch, retention, "retention.deleted", node.sync)

    assert node.prune(wait_for="none") == 3

    assert node.to.server.rows == []
    line = node.site.standing.lines().line("server", Strand(DATASET, "web-1"))
    assert (line.mark, line.evicted) == (3, 3)
    (told,) = [
        e.data for e in read(node.site.b, sink_stream("server", DATASET, "web-1")) if e.type == "evicted"
    ]
    assert (told["lo"], told["hi"], told["rows"]) == (0, 3, 3)


def test_a_sink_that_gets_rows_just_before_they_go_lacks_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """L-RET-5: what it has sent since that was decided is in its stream."""
    node = Beside(KEPT)
    node.land("a", "b", "c")
    node.world.now_us += 10 * MINUTE_US
    at_point(monkeypatch, retention, "retention.intended", node.sync)

    assert node.prune(wait_for="none") == 3

    assert len(node.to.server.rows) == 3
    assert node.site.standing.lines().line("server", Strand(DATASET, "web-1")).evicted == 0
    assert node.site.standing.prunings().of(DATASET).evicted == 0


def test_rows_of_a_load_above_what_waits_stay_however_retention_names_them() -> None:
    """L-RET-4: they are not visible, so no sink can have them, though their flush number is an old one."""
    node = Beside(KEPT)
    node.land("a", "b")
    node.append("c")
    rows = [{"key": "d", "source": "web-1"}]
    load(node.site, node.world.table, DATASET, rows, request_id="l")  # type: ignore[arg-type]
    node.sync()
    node.world.now_us += 10 * MINUTE_US

    assert node.prune() == 2

    assert [row.key for row in node.table.rows] == ["d"]
    assert node.table.wrongs == []  # it was to say the same by seqs and by flush numbers


def test_rows_are_not_counted_while_a_rewrite_without_repeats_may_still_land(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """L-RET-7, L-CMP-3: whoever was taken for dead was only slow."""
    node = Beside(COLLAPSED)
    node.land("a", "b")
    node.land("a", "c")
    node.world.now_us += 10 * MINUTE_US
    at_point(monkeypatch, merge, "compaction.staged", crash)
    with pytest.raises(Crash):
        node.compact()
    node.restarted()

    with pytest.raises(OtherRunOpen, match="compaction"):
        node.prune(sinks=())
    node.table.move(*node.table.branches.values())
    node.compact()
    assert (len(node.table.rows), node.removed()) == (3, 1)
    node.prune(sinks=())

    assert node.table.rows == []
    assert node.removed() == 4


def test_a_rewrite_that_lands_while_it_is_given_up_counts_as_landed(monkeypatch: pytest.MonkeyPatch) -> None:
    """L-CMP-7: its fast-forward comes right behind the look whether it has."""
    node = Beside(COLLAPSED)
    node.land("a", "b")
    node.land("a", "c")
    at_point(monkeypatch, merge, "compaction.staged", crash)
    with pytest.raises(Crash):
        node.compact()
    node.restarted()
    left, real = dict(node.table.branches), SimRewriter.ancestry

    def looked(self: SimRewriter, dataset: str, snapshot: int | None = None) -> list[int]:
        found = real(self, dataset, snapshot)
        while left:
            node.table.move(left.popitem()[1])
        return found

    monkeypatch.setattr(SimRewriter, "ancestry", looked)
    node.compact()

    assert len(node.table.rows) == 3
    assert node.removed() == 1


def test_rows_that_come_to_quarantine_while_a_purge_removes_equal_ones_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """L-POL-3, L-SPOOL-9: the bytes of the purged entry are not those of the new one."""
    node, bad = Beside(KEPT), {"key": "b1", "by": {"not": "a text"}}
    append(node.site, DATASET, [{"key": "a", "by": "a text"}], source="web-1")

    def refuse() -> None:
        append(node.site, DATASET, [bad], source="web-1", on_bad="quarantine")

    def purge(where: str) -> int:
        return run_purge(node.world, node.site, node.to, where, None).quarantined.rows

    refuse()
    assert purge(WHERES[1]) == 1
    # Another run ends what this one left, between the bytes of the next append and its commit.
    at_point(monkeypatch, append_module, "append.commit", lambda: purge(WHERES[9]))
    refuse()

    (entry,) = entries(node.site.b, DATASET)
    assert rows_of(node.site.content, entry) == [bad]
    assert purge(WHERES[1]) == 1
