"""The blob sink on a real folder and a real S3 server: each row in one object, whose name never changes."""

import gzip
import io
import json
import os
import pickle
import threading
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strandline.base.ranges import Range
from strandline.errors import UsageError
from strandline.rows.dataset import Column, Dataset
from strandline.rows.validate import arrow_schema
from strandline.sinks.blob.blob_sink import BlobSink
from strandline.sinks.sink import Limits, Outcome, Unit
from strandline.storage.objects import Objects, open_objects
from tests.sinks.shipping import DATASET, SHIPMENT, batches, part, row, ship
from tests.storage.places import BUCKET, s3_options

Make = Callable[..., BlobSink]
ENCODERS = ("parquet:snappy", "parquet:zstd", "jsonl", "jsonl.gz")
KEYS = {"access_key_id": "AKIA-OF-A-TEST", "secret_access_key": "secret-of-a-test"}


@pytest.fixture
def folder_sink(tmp_path: Path) -> BlobSink:
    return BlobSink("local", dir=str(tmp_path / "out"))


@pytest.fixture(params=["local", "s3"])
def sink(request: pytest.FixtureRequest, tmp_path: Path) -> BlobSink:
    if request.param == "local":
        return BlobSink("local", dir=str(tmp_path / "out"))
    options = s3_options(request.getfixturevalue("s3_endpoint"))
    return BlobSink(
        "s3",
        bucket=BUCKET,
        prefix=uuid4().hex,
        region=options["region"],
        endpoint=options["endpoint"],
        credentials={key: value for key, value in options.items() if key in KEYS},
    )


def objects_of(sink: BlobSink) -> Objects:
    if sink.destination == "local":
        return open_objects(sink.dir)
    url = f"s3://{sink.bucket}/{sink.prefix}"
    return open_objects(url, endpoint=sink.endpoint, region=sink.region, **sink.credentials)


def stored(sink: BlobSink) -> dict[str, bytes]:
    """All objects by name."""
    objects = objects_of(sink)
    return {info.name: objects.read(info.name) for info in objects.scan()}


def numbers_in(name: str, data: bytes) -> list[int]:
    """The column `n` of an object, in its order."""
    if name.endswith(".parquet"):
        numbers: list[int] = pq.read_table(io.BytesIO(data))["n"].to_pylist()
        return numbers
    text = gzip.decompress(data) if name.endswith(".gz") else data
    return [json.loads(line)["n"] for line in text.splitlines()]


def only(sink: BlobSink) -> tuple[str, bytes]:
    [found] = stored(sink).items()
    return found


def outcomes(told: list[Any]) -> list[Outcome]:
    return [each.outcome for each in told]


# Names and bytes


@pytest.mark.parametrize("encoder", ENCODERS)
def test_each_unit_is_one_object_named_by_its_range(
    sink: BlobSink, encoder: str
) -> None:  # L-BLOB-1, L-BLOB-2
    told = outcomes(ship(sink, part("web", 0, 25, Limits(10, encoder=encoder)), range(1, 26)))

    found = stored(sink)
    extension = "parquet" if encoder.startswith("parquet") else encoder
    assert list(found) == [
        f"logs/source=web/{lo:020}-{hi:020}.{extension}" for lo, hi in [(0, 10), (10, 20), (20, 25)]
    ]
    assert [numbers_in(name, data) for name, data in found.items()] == [
        [*range(1, 11)],
        [*range(11, 21)],
        [*range(21, 26)],
    ]
    prefix = f"{sink.prefix}/" if sink.prefix else ""
    for outcome, (name, data) in zip(told, found.items(), strict=True):
        assert (outcome.status, outcome.bytes, outcome.digest, outcome.target) == (
            "stored",
            len(data),
            sha256(data).hexdigest(),
            prefix + name,
        )
    assert [outcome.rows for outcome in told] == [10, 10, 5]


def test_a_name_begins_where_the_chain_ended_and_an_epoch_has_its_own(sink: BlobSink) -> None:  # L-BLOB-2
    asked = part("web", 40, 60, Limits(10, encoder="jsonl"), chain_hi=25, epoch=2)

    ship(sink, asked, [*range(45, 61)])

    folder = "logs/source=web/epoch=2"
    assert list(stored(sink)) == [f"{folder}/{25:020}-{50:020}.jsonl", f"{folder}/{50:020}-{60:020}.jsonl"]


