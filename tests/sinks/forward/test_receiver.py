"""The forward sink and the receiver, both real: what was sent once or often is stored once."""

import os
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.base.ranges import Range, RangeSet
from strandline.base.secret import Secret
from strandline.config.keys import ServerSection
from strandline.rows.dataset import Column, Dataset
from strandline.rows.validate import accept, arrow_schema
from strandline.sinks.forward.forward_sink import ForwardSink
from strandline.sinks.sink import Limits, Outcome, Shipment, Stored
from strandline.sinks.unit_runner import Told, deliver
from tests.server.receivers import ORIGIN, Sender, receiving
from tests.sinks.scripted import scripted
from tests.sinks.shipping import DATASET, SHIPMENT, batches, part
from tests.sinks.test_ndjson import ALL, VALUES, table_of
from tests.sites import spooled_rows

HOME = Path(__file__).parents[3]
LIMITS = Limits(10, 1024**2, "ndjson")
TEN = range(1, 11)


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Sender]:
    with receiving(tmp_path) as receiver:
        yield receiver


def sink_to(here: Sender, **keys: Any) -> ForwardSink:
    return ForwardSink(url=here.url, token=Secret("env:TOKEN", Path(), here.token), **keys)


def shipment_of(dataset: Dataset) -> Shipment:
    return replace(SHIPMENT, origin=ORIGIN, node="laptop", dataset=dataset, signal=dataset.name)


def send(
    here: Sender,
    rows: Sequence[pa.RecordBatch],
    until: int,
    *,
    limits: Limits = LIMITS,
    dataset: Dataset = DATASET,
    ranges: Sequence[Range] | None = None,
    **keys: Any,
) -> list[Outcome]:
    asked = part("web/1", 0, until, limits, ranges=ranges)
    found: list[Told] = list(deliver(sink_to(here, **keys), shipment_of(dataset), {"web/1": asked}, rows))
    return [each.outcome for each in found]


def stored(here: Sender, dataset: str = "logs") -> list[int]:
    return [each["n"] for _, each in spooled_rows(here.site, dataset, "laptop/web/1")]


def numbered(table: pa.Table) -> list[pa.RecordBatch]:
    """A table as a sink gets it."""
    seqs = pa.array(range(1, table.num_rows + 1), pa.int64())
    return list(table.append_column("_sl_seq", seqs).to_batches())


def statuses(outcomes: Sequence[Outcome]) -> list[str]:
    return [each.status for each in outcomes]


@pytest.mark.parametrize("compression", ["none", "gzip", "zstd"])
def test_what_is_sent_is_stored_and_a_repeat_is_known(here: Sender, compression: Any) -> None:  # L-SRV-3
    first = send(here, [*batches("web/1", range(1, 26))], 25, compression=compression)
    again = send(here, [*batches("web/1", range(1, 26))], 25)

    assert statuses(first) == ["stored"] * 3
    assert statuses(again) == ["known"] * 3
    assert stored(here) == [*range(1, 26)]


def test_other_limits_after_a_lost_answer_store_no_row_twice(here: Sender) -> None:  # F-13, L-FWD-12
    send(here, [*batches("web/1", range(1, 16))], 15)

    outcomes = send(here, [*batches("web/1", range(1, 61))], 60, limits=Limits(40, 1024**2))

    assert [(each.lo, each.hi, each.status) for each in outcomes] == [
        (0, 15, "known"),
        (15, 40, "stored"),
        (40, 60, "stored"),
    ]
    assert stored(here) == [*range(1, 61)]


def test_the_receiver_tells_what_it_holds(here: Sender) -> None:  # L-FWD-7, L-SRV-9
    sink, shipment = sink_to(here), shipment_of(DATASET)
    before = sink.holdings(shipment, "web/1", 0)

    send(here, [*batches("web/1", [5, 6, 25])], 30)

    held = sink.holdings(shipment, "web/1", 0)
    assert before is not None
    assert before.stored == ()
    assert held is not None
    assert held.stored == (Stored(0, 10), Stored(20, 30))
    holes = RangeSet.of(Range(each.lo, each.hi) for each in held.stored).holes(Range(0, 30))
    send(here, [*batches("web/1", range(1, 31))], 30, ranges=holes)
    assert stored(here) == [5, 6, 25, *range(11, 21)]


def test_only_the_bad_rows_are_given_up(tmp_path: Path) -> None:  # F-28, L-FWD-13
    wants_text = Dataset("logs", (Column("text", "string", required=True),))
    with receiving(tmp_path, datasets=[wants_text]) as here:
        outcomes = send(here, [*batches("web/1", TEN)], 10)  # each third row has no text

        assert [(each.lo, each.hi, each.status) for each in outcomes] == [
            (0, 2, "stored"),
            (2, 3, "bad_rows"),
            (3, 5, "stored"),
            (5, 6, "bad_rows"),
            (6, 8, "stored"),
            (8, 9, "bad_rows"),
            (9, 10, "stored"),
        ]
        assert '"column":"text"' in outcomes[1].text
        assert stored(here) == [1, 2, 4, 5, 7, 8, 10]
        assert sum(each.requests for each in outcomes) == 5


def test_a_dataset_that_the_receiver_does_not_know_is_held(here: Sender) -> None:  # F-39, L-DRV-6
    outcomes = send(here, [*batches("web/1", TEN)], 10, dataset=replace(DATASET, name="secrets"))

    assert [(each.status, each.kind, each.scope) for each in outcomes] == [
        ("held", "dataset_unknown", "strand")
    ]


