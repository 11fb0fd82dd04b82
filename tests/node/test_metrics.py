"""Numbers for Prometheus: what they say, who may read them, what they cost (L-OBS-4, L-OBS-7, L-COST-4)."""

import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from strandline.config.config import FILE_NAME, Config, load_config
from strandline.config.keys import ServerSection, SpoolSection
from strandline.daemon.due_syncs import Ended
from strandline.daemon.metrics_page import count, metrics_page
from strandline.delivery.backoff import PACES_S
from strandline.delivery.result import SyncResult
from strandline.errors import UnavailableError
from strandline.ingest.append import append
from strandline.lake.ports.scan_counters import ScanCounters
from strandline.node.metrics import Metrics, page_of
from strandline.node.status import status_of
from strandline.observe.process_counts import Live
from strandline.persist import ProjectionState, snapshot_load, snapshot_save
from strandline.rows.dataset import Dataset
from strandline.server.bearer_tokens import new_token
from strandline.sinks.sink import Outcome
from strandline.state.context import Site
from strandline.state.node_state import Standing, keep_base
from strandline.state.sink_progress import event_of, sink_stream
from tests.cli.test_status import FAILED, SINK, Node
from tests.server.receivers import Sender, receiving
from tests.simulation import DATASET
from tests.sites import StillClock

METRICS = "[observe]\nmetrics = true\n"
Samples = dict[tuple[str, ...], float]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    (tmp_path / FILE_NAME).write_text("version = 1\n" + METRICS + SINK)
    return load_config(tmp_path / FILE_NAME)


@pytest.fixture
def node() -> Node:
    return Node()


