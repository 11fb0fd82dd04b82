"""How a node stands, from the store alone: what `strandline status` tells, of now and of a past time."""

import json
import subprocess
import sys
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from strandline.cli import cli
from strandline.config.config import FILE_NAME, Config, load_config
from strandline.delivery.owed import Terms
from strandline.delivery.run import sync
from strandline.delivery.session import Sender
from strandline.flush.flush import flush
from strandline.ingest.append import append
from strandline.ingest.spool import declare_lost
from strandline.node.status import Status, status_of
from strandline.persist import mem_backend
from strandline.rows.dataset import Column, Dataset, Strand
from strandline.sinks.sink import Limits, Outcome, Patience
from strandline.state.context import Site, open_site
from strandline.state.sink_progress import (
    Intent,
    UnitReceipt,
    delivered,
    event_of,
    instance_stream,
    intended,
    sink_stream,
)
from tests.delivery.destinations import Server, ServerSink, TableCourier
from tests.simulation import DATASET, World
from tests.sites import StillClock, make_site

SINK = '[sinks.centre]\ntype = "forward"\nurl = "http://centre.example"\nschedule = "0 2 * * *"\n'
SECOND = 1_000_000


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return configured(tmp_path)


def configured(folder: Path, *more: str) -> Config:
    (folder / FILE_NAME).write_text("version = 1\n" + SINK + "".join(f"{each}\n" for each in more))
    return load_config(folder / FILE_NAME)


class Node:
    """A node whose table and destination are simulated."""

    def __init__(self) -> None:
        self.world = World(0)
        self.world.is_calm = True
        self.site = self.world.site()
        self.server = Server(self.world)

    def append(self, first: int, last: int, source: str = "web-1") -> None:
        append(self.site, DATASET, [{"key": str(n)} for n in range(first, last + 1)], source=source)

    def land(self, first: int, last: int, source: str = "web-1") -> None:
        self.append(first, last, source)
        flush(self.site, self.world.table, DATASET)

    def sync(self, *answers: Outcome | None) -> None:
        self.server.answers = list(answers)
        sink = ServerSink(self.server, patient=Patience(inline_wait_s=0))
        sender = Sender("origin", "edge", lambda name: name)
        sync(self.site, lambda: TableCourier(self.world), sink, Terms("centre"), sender)

    def later(self, seconds: int) -> None:
        self.world.now_us += seconds * SECOND

    def write(self, type_: str, source: str | None = None, **data: Any) -> None:
        stream = instance_stream("centre") if source is None else sink_stream("centre", DATASET, source)
        self.site.b.commit([], [event_of(stream, type_, self.world.now_us, **data)])


@pytest.fixture
def node() -> Node:
    return Node()


def causes(status: Status) -> list[tuple[str, str]]:
    return [(each.level, each.kind) for each in status.causes]


FAILED = Outcome(0, 0, "failed", kind="connection", text="no route")


# The values


def test_what_is_pending_and_what_has_landed_is_told_by_dataset(config: Config, node: Node) -> None:
    """L-OBS-3."""
    node.land(1, 5)
    landed_at = node.world.now_us
    node.later(7)
    node.append(6, 8, source="web-2")
    node.later(30)
    (found,) = status_of(config, node.site).datasets
    assert (found.dataset, found.strands, found.schema_version) == (DATASET, 2, 1)
    assert (found.pending_rows, found.oldest_pending_s) == (3, 30)
    assert found.pending_bytes > 0
    assert found.oldest_pending_at == node.world.now_us - 30 * SECOND
    assert (found.last_flush, found.visible_flush, found.flushed_at) == (1, 1, landed_at)
    assert (found.open_flush, found.open_loads, found.held, found.lost, found.quarantined) == (
        None,
        (),
        (),
        (),
        0,
    )


def test_how_far_a_sink_is_behind_is_told_in_rows_and_seconds(config: Config, node: Node) -> None:
    """L-OBS-2: the lag is the age of the oldest row that is visible and not delivered."""
    node.land(1, 5)
    node.sync()
    delivered_at = node.world.now_us
    node.later(10)
    node.land(6, 8)
    node.later(20)
    node.land(9, 9)
    node.later(5)
    (sink,) = status_of(config, node.site).sinks
    (strand,) = sink.strands
    assert (strand.line, strand.visible_through, strand.lag_rows, strand.lag_s) == (5, 9, 4, 25)
    assert (strand.delivered_at, strand.rows) == (delivered_at, 5)
    assert strand.bytes > 0
    assert (sink.type, sink.enabled, sink.destination, sink.hold) == ("forward", True, "server", None)
    due = datetime(2023, 11, 15, 2, tzinfo=UTC)
    assert sink.next_due_at == int(due.timestamp()) * SECOND
    node.sync()
    (strand,) = status_of(config, node.site).sinks[0].strands
    assert (strand.lag_rows, strand.lag_s) == (0, 0)


