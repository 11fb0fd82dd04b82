"""A node that runs for a long time while its processes are killed: rows come in over HTTP, are flushed,
delivered to a folder and to another node, pruned, compacted and folded, all by `strandline up`.

At the end each acknowledged row is at both destinations once, the daemon has compacted and pruned by itself,
and what the node keeps has stopped growing.

    python -m tests.soak.soak --minutes 30 --out docs/soak
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import pyarrow.parquet as pq
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from tests.soak.show import Sample, publish
from tests.spark_sessions import free_port

DATASET: Final = "logs"
PRODUCERS: Final = 2
SAMPLE_S: Final = 5
KEPT_ROWS: Final = 20_000
STARTS_S: Final = 120
GROWTH: Final = {"bytes": 1.15, "files": 1.15, "store_bytes": 1.3}  # a third of the run, over the one before
_EDGE: Final = """\
version = 1
[node]
name = "edge"
[spool]
max_age_s = 5
[store]
fold_after_days = 0.001
[content]
grace_h = 0.02
[retention]
interval_min = 0.5
min_residence_h = 0
datasets = {{ logs = {{ days = 0, max_rows = {kept} }} }}
[compaction]
interval_min = 0.5
file_count = 8
max_snapshots = 20
max_snapshot_age_h = 0.02
[datasets.logs]
columns = {{ key = "string", n = "bigint", message = "string" }}
[sinks.archive]
type = "blob"
destination = "local"
dir = "{archive}"
[sinks.centre]
type = "forward"
url = "{centre}"
token = "file:token"
[spark.conf]
"spark.driver.memory" = "1g"
"""
_CENTRE: Final = """\
version = 1
[node]
name = "centre"
[server]
tokens = ["file:token"]
[spool]
max_bytes = "8GiB"
[datasets.logs]
columns = { key = "string", n = "bigint", message = "string" }
"""
_TOKEN: Final = "a token of this run alone"


@dataclass(slots=True)
class Soaked:
    """What a run came to."""

    seed: int
    minutes: float
    rows: int = 0
    batches: int = 0
    retries: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    killed_at: list[float] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


class Process:
    """One that is killed and started again on the same port."""

    def __init__(self, name: str, command: Sequence[str], home: Path) -> None:
        self.name, self._command, self._home = name, command, home
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        words = [*self._command, "--listen", f"127.0.0.1:{self.port}", "--home", str(self._home)]
        with (self._home / "said").open("ab") as said:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "strandline", *words], stdout=said, stderr=said
            )

    def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait(STARTS_S)

    def has_ended(self) -> int | None:
        assert self._process is not None
        return self._process.poll()


class Producer(threading.Thread):
    """Posts batches, each until it is acknowledged; a key makes the repeats one."""

    def __init__(self, name: str, url: str, seed: int) -> None:
        super().__init__(daemon=True)
        self.source, self._url, self._chance = name, url, random.Random(seed)
        self.rows = self.batches = self.retries = 0
        self.has_stopped = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.has_stopped.is_set():
                rows = [self._row(self.rows + i) for i in range(self._chance.randrange(20, 200))]
                self._post(rows)
                self.rows += len(rows)
                self.batches += 1
                self.has_stopped.wait(self._chance.uniform(0.2, 1.0))
        except BaseException as error:  # noqa: BLE001  # told by who started this thread
            self.error = error

    def _row(self, n: int) -> dict[str, Any]:
        return {"key": f"{self.source}-{n}", "n": n, "message": f"{self._chance.getrandbits(400):0100x}"}

    def _post(self, rows: list[dict[str, Any]]) -> None:
        body = json.dumps(rows).encode()
        heads = {"Authorization": f"Bearer {_TOKEN}", "Content-Type": "application/json"}
        heads["Idempotency-Key"] = f"{self.source}-{self.batches}"
        while True:
            asked = urllib.request.Request(
                f"{self._url}/v1/append/{DATASET}?source={self.source}", body, heads
            )
            try:
                with urllib.request.urlopen(asked, timeout=30):
                    return
            except urllib.error.HTTPError as error:
                if error.code not in (429, 503):
                    raise
            except (OSError, HTTPException):
                pass  # killed under us: whether it was taken is not known
            self.retries += 1
            time.sleep(0.2)


def soak(folder: Path, minutes: float, seed: int) -> Soaked:
    """Run for so long; `faults` says what is wrong at the end."""
    result, chance = Soaked(seed, minutes), random.Random(seed)
    edge, centre = _homes(folder)
    for process in (centre, edge):
        process.start()
    producers = [Producer(f"p{number}", edge.url, seed + number) for number in range(PRODUCERS)]
    for producer in producers:
        producer.start()
    try:
        with _bar(minutes) as show:
            _live(folder / "edge", result, chance, (edge, centre), producers, show)
    finally:
        for producer in producers:
            producer.has_stopped.set()
    for producer in producers:
        producer.join(STARTS_S)
        if producer.is_alive() or producer.error:
            result.faults.append(f"{producer.name} has not ended well: {producer.error!r}")
    result.rows, result.batches, result.retries = (
        sum(getattr(each, name) for each in producers) for name in ("rows", "batches", "retries")
    )
    edge.end(signal.SIGTERM)
    try:
        _, stood = _run(folder / "edge", "status", "--json")
        result.faults += undone(stood[0])  # before commands do what the daemon did not
        _deliver_the_rest(folder, result)
    finally:
        centre.end(signal.SIGTERM)
    _compare(folder, result, {f"{each.source}-{n}" for each in producers for n in range(each.rows)})
    result.faults += growth(result.samples)
    return result


def _homes(folder: Path) -> tuple[Process, Process]:
    processes = {}
    for name, command in (("centre", ("server", "run")), ("edge", ("up",))):
        home = folder / name
        home.mkdir()
        (home / "token").write_text(_TOKEN)
        processes[name] = Process(name, command, home)
    centre = processes["centre"].url
    settings = _EDGE.format(kept=KEPT_ROWS, archive=folder / "archive", centre=centre)
    (folder / "edge/strandline.toml").write_text(f'{settings}[server]\ntokens = ["file:token"]\n')
    (folder / "centre/strandline.toml").write_text(_CENTRE)
    return processes["edge"], processes["centre"]


def _live(
    home: Path,
    result: Soaked,
    chance: random.Random,
    processes: Sequence[Process],
    producers: Sequence[Producer],
    show: Any,
) -> None:
    began = time.monotonic()
    due = {process.name: began + _gap(process, chance) for process in processes}
    while (passed := time.monotonic() - began) < result.minutes * 60:
        for process in processes:
            if (code := process.has_ended()) is not None:
                result.faults.append(f"{process.name} ended by itself with {code}")
                process.start()
            if time.monotonic() >= due[process.name]:
                process.end()
                result.kills[process.name] += 1
                result.killed_at.append(passed)
                process.start()
                due[process.name] = time.monotonic() + _gap(process, chance)
        result.samples.append(sampled(home, passed, sum(each.rows for each in producers)))
        show(result.samples[-1], result.kills.total())
        time.sleep(SAMPLE_S)


def _gap(process: Process, chance: random.Random) -> float:
    """Seconds until the next kill: one that starts Spark gets the time to do something with it."""
    return chance.uniform(60, 180) if process.name == "edge" else chance.uniform(20, 90)


def sampled(home: Path, at: float, rows: int) -> Sample:
    """What the node takes on disk now; files may go while we look."""
    sizes: Counter[str] = Counter()
    files = 0
    for path in home.rglob("*"):
        try:
            if not path.is_file():
                continue
            size = path.stat().st_size
        except FileNotFoundError:
            continue
        inside = path.relative_to(home).parts[0]
        if inside not in ("said", "logs"):  # of this run, not of the node
            files += 1
            sizes["store" if inside.startswith("strandline.db") else "rest"] += size
    return Sample(at, rows, sizes.total(), files, sizes["store"])


# At the end


def _deliver_the_rest(folder: Path, result: Soaked) -> None:
    for _ in range(5):
        code, said = _run(folder / "edge", "sync", "--json")
        if code == 0 and all(each.get("status") == "idle" for each in said):
            break
    else:
        result.faults.append(f"the sinks are not done: {said}")
    _run(folder / "edge", "retention", "run")  # the last run may have been cut short
    code, strands = _run(folder / "edge", "prove", "--json")
    wrong = [each for each in strands if each["status"] != "ok"]
    if code or wrong or len(strands) != PRODUCERS:
        result.faults.append(f"prove ends with {code}: {wrong or strands}")
    code, counted = _run(folder / "edge", "sql", f"select count(*) as rows from {DATASET}", "--json")
    if code or not counted[0]["row"]["rows"] <= KEPT_ROWS:
        result.faults.append(f"the node keeps {counted}, not {KEPT_ROWS} rows at most")


def _compare(folder: Path, result: Soaked, wanted: set[str]) -> None:
    _run(folder / "centre", "flush", DATASET)
    files = [pq.ParquetFile(path).read(["key"]) for path in sorted((folder / "archive").rglob("*.parquet"))]
    _hold_against(result, "the folder", wanted, [key for table in files for key in table["key"].to_pylist()])
    code, rows = _run(folder / "centre", "sql", f"select key from {DATASET}", "--json")
    _hold_against(result, "the other node", wanted, [each["row"]["key"] for each in rows if "row" in each])
    if code:
        result.faults.append(f"the other node could not be asked: {code}")


def _hold_against(result: Soaked, where: str, wanted: set[str], found: Sequence[str]) -> None:
    counts = Counter(found)
    doubled = [key for key, count in counts.items() if count > 1]
    missing, strange = wanted - counts.keys(), counts.keys() - wanted
    for what, keys in (("doubled", doubled), ("missing", missing), ("strange", strange)):
        if keys:
            result.faults.append(f"{where}: {len(keys):,} rows {what}, such as {sorted(keys)[:3]}")


def undone(status: Mapping[str, Any]) -> list[str]:
    """What the daemon should have done by itself, and by the status of its node has not."""
    (found,) = (each for each in status["datasets"] if each["dataset"] == DATASET)
    did = {"compacted": found["compaction"]["compactions"], "pruned": found["retention"]["rows"]}
    return [f"the daemon has not {name} anything by itself" for name, count in did.items() if not count]


def growth(samples: Sequence[Sample]) -> list[str]:
    """What the node takes in the last third of a run is on average what it took in the one before, but for
    noise; a series that grows evenly from nothing takes 1.67 times as much. The store may grow a little: it
    remembers each request for a day."""
    third = len(samples) // 3
    middle, last = samples[third : 2 * third], samples[-third:]
    faults = []
    for name, most in GROWTH.items():
        was, became = (fmean(getattr(each, name) for each in some) for some in (middle, last))
        if became > most * was:
            faults.append(f"{name} grew from {was:,.0f} to {became:,.0f}")
    return faults


def _run(home: Path, *words: str) -> tuple[int, list[Any]]:
    command = [sys.executable, "-m", "strandline", *words, "--home", str(home)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return done.returncode, lines


# A person looks on


@contextmanager
def _bar(minutes: float) -> Iterator[Any]:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("soak", total=minutes * 60)

        def show(sample: Sample, kills: int) -> None:
            text = f"{sample.rows:,} rows in, {sample.bytes / 1e6:,.0f} MB on disk, {kills} kills"
            progress.update(task, completed=sample.at, description=text)

        yield show


def main() -> None:
    parser = argparse.ArgumentParser(description="Run a node for long, and kill it meanwhile.")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument(
        "--out", type=Path, help="write results.json, soak.svg and README.md into this folder"
    )
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="slsoak-") as folder:
        result = soak(Path(folder), asked.minutes, asked.seed)
    print(
        f"seed {result.seed}: {result.rows:,} rows, {result.kills.total()} kills, {len(result.faults)} faults"
    )
    for fault in result.faults:
        print(fault)
    if asked.out is not None and not result.faults:
        publish(result, asked.out)
    raise SystemExit(1 if result.faults else 0)


if __name__ == "__main__":
    main()