def test_a_token_that_is_not_known_is_denied(here: Sender) -> None:  # L-FWD-8
    here.token = "other"

    outcomes = send(here, [*batches("web/1", TEN)], 10)

    assert statuses(outcomes) == ["denied"]
    assert stored(here) == []


def test_a_body_that_the_receiver_finds_too_large_is_halved(tmp_path: Path) -> None:  # L-FWD-12
    with receiving(tmp_path, settings=ServerSection(max_body_bytes=1000)) as here:
        outcomes = send(here, [*batches("web/1", range(1, 61))], 60, limits=Limits(60))

        assert {*statuses(outcomes)} == {"stored"}
        assert len(outcomes) > 10
        assert stored(here) == [*range(1, 61)]


def test_a_large_repeat_is_known_though_its_body_is_not_read(here: Sender) -> None:  # L-SRV-4, L-FWD-15
    dataset = Dataset("logs", (Column("n", "bigint"), Column("text", "string")))
    rows = accept(dataset, [{"n": n, "text": "x" * 1000} for n in range(1, 8001)], source="web/1").table
    limits = Limits(4000, 0)
    first = send(here, numbered(rows), 8000, limits=limits, dataset=dataset)

    for _ in range(3):
        again = send(here, numbered(rows), 8000, limits=limits, dataset=dataset)
        assert statuses(again) == ["known", "known"]

    assert statuses(first) == ["stored", "stored"]
    assert min(each.bytes for each in first) > 4_000_000
    assert stored(here) == [*range(1, 8001)]


@settings(max_examples=5)
@given(st.lists(st.fixed_dictionaries({}, optional=VALUES), min_size=10, max_size=40))
def test_rows_of_every_type_arrive_as_they_were_also_over_a_second_hop(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]
) -> None:  # F-40, L-FWD-5, L-SCH-5, L-SRV-8
    table = table_of(rows).drop_columns("source").append_column("source", pa.array(["web/1"] * len(rows)))
    folder = tmp_path_factory.mktemp("hops")
    with receiving(folder / "a", is_strict=False) as here:
        assert statuses(send(here, numbered(table), 40, limits=Limits(40), dataset=ALL)) == ["stored"]
        arrived = _arrived(here)
        assert repr(arrived.to_pylist()) == repr(table.drop_columns("source").to_pylist())
    with receiving(folder / "b", is_strict=False) as there:
        onward = arrived.append_column("source", pa.array(["web/1"] * len(rows)))
        assert statuses(send(there, numbered(onward), 40, limits=Limits(40), dataset=ALL)) == ["stored"]
        assert repr(_arrived(there).to_pylist()) == repr(arrived.to_pylist())


def _arrived(here: Sender) -> pa.Table:
    """What is spooled, in the types that the sender has."""
    found = [each for _, each in spooled_rows(here.site, "all", "laptop/web/1")]
    schema = arrow_schema(ALL)
    return pa.Table.from_pylist(found, pa.schema(list(schema)[1:]))


# Crashes


CHILD = """
import sys
from dataclasses import replace
from pathlib import Path
from strandline.base.secret import Secret
from strandline.sinks.forward.forward_sink import ForwardSink
from strandline.sinks.unit_runner import deliver
from strandline.sinks.sink import Limits
from tests.sinks.shipping import SHIPMENT, batches, part

url, token, origin = sys.argv[1:]
sink = ForwardSink(url=url, token=Secret("env:TOKEN", Path(), token))
shipment = replace(SHIPMENT, origin=origin, node="laptop")
asked = part("web/1", 0, 30, Limits(10, 1024**2, "ndjson"))
for told in deliver(sink, shipment, {"web/1": asked}, batches("web/1", range(1, 31))):
    print(told.outcome.lo, told.outcome.hi, told.outcome.status, flush=True)
"""


@pytest.mark.parametrize("nth", [1, 3])
@pytest.mark.parametrize("point", ["forward.post", "forward.answer"])
def test_a_sender_that_is_killed_sends_the_rest_when_it_is_back(
    here: Sender, point: str, nth: int
) -> None:  # L-WM-10, F-11, L-ACC-3
    def run(failpoint: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "STRANDLINE_FAILPOINT": failpoint, "PYTHONPATH": str(HOME)}
        command = [sys.executable, "-c", CHILD, here.url, here.token, ORIGIN]
        return subprocess.run(command, env=environment, check=False, capture_output=True, text=True)

    killed = run(f"{point}:{nth}")
    arrived = stored(here)
    again = run("")

    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert len(arrived) == 10 * (nth - 1 if point == "forward.post" else nth)
    assert again.stdout.split()[2::3] == ["known"] * (len(arrived) // 10) + ["stored"] * (
        3 - len(arrived) // 10
    )
    assert stored(here) == [*range(1, 31)]


# TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    made, key = folder / "certificate.pem", folder / "key.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
    ]
    command += ["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    command += ["-keyout", str(key), "-out", str(made)]
    subprocess.run(command, check=True, capture_output=True)
    return made, key


def test_the_other_side_must_prove_who_it_is(
    certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:  # L-FWD-15
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    asked = {"web/1": part("web/1", 0, 10, LIMITS)}

    def sent(host: str) -> tuple[str, str]:
        sink = ForwardSink(url=there.url.replace("http://127.0.0.1", f"https://{host}"))
        (told,) = deliver(sink, SHIPMENT, asked, batches("web/1", TEN, size=10))
        return told.outcome.status, told.outcome.kind

    with scripted(context) as there:
        assert sent("localhost") == ("failed", "tls_failed")
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
        assert sent("127.0.0.1") == ("failed", "tls_failed")
        assert there.asked == []
        assert sent("localhost") == ("stored", "")