def test_an_open_intent_and_the_trouble_it_is_in_are_told(config: Config, node: Node) -> None:
    """L-OBS-2, L-DRV-8."""
    node.land(1, 12)
    node.sync(None, FAILED)
    (strand,) = status_of(config, node.site).sinks[0].strands
    assert strand.intent is not None
    assert (strand.intent.lo, strand.intent.hi, strand.intent.done_through) == (0, 12, 5)
    assert strand.trouble is not None
    assert (strand.trouble.kind, strand.trouble.attempts) == ("connection", 1)
    assert strand.trouble.not_before > node.world.now_us
    assert (strand.line, strand.lag_rows) == (5, 7)


def test_what_has_arrived_behind_a_hole_is_not_owed_any_more(config: Config, node: Node) -> None:
    """L-OBS-2: objects arrive in any order, and the line stays in front of the first that has not."""
    node.land(1, 12)
    stream, at = sink_stream("centre", DATASET, "web-1"), node.world.now_us
    intent = Intent("i", 0, 12, 0, 0, Limits(5), 1, 0, at=at)
    receipt = UnitReceipt(5, 10, 5, 9, "d", "there")
    node.site.b.commit([], [intended(stream, intent), delivered(stream, "i", at, units=[receipt])])
    (strand,) = status_of(config, node.site).sinks[0].strands
    assert (strand.line, strand.lag_rows, strand.rows) == (0, 7, 5)
    assert strand.intent is not None
    assert strand.intent.done_through == 0


def test_a_sink_that_starts_with_what_comes_is_not_behind_before_it_has_begun(
    tmp_path: Path, node: Node
) -> None:
    node.land(1, 5)
    (sink,) = status_of(configured(tmp_path, 'start = "now"'), node.site).sinks
    assert sink.strands == ()


def test_a_sink_that_is_not_configured_any_more_is_still_told(tmp_path: Path, node: Node) -> None:
    node.land(1, 5)
    node.sync()
    (tmp_path / FILE_NAME).write_text("version = 1\n")
    (sink,) = status_of(load_config(tmp_path / FILE_NAME), node.site).sinks
    assert (sink.type, sink.enabled, sink.next_due_at, sink.strands[0].line) == (None, False, None, 5)


# Health


def test_a_node_that_delivers_is_ok(config: Config, node: Node) -> None:
    """L-OBS-5."""
    node.land(1, 5)
    node.sync()
    assert (status_of(config, node.site).health, causes(status_of(config, node.site))) == ("ok", [])


def test_a_sink_that_is_later_than_it_may_be_makes_the_node_degraded(tmp_path: Path, node: Node) -> None:
    """L-OBS-5: over max_lag_s, not at it."""
    config = configured(tmp_path, "max_lag_s = 60")
    node.land(1, 5)
    node.later(60)
    assert status_of(config, node.site).health == "ok"
    node.later(1)
    found = status_of(config, node.site)
    assert (found.health, causes(found)) == ("degraded", [("degraded", "lag")])
    assert found.causes[0].repair == "`strandline sync centre`"
    assert status_of(configured(tmp_path, "max_lag_s = 60", "enabled = false"), node.site).health == "ok"


def test_a_sink_of_which_nothing_gets_through_has_failed_and_one_with_a_part_is_degraded(
    config: Config, node: Node
) -> None:
    """L-OBS-5, L-DRV-7."""
    node.land(1, 3)
    node.sync(FAILED)
    assert causes(status_of(config, node.site)) == [("failed", "connection")]
    node.land(4, 6, source="web-2")
    assert causes(status_of(config, node.site)) == [("degraded", "connection")]
    node.later(400)
    node.sync()
    assert causes(status_of(config, node.site)) == []


def test_a_pause_that_a_destination_asked_for_is_no_fault(config: Config, node: Node) -> None:
    """L-OBS-5."""
    node.land(1, 3)
    node.sync(Outcome(0, 0, "pace", wait_s=900.0))
    assert causes(status_of(config, node.site)) == []