def parsed(page: bytes) -> Samples:
    """By name and the values of its labels, in the order of their names."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


def page(config: Config, node: Node, live: Live | None = None) -> bytes:
    return page_of(status_of(config, node.site), live or Live(), {"rows_appended": 3}, {})


# What they say


def test_what_is_done_and_what_is_owed_is_told_in_numbers(config: Config, node: Node) -> None:
    """L-OBS-4."""
    node.land(1, 5)
    node.sync()
    node.land(6, 8)
    node.append(9, 10)
    node.later(40)

    found = parsed(page(config, node))

    assert found["strandline_rows_spooled_total", DATASET] == 10
    assert found["strandline_rows_flushed_total", DATASET] == 8
    assert found["strandline_flush_seconds_count", DATASET] == 2
    assert (found["strandline_spool_rows", DATASET], found["strandline_spool_oldest_seconds", DATASET]) == (
        2,
        40,
    )
    assert found["strandline_spool_bytes", DATASET] > 0
    assert (
        found["strandline_rows_sent_total", "centre"],
        found["strandline_units_sent_total", "centre"],
    ) == (5, 1)
    assert (found["strandline_sink_lag_rows", "centre"], found["strandline_sink_lag_seconds", "centre"]) == (
        3,
        40,
    )
    assert found["strandline_http_requests_total", "rows_appended"] == 3
    assert found["strandline_health",] == 0


def test_tries_that_fail_holds_and_causes_are_told(config: Config, node: Node) -> None:
    """L-OBS-4, L-OBS-5."""
    node.land(1, 5)
    node.sync(FAILED)
    node.write("held", "web-1", kind="key_conflict", text="another is there")

    found = parsed(page(config, node))

    assert found["strandline_units_retried_total", "centre"] == 1
    assert found["strandline_sink_failing_strands", "centre"] == 1
    assert found["strandline_sink_holds", "centre"] == 1
    assert found["strandline_health",] == 2
    assert found["strandline_causes", "key_conflict", "held"] == 1


def test_a_pause_that_a_destination_asks_for_is_counted_in_seconds_and_our_own_is_not(
    config: Config, node: Node
) -> None:
    """L-OBS-4: `backpressure_wait_s`, of every process and every strand."""
    node.land(1, 5)
    node.sync(FAILED)
    node.later(60)
    node.sync(Outcome(0, 0, "pace", kind="http_429", text="too many", wait_s=45.0))
    node.later(45)
    node.sync(Outcome(0, 0, "pace", kind="http_503", text="later"))

    found = parsed(page(config, node))

    assert found["strandline_backpressure_wait_seconds_total", "centre"] == 45 + PACES_S[2]
    assert status_of(config, node.site).sinks[0].counters["backpressure_wait_s"] == 45 + PACES_S[2]
    assert found["strandline_units_retried_total", "centre"] == 3


def test_every_metric_has_the_name_and_the_help_that_prometheus_wants(config: Config, node: Node) -> None:
    """L-OBS-7."""
    node.land(1, 5)
    live = Live()
    count(live, Ended("sink", "centre", 0, SyncResult("centre", rows=1)))

    families = list(text_string_to_metric_families(page(config, node, live).decode()))

    names = [family.name for family in families]
    assert len(names) == len(set(names)) > 50
    for family in families:
        assert family.name.startswith("strandline_")
        assert family.documentation.endswith("."), family.name
        assert family.type != "unknown", family.name
        if family.type == "counter":
            assert all(sample.name.endswith("_total") for sample in family.samples), family.name
        assert not family.name.endswith(("_ms", "_us")), "seconds and bytes, as Prometheus has it"


def test_what_a_run_cost_is_counted_here_and_what_spark_does_not_tell_is_unknown(
    config: Config, node: Node
) -> None:
    """L-COST-4."""
    live = Live()
    told = SyncResult("centre", requests=2, control_writes=5, counters=ScanCounters(1, 3, 900, 40), strands=1)
    count(live, Ended("sink", "centre", 0, told))
    count(live, Ended("sink", "centre", 0, SyncResult("centre", counters=ScanCounters(1), strands=1)))
    count(live, Ended("flush", "logs", 0, UnavailableError("the store does not answer", hint="wait")))

    text = page(config, node, live)
    found = parsed(text)

    assert found["strandline_sink_runs_total", "centre", "exported"] == 2
    assert found["strandline_spark_jobs_total", "centre"] == 2
    assert found["strandline_data_bytes_read_total", "centre"] == 900
    assert (found["strandline_requests_total", "centre"], found["strandline_rows_read_total", "centre"]) == (
        2,
        40,
    )
    assert found["strandline_counters_unknown_total", "rows_read", "centre"] == 1
    assert found["strandline_errors_total", "logs", "flush"] == 1
    assert b"Counted by this process since it started." in text


def test_no_source_and_no_text_of_an_error_is_a_label(config: Config, node: Node) -> None:
    """L-OBS-6: a source may be anything, and there may be a million."""
    node.land(1, 5, source="secret-source")
    node.write("held", "secret-source", kind="key_conflict", text="secret text")

    assert b"secret" not in page(config, node)


# Where they come from


def test_counts_are_the_same_for_every_process_and_after_a_restart(config: Config, node: Node) -> None:
    """L-OBS-4: they come from the store."""
    node.land(1, 5)
    node.sync()
    before = parsed(page(config, node))

    node.site.standing = Standing(node.site.b)

    assert parsed(page(config, node)) == before
    assert before["strandline_rows_flushed_total", DATASET] == 5


def test_counts_go_on_from_what_a_fold_has_kept(node: Node) -> None:
    """L-OBS-4: the events themselves may be gone."""
    node.land(1, 5)
    keep_base(node.site.b, node.site.standing.position())
    kept = snapshot_load(node.site.b, "standing/base", None)

    again = Standing(node.site.b)
    again._load_kept("standing/base")

    assert again._position == kept.seq
    assert again.counts().of("dataset", DATASET)["rows_flushed"] == 5


def test_a_base_that_counted_nothing_is_read_and_counts_begin_there(node: Node) -> None:
    """A base is no cache: the form in which an older version kept it is read."""
    node.land(1, 5)
    keep_base(node.site.b, node.site.standing.position())
    kept: Any = snapshot_load(node.site.b, "standing/base", None)
    older = {name: each for name, each in kept.value.items() if name != "counts"}
    for name in ("standing", "standing/base"):
        snapshot_save(node.site.b, name, ProjectionState({**older, "version": "5"}, kept.seq))
    node.append(6, 7)

    found = Standing(node.site.b)
    is_begun = found._load_kept("standing/base")

    assert is_begun
    assert found._load_kept("standing") is False, "a cache of another form is made anew"
    assert found.counts().of("dataset", DATASET)["rows_spooled"] == 2


def test_an_event_that_cannot_be_read_is_not_counted_and_stops_nothing(config: Config, node: Node) -> None:
    node.land(1, 5)
    node.site.b.commit([], [event_of(sink_stream("centre", DATASET, "web-1"), "delivered", 1, units=7)])

    found = parsed(page(config, node))

    assert found["strandline_rows_sent_total", "centre"] == 0
    assert found["strandline_sink_holds", "centre"] == 1, "the line tells of the damage"


# What they cost


def test_the_page_is_as_long_with_a_thousand_strands_and_made_within_a_second(
    config: Config, node: Node
) -> None:
    """L-OBS-1, L-COST-1: it follows datasets and sinks, not rows or strands."""
    node.land(1, 2, source="a")
    short = page(config, node)
    for n in range(1_000):
        append(node.site, DATASET, [{"key": "1"}], source=f"s-{n}")
    node.site.standing.catch_up()

    began = time.thread_time()
    long = page(config, node)
    took_s = time.thread_time() - began

    assert len(long.splitlines()) == len(short.splitlines())
    assert took_s < 1


def test_a_page_is_made_once_for_all_who_ask_within_a_second(config: Config, node: Node) -> None:
    looked: list[int] = []

    def look() -> Any:
        looked.append(1)
        return status_of(config, node.site)

    metrics = Metrics(look, Live())
    pages = {metrics.page({}, {}) for _ in range(20)}

    assert len(pages) == len(looked) == 1


# Who may read them


@pytest.fixture
def served(tmp_path: Path, config: Config) -> Iterator[Sender]:
    site_of: list[Site] = []

    def page(http: Mapping[str, int], waits: Mapping[str, int]) -> bytes:
        found = metrics_page(lambda: config, site_of[0], Live())
        assert found is not None
        return found(http, waits)

    with receiving(tmp_path, datasets=(Dataset("logs"),), metrics=page) as sender:
        site_of.append(sender.site)
        yield sender


def asked(here: Sender, **headers: str) -> tuple[int, bytes, str]:
    made = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        with urllib.request.urlopen(urllib.request.Request(f"{here.url}/metrics", headers=made)) as answer:
            return answer.status, answer.read(), answer.headers["Content-Type"]
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read(), error.headers["Content-Type"]


def test_who_is_on_this_machine_reads_them_without_a_token(served: Sender) -> None:
    """L-OBS-7."""
    append(served.site, "logs", [{"n": 1}], source="web-1")

    status, body, kind = asked(served)

    assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert parsed(body)["strandline_spool_rows", "logs"] == 1


def test_how_long_senders_were_told_to_wait_is_counted_by_why(tmp_path: Path, config: Config) -> None:
    """L-OBS-4: `backpressure_wait_s` of those who bring rows."""
    clock = StillClock()

    def page(http: Mapping[str, int], waits: Mapping[str, int]) -> bytes:
        return page_of(status_of(config, here.site), Live(), http, waits)

    with receiving(
        tmp_path,
        settings=ServerSection(rate_bytes_per_s=10),
        spool=SpoolSection(max_bytes=1),
        clock=clock,
        metrics=page,
        datasets=(Dataset("logs"),),
    ) as here:
        assert asked_to_wait_s(here, 1) == 0
        full_s = asked_to_wait_s(here, 2)
        here.site.spool = SpoolSection()
        paced_s = asked_to_wait_s(here, 2) + asked_to_wait_s(here, 2)

        found = parsed(asked(here)[1])

    assert full_s > 0
    assert paced_s > 0
    assert found["strandline_http_backpressure_wait_seconds_total", "spool_full"] == full_s
    assert found["strandline_http_backpressure_wait_seconds_total", "rate_exceeded"] == paced_s
    assert found["strandline_http_requests_total", "appends_refused"] == 3


def asked_to_wait_s(here: Sender, n: int) -> int:
    """By the answer to a row that a producer brings."""
    answer = here.ask(
        "POST",
        "/v1/append/logs?source=web-1",
        b'[{"n": %d}]' % n,
        {"Content-Type": "application/json", "Authorization": f"Bearer {here.token}"},
    )
    return int(answer.headers.get("Retry-After", "0"))


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("X_Forwarded_For", "203.0.113.9"),
        ("X_Forwarded_For", "127.0.0.1"),
        ("X_Real_IP", "127.0.0.1"),
        ("Forwarded", "for=127.0.0.1"),
        ("Via", "1.1 proxy"),
    ],
)
def test_what_a_proxy_hands_on_needs_a_token_that_may_send_anything(
    served: Sender, header: str, value: str
) -> None:
    """L-OBS-7, L-SRV-6: the page names every dataset and sink."""
    _, scoped = new_token(served.site.b, "logs only", at=0, datasets=("logs",))
    there = {header: value}

    assert asked(served, **there)[0] == 401
    assert asked(served, **there, Authorization=f"Bearer {scoped}")[0] == 403
    assert asked(served, **there, Authorization=f"Bearer {served.token}")[0] == 200


def test_they_are_off_unless_configured(tmp_path: Path) -> None:
    """L-OBS-7."""
    (tmp_path / FILE_NAME).write_text("version = 1\n")
    config = load_config(tmp_path / FILE_NAME)
    with receiving(tmp_path) as here:
        assert metrics_page(lambda: config, here.site, Live()) is None
        assert asked(here)[0] == 404
        assert "/metrics" not in here.ask("GET", "/openapi.json").body["paths"]


def test_the_description_names_them_where_they_are_served(served: Sender) -> None:
    """L-SRV-7."""
    assert "/metrics" in served.ask("GET", "/openapi.json").body["paths"]
