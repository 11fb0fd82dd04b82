"""How many rows a second go to another node, against a bare loop that posts the same bodies to it?"""

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from benchmarks.delivering import (
    Line,
    Receiver,
    addressed,
    delivered,
    land,
    made_ready,
    receiving,
    rewound,
    with_sinks,
)
from benchmarks.frame import Bench, Case, Contender, main
from benchmarks.how_fast_is_a_flush import timed
from benchmarks.log_rows import write_jsonl
from strandline.node.node import Node
from strandline.rows.unit import UnitHead

QUESTION = "How fast is a forward?"
UNITS: Final = {1_000: 500, 100: 1_000}  # rows of a request, requests of a round
BARE: Final = "a bare loop"
PEER: Final = "OpenTelemetry Collector"
PEERS: Final = {PEER: 1, f"{PEER}, 10 senders": 10}
# A program that is called `collector FOLDER FILE BATCH SENDERS`: it has the rows of a file of JSON lines sent
# by a Collector with a persistent queue and fsync on, BATCH of them a request, and prints {"rows": …, "s": …}
# when the last is acknowledged. FOLDER, on the disk that is measured, is its own. benchmarks/collector is it.
COLLECTOR: Final = Path(__file__).parent.parent / ".venv-peers" / "bin" / "collector"
_HOW: Final = """\
One source, one request after another, to a receiver that is a process of its own and syncs each request to
the disk before it answers. The bare loop has its bodies, digests and headers made before the clock runs; it
reads no table, keeps no record, and after a crash sends everything twice or something not at all. Ours reads
the rows from their table in order, by Spark, and records intent and outcome. The Collector, its version in
`benchmarks/collector/go.mod`, has the same rows as OTLP protobuf, made before the clock runs and fed to it by
HTTP. It syncs each request into its queue, takes it out and strikes it off; the clock runs from the first fed
to the last acknowledged. So it pays for the way in, which ours has behind it, and ours for reading a table.
With one sender it keeps the order, as ours does; ten are its default, fed by ten connections, and keep none.
After a crash it may send twice."""
_RECEIVER: Final = f"""{_HOW}
The sink of the Collector, a Go program, only appends a body to a file and syncs it; our receiver also parses,
checks, numbers and records what it is sent."""
_SINK: Final = f"""{_HOW}
All send to the same program, which only appends a body to a file and syncs it: the senders are compared."""


def ask(bench: Bench) -> None:
    node = bench.node()
    if node is None:
        return
    with receiving(bench.folder / "forward-receiver") as to, _sink(bench.folder, to) as like:
        for size, units in UNITS.items():
            ask_of(bench, node, to, like, size, bench.scaled(units))


def ask_of(bench: Bench, node: Node, to: Receiver, like: Receiver | None, size: int, units: int) -> None:
    """To a receiver of ours; and all to the sink of the peer, if that is there."""
    dataset = f"forward_{size}"
    rows = size * units
    title = f"{rows:,} rows, {size:,} a request"
    land(node, dataset, rows)
    ready = made_ready(node.site.known(dataset).dataset, rows, size)
    collectors = _collectors(bench, rows, size)
    tables = [_table(f"to_{index}", each, dataset, size) for index, each in enumerate((to, like)) if each]
    with with_sinks(node, "".join(tables)) as sender:
        contenders = {"ours": _ours(sender, "to_0", rows), BARE: _bare(to, dataset, ready), **collectors}
        _run(bench, title, contenders, _RECEIVER)
        if like is not None:
            contenders = {
                "ours": _ours(sender, "to_1", rows),
                BARE: _bare(like, dataset, ready),
                **collectors,
            }
            _run(bench, f"{title}, all to the same sink", contenders, _SINK)


def _run(bench: Bench, title: str, contenders: dict[str, Contender], note: str) -> None:
    against = [name for name in contenders if name != "ours"]
    bench.run(Case(title, "rows/s", contenders, against, is_durable=True, note=note), at_most=5)


@contextmanager
def _sink(folder: Path, like: Receiver) -> Iterator[Receiver | None]:
    """The sink of the peer, which takes whatever it is sent."""
    if not COLLECTOR.exists():
        yield None
        return
    said = folder / "sink-said"
    with (
        said.open("wb") as out,
        subprocess.Popen(
            [str(COLLECTOR), "sink", str(folder / "sink-kept")], stdin=subprocess.PIPE, stdout=out
        ) as process,
    ):
        assert process.stdin is not None
        while not (lines := said.read_text().splitlines()):
            assert process.poll() is None
            time.sleep(0.01)
        yield replace(like, url=lines[0])
        process.stdin.close()


def _table(sink: str, to: Receiver, dataset: str, size: int) -> str:
    return f"""
[sinks.{sink}]
type = "forward"
url = "{to.url}"
token = "file:{to.token_file}"
include = ["{dataset}"]
max_unit_rows = {size}
"""


def _ours(node: Node, sink: str, rows: int) -> Contender:
    def run() -> float:
        rewound(node, sink)
        return rows / timed(lambda: delivered(node, sink, rows))

    return run


def _bare(to: Receiver, dataset: str, ready: list[tuple[UnitHead, bytes]]) -> Contender:
    rows = sum(unit.rows for unit, _ in ready)

    def run() -> float:
        requests = addressed(ready, to)
        with closing(Line(to)) as line:
            return rows / timed(lambda: line.post_all(dataset, requests))

    return run


def _collectors(bench: Bench, rows: int, size: int) -> dict[str, Contender]:
    """None, said aloud, where there is no such program."""
    if not COLLECTOR.exists():
        bench.skip(f"{PEER}, {size:,} a request", "it is not installed")
        return {}
    folder = bench.folder / f"collector-{size}"
    folder.mkdir()
    file = folder / "rows.jsonl"
    write_jsonl(file, rows)
    return {
        name: _collector([str(COLLECTOR), str(folder), str(file), str(size), str(senders)], rows)
        for name, senders in PEERS.items()
    }


def _collector(command: list[str], rows: int) -> Contender:
    def run() -> float:
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        found = json.loads(done.stdout)
        assert found["rows"] == rows, found
        return rows / float(found["s"])

    return run


if __name__ == "__main__":
    main({QUESTION: ask})
