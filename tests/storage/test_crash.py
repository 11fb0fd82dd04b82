"""The content store under SIGKILL, and the memory that streams take (P-BLB-9, P-REC-6, P-REC-9)."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from strandline.persist import append, blob_fetch, blob_store, open_store, read
from strandline.storage import sweep
from tests.storage.places import Place

STEPS = ("objects.staged", "objects.written", "objects.synced", "objects.published", "objects.durable")
WRITER = """
import sys
from strandline.storage import open_content
from strandline.persist import append, blob_store, open_store

url, options, store, seed = sys.argv[1], eval(sys.argv[2]), sys.argv[3], int(sys.argv[4])
content, b = open_content(url, **options), open_store(store)
for number in range(100_000):
    data = f"{seed} {number} ".encode() * (1 + number % 7 * 3000)
    is_stream = number % 2
    ref = content.put_stream([data[:10], data[10:]], "a/b") if is_stream else blob_store(content, data, "a/b")
    append(b, "s", "stored", number, ref)
    print(ref.cid, flush=True)
"""
STREAMER = """
import resource, sys
from strandline.storage import open_content

url, options, megabytes = sys.argv[1], eval(sys.argv[2]), int(sys.argv[3])
content = open_content(url, **options)
content.put_stream([b"warm"], "a/b")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
ref = content.put_stream((bytes([n % 256]) * 1_000_000 for n in range(megabytes)), "a/b")
size = sum(map(len, content.get_stream(ref)))
print(size, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def arguments(place: Place) -> list[str]:
    return [place.url, repr(place.options)]


def test_what_was_acknowledged_survives_a_kill_at_any_time(durable_place: Place, tmp_path: Path) -> None:
    store, acknowledged = tmp_path / "store.db", set()
    chance = random.Random(7)
    for seed in range(5):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, *arguments(durable_place), str(store), str(seed)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert writer.stdout is not None
        acknowledged |= {writer.stdout.readline().strip() for _ in range(chance.randint(1, 40))}
        writer.kill()
        rest, _ = writer.communicate()
        acknowledged |= set(rest.split("\n")[:-1])  # its last line may be torn

    b, content = open_store(store), durable_place.content()
    named = {event.data.cid: event.data for event in read(b, "s")}

    assert acknowledged <= set(named)
    assert all(blob_fetch(content, ref) is not None for ref in named.values())  # never a dangling reference
    assert all(content.get(cid) is not None for cid, _ in content.stored())  # never half a blob
    later = datetime.now(UTC) + timedelta(hours=2)
    report = sweep(content, [b], grace_s=3600, now=later)
    assert report.live == len(named) == len(list(content.stored()))
    assert list(content.leftovers()) == []
    b.close()


@pytest.mark.parametrize("repeats", [False, True])
@pytest.mark.parametrize("step", STEPS)
def test_a_put_killed_at_any_step_leaves_an_orphan_at_most(tmp_path: Path, step: str, repeats: bool) -> None:
    place = Place(str(tmp_path / "content"))
    if repeats:
        place.content().put(b"0 0 ", "a/b")  # the bytes that the writer puts first

    killed = subprocess.run(
        [sys.executable, "-c", WRITER, *arguments(place), str(tmp_path / "store.db"), "0"],
        env={**os.environ, "STRANDLINE_FAILPOINT": step},
        stdout=subprocess.PIPE,
        check=False,
    )
    b, content = open_store(tmp_path / "store.db"), place.content()

    assert killed.returncode == -signal.SIGKILL
    assert read(b, "s") == []
    stored = [cid for cid, _ in content.stored()]
    assert len(stored) == (repeats or step in STEPS[3:])
    assert all(content.get(cid) == b"0 0 " for cid in stored)
    append(b, "s", "stored", 0, blob_store(content, b"0 0 ", "a/b"))
    sweep(content, [b], grace_s=0, now=datetime.now(UTC) + timedelta(minutes=1))
    assert blob_fetch(content, read(b, "s")[0].data) == b"0 0 "
    assert list((tmp_path / "content" / ".staged").iterdir()) == []
    b.close()


def test_a_sweep_killed_between_two_removals_is_finished_by_the_next(tmp_path: Path) -> None:
    place, b = Place(str(tmp_path / "content")), open_store(tmp_path / "store.db")
    content = place.content()
    ref = blob_store(content, b"live", "a/b")
    append(b, "s", "t", 1, ref)
    for number in range(5):
        content.put(bytes([number]), "a/b")
    now = datetime.now(UTC) + timedelta(hours=2)
    code = (
        "import sys, datetime\n"
        "from strandline.storage import open_content, sweep\n"
        "from strandline.persist import open_store\n"
        "now = datetime.datetime.fromisoformat(sys.argv[3])\n"
        "sweep(open_content(sys.argv[1]), [open_store(sys.argv[2])], grace_s=3600, now=now)\n"
    )

    command = [sys.executable, "-c", code, place.url, str(tmp_path / "store.db"), now.isoformat()]
    killed = subprocess.run(
        command, env={**os.environ, "STRANDLINE_FAILPOINT": "sweep.removed:2"}, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    assert len(list(content.stored())) == 4

    assert sweep(content, [b], grace_s=3600, now=now).removed == 3
    assert content.get(ref.cid) == b"live"
    b.close()


@pytest.mark.parametrize(("kind", "megabytes", "most_kb"), [("folder", 200, 20_000), ("s3", 100, 90_000)])
def test_a_stream_takes_bounded_memory_however_large_the_blob(  # P-BLB-9
    place_of: Callable[[str], Place], kind: str, megabytes: int, most_kb: int
) -> None:
    command = [sys.executable, "-c", STREAMER, *arguments(place_of(kind)), str(megabytes)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    size, grown_kb = map(int, done.stdout.split())

    assert size == megabytes * 1_000_000
    assert grown_kb < most_kb
