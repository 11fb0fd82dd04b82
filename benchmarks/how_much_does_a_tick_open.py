"""How much does it cost to deliver 1,000 new rows, when much is old and when little is?"""

from pathlib import Path
from typing import Final

from benchmarks.bare_tables import SOURCE
from benchmarks.delivering import with_sinks
from benchmarks.frame import Bench, Case, Contender, Measure, main
from benchmarks.how_fast_is_a_flush import timed
from benchmarks.how_much_does_a_read_open import NEW, OLD, old_rows
from benchmarks.log_rows import arrow_rows
from strandline.delivery.result import SyncResult
from strandline.node.node import Node

QUESTION = "How much does a tick open?"
_NOTE: Final = f"""\
{NEW:,} rows are appended, off the clock, landed by a flush, and delivered as an object. Old rows came by one
load, and the sink is past them. Bytes are the sizes of the data files that the delivery opens, by Iceberg's
own counters."""


def ask(bench: Bench) -> None:
    node = bench.node()
    if node is None:
        return
    few, many = (bench.scaled(old) if old == OLD[-1] else old for old in OLD)
    for old in (few, many):
        node.load(_name(old), old_rows(node.spark, old), source=SOURCE)
    tables = "".join(_table(_name(old), bench.folder / _name(old)) for old in (few, many))
    with with_sinks(node, tables) as sender:
        ticks = {f"{old:,} old rows": Ticks(sender, _name(old), old) for old in (few, many)}
        against = [f"{few:,} old rows"]
        times: dict[str, Contender] = {name: each.seconds for name, each in ticks.items()}
        opened: dict[str, Contender] = {name: each.opened for name, each in ticks.items()}
        bench.run(Case(f"{NEW:,} new rows", "s", times, against, note=_NOTE))
        bench.run(Case(f"{NEW:,} new rows: what is opened", "", opened, against, note=_NOTE), is_once=True)


def _name(old: int) -> str:
    return f"tick_{old}"


def _table(dataset: str, folder: Path) -> str:
    return f"""
[sinks.{dataset}]
type = "blob"
destination = "local"
dir = "{folder}"
include = ["{dataset}"]
start = "now"
"""


class Ticks:
    """A sink that is past the old rows of its one dataset, and what it then delivers."""

    def __init__(self, node: Node, dataset: str, old: int) -> None:
        self._node, self._dataset, self._next = node, dataset, old
        assert node.deliveries.sync(dataset).status == "idle"

    def seconds(self) -> Measure:
        self._append()
        flush_s = timed(lambda: self._node.flush(self._dataset))
        return {"flush": flush_s, "delivery": timed(self._deliver)}

    def opened(self) -> Measure:
        self._append()
        self._node.flush(self._dataset)
        found = self._deliver().counters
        assert found.files_opened is not None, "Spark does not tell what a scan has read"
        assert found.bytes is not None
        return {"files": float(found.files_opened), "bytes": float(found.bytes)}

    def _append(self) -> None:
        self._node.append(self._dataset, arrow_rows(NEW, self._next), source=SOURCE)
        self._next += NEW

    def _deliver(self) -> SyncResult:
        result = self._node.deliveries.sync(self._dataset)
        assert (result.status, result.rows) == ("exported", NEW), result
        return result


if __name__ == "__main__":
    main({QUESTION: ask})
