"""A frame of a backfill beside what others do between two of its steps: on the simulated table, one process
after another."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from strandline.backfill.chunk import rows_whole
from strandline.backfill.result import BackfillCounts
from strandline.backfill.row_locations import Strands
from strandline.errors import OutcomeUnknown, UnavailableError
from strandline.flush import recover as settle_module
from strandline.flush.flush import flush
from strandline.ingest import load as load_module
from strandline.persist import Put
from strandline.rows.dataset import Dataset
from strandline.sources.provider import Item
from tests.maintenance.calm import Crash
from tests.maintenance.history import Frame
from tests.maintenance.simulated import KEPT, Means
from tests.maintenance.simulated_frame import SimFrameLookup
from tests.maintenance.simulated_purge import WHERES, run_purge
from tests.maintenance.test_beside import Beside, at_point, crash
from tests.simulation import DATASET, IDENTIFIED


class Brings:
    """A provider of one frame."""

    def __init__(self, *keys: str) -> None:
        self._rows = [{"key": key, "source": "web-1", "by": "frames"} for key in keys]

    def items(self, window: Any) -> Any:
        raise AssertionError("its item is named")

    rows = items

    def frame(self, item: Item, spark: Any) -> Any:
        return Frame(("key", "source", "by"), lambda: self._rows)


def brought(node: Beside, *keys: str) -> BackfillCounts:
    item = Item("item", DATASET, is_frame=True)
    return Means(node.world, node.site).write_frame("frames", Brings(*keys), item, is_dry=False)


def landed_and_swept(node: Beside) -> Callable[[], object]:
    """A purge of rows that nobody has: all that waits lands, and its segments are removed at once."""
    return lambda: run_purge(node.world, node.site, node.to, WHERES[9], None)


def keys(node: Beside) -> Counter[str]:
    return Counter(row.key for row in node.table.rows)


def test_a_frame_whose_load_was_released_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """L-BF-10: its rows never landed, whatever the mark says that was written with their numbers."""
    node = Beside(KEPT)
    node.land("a")
    at_point(monkeypatch, settle_module, "load.ensured", crash)
    with pytest.raises(Crash):
        brought(node, "a", "b", "c")
    node.restarted()
    node.table.inputs.clear()
    flush(node.site, node.table, DATASET)
    assert keys(node) == Counter("a")

    assert brought(node, "a", "b", "c").written == 2
    assert brought(node, "a", "b", "c").written == 0

    assert keys(node) == Counter("abc")


def test_an_item_whose_frame_was_given_up_comes_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """L-BF-10: without an identity its mark alone tells what came; while its load is open nobody can tell."""
    node = Beside(Dataset(DATASET))
    item = Item("item", DATASET, "web-1", version="1", is_frame=True)
    at_point(monkeypatch, settle_module, "load.ensured", crash)
    with pytest.raises(Crash):
        Means(node.world, node.site).write_frame("frames", Brings("a", "b"), item, is_dry=False)
    node.restarted()
    in_chunks = replace(item, is_frame=False)

    with pytest.raises(UnavailableError, match="its load is open"):
        rows_whole(node.site, "frames", in_chunks)

    node.table.inputs.clear()
    flush(node.site, node.table, DATASET)
    assert keys(node) == Counter()
    assert rows_whole(node.site, "frames", in_chunks) is None


def test_an_item_whose_frame_has_landed_does_not_come_in_chunks() -> None:
    """L-BF-10, F-25."""
    node = Beside(Dataset(DATASET))
    item = Item("item", DATASET, "web-1", version="1", is_frame=True)
    Means(node.world, node.site).write_frame("frames", Brings("a", "b"), item, is_dry=False)

    assert rows_whole(node.site, "frames", replace(item, is_frame=False)) == 2


def test_a_frame_that_was_cut_short_lands_when_it_is_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """L-BF-10: it is finished from its input, and nothing is looked for."""
    node = Beside(KEPT)
    at_point(monkeypatch, settle_module, "load.ensured", crash)
    with pytest.raises(Crash):
        brought(node, "a", "b")
    node.restarted()

    assert brought(node, "a", "b").chunk_known == 2

    assert keys(node) == Counter("ab")
    assert not node.table.inputs


def test_rows_whose_segments_are_swept_before_the_frame_is_computed_are_not_brought_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """L-BF-4, L-POL-3: the table was looked at while they were spooled, and then they had landed."""
    node = Beside(KEPT)
    node.land("z")
    node.append("a", "b")
    at_point(monkeypatch, load_module, "load.fix", landed_and_swept(node))

    assert brought(node, "a", "b", "c").written == 1

    assert keys(node) == Counter("abcz")


def test_a_segment_that_is_swept_while_a_frame_looks_at_the_spool_is_no_doubt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """L-BF-5: its rows are in the table, which is looked at after."""
    node = Beside(KEPT)
    node.append("a", "b")
    pending = Strands.pending

    def swept(*args: Any) -> Any:
        found = list(pending(*args))
        monkeypatch.setattr(Strands, "pending", pending)
        landed_and_swept(node)()
        return iter(found)

    monkeypatch.setattr(Strands, "pending", swept)

    done = brought(node, "a", "b", "c")

    assert (done.written, done.doubt_texts) == (1, [])
    assert keys(node) == Counter("abc")


def test_a_frame_that_could_not_look_at_what_came_meanwhile_is_looked_at_when_it_lands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """L-BF-4, L-BF-5: where nothing is in doubt, landing trusts the look; here it must not."""
    node = Beside(IDENTIFIED)
    node.land("z")
    at_point(monkeypatch, load_module, "load.fixed", lambda: node.land("a"))

    def unanswered(*_: Any) -> bool:
        raise UnavailableError("no answer", hint="later")

    monkeypatch.setattr(SimFrameLookup, "meets", unanswered)

    done = brought(node, "a", "b")

    assert len(done.doubt_texts) == 1
    assert (done.written, done.committed) == (1, 1)
    assert keys(node) == Counter("abz")


def test_a_frame_whose_reservation_got_no_answer_lands(monkeypatch: pytest.MonkeyPatch) -> None:
    """L-BF-10: the mark that it finds then is its own."""
    node = Beside(KEPT)
    node.land("a")
    commit = node.world.b.commit

    def answered(expected: Any, writes: Any, **options: Any) -> Any:
        outcome = commit(expected, writes, **options)
        if any(isinstance(each, Put) and each.key.endswith("/frame") for each in writes):
            monkeypatch.setattr(node.world.b, "commit", commit)
            raise OutcomeUnknown("done, but the answer is lost", once=None)
        return outcome

    monkeypatch.setattr(node.world.b, "commit", answered)

    assert brought(node, "a", "b").written == 1

    assert keys(node) == Counter("ab")