def test_holds_are_told_and_what_cannot_be_understood_is_a_failure(config: Config, node: Node) -> None:
    """L-OBS-5, with the command that repairs each."""
    node.land(1, 3)
    node.sync()
    node.write("held", kind="denied", text="the token is refused")
    found = status_of(config, node.site)
    assert (found.health, causes(found)) == ("held", [("held", "denied")])
    node.write("of no kind", source="web-1")
    found = status_of(config, node.site)
    assert (found.health, causes(found)) == ("failed", [("failed", "control_unreadable"), ("held", "denied")])
    assert "sink rewind centre" in found.causes[0].repair


def test_a_dataset_that_a_sink_cannot_take_is_told_until_it_is_left_out(tmp_path: Path, node: Node) -> None:
    """L-OBS-5, L-DRV-6."""
    node.land(1, 3)
    node.write("held", source="web-1", kind="not_taken", text="it has no column `day`")
    found = status_of(configured(tmp_path), node.site)
    assert causes(found) == [("held", "not_taken")]
    assert "it has no column `day`" in found.causes[0].text
    assert "`exclude` in [sinks.centre]" in found.causes[0].repair
    node.later(7200)
    assert causes(status_of(configured(tmp_path), node.site)) == [("held", "not_taken"), ("degraded", "lag")]
    left_out = configured(tmp_path, f'exclude = ["{DATASET}"]')
    assert causes(status_of(left_out, node.site)) == []


def test_a_dead_letter_makes_the_node_degraded(config: Config, node: Node) -> None:
    """L-OBS-5."""
    node.land(1, 3)
    bad = Outcome(0, 0, "poison", kind="refused", text="no")
    for _ in range(4):
        node.sync(*[bad] * 9)
        node.later(400)
    found = status_of(config, node.site)
    assert sum(each.dead_letters for each in found.sinks[0].strands) > 0
    assert causes(found) == [("degraded", "dead_letter")]
    assert found.causes[0].repair == "`strandline dlq list centre`"


def test_a_damaged_segment_holds_the_node_until_its_rows_are_given_up(config: Config, node: Node) -> None:
    """L-OBS-3, L-OBS-5, L-SPOOL-13."""
    node.append(1, 3)
    segment = one_segment(node.site)
    for each in list(node.world.disk.scan()):
        node.world.disk.delete(each.name)
    flush(node.site, node.world.table, DATASET)
    found = status_of(config, node.site)
    assert (found.health, causes(found)) == ("held", [("held", "segment_held")])
    (held,) = found.datasets[0].held
    assert (held.source, held.segment, held.lo, held.hi) == ("web-1", segment, 0, 3)
    declare_lost(node.site, DATASET, segment, reason="the disk died")
    found = status_of(config, node.site)
    assert (found.health, found.datasets[0].held) == ("ok", ())
    (lost,) = found.datasets[0].lost
    assert (lost.source, lost.lo, lost.hi, lost.reason) == ("web-1", 0, 3, "the disk died")


def one_segment(site: Site) -> str:
    (event,) = site.b.read_range(Strand(DATASET, "web-1").ledger, 1, 1, limit=1)
    found: str = event.data["segment"].cid
    return found


def test_rows_in_quarantine_make_the_node_degraded(tmp_path: Path, config: Config) -> None:
    """L-OBS-5."""
    known = Dataset("orders", (Column("n", "bigint", required=True),))
    site = make_site(mem_backend(), tmp_path / "content", clock=StillClock(), datasets=[known])
    append(site, "orders", [{"n": 1}], source="web-1")
    before = site.clock.now_us()
    site.clock.sleep(1)
    append(site, "orders", [{"n": 2}, {"n": "x"}], source="web-1", on_bad="quarantine")
    found = status_of(config, site)
    assert (found.datasets[0].quarantined, causes(found)) == (1, [("degraded", "quarantine")])
    assert status_of(config, site, at=before).datasets[0].quarantined == 0


# At a past time


def test_how_it_stood_at_a_time_is_told_as_it_was_told_then(config: Config, node: Node) -> None:
    """The control state of any past time, since it is events."""
    then: list[tuple[int, Status]] = []

    def look() -> None:
        node.later(1)
        then.append((node.world.now_us, status_of(config, node.site)))
        node.later(1)

    node.land(1, 5)
    look()
    node.sync(FAILED)
    look()
    node.later(400)
    node.sync()
    node.append(6, 8)
    look()
    flush(node.site, node.world.table, DATASET)
    look()
    node.land(9, 20, source="web-2")
    node.sync()
    assert [status_of(config, node.site, at=at) for at, _ in then] == [status for _, status in then]
    assert all(one[1].sinks != other[1].sinks for one, other in pairwise(then[:3]))
    assert status_of(config, node.site, at=1).datasets == ()


