"""Items that come in chunks in one run and whole in another, without Spark (L-BF-10)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from strandline.backfill.chunk import FrameMark, frame_key
from strandline.backfill.frame import write_frame
from strandline.backfill.result import BackfillCounts, BackfillResult
from strandline.backfill.run import Order, run
from strandline.lake.ports.lookup import Lookup
from strandline.persist import kv_put, open_store
from strandline.rows.dataset import Strand
from strandline.sources.provider import Chunk, FrameProvider, Item, Window
from strandline.state.context import Site
from tests.sites import make_site, spooled_rows

ITEM = Item("x.parquet", "plain", "a", version="3:1")
ROWS = [{"n": 1}, {"n": 1}, {"n": 2}]
UNASKED: Any = None  # Spark, which nothing here comes as far as to ask


@dataclass
class OneItem:
    """A provider of one item, in one chunk."""

    item: Item

    def items(self, _: Window) -> Iterator[Item]:
        yield self.item

    def rows(self, _: Item) -> Iterator[Chunk]:
        yield ROWS

    def frame(self, item: Item, spark: Any) -> Any:
        raise AssertionError(f"{item.id} was read by {spark}")


@dataclass
class NoSpark:
    """Rows without identity are neither looked up nor, so few, landed."""

    site: Site

    def lookup(self) -> Lookup:
        raise AssertionError("looked up")

    def land(self, dataset: str) -> None:
        raise AssertionError(f"landed {dataset}")

    def write_frame(
        self, instance: str, provider: FrameProvider, item: Item, *, is_dry: bool
    ) -> BackfillCounts:
        return write_frame(self.site, UNASKED, UNASKED, instance, item, UNASKED, is_dry=is_dry)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    b = open_store("memory:")
    yield make_site(b, tmp_path / "content")
    b.close()


def backfilled(site: Site, item: Item = ITEM) -> BackfillResult:
    return run(site, NoSpark(site), OneItem(item), Order("p", Window()))


def came_whole(site: Site, item: Item = ITEM) -> None:
    mark = FrameMark(str(item.version), len(ROWS))
    kv_put(site.b, frame_key("p", item), msgspec.structs.asdict(mark))


def test_an_item_that_came_in_chunks_is_refused_as_a_frame(site: Site) -> None:
    """L-BF-10: a file grows past `frame_bytes`, and its rows have no identity."""
    assert backfilled(site).tally.written == 3

    grown = backfilled(site, replace(ITEM, version="9:2", is_frame=True))

    assert [each.kind for each in grown.tally.failures] == ["item_changed"]
    assert "was written in chunks and comes whole now" in grown.tally.failures[0].text
    assert site.standing.strand_state(Strand("plain", "a")).hi == 3


def test_an_item_that_came_whole_is_not_written_again_in_chunks(site: Site) -> None:
    """L-BF-10: `frame_bytes` was raised; the same version is known, another is refused."""
    came_whole(site)

    again = backfilled(site)
    changed = backfilled(site, replace(ITEM, version="9:2"))

    assert (again.status, again.tally.written, again.tally.chunk_known) == ("done", 0, 3)
    assert [each.kind for each in changed.tally.failures] == ["item_changed"]
    assert "was written whole and comes in chunks now" in changed.tally.failures[0].text
    assert site.standing.strand_states("plain") == {}


def test_a_mark_of_the_other_way_holds_for_its_item_alone(site: Site) -> None:
    """L-BF-10: others come in, by any way."""
    came_whole(site, replace(ITEM, id="other.parquet"))

    assert backfilled(site).tally.written == 3
    assert [row["n"] for _, row in spooled_rows(site, "plain", "a")] == [1, 1, 2]
