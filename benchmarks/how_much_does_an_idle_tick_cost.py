"""How much does a run of a sink cost where nothing is new, and there are 1,000 sources?"""

from functools import partial
from pathlib import Path
from typing import Final

import strandline
from benchmarks.delivering import delivered, with_sinks
from benchmarks.frame import Bench, Case, Contender, main
from benchmarks.how_fast_is_a_flush import timed
from benchmarks.log_rows import rows as log_rows
from strandline.delivery.result import SyncResult
from strandline.node.node import Node

QUESTION = "How much does an idle tick cost?"
STRANDS: Final = 1_000
DATASET: Final = "idle"
_NOTE: Final = """\
Everything is delivered, and the sink is run again. *After a restart* the node is
opened too, and has to learn from its store what was delivered."""


def ask(bench: Bench) -> None:
    node = bench.node()
    if node is None:
        return
    strands = bench.scaled(STRANDS)
    given = [{**row, "source": f"web-{number}"} for number, row in enumerate(log_rows(strands))]
    node.append(DATASET, given)
    node.flush(DATASET)
    with with_sinks(node, _table(bench.folder / "idle")) as sender:
        delivered(sender, DATASET, strands)
        times: dict[str, Contender] = {
            "a tick": lambda: timed(lambda: _tick(sender)) * 1000,
            "the first tick after a restart": lambda: timed(partial(_first_tick, sender.config.home)) * 1000,
        }
        bench.run(Case(f"{strands:,} sources", "ms", times, note=_NOTE))
        sizes: dict[str, Contender] = {"a tick": lambda: float(_bytes_of_a_tick(sender))}
        title = f"{strands:,} sources: read from tables, sent, and written to the node's folder"
        bench.run(Case(title, "bytes", sizes, note=_NOTE), is_once=True)


def _table(folder: Path) -> str:
    return f"""
[sinks.{DATASET}]
type = "blob"
destination = "local"
dir = "{folder}"
include = ["{DATASET}"]
"""


def _tick(node: Node) -> SyncResult:
    result = node.sync(DATASET).runs[DATASET]
    assert isinstance(result, SyncResult), result
    assert (result.status, result.counters.jobs, result.control_writes) == ("idle", 0, 0), result
    return result


def _first_tick(home: Path) -> None:
    with strandline.open(home) as node:
        _tick(node)


def _bytes_of_a_tick(node: Node) -> int:
    before = _size(node.config.home)
    result = _tick(node)
    assert result.counters.bytes is not None
    return result.counters.bytes + result.bytes + _size(node.config.home) - before


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


if __name__ == "__main__":
    main({QUESTION: ask})