# The command


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("STRANDLINE_HOME", raising=False)
    folder = tmp_path / "node"
    assert CliRunner().invoke(cli, ["init", str(folder)]).exit_code == 0
    configured(folder)
    return folder


def run(home: Path, *args: str, expect: int = 0) -> Result:
    done = CliRunner().invoke(cli, ["status", *args, "--home", str(home)])
    assert done.exit_code == expect, (done.exit_code, done.output, done.exception)
    return done


def fill(home: Path, count: int = 3) -> Site:
    site = open_site(load_config(home / FILE_NAME))
    append(site, "logs", [{"n": number} for number in range(count)], source="web-1")
    return site


def test_status_has_a_version_and_the_fields_that_its_help_names(home: Path) -> None:
    """L-OBS-1: --json is a contract."""
    fill(home).b.close()
    found = json.loads(run(home, "--json").stdout)
    assert (found["version"], found["health"], found["causes"]) == (1, "ok", [])
    (dataset,) = found["datasets"]
    (sink,) = found["sinks"]
    (strand,) = sink["strands"]
    assert (dataset["dataset"], dataset["pending_rows"]) == ("logs", 3)
    told = " ".join(run(home, "--help").stdout.split())
    for name in (*found, *dataset, *sink, *strand):
        assert name in told, name
    assert (sink["sink"], strand["line"], strand["intent"], strand["trouble"]) == ("centre", 0, None, None)


def test_status_says_in_words_what_is_wrong_and_what_repairs_it(home: Path) -> None:
    """L-OBS-5."""
    site = fill(home)
    stream = instance_stream("centre")
    site.b.commit([], [event_of(stream, "opened", 1, fingerprint="there", start="all")])
    site.b.commit([], [event_of(stream, "held", 2, kind="denied", text="the token is refused")])
    site.b.close()
    lines = run(home).stdout.splitlines()
    assert lines[0].startswith("held, as of ")
    assert lines[1:3] == [
        "held: sink centre: denied: the token is refused",
        "  repair: `strandline sync centre`",
    ]
    assert any(line.startswith("logs") for line in lines)
    assert any(line.startswith("centre") for line in lines)


def test_status_at_a_time_tells_how_it_was(home: Path) -> None:
    site = fill(home)
    between = datetime.fromtimestamp(site.clock.now_us() / 1e6, UTC).isoformat()
    append(site, "logs", [{"n": 7}], source="web-1")
    site.b.close()
    was, is_ = (json.loads(run(home, "--json", *more).stdout) for more in (("--at", between), ()))
    assert [each["datasets"][0]["pending_rows"] for each in (was, is_)] == [3, 4]
    assert json.loads(run(home, "--json", "--at", "2020-01-01T00:00Z").stdout)["datasets"] == []


@pytest.mark.parametrize(("text", "said"), [("yesterday", "is no time"), ("2999-01-01", "has not come yet")])
def test_a_time_that_is_none_is_refused(home: Path, text: str, said: str) -> None:
    """L-CLI-2."""
    assert said in run(home, "--at", text, expect=2).stderr


def test_status_imports_no_spark_and_writes_nothing(home: Path) -> None:
    """L-OBS-1."""
    fill(home).b.close()
    before = contents(home)
    code = (
        "import sys\nfrom strandline.cli import cli\n"
        f"try: cli.main(['status', '--home', {str(home)!r}])\n"
        "except SystemExit as end: print(end.code, 'pyspark' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 False"
    assert contents(home) == before


def contents(home: Path) -> list[Any]:
    site = open_site(load_config(home / FILE_NAME))
    try:
        return [
            (stream, site.b.last_seq(stream)) for stream in ("origin", "strand/logs/web-1", "dataset/logs")
        ] + [site.b.kv_get("origin")]
    finally:
        site.b.close()


def test_what_it_costs_follows_the_strands_that_are_behind(config: Config, node: Node) -> None:
    """L-OBS-1: a strand with nothing to deliver costs no read, one that is behind a search in its ledger."""
    for number in range(50):
        node.append(1, 1, source=f"s{number}")
    flush(node.site, node.world.table, DATASET)
    node.sync()
    for _ in range(64):
        node.append(1, 1)
    flush(node.site, node.world.table, DATASET)
    node.site.standing.catch_up()
    before = reads(node)
    found = status_of(config, node.site)
    assert sum(each.lag_rows for each in found.sinks[0].strands) == 64
    assert reads(node) - before <= 20


def reads(node: Node) -> int:
    return node.world.counts["read"] + node.world.counts["last_seq"]
