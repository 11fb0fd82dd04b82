"""How many rows a second go to another node, against a bare loop that posts the same bodies to it?"""

import json
import subprocess
from contextlib import closing
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
from strandline.node import Node
from strandline.unit import Unit

QUESTION = "How fast is a forward?"
UNITS: Final = {1_000: 200, 100: 500}  # rows of a request, requests of a round
BARE: Final = "a bare loop"
PEER: Final = "OpenTelemetry Collector"
# A program that is called `collector FOLDER FILE BATCH`: it has the rows of a file of JSON lines sent by a
# Collector with a persistent queue and fsync on, BATCH of them a request, and prints {"rows": …, "s": …} when
# the last is acknowledged. FOLDER, on the disk that is measured, is its own.
COLLECTOR: Final = Path(__file__).parent.parent / ".venv-peers" / "bin" / "collector"
_NOTE: Final = """\
One source, one request after another, to a receiver that is a process of its own and syncs each request to
the disk before it answers. The bare loop has its bodies, digests and headers made before the clock runs; it
reads no table, keeps no record, and after a crash sends everything twice or something not at all. Ours reads
the rows from their table in order, by Spark, and records intent and outcome. Aim: 0.60x of the bare loop at
least, and as much as a Collector with a persistent queue and fsync on."""


def ask(bench: Bench) -> None:
    node = bench.node()
    if node is None:
        return
    with receiving(bench.folder / "forward-receiver") as to:
        for size, units in UNITS.items():
            ask_of(bench, node, to, size, bench.scaled(units))


def ask_of(bench: Bench, node: Node, to: Receiver, size: int, units: int) -> None:
    dataset = sink = f"forward_{size}"
    rows = size * units
    land(node, dataset, rows)
    ready = made_ready(node.site.known(dataset).dataset, rows, size)
    with with_sinks(node, _table(sink, to, size)) as sender:
        contenders: dict[str, Contender] = {
            "ours": _ours(sender, sink, rows),
            BARE: _bare(to, dataset, ready),
            **_collector(bench, rows, size),
        }
        against = [name for name in contenders if name != "ours"]
        title = f"{rows:,} rows, {size:,} a request"
        bench.run(Case(title, "rows/s", contenders, against, is_durable=True, note=_NOTE), at_most=5)


def _table(sink: str, to: Receiver, size: int) -> str:
    return f"""
[sinks.{sink}]
type = "forward"
url = "{to.url}"
token = "file:{to.token_file}"
include = ["{sink}"]
max_unit_rows = {size}
"""


def _ours(node: Node, sink: str, rows: int) -> Contender:
    def run() -> float:
        rewound(node, sink)
        return rows / timed(lambda: delivered(node, sink, rows))

    return run


def _bare(to: Receiver, dataset: str, ready: list[tuple[Unit, bytes]]) -> Contender:
    rows = sum(unit.rows for unit, _ in ready)

    def run() -> float:
        requests = addressed(ready, to)
        with closing(Line(to)) as line:
            return rows / timed(lambda: line.post_all(dataset, requests))

    return run


def _collector(bench: Bench, rows: int, size: int) -> dict[str, Contender]:
    """None, said aloud, where there is no such program."""
    if not COLLECTOR.exists():
        bench.skip(f"{PEER}, {size:,} a request", "it is not installed")
        return {}
    folder = bench.folder / f"collector-{size}"
    folder.mkdir()
    file = folder / "rows.jsonl"
    write_jsonl(file, rows)

    def run() -> float:
        command = [str(COLLECTOR), str(folder), str(file), str(size)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        found = json.loads(done.stdout)
        assert found["rows"] == rows, found
        return rows / float(found["s"])

    return {PEER: run}


if __name__ == "__main__":
    main({QUESTION: ask})
