"""A blob sink that is killed at any step, and random units, repeats and removals: each row in one object."""

import io
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.sinks.blob.blob_sink import BlobSink
from strandline.sinks.blob.object_names import range_in
from strandline.sinks.sink import Limits
from strandline.storage.objects import open_objects
from tests.sinks.shipping import SHIPMENT, part, ship
from tests.storage.places import BUCKET, s3_options

FOLDER_STEPS = (
    "blob.put",
    "objects.staged",
    "objects.written",
    "objects.synced",
    "objects.published",
    "objects.durable",
    "blob.stored",
)
TIMEOUT_S = 120


def run_child(sink: BlobSink, file: Path, encoder: str, failpoint: str) -> subprocess.CompletedProcess[str]:
    file.write_bytes(pickle.dumps(sink))
    return subprocess.run(
        [sys.executable, "-m", "tests.sinks.blob.blob_child", str(file), encoder, "30"],
        env={**os.environ, "STRANDLINE_FAILPOINT": failpoint},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def numbers(sink: BlobSink) -> list[int]:
    """All rows of all objects, each of which must be whole."""
    objects = open_objects(sink.dir)
    found: list[int] = []
    for info in objects.scan("logs"):
        data = objects.read(info.name)
        if info.name.endswith(".parquet"):
            found += pq.read_table(io.BytesIO(data))["n"].to_pylist()
        else:
            found += [json.loads(line)["n"] for line in data.splitlines()]
    return found


@pytest.mark.parametrize("encoder", ["parquet:snappy", "jsonl"])
@pytest.mark.parametrize("step", FOLDER_STEPS)
def test_a_kill_leaves_whole_objects_and_the_next_try_each_row_once(
    tmp_path: Path, encoder: str, step: str
) -> None:  # F-34, L-BLOB-5, L-BLOB-6
    sink = BlobSink("local", dir=str(tmp_path / "out"))

    killed = run_child(sink, tmp_path / "sink", encoder, f"{step}:2")

    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert numbers(sink) in ([*range(1, 11)], [*range(1, 21)])
    told = ship(sink, part("web", 0, 30, Limits(10, encoder=encoder)), range(1, 31))
    assert told[0].outcome.status == "known"
    assert numbers(sink) == [*range(1, 31)]


@pytest.mark.parametrize("step", ["blob.put", "blob.stored"])
def test_a_kill_about_a_put_into_a_bucket_leaves_each_row_once(
    tmp_path: Path, s3_endpoint: str, step: str
) -> None:  # L-BLOB-5, L-BLOB-7
    options = s3_options(s3_endpoint)
    sink = BlobSink(
        "s3",
        bucket=BUCKET,
        prefix=f"kill/{step}",
        region=options.pop("region"),
        endpoint=options.pop("endpoint"),
        credentials=options,
    )

    killed = run_child(sink, tmp_path / "sink", "parquet:snappy", f"{step}:2")

    assert killed.returncode == -signal.SIGKILL, killed.stderr
    told = ship(sink, part("web", 0, 30, Limits(10, encoder="parquet:snappy")), range(1, 31))
    done = ["known", "known" if step == "blob.stored" else "stored", "stored"]
    assert [each.outcome.status for each in told] == done
    assert [each.rows for each in sink.holdings(SHIPMENT, "web", 0).stored] == [10, 10, 10]


@settings(max_examples=40)
@given(data=st.data())
def test_each_row_is_in_one_object_and_names_are_a_chain(
    data: st.DataObject,
) -> None:  # L-BLOB-2, L-WM-8, L-WM-11
    """Intents one after another, each tried several times, at once or in turn, while rows go away."""
    encoder = data.draw(st.sampled_from(["jsonl", "parquet:snappy"]))
    with TemporaryDirectory() as folder:
        sink = BlobSink("local", dir=folder)
        delivered: list[int] = []
        since = chain_hi = 0
        for number in range(data.draw(st.integers(1, 3))):
            until = since + data.draw(st.integers(1, 40))
            asked = part(
                "web",
                since,
                until,
                Limits(data.draw(st.integers(1, 15)), encoder=encoder),
                intent=f"intent-{number}",
                chain_hi=chain_hi,
            )
            there = sorted(data.draw(st.sets(st.integers(since + 1, until), max_size=40)))
            at_once = data.draw(st.integers(1, 3))
            threads = [
                threading.Thread(
                    target=ship, args=(sink, asked, there), kwargs={"size": data.draw(st.integers(1, 9))}
                )
                for _ in range(at_once)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            left = [seq for seq in there if data.draw(st.booleans())]
            assert all(each.outcome.status == "known" for each in ship(sink, asked, left))
            delivered += there
            since = until
            held = sink.holdings(SHIPMENT, "web", 0)
            chain_hi = max((each.hi for each in held.stored), default=chain_hi)
        assert numbers(sink) == delivered
        names = [range_in(info.name.rpartition("/")[2]) for info in open_objects(folder).scan("logs")]
        assert all(name is not None for name in names)
        assert all(one.hi <= other.lo for one, other in pairwise(names) if one and other)
        assert held.strangers == ()
