"""A process that is there to be killed or stopped: a node, which does what it is told and says what it did.

    python pipeline_child.py HOME [warm]    then, a line of JSON each on stdin:

    {"failpoint": "land.staged:2", "ahead_s": 100}    first of all; `warm` starts Spark before that
    ["append", {arguments}]                           an act; see ACTS

What it says is a line of JSON each too: {"warm": …}, {"ready": …}, what an act did, {"error": …} where it
raised one of our errors, and {"done": …} at the end of each act. A line is written as soon as it is true, so
that whoever kills the process knows what was acknowledged.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strandline.base.clock import SystemClock
from strandline.errors import StrandlineError

if TYPE_CHECKING:
    from strandline.node.node import Node

POLL_S = 0.05


class Ahead(SystemClock):
    """The machine's clock, put forward: for it the leases of those who died have ended."""

    def __init__(self, ahead_s: float) -> None:
        self._ahead_us = int(ahead_s * 1_000_000)

    def now_us(self) -> int:
        return super().now_us() + self._ahead_us


def append(node: "Node", *, dataset: str, request: str, rows: list[dict[str, Any]]) -> Iterator[Any]:
    receipt = node.append(dataset, rows, request_id=request)
    yield {"request": request, "ranges": pairs(receipt.ranges), "is_repeat": receipt.is_repeat}


def load(node: "Node", *, dataset: str, request: str, rows: list[dict[str, Any]]) -> Iterator[Any]:
    result = node.load(dataset, frame(node, rows), request_id=request)
    yield {"request": request, "ranges": pairs(result.ranges), "is_repeat": result.is_repeat}


def flush(node: "Node", *, dataset: str) -> Iterator[Any]:
    report = node.flush(dataset)
    yield {
        "flushes": [each.number for each in report.flushes],
        "landed": list(report.landed_loads),
        "released": list(report.released_loads),
    }


def sync(node: "Node", *, name: str) -> Iterator[Any]:
    result = node.deliveries.sync(name)
    yield {"sink": name, "status": result.status, "rows": result.rows}


# Verbs that keep a node small, and those that fill it up


def prune(node: "Node") -> Iterator[Any]:
    for dataset, result in node.keeping.prune().items():
        done = done_of(result)
        yield {"dataset": dataset, "rows": done.rows, "is_resumed": done.is_resumed}


def maintain(node: "Node", *, dataset: str, compact: bool, expire: bool) -> Iterator[Any]:
    from strandline.maintenance.table_upkeep import UpkeepAsked

    done = done_of(node.keeping.maintain(dataset, UpkeepAsked(compact=compact, expire=expire))[dataset])
    yield {"runs": len(done.walk.runs), "due": done.walk.due, "expired": done.expired}


def purge(node: "Node", *, dataset: str, where: str) -> Iterator[Any]:
    done = node.keeping.purge(dataset, where=where, flush=lambda: node.flush(dataset))
    yield {"rows": done.rows, "is_whole": done.is_whole, "is_resumed": done.is_resumed}


def tidy(node: "Node") -> Iterator[Any]:
    done = node.keeping.tidy()
    for error in done.errors:
        raise error
    yield {"segments": done.segments.segments, "strays": done.strays.blobs, "events": done.folded.events}


def backfill(node: "Node", *, name: str) -> Iterator[Any]:
    result = node.backfills.run(name)
    yield {"status": result.status, "written": result.tally.written, "doubts": result.tally.doubt_texts}


def done_of(result: Any) -> Any:
    """What a verb over datasets did to one of them, or its error."""
    if isinstance(result, StrandlineError):
        raise result
    return result


# Many at once


def append_many(
    node: "Node", *, dataset: str, source: str, writer: str, appends: int, rows: int
) -> Iterator[Any]:
    """Row `i` of append `n` has the key `<writer>-<n>-<i>`; the lower end of what each append got comes
    back."""
    los = []
    for n in range(appends):
        batch = [{"key": f"{writer}-{n}-{i}", "n": n} for i in range(rows)]
        los.append(node.append(dataset, batch, source=source).ranges[source].lo)
    yield {"los": los}


def flush_until(node: "Node", *, dataset: str, source: str, seq: int) -> Iterator[Any]:
    """Flush again and again until that seq is visible."""
    from strandline.rows.dataset import Strand

    flushes = 0
    while node.site.standing.strand_state(Strand(dataset, source)).visible_through < seq:
        flushes += len(node.flush(dataset).flushes)
        node.site.clock.sleep(POLL_S)
    yield {"flushes": flushes}


def load_some(node: "Node", *, dataset: str, source: str, loads: int, rows: int) -> Iterator[Any]:
    """Row `i` of load `n` has the key `load-<n>-<i>`; the range of each load comes back."""
    ranges = []
    for n in range(loads):
        batch = [{"key": f"load-{n}-{i}", "source": source, "n": n} for i in range(rows)]
        ranges.append(pairs(node.load(dataset, frame(node, batch)).ranges)[source])
    yield {"ranges": ranges}


def read_until(node: "Node", *, dataset: str, source: str, rows: int, flushes: bool) -> Iterator[Any]:
    """Follow a strand from token to token until so many rows were read; flush in between, or leave that to
    another. Their keys come back."""
    keys: list[str] = []
    token = None
    while len(keys) < rows:
        if flushes:
            node.flush(dataset)
        scan = node.scan(dataset, source=source, since=token, refresh="never")
        for page in scan:
            keys += [row["key"] for row in page.rows]
        if scan.end == token:
            node.site.clock.sleep(POLL_S)
        token = scan.end
    yield {"keys": keys}


ACTS: dict[str, Callable[..., Iterator[Any]]] = {
    "append": append,
    "load": load,
    "flush": flush,
    "sync": sync,
    "prune": prune,
    "maintain": maintain,
    "purge": purge,
    "tidy": tidy,
    "backfill": backfill,
    "append_many": append_many,
    "flush_until": flush_until,
    "load_some": load_some,
    "read_until": read_until,
}


def frame(node: "Node", rows: list[dict[str, Any]]) -> Any:
    """The rows as a DataFrame, of columns that all or some of them have."""
    import pyarrow as pa

    names = sorted({name for row in rows for name in row})
    return node.spark.createDataFrame(pa.table({name: [row.get(name) for row in rows] for name in names}))


def pairs(ranges: Any) -> dict[str, list[int]]:
    return {source: [each.lo, each.hi] for source, each in ranges.items()}


def say(what: Any) -> None:
    print(json.dumps(what), flush=True)


def warm_up(home: Path) -> None:
    """Start Spark, which nothing after this will do again; and load nothing that reads the failpoint."""
    from strandline.config.config import FILE_NAME, load_config
    from strandline.lake.spark.session import start_spark

    config = load_config(home / FILE_NAME)
    start_spark(config.lake_settings(), config.spark_settings())


def main() -> None:
    home = Path(sys.argv[1])
    if sys.argv[2:] == ["warm"]:
        warm_up(home)
        say({"warm": os.getpid()})
    assert "strandline.base.failpoint" not in sys.modules, "it is read too early"
    told = json.loads(sys.stdin.readline())
    os.environ["STRANDLINE_FAILPOINT"] = told["failpoint"]

    from strandline.node.node import open_node

    with open_node(home, clock=Ahead(told["ahead_s"])) as node:
        say({"ready": os.getpid()})
        for line in sys.stdin:
            act, arguments = json.loads(line)
            try:
                for did in ACTS[act](node, **arguments):
                    say(did)
            except StrandlineError as error:
                say({"error": type(error).__name__, "message": str(error)})
            say({"done": act})


if __name__ == "__main__":
    main()