def test_a_unit_without_rows_leaves_its_place_in_the_names_empty(
    sink: BlobSink,
) -> None:  # L-BLOB-2, -4, L-WM-11
    told = outcomes(
        ship(sink, part("web", 0, 30, Limits(10, encoder="jsonl")), [*range(1, 6), *range(25, 31)])
    )

    assert [(each.lo, each.hi) for each in told] == [(0, 10), (20, 30)]
    assert [name[-47:-6] for name in stored(sink)] == [f"{0:020}-{10:020}", f"{20:020}-{30:020}"]


def test_sources_that_look_alike_share_no_key(sink: BlobSink) -> None:  # F-35, L-SCH-2
    sources = ["a/b", "a_b", "a%2Fb", "../up", ".", "ü"]

    for source in sources:
        ship(sink, part(source, 0, 1, Limits(1, encoder="jsonl")), [1])

    found = stored(sink)
    assert len(found) == len(sources)
    assert sorted(json.loads(data)["source"] for data in found.values()) == sorted(sources)
    for source in sources:
        assert [each.rows for each in sink.holdings(SHIPMENT, source, 0).stored] == [1]


@pytest.mark.parametrize("encoder", ENCODERS)
def test_an_object_has_the_columns_of_its_dataset_and_none_of_ours(
    folder_sink: BlobSink, encoder: str
) -> None:  # L-STAMP-9, L-SCH-11, L-FWD-5
    ship(folder_sink, part("web", 0, 2, Limits(10, encoder=encoder)), [1, 2])

    name, data = only(folder_sink)
    if name.endswith(".parquet"):
        table = pq.read_table(io.BytesIO(data))
        assert table.schema.equals(arrow_schema(DATASET))
        assert table.to_pylist() == [{"source": "web", **row(1)}, {"source": "web", **row(2)}]
    else:
        text = gzip.decompress(data) if name.endswith(".gz") else data
        assert text.splitlines()[1] == (
            b'{"n":2,"text":"row 2, \\"quoted\\"","at":"2026-03-01T10:00:00.000002Z","price":"0.02",'
            b'"raw":"Ag==","more":{"seq":2},"rate":0.2857142857142857,"source":"web"}'
        )


@pytest.mark.parametrize("encoder", ["parquet:snappy", "jsonl"])
def test_an_object_has_the_schema_of_its_intent(folder_sink: BlobSink, encoder: str) -> None:  # L-SCH-11
    grown = Dataset("logs", (*DATASET.columns, Column("new", "string")), version=4)
    limits = Limits(10, encoder=encoder)
    ship(folder_sink, part("web", 0, 1, limits), [1])

    ship(folder_sink, part("web", 1, 2, limits, intent="intent-2"), [2], dataset=grown)

    first, second = stored(folder_sink).values()
    if encoder != "jsonl":
        assert "new" not in pq.read_schema(io.BytesIO(first)).names
        assert "new" in pq.read_schema(io.BytesIO(second)).names


def test_the_encoder_is_the_intents_whatever_the_sink_says_now(folder_sink: BlobSink) -> None:  # L-WM-7
    limits = replace(folder_sink, encoder="jsonl.gz").limits(0)

    ship(folder_sink, part("web", 0, 2, limits), [1, 2])

    name, data = only(folder_sink)
    assert name.endswith("-00000000000000000002.jsonl.gz")
    assert data[4:8] == b"\0\0\0\0"  # the time of gzip's frame


# Repeats


@pytest.mark.parametrize("encoder", ENCODERS)
def test_a_repeat_finds_its_object_and_writes_nothing(
    sink: BlobSink, encoder: str
) -> None:  # L-BLOB-5, L-WM-8
    asked = part("web", 0, 10, Limits(10, encoder=encoder))
    [first] = outcomes(ship(sink, asked, range(1, 11)))
    before = stored(sink)

    [again] = outcomes(ship(sink, asked, range(1, 11)))

    assert (again.status, again.rows, again.digest, again.target) == ("known", 10, first.digest, first.target)
    assert stored(sink) == before
    assert again.requests == (1 if sink.destination == "s3" else 0)


