"""The whole way of a row, in about a minute: appended, landed, queried, archived, forwarded; and two kills.

    three sources ──▶ edge ──▶ its table ──┬──▶ a folder of Parquet files
                                           └──▶ centre, a second node, over HTTP

Run it with `make demo`. It leaves its folder behind, to look at.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

import strandline
from strandline.node import Node

SOURCES, BATCHES, BATCH = ("web-1", "web-2", "worker-1"), 40, 250
ROWS = len(SOURCES) * BATCHES * BATCH
PATHS = ("/", "/cart", "/checkout", "/search", "/account")
EDGE = """\
version = 1

[node]
name = "edge"

[sinks.archive]           # rows become Parquet files
type = "blob"
destination = "local"
dir = "../archive"

[sinks.centre]            # and go on to another node
type = "forward"
url = "{url}"
token = "env:CENTRE_TOKEN"
inline_wait_s = 1         # while it is down we do not want to wait
"""
CENTRE = """\
version = 1

[node]
name = "centre"
strict_datasets = false
"""
console = Console(highlight=False)


# What runs in processes of their own


def produce(home: str) -> None:
    """Append log rows of three sources; each batch says so once it is acknowledged. Begun again, it begins at
    the first batch, under the same request ids: what is there already is not stored twice."""
    with strandline.open(home) as node:
        for number in range(BATCHES):
            for source in SOURCES:
                draw = random.Random(f"{source} {number}")
                rows = [
                    {
                        "id": f"{source}-{number * BATCH + place}",
                        "level": draw.choice(("debug", "info", "info", "info", "warn", "error")),
                        "path": draw.choice(PATHS),
                        "ms": round(draw.expovariate(1 / 40), 3),
                    }
                    for place in range(BATCH)
                ]
                receipt = node.append("requests", rows, source=source, request_id=f"{source}-{number}")
                print(json.dumps([receipt.rows, receipt.is_repeat]), flush=True)
            time.sleep(0.05)


def started(*words: str, **environment: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )


def receiver(home: Path, listen: str) -> "tuple[subprocess.Popen[str], str]":
    process = started("-m", "strandline", "server", "run", "--home", str(home), "--listen", listen)
    assert process.stdout is not None
    return process, process.stdout.readline().rsplit(" ", 1)[-1].strip()


# The story


class Demo:
    def __init__(self, folder: Path) -> None:
        self.edge, self.centre, self.archive = folder / "edge", folder / "centre", folder / "archive"
        self.step = 0
        self.processes: list[subprocess.Popen[str]] = []

    def say(self, text: str) -> None:
        self.step += 1
        console.print(f"[bold]{self.step}.[/] {text}", soft_wrap=True)

    def run(self) -> bool:
        for home in (self.edge, self.centre):
            home.mkdir()
        (self.centre / "strandline.toml").write_text(CENTRE, "utf-8")
        made = ["server", "token", "new", "edge", "--home", str(self.centre)]
        token = subprocess.run(
            [sys.executable, "-m", "strandline", *made], check=True, capture_output=True, text=True
        ).stdout.strip()
        os.environ["CENTRE_TOKEN"] = token
        server, url = receiver(self.centre, "127.0.0.1:0")
        self.processes = [server]
        (self.edge / "strandline.toml").write_text(EDGE.format(url=url), "utf-8")
        self.say(f"Two nodes: [cyan]{self.edge}[/], and [cyan]{self.centre}[/], which listens at {url}")
        try:
            with strandline.open(self.edge) as node:
                return self._story(node, server, url)
        finally:
            for process in self.processes:
                process.kill()
                process.wait()

    def _story(self, node: Node, server: "subprocess.Popen[str]", url: str) -> bool:
        self.say(f"A process appends {ROWS:,} log rows of three sources, each batch durable and numbered.")
        acknowledged = self._appended(until=ROWS * 2 // 5)
        self.say(f"[red]SIGKILL[/] in the middle: {acknowledged:,} rows were acknowledged by then.")
        self.say("Spark starts once; what is there lands in an Iceberg table …")
        with console.status("starting Spark"):
            node.spark.range(1).count()
        landed = node.flush("requests").rows
        self.say(f"{landed:,} rows landed. First delivery, to the folder and to the other node:")
        self._delivered(node)
        server.kill()
        server.wait()
        self.say("[red]SIGKILL[/] for the other node too. The producer begins anew, from its first batch:")
        repeats = self._appended()
        node.flush("requests")
        down = node.sync("centre").runs["centre"]
        assert not isinstance(down, Exception), down
        self.say(
            f"{repeats:,} of its rows were there already. The other node is down: {down.status}; rows wait."
        )
        again, _ = receiver(self.centre, url.removeprefix("http://"))
        self.processes = [again]
        self.say("It is back. The last delivery:")
        self._delivered(node)
        self._delivered(node)
        return self._told(node)

    def _appended(self, *, until: int | None = None) -> int:
        """Rows acknowledged when it was killed; or, where it ran to its end, those that were repeats."""
        process = started(__file__, "--produce", str(self.edge))
        assert process.stdout is not None
        rows = repeats = 0
        columns = (TextColumn("   appending"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, console=console, transient=True) as progress:
            bar = progress.add_task("rows", total=ROWS)
            for line in process.stdout:
                count, is_repeat = json.loads(line)
                rows, repeats = rows + count, repeats + count * is_repeat
                progress.update(bar, completed=rows)
                if until is not None and rows >= until and process.poll() is None:
                    os.kill(process.pid, signal.SIGKILL)
            process.wait()
        return repeats if until is None else rows

    def _delivered(self, node: Node) -> None:
        report = node.sync()
        for name, result in report.runs.items():
            assert not isinstance(result, Exception), result
            console.print(f"   {name}: {result.rows:,} rows, {result.bytes:,} bytes, {result.status}")

    # The end

    def _told(self, node: Node) -> bool:
        read = sum(map(_bytes, node.sync().runs.values()))
        here = [row[0] for row in node.sql("SELECT id FROM requests").collect()]
        files = ds.dataset(self.archive, format="parquet", partitioning=None).to_table(["id"])
        archived = files.column("id").to_pylist()
        with strandline.open(self.centre) as centre:
            centre.flush("requests")
            there = [row[0] for row in centre.sql("SELECT id FROM requests").collect()]
        wanted = {f"{source}-{number}" for source in SOURCES for number in range(BATCHES * BATCH)}
        table = Table(title=f"{len(wanted):,} rows in")
        for head in ("", "rows", "duplicates", "missing"):
            table.add_column(head, justify="right" if head else "left")
        is_right = read == 0
        for name, found in (
            ("edge's table", here),
            ("archive (Parquet)", archived),
            ("centre's table", there),
        ):
            doubled, missing = len(found) - len(set(found)), len(wanted - set(found))
            is_right &= not doubled and not missing and set(found) == wanted
            table.add_row(name, f"{len(found):,}", str(doubled), str(missing))
        console.print(table)
        console.print(f"The last, idle delivery read {read} bytes of the table.")
        by_path = "SELECT path, count(*) AS rows, round(avg(ms), 1) AS ms FROM requests GROUP BY path"
        for row in node.sql(f"{by_path} ORDER BY ms DESC").collect():
            console.print(f"   {row['path']:10} {row['rows']:6,} rows  {row['ms']:6} ms on average")
        console.print(f"Look around:\n  export STRANDLINE_HOME={self.edge}", soft_wrap=True)
        for command in (
            "status",
            "prove archive",
            'sql "SELECT level, count(*) FROM requests GROUP BY level"',
        ):
            console.print(f"  .venv/bin/strandline {command}", soft_wrap=True)
        verdict = "[green]Nothing lost, nothing doubled.[/]" if is_right else "[red]This is a bug.[/]"
        console.print(verdict)
        return is_right


def _bytes(result: Any) -> int:
    """That an idle run has read of the table."""
    assert not isinstance(result, Exception), result
    assert result.counters.bytes is not None
    return int(result.counters.bytes)


def main() -> int:
    folder = Path(tempfile.mkdtemp(prefix="strandline-demo-"))
    return 0 if Demo(folder).run() else 1


if __name__ == "__main__":
    if "--produce" in sys.argv:
        produce(sys.argv[2])
    else:
        sys.exit(main())
