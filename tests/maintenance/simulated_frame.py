"""A backfill through frames in the simulated world: a provider of items that grow and overlap with what
producers and another provider bring, and the lookup that leaves out what is known, in plain Python."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from strandline.base.ranges import Range
from strandline.errors import UnavailableError
from strandline.lake.jobs.lookup import narrowed, spooled_batches
from strandline.lake.jobs.lookup_frame import LookupCounts, Unknown
from strandline.lake.ports.lookup import SpoolAnswer, SpooledRun
from strandline.rows.dataset import Dataset
from strandline.sources.provider import Chunk, Item, Window
from strandline.state.context import Site
from strandline.state.landing import FixedInput
from tests.maintenance.history import Frame
from tests.simulation import DATASET, SOURCES, World

FRAMES: Final = "frames"  # the provider, and what its rows say they are by
Key = tuple[str, str]  # of a row: its source and its key


@dataclass
class Frames:
    """The rows of every third request, some requests an item, so that the last one grows; some rows twice;
    and an item that nobody else has."""

    world: World

    def items(self, window: Window) -> Iterator[Item]:
        yield Item("olden", DATASET, version="1", is_frame=True)
        yield from (Item(f"{first}", DATASET, is_frame=True) for first in range(0, len(self._names()), 3))

    def _names(self) -> list[str]:
        return [each.id for each in self.world.requests.values() if int(each.id[1:]) % 3 == 0]

    def rows(self, item: Item) -> Iterator[Chunk]:
        raise AssertionError("all items are frames")

    def frame(self, item: Item, spark: Any) -> Any:
        if item.id == "olden":
            rows = OLDEN
        else:
            names = self._names()[int(item.id) :][:3]
            given = [row for name in names for row in self.world.requests[name].rows]
            rows = [_row(row["key"], row["source"]) for row in (*given, *given[:2])]
        return Frame(("key", "source", "by"), lambda: rows)


def _row(key: str, source: str) -> dict[str, Any]:
    return {"key": key, "source": source, "by": FRAMES}


OLDEN: Final = [_row(f"olden/{n}", SOURCES[n % 3]) for n in range(10)]


@dataclass
class SimFrameLookup:
    """See FrameLookup. The table is as it is when it is asked; segments are read when rows are computed."""

    world: World
    site: Site
    asked: Callable[[str], None]  # it may fail

    def version(self, dataset: Dataset, df: Frame) -> str:
        self.asked("frame version")
        rows = sorted(f"{row}" for row in df.rows())
        return f"{len(rows)}:{sha256(''.join(rows).encode()).hexdigest()}"

    def unknown_rows(
        self,
        dataset: Dataset,
        df: Frame,
        source: str | None,
        runs: Sequence[SpooledRun],
        *,
        table_rows: int,
        by_columns: bool = False,
    ) -> Unknown:
        self.asked("frame table")
        table = committed_keys(self.world) if table_rows else set()
        seen: list[LookupCounts] = []

        def computed() -> list[dict[str, Any]]:
            self.world.effect("frame computed")
            spool, _ = spooled_keys(self.site, dataset, runs)
            rows = df.rows()
            new = [row for row in rows if _key(row) not in table]
            left = [row for row in new if _key(row) not in spool]
            once = list({_key(row): row for row in left}.values())
            seen[:] = [
                LookupCounts(len(rows), len(rows) - len(new), len(new) - len(left), len(left) - len(once))
            ]
            return once

        return Unknown(Frame(df.columns, computed), lambda _: seen[0], is_sure=True)  # type: ignore[arg-type]

    def faults(self, dataset: Dataset, runs: Sequence[SpooledRun]) -> SpoolAnswer:
        self.asked("frame faults")
        return SpoolAnswer(frozenset(), spooled_keys(self.site, dataset, runs)[1], {})

    def meets(
        self,
        dataset: Dataset,
        fixed: FixedInput,
        runs: Sequence[SpooledRun],
        within: Mapping[str, Sequence[Range]],
    ) -> bool:
        self.asked("frame meets")
        given = self.world.table.inputs.get(fixed.table)
        if given is None:
            raise UnavailableError("the scratch table is gone", hint="later")
        known = spooled_keys(self.site, dataset, runs)[0] | committed_keys(self.world, within)
        return any(_key(row) in known for row in given)


def spooled_keys(site: Site, dataset: Dataset, runs: Sequence[SpooledRun]) -> tuple[set[Key], dict[str, str]]:
    """What segments have, and why some of them cannot be read."""
    known: set[Key] = set()
    faults: dict[str, str] = {}
    ordered = sorted(runs, key=lambda each: (each.segment.cid, each.first_row))
    for batch in spooled_batches(site.content, ordered, narrowed(dataset)):
        for row in batch.to_pylist():
            if row["_sl_fault"] is not None:
                faults[row["_sl_segment"]] = row["_sl_fault"]
            else:
                known.add(_key(row))
    return known, faults


def committed_keys(world: World, within: Mapping[str, Sequence[Range]] | None = None) -> set[Key]:
    """What the table has, all of it or at these seqs."""
    return {
        (row.source, row.key)
        for row in world.table.rows
        if within is None or any(row.seq in each for each in within.get(row.source, ()))
    }


def _key(row: Mapping[str, Any]) -> Key:
    return row["source"], row["key"]