@pytest.mark.parametrize("encoder", ENCODERS)
def test_a_repeat_after_rows_were_removed_is_known(sink: BlobSink, encoder: str) -> None:  # L-BLOB-5, L-WM-11
    asked = part("web", 0, 10, Limits(10, encoder=encoder))
    ship(sink, asked, range(1, 11))
    before = stored(sink)

    [again] = outcomes(ship(sink, asked, [2, 3, 7]))

    assert (again.status, again.rows) == ("known", 10)
    assert stored(sink) == before


@pytest.mark.parametrize("encoder", ENCODERS)
def test_another_intent_of_the_same_rows_finds_them(sink: BlobSink, encoder: str) -> None:  # L-BLOB-5
    limits = Limits(10, encoder=encoder)
    ship(sink, part("web", 0, 10, limits, intent="intent-1"), range(1, 11))

    [again] = outcomes(ship(sink, part("web", 0, 10, limits, intent="intent-2"), range(1, 11), size=3))

    assert (again.status, again.rows) == ("known", 10)


@pytest.mark.parametrize("encoder", ENCODERS)
def test_other_rows_under_the_key_stay_and_hold_the_strand(sink: BlobSink, encoder: str) -> None:  # L-BLOB-5
    limits = Limits(10, encoder=encoder)
    ship(sink, part("web", 0, 10, limits, intent="intent-1"), [1, 2, 4])
    before = stored(sink)

    [again] = outcomes(ship(sink, part("web", 0, 10, limits, intent="intent-2"), [1, 3, 4]))

    assert (again.status, again.kind, again.scope) == ("held", "key_conflict", "strand")
    assert "00000000000000000010" in again.text
    assert stored(sink) == before


@pytest.mark.parametrize("encoder", ["parquet:snappy", "jsonl"])
def test_rows_with_more_columns_than_ours_are_others(folder_sink: BlobSink, encoder: str) -> None:  # L-BLOB-5
    fewer = Dataset("logs", DATASET.columns[:3], version=1)
    limits = Limits(10, encoder=encoder)
    ship(folder_sink, part("web", 0, 10, limits), [1, 2])

    [again] = outcomes(
        ship(folder_sink, part("web", 0, 10, limits, intent="intent-2"), [1, 2], dataset=fewer)
    )

    assert again.kind == "key_conflict"


@pytest.mark.parametrize("encoder", ["parquet:snappy", "jsonl"])
def test_rows_are_the_same_when_the_dataset_has_grown(
    folder_sink: BlobSink, encoder: str
) -> None:  # L-BLOB-5
    grown = Dataset("logs", (*DATASET.columns, Column("new", "string")), version=4)
    limits = Limits(10, encoder=encoder)
    ship(folder_sink, part("web", 0, 10, limits), [1, 2])

    [again] = outcomes(
        ship(folder_sink, part("web", 0, 10, limits, intent="intent-2"), [1, 2], dataset=grown)
    )

    assert again.status == "known"


@pytest.mark.parametrize("encoder", ["parquet:snappy", "jsonl", "jsonl.gz"])
@pytest.mark.parametrize("damage", ["cut", "empty", "foreign"])
def test_a_file_that_is_no_object_of_ours_stays_and_holds_the_strand(
    folder_sink: BlobSink, encoder: str, damage: str
) -> None:  # L-BLOB-5
    asked = part("web", 0, 10, Limits(10, encoder=encoder))
    ship(folder_sink, asked, range(1, 11))
    name, data = only(folder_sink)
    path = Path(folder_sink.dir) / name
    path.write_bytes({"cut": data[:-20], "empty": b"", "foreign": b"something else\n"}[damage])
    before = path.read_bytes()

    [again] = outcomes(ship(folder_sink, asked, range(1, 11)))

    assert (again.status, again.kind) == ("held", "key_conflict")
    assert path.read_bytes() == before


