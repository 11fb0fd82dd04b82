"""Traces: what is done is told to a real collector over HTTP, and whether it answers changes nothing."""

import logging
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import strandline
from strandline.config.config import FILE_NAME, ConfigError, load_config
from strandline.errors import UnavailableError
from strandline.observe.span import send_traces, span, traceparent
from strandline.observe.traces import LAST_S, stop_traces
from strandline.sinks.sink import Shipment
from strandline.sinks.unit_runner import deliver
from tests.cli.test_status import Node
from tests.delivery.destinations import TableCourier
from tests.observe.collector import Collector, collecting
from tests.server.receivers import receiving
from tests.server.test_producers import post
from tests.simulation import DATASET
from tests.sinks.forward.test_receiver import LIMITS, shipment_of, sink_to
from tests.sinks.shipping import DATASET as SHIPPED
from tests.sinks.shipping import batches, part

ASKED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as found:
        send_traces(found.url, node="edge")
        yield found


def test_a_flush_is_a_span_and_its_steps_are_parts_of_it(collector: Collector) -> None:
    """L-OBS-6."""
    Node().land(1, 5)

    spans = collector.all()

    (whole,) = [each for each in spans if each.name == "flush"]
    steps = [each for each in spans if each.parent == whole.id]
    assert [each.name for each in steps] == ["plan", "stage", "publish", "record", "plan"]
    assert {each.trace for each in spans} == {whole.trace}
    assert whole.attributes == {"dataset": DATASET, "reason": "command", "flushes": 1, "rows": 5}
    assert whole.service == "strandline"


def test_a_tick_of_a_sink_has_its_counters(collector: Collector) -> None:
    """L-COST-4, L-OBS-6; where nothing is new there is no span either."""
    node = Node()
    node.land(1, 5)
    node.sync()
    node.sync()

    (found,) = collector.named("sync")

    assert found.attributes["sink"] == "centre"
    assert (found.attributes["status"], found.attributes["rows_sent"]) == ("exported", 5)
    assert found.attributes["control_writes"] > 0


def test_an_append_over_http_goes_on_with_the_trace_of_who_asked(
    collector: Collector, tmp_path: Path
) -> None:
    """L-OBS-6."""
    with receiving(tmp_path) as here:
        assert post(here, [{"n": 1}, {"n": 2}], traceparent=ASKED).status == 202
        assert post(here, b"no json", traceparent=ASKED).status == 400

    stored, refused = collector.named("append")

    assert (stored.trace, stored.parent) == (ASKED.split("-")[1], ASKED.split("-")[2])
    assert (stored.attributes["dataset"], stored.attributes["rows"], stored.error) == ("logs", 2, "")
    assert refused.error == "body_unreadable"


def test_what_is_forwarded_goes_on_with_the_trace_at_the_receiver(
    collector: Collector, tmp_path: Path
) -> None:
    """L-OBS-6: a row can be followed from node to node."""
    with receiving(tmp_path) as here, span("sync"):
        shipment = replace(shipment_of(SHIPPED), traceparent=traceparent())
        parts = {"web/1": part("web/1", 0, 10, LIMITS)}
        told = list(deliver(sink_to(here), shipment, parts, [*batches("web/1", range(1, 11))]))
    assert [each.outcome.status for each in told] == ["stored"]

    spans = {each.name: each for each in collector.all()}

    assert spans["receive"].parent == spans["sync"].id
    assert spans["receive"].attributes["rows"] == 10


def test_a_run_of_a_sink_names_its_span_to_whoever_carries_the_rows(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L-OBS-6: tasks of Spark are other processes, so it travels with what they deliver."""
    shipments: list[Shipment] = []
    carry = TableCourier.carry

    def seen(self: TableCourier, sink: Any, shipment: Shipment, *rest: Any, **more: Any) -> Any:
        shipments.append(shipment)
        return carry(self, sink, shipment, *rest, **more)

    monkeypatch.setattr(TableCourier, "carry", seen)
    node = Node()
    node.land(1, 5)
    node.sync()

    (found,) = collector.named("sync")

    assert [each.traceparent.split("-")[1:3] for each in shipments] == [[found.trace, found.id]]


def test_an_error_is_told_by_its_kind_and_never_by_its_text(collector: Collector) -> None:
    """L-OBS-6: a text may quote a row, or name a path."""
    with pytest.raises(UnavailableError), span("flush"):
        raise UnavailableError("row {'secret': 1} in /home/secret", hint="look")

    (found,) = collector.named("flush")

    assert found.error == "unavailable"
    assert "secret" not in repr(found)


def test_an_odd_traceparent_of_a_stranger_is_left_aside(collector: Collector, tmp_path: Path) -> None:
    with receiving(tmp_path) as here:
        assert post(here, [{"n": 1}], traceparent="nonsense").status == 202

    (found,) = collector.named("append")

    assert found.parent == ""


@pytest.mark.parametrize("is_deaf", [False, True], ids=["nobody listens", "nobody answers"])
def test_a_collector_that_is_down_slows_nothing_and_fails_nothing(
    is_deaf: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as dead:
        dead.bind(("127.0.0.1", 0))
        if is_deaf:
            dead.listen(1)
        send_traces(f"http://127.0.0.1:{dead.getsockname()[1]}", node="edge")
        try:
            began = time.perf_counter()
            for _ in range(5_000):  # more than are kept for it
                with span("work", rows=1):
                    pass
            working_s = time.perf_counter() - began
        finally:
            began = time.perf_counter()
            with caplog.at_level(logging.WARNING):
                stop_traces()
            ending_s = time.perf_counter() - began

    assert working_s < 15  # a span that waited for it would wait for seconds
    assert ending_s < LAST_S + 10


def test_without_a_collector_nothing_of_it_is_imported(tmp_path: Path) -> None:
    """No cost where it is not configured: not a module, and next to no time."""
    script = f"""
import sys, time
import strandline
from strandline.observe.span import span
with strandline.open({str(tmp_path)!r}) as node:
    node.append("logs", [{{"n": 1}}], source="a")
began = time.process_time()
for _ in range(100_000):
    with span("work", rows=1) as told:
        told.set(rows=2)
took_s = time.process_time() - began
loaded = [name for name in sys.modules if name.startswith(("opentelemetry", "prometheus_client"))]
print(loaded, took_s < 1)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert ended.stdout == "[] True\n"


def test_a_node_whose_file_names_a_collector_tells_it(tmp_path: Path) -> None:
    """L-CFG-1."""
    with collecting() as collector:
        (tmp_path / FILE_NAME).write_text(f'version = 1\n[observe]\ntraces = "{collector.url}/"\n')
        with strandline.open(tmp_path), span("work"):
            pass

        assert [each.name for each in collector.all()] == ["work"]


@pytest.mark.parametrize("url", ["collector:4318", "ftp://collector", "http://user:word@collector:4318"])
def test_a_collector_that_is_none_is_a_fault_of_the_file(url: str, tmp_path: Path) -> None:
    """L-CFG-2."""
    (tmp_path / FILE_NAME).write_text(f'version = 1\n[observe]\ntraces = "{url}"\n')

    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / FILE_NAME)

    assert "observe.traces" in str(caught.value)
    assert "word" not in str(caught.value)
