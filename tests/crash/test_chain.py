"""Three nodes in a row, edge to site to centre, each killed at random while rows come in: what ends up at the
centre is what was handed in at the edge, each row once (G-1, L-SRV-8, invariant 4)."""

import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from strandline.node.node import open_node
from strandline.rows.dataset import Strand
from tests.crash.pipeline_case import DATASET, SOURCES, Child, Nursery
from tests.sites import spooled_rows
from tests.spark_sessions import free_port

TOKEN: Final = "a token of the tests alone"
TRAFFIC_S: Final = 120
LEASE_S: Final = 100


class Receiving:
    """`strandline server run`, which is killed and started again on the same port."""

    def __init__(self, home: Path, port: int) -> None:
        self._home, self._port = home, port
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        listen = ("--listen", f"127.0.0.1:{self._port}")
        process = subprocess.Popen(
            [sys.executable, "-m", "strandline", "server", "run", *listen, "--home", str(self._home)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"listening on "), "the receiver does not start"
        return process

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(60)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def restart(self) -> None:
        self.kill()
        self._process = self._start()


class Working:
    """A process that flushes and delivers, which is killed and followed by another. The next one is ahead in
    time, so that the leases of the dead have ended."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._ahead_s = 0
        self.child = self._start()

    def _start(self) -> Child:
        self._is_busy = False
        self._ahead_s += LEASE_S
        return Child(self._home, is_warm=False).begin(ahead_s=self._ahead_s)

    def restart(self) -> None:
        self.kill()
        self.child = self._start()

    def kill(self) -> None:
        self.child.__exit__(None, None, None)

    def begin(self) -> None:
        """Flush and deliver, without waiting for it."""
        self._is_busy = True
        self.child.tell("flush", dataset=DATASET)
        self.child.tell("sync", name="onward")

    def end(self) -> list[Any]:
        """What came of it; nothing where it was killed meanwhile."""
        if not self._is_busy:
            return []
        self._is_busy = False
        return [*self.child.listen(), *self.child.listen()]

    def deliver(self) -> list[Any]:
        self.begin()
        return self.end()


@contextmanager
def chain(nursery: Nursery) -> Iterator[dict[str, Any]]:
    """Edge and site have a sink onward, site and centre receive."""
    homes = {name: nursery.home() for name in ("edge", "site", "centre")}
    ports = {name: free_port() for name in ("site", "centre")}
    for name, home in homes.items():
        (home / "token").write_text(TOKEN)
        onward = {"edge": "site", "site": "centre"}.get(name)
        with (home / "strandline.toml").open("a") as file:
            file.write(f'\n[node]\nname = "{name}"\n[server]\ntokens = ["file:token"]\n')
            file.write(f'[datasets.{DATASET}]\ncolumns = {{ key = "string", n = "bigint" }}\n')
            if onward:
                url = f"http://127.0.0.1:{ports[onward]}"
                file.write(f'[sinks.onward]\ntype = "forward"\nurl = "{url}"\ntoken = "file:token"\n')
                file.write("max_unit_rows = 7\ninline_wait_s = 2\n")
    with ExitStack() as running:
        parts: dict[str, Any] = {
            "site server": Receiving(homes["site"], ports["site"]),
            "centre server": Receiving(homes["centre"], ports["centre"]),
            "edge": Working(homes["edge"]),
            "site": Working(homes["site"]),
        }
        for part in parts.values():
            running.callback(part.kill)
        yield {**parts, "homes": homes}


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_three_nodes_killed_at_random_end_equal(nursery: Nursery) -> None:  # G-1, L-SRV-8, L-ACC-3
    seed = random.SystemRandom().randrange(10**6)
    chosen = random.Random(seed)
    print(f"the seed is {seed}")
    wanted: Counter[str] = Counter()
    kills: Counter[str] = Counter()
    with chain(nursery) as parts:
        until = time.monotonic() + TRAFFIC_S
        number = 0
        while time.monotonic() < until:
            number += 1
            source = chosen.choice(SOURCES)
            rows: list[dict[str, Any]] = [
                {"key": f"{number}-{i}", "n": i, "source": source} for i in range(chosen.randrange(1, 30))
            ]
            if _appended(parts["edge"], number, rows):
                wanted.update(str(row["key"]) for row in rows)
            for name in ("edge", "site"):
                parts[name].begin()
            if chosen.random() < 0.5:
                time.sleep(chosen.uniform(0, 2))
                victim = chosen.choice(["edge", "site", "site server", "centre server"])
                parts[victim].restart()
                kills[victim] += 1
            for name in ("edge", "site"):
                parts[name].end()
        for _ in range(10):
            said = [*parts["edge"].deliver(), *parts["site"].deliver()]
            if [each["status"] for each in said if "status" in each] == ["idle", "idle"]:
                break
            parts["edge"].restart()  # a later clock: every pause is over
            parts["site"].restart()
        else:
            pytest.fail(f"seed {seed}: the rows do not arrive: {said}")
    found: Counter[str] = Counter()
    with open_node(parts["homes"]["centre"]) as centre:
        for source in SOURCES:
            there = f"site/edge/{source}"
            if centre.site.standing.strand_state(Strand(DATASET, there)).hi:
                found.update(row["key"] for _, row in spooled_rows(centre.site, DATASET, there))
    assert found == wanted, f"seed {seed}: {len(found - wanted)} too many, {len(wanted - found)} lost"
    print(f"{sum(found.values()):,} rows, killed: {dict(kills)}")
    assert sum(kills.values()) > 3, kills


def _appended(edge: Working, number: int, rows: list[dict[str, Any]]) -> bool:
    said = edge.child.do("append", dataset=DATASET, request=str(number), rows=rows)
    return bool(said) and "error" not in said[0]