@pytest.mark.parametrize("encoder", ["parquet:snappy", "jsonl"])
def test_of_many_tries_at_once_one_writes_and_the_others_know(
    sink: BlobSink, encoder: str
) -> None:  # L-DRV-11
    asked = part("web", 0, 50, Limits(10, encoder=encoder))
    told: list[Outcome] = []
    start = threading.Barrier(6)

    def run() -> None:
        start.wait(30)
        told.extend(outcomes(ship(sink, asked, range(1, 51))))

    threads = [threading.Thread(target=run) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(each.status for each in told) == ["known"] * 25 + ["stored"] * 5
    found = stored(sink)
    assert [n for name, data in found.items() for n in numbers_in(name, data)] == [*range(1, 51)]


# What it tells


def test_holdings_tell_what_is_there_and_what_is_strange(sink: BlobSink) -> None:  # L-BLOB-11
    limits = Limits(10, encoder="jsonl")
    told = outcomes(ship(sink, part("web", 0, 20, limits), [*range(1, 11), 15]))
    ship(sink, part("web", 0, 20, limits, epoch=1), [1])
    ship(sink, part("web-2", 0, 20, limits), [1])
    objects_of(sink).create("logs/source=web/notes.txt", b"hello")

    held = sink.holdings(SHIPMENT, "web", 0)

    assert [(each.lo, each.hi, each.rows, each.digest, each.target) for each in held.stored] == [
        (each.lo, each.hi, each.rows, each.digest, each.target) for each in told
    ]
    assert [name.removeprefix(f"{sink.prefix}/") for name in held.strangers] == ["logs/source=web/notes.txt"]
    assert [each.hi for each in sink.holdings(SHIPMENT, "web", 1).stored] == [10]
    assert sink.holdings(SHIPMENT, "nobody", 0).stored == ()


def test_a_bucket_keeps_metadata_beside_each_object(s3_endpoint: str) -> None:  # L-BLOB-7
    options = s3_options(s3_endpoint)
    sink = BlobSink(
        "s3",
        bucket=BUCKET,
        prefix=f"team a/{uuid4().hex}",
        region=options["region"],
        endpoint=s3_endpoint,
        storage_class="STANDARD_IA",
        sse="AES256",
        credentials={key: value for key, value in options.items() if key in KEYS},
    )

    [told] = outcomes(ship(sink, part("a/b", 5, 15, Limits(10, encoder="parquet:zstd"), chain_hi=3), [7, 8]))

    assert told.target == f"{sink.prefix}/logs/source=a%2Fb/{3:020}-{15:020}.parquet"
    assert told.requests == 3  # it looks, is told that the bucket is there, and puts
    url = f"{s3_endpoint}/{BUCKET}/{quote(told.target)}"
    asked = urllib.request.Request(url, method="HEAD", headers={"Authorization": "AWS test:test"})
    with urllib.request.urlopen(asked) as answer:
        headers = answer.headers
    assert {name: headers[f"x-amz-meta-{name}"] for name in ("intent", "lo", "hi", "rows", "sha256")} == {
        "intent": "intent-1",
        "lo": "3",
        "hi": "15",
        "rows": "2",
        "sha256": told.digest,
    }
    assert headers["x-amz-storage-class"] == "STANDARD_IA"
    assert headers["x-amz-server-side-encryption"] == "AES256"
    assert headers["Content-Type"] == "application/vnd.apache.parquet"


def test_the_width_of_a_unit_follows_from_the_size_of_rows(folder_sink: BlobSink) -> None:  # L-BLOB-8, L-WM-8
    sink = replace(folder_sink, max_object_rows=1000, max_object_bytes=10_000)

    assert sink.limits(0) == Limits(1000, 0, "parquet:snappy")
    assert sink.limits(100).unit_rows == 100
    assert sink.limits(1e9).unit_rows == 1
    assert replace(sink, codec="zstd").limits(0).encoder == "parquet:zstd"
    assert replace(sink, encoder="jsonl").limits(0).encoder == "jsonl"
    assert replace(sink, min_object_bytes=5, max_delay_s=60).patience.min_bytes == 5


def test_a_sink_pickles_and_shows_no_secret(sink: BlobSink) -> None:  # L-DRV-11, L-OBS-6
    told = replace(sink, credentials=KEYS) if sink.destination == "s3" else sink

    assert pickle.loads(pickle.dumps(told)) == told
    for secret in KEYS.values():
        assert secret not in repr(told) + told.fingerprint


def test_another_place_has_another_fingerprint(tmp_path: Path) -> None:  # L-WM-5
    s3 = BlobSink("s3", bucket="b", prefix="p", endpoint="https://key:word@host:9000")

    prints = {
        each.fingerprint
        for each in (
            s3,
            replace(s3, bucket="c"),
            replace(s3, prefix="q"),
            replace(s3, endpoint=""),
            replace(s3, destination="gcs"),
            BlobSink("local", dir=str(tmp_path)),
        )
    }

    assert len(prints) == 6
    assert s3.fingerprint == "s3://host:9000/b/p"
    assert replace(s3, encoder="jsonl", region="eu-west-1").fingerprint == s3.fingerprint


@pytest.mark.parametrize(
    "wrong",
    [
        {"destination": "ftp", "bucket": "b"},
        {"destination": "local"},
        {"destination": "s3"},
        {"destination": "local", "dir": "x", "bucket": "b"},
        {"destination": "s3", "bucket": "b", "dir": "x"},
        {"destination": "s3", "bucket": "b", "encoder": "csv"},
        {"destination": "s3", "bucket": "b", "codec": "lz4"},
        {"destination": "s3", "bucket": "b", "prefix": "../out"},
        {"destination": "s3", "bucket": "b", "max_object_rows": 0},
        {"destination": "gcs", "bucket": "b", "sse": "AES256"},
    ],
)
def test_a_sink_that_could_never_work_is_refused(wrong: dict[str, Any]) -> None:  # L-CFG-2
    with pytest.raises(UsageError):
        BlobSink(**wrong)


# A folder


def test_what_killed_writers_left_is_swept_after_a_day(folder_sink: BlobSink) -> None:  # L-BLOB-6
    staged = Path(folder_sink.dir) / ".staged"
    staged.mkdir(parents=True)
    old, young = staged / f"{1:032x}", staged / f"{2:032x}"
    for path, age in ((old, timedelta(hours=25)), (young, timedelta(hours=23))):
        path.write_bytes(b"part of an object")
        then = (datetime.now(UTC) - age).timestamp()
        os.utime(path, (then, then))

    ship(folder_sink, part("web", 0, 1, Limits(1, encoder="jsonl")), [1])

    assert not old.exists()
    assert young.exists()
    assert [each.lo for each in folder_sink.holdings(SHIPMENT, "web", 0).stored] == [0]


def test_rows_that_cannot_be_encoded_hold_the_strand_and_leave_nothing(sink: BlobSink) -> None:  # L-BLOB-10
    asked = part("web", 0, 30, Limits(10, encoder="parquet:snappy"))
    good, bad = [*batches("web", range(1, 11))], [*batches("web", range(11, 21))]
    bad[-1] = bad[-1].drop_columns(["n"])

    with sink.opened() as delivery:
        told = [
            outcome
            for lo, rows in ((0, good), (10, bad))
            for outcome in delivery.deliver(unit(asked.limits, lo), iter(rows))
        ]

    assert [(each.status, each.kind, each.scope) for each in told] == [
        ("stored", "", "strand"),
        ("held", "encode_failed", "strand"),
    ]
    assert len(stored(sink)) == 1
    assert [*objects_of(sink).leftovers()] == []


def unit(limits: Limits, lo: int) -> Unit:
    return Unit(SHIPMENT, "intent-1", 0, "web", lo, lo + 10, lo, limits)


def test_an_error_of_the_rows_is_none_of_the_sink(sink: BlobSink) -> None:  # L-DRV-11
    def failing() -> Iterator[pa.RecordBatch]:
        yield from batches("web", range(1, 6))
        raise RuntimeError("the table went away")

    with sink.opened() as delivery, pytest.raises(RuntimeError, match="went away"):
        list(delivery.deliver(unit(Limits(10, encoder="jsonl"), 0), failing()))

    assert stored(sink) == {}
    assert [*objects_of(sink).leftovers()] == []


def test_withheld_rows_are_in_no_object(sink: BlobSink) -> None:  # L-POL-1
    asked = part("web", 0, 20, Limits(10, encoder="jsonl"))

    told = ship(sink, asked, range(1, 21), withheld=[2, 3, *range(11, 21)])

    name, data = only(sink)
    assert numbers_in(name, data) == [1, *range(4, 11)]
    assert [each.withheld for each in told] == [(Range(1, 3),), (Range(10, 20),)]
