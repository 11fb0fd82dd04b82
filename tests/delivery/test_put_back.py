"""A home that was put back from a copy, or copied to two machines: with real Spark, a real receiver, a real
folder of objects, and the commands that an operator has."""

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from strandline.cli import cli
from strandline.config.config import FILE_NAME, load_config
from strandline.lake.spark.conf import catalog_conf
from strandline.lake.spark.connect import CONNECT_MODE
from strandline.node import Node
from tests.server.receivers import Sender as Receiving
from tests.server.receivers import receiving
from tests.sites import spooled_rows
from tests.spark_sessions import ConnectServer, lake_session

CONFIG = """version = 1
[node]
name = "{name}"
[sinks.centre]
type = "forward"
url = "{url}"
token = "file:{token}"
[sinks.archive]
type = "blob"
destination = "local"
dir = "{archive}"
encoder = "jsonl"
"""


@dataclass
class Homes:
    """Homes on one machine, their receiver and their folder of objects."""

    folder: Path
    there: Receiving
    server: ConnectServer
    patch: pytest.MonkeyPatch
    rows: int = 0

    def make(self, name: str) -> Path:
        home = self.folder / name
        assert CliRunner().invoke(cli, ["init", str(home)]).exit_code == 0
        self.configure(home)
        return home

    def configure(self, home: Path) -> None:
        token = self.folder / "token"
        token.write_text(self.there.token)
        text = CONFIG.format(name=home.name, url=self.there.url, token=token, archive=self.folder / "archive")
        (home / FILE_NAME).write_text(text)

    @contextmanager
    def on_spark(self, home: Path) -> Iterator[None]:
        """A session of its own, because one that is open would keep the catalog's former file."""
        conf = catalog_conf(load_config(home / FILE_NAME).lake_settings())
        with lake_session(self.server, conf) as session:
            self.patch.setattr(Node, "spark", session)
            yield

    def run(self, home: Path, *args: str, expect: int = 0) -> list[Any]:
        done = CliRunner().invoke(cli, [*args, "--json", "--home", str(home)])
        assert done.exit_code == expect, (args, done.output)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def append(self, home: Path, count: int) -> list[int]:
        values = list(range(self.rows, self.rows + count))
        self.rows += count
        lines = "".join(json.dumps({"n": value}) + "\n" for value in values)
        command = ["append", "logs", "--source", "web-1", "--home", str(home)]
        assert CliRunner().invoke(cli, command, input=lines).exit_code == 0
        return values

    def arrived(self) -> Counter[int]:
        """`n` of each row that the receiver has."""
        standing = self.there.site.standing
        return Counter(
            row["n"]
            for source in standing.strand_states("logs")
            for _, row in spooled_rows(self.there.site, "logs", source)
        )

    def archived(self) -> Counter[int]:
        paths = (self.folder / "archive").rglob("*.jsonl")
        return Counter(json.loads(line)["n"] for path in paths for line in path.read_text().splitlines())


@pytest.fixture
def homes(tmp_path: Path, connect_server: ConnectServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Homes]:
    monkeypatch.setenv(CONNECT_MODE, "1")
    with receiving(tmp_path / "there") as there:
        yield Homes(tmp_path, there, connect_server, monkeypatch)


def test_a_home_that_was_put_back_delivers_nothing_until_somebody_says_what_it_is(homes: Homes) -> None:
    """L-CTL-7, L-SRV-3: it gives out numbers that the destinations have already, for other rows."""
    home, copy = homes.make("edge"), homes.folder / "copy"
    with homes.on_spark(home):
        old = homes.append(home, 5)
        homes.run(home, "sync")
        shutil.copytree(home, copy)
        (read,) = [
            line["end"] for line in homes.run(home, "read", "logs", "--source", "web-1") if "end" in line
        ]
        old += homes.append(home, 5)
        homes.run(home, "sync")
        (end,) = [
            line["end"] for line in homes.run(home, "read", "logs", "--source", "web-1") if "end" in line
        ]
    shutil.rmtree(home)
    shutil.move(copy, home)

    with homes.on_spark(home):
        goes_on = homes.run(home, "read", "logs", "--source", "web-1", "--since", read["token"])
        ahead = CliRunner().invoke(
            cli, ["read", "logs", "--source", "web-1", "--since", end["token"], "--home", str(home)]
        )
        new = homes.append(home, 3)  # fewer rows than went on: other bounds
        held = homes.run(home, "sync", expect=3)

        assert len(goes_on) == 1
        assert (ahead.exit_code, "token_ahead" in ahead.output) == (3, True)
        assert {run["sink"]: run["status"] for run in held if "sink" in run} == {
            "centre": "held",
            "archive": "held",
        }
        assert (homes.arrived(), homes.archived()) == (Counter(old), Counter(old))

        for sink in ("centre", "archive"):
            homes.run(
                home, "sink", "rewind", sink, "logs", "--to", "5", "--resend", "--yes", "--abort-intent"
            )
        homes.run(home, "sync")

    assert (homes.arrived(), homes.archived()) == (Counter(old + new), Counter(old + new))


def test_of_two_copies_of_a_home_the_second_is_held_until_it_gets_an_id_of_its_own(homes: Homes) -> None:
    """L-CTL-7, L-SRV-3: an image that was copied to two machines."""
    first, second = homes.make("a"), homes.folder / "b"
    shutil.copytree(first, second)
    homes.configure(second)

    with homes.on_spark(first):
        rows = homes.append(first, 5)
        homes.run(first, "sync", "centre")
    with homes.on_spark(second):
        others = homes.append(second, 4)
        (held,) = homes.run(second, "sync", "centre", expect=3)
        assert (held["status"], homes.arrived()) == ("held", Counter(rows))
        renewed = CliRunner().invoke(cli, ["init", str(second), "--new-origin", "--yes"])
        assert renewed.exit_code == 0, renewed.output
        homes.run(second, "sync", "centre")

    assert homes.arrived() == Counter(rows + others)
