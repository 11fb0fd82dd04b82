"""How many rows a second get from a file of JSON lines into an Iceberg table, beside others who do that?"""

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final

from benchmarks.bare_tables import COLUMNS, SOURCE
from benchmarks.frame import Bench, Case, Measure, main
from benchmarks.log_rows import write_jsonl
from benchmarks.processes import tree_cpu_s
from strandline.node.node import Node
from strandline.rows.row_files import read_rows

QUESTION = "How fast are rows end to end?"
ROWS: Final = 1_000_000
PEERS: Final = Path(__file__).parent.parent / ".venv-peers" / "bin" / "python"
_NOTE: Final = """\
Each reads one file and appends its rows to a table of its own; Java and Python are warm. They do not promise
the same. Ours has each chunk of 10,000 rows numbered and synced to the disk before it reads on, keeps the
SHA-256 of each row, and lands each row once whatever is killed. Structured Streaming reads the file with all
cores at once and lands it once by its checkpoint; it syncs nothing, so a power cut may take rows that it
called done. dlt gives each row an id (by Arrow it does not) and syncs nothing either; a load that was killed
is finished by its next run. Rows per CPU-second count the process and all that it started."""


def ask(bench: Bench) -> None:
    node = bench.node()
    if node is None:
        return
    rows = bench.scaled(ROWS) * (2 if bench.is_quick else 1)
    folder = bench.folder / "end-to-end"
    (folder / "input").mkdir(parents=True)
    file = folder / "input" / "logs.jsonl"
    write_jsonl(file, rows)
    contenders: dict[str, Callable[[], Measure]] = {
        "ours, append and flush": lambda: per_second(rows, lambda: append_and_flush(node, file)),
        "Spark Structured Streaming": streaming(node, file, rows),
    }
    with dlt_process(bench, folder / "dlt") as dlt:
        if dlt is not None:
            contenders["dlt"] = lambda: dlt("dicts", file, rows)
            contenders["dlt, by Arrow"] = lambda: dlt("arrow", file, rows)
        against = [name for name in contenders if not name.startswith("ours")]
        case = Case(f"A file of {rows:,} rows, {_size(file)}", "", contenders, against, note=_NOTE)
        bench.run(case, at_most=3)


def append_and_flush(node: Node, file: Path) -> None:
    for chunk in read_rows(file):
        node.append("end_to_end", chunk, source=SOURCE)
    node.flush("end_to_end")


def streaming(node: Node, file: Path, rows: int) -> Callable[[], Measure]:
    """The table is plain, as one would make it."""
    table, runs = "strandline.bare.streamed", count()
    node.spark.sql("CREATE NAMESPACE IF NOT EXISTS strandline.bare")
    node.spark.sql(f"CREATE TABLE {table} ({COLUMNS}) USING iceberg")

    def run() -> Measure:
        checkpoint = file.parent.parent / f"checkpoint-{next(runs)}"

        def stream() -> None:
            read = node.spark.readStream.schema(COLUMNS).json(str(file.parent))
            write = read.writeStream.format("iceberg").outputMode("append").trigger(availableNow=True)
            write.option("checkpointLocation", str(checkpoint)).toTable(table).awaitTermination()

        return per_second(rows, stream)

    return run


@contextmanager
def dlt_process(bench: Bench, folder: Path) -> Iterator[Callable[[str, Path, int], Measure] | None]:
    """Loads by dlt in a process of its own; None, said aloud, where it is not installed."""
    if not PEERS.exists():
        bench.skip("dlt", "it is not installed; `make bench` does that")
        yield None
        return
    folder.mkdir()
    command = [PEERS, Path(__file__).with_name("dlt_loader.py"), folder]
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, cwd=folder
        ) as child,
    ):
        assert child.stdin is not None
        assert child.stdout is not None
        asked, answers = child.stdin, child.stdout

        def answer() -> Any:
            line = answers.readline()
            if not line:
                raise RuntimeError(f"dlt failed: {(folder / 'log').read_text('utf-8')[-2000:]}")
            return json.loads(line)

        def load(kind: str, file: Path, rows: int) -> Measure:
            print(kind, file, file=asked, flush=True)
            found = answer()
            assert found["rows"] == rows, found
            return {"rows/s": rows / found["s"], "rows/CPU-s": rows / found["cpu_s"]}

        answer()
        yield load
        asked.close()


def per_second(rows: int, act: Callable[[], object]) -> Measure:
    began, used = time.perf_counter(), tree_cpu_s()
    act()
    return {"rows/s": rows / (time.perf_counter() - began), "rows/CPU-s": rows / (tree_cpu_s() - used)}


def _size(file: Path) -> str:
    return f"{file.stat().st_size / 1e6:,.0f} MB"


if __name__ == "__main__":
    main({QUESTION: ask})
