"""Objects: create-only, whole or not there, the same on a folder, a bucket and in memory (L-BLOB-5 and 6)."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from strandline.errors import NotFoundError, UnavailableError, UsageError
from strandline.storage.objects import PART_BYTES, STAGED, FolderObjects, MemoryObjects, Objects, open_objects
from tests.storage.places import Place, info_of, renew_later, s3_options

LARGE = PART_BYTES + 12_345
FAR = datetime(2200, 1, 1, tzinfo=UTC)
STEPS = ("objects.staged", "objects.written", "objects.synced", "objects.published", "objects.durable")


def large_chunks() -> Iterator[bytes]:
    yield from (b"x" * 100_000 for _ in range(LARGE // 100_000))
    yield b"y" * (LARGE % 100_000)


def names(objects: Objects, under: str = "") -> list[str]:
    return [info.name for info in objects.scan(under)]


def test_what_is_created_is_read_back(objects: Objects) -> None:
    assert objects.create("a/b.txt", b"hello")
    assert objects.create("empty", b"")

    assert objects.read("a/b.txt") == b"hello"
    assert objects.read("empty") == b""
    assert info_of(objects, "a/b.txt").size == 5
    assert abs(info_of(objects, "a/b.txt").modified - datetime.now(UTC)) < timedelta(minutes=5)


def test_a_name_that_is_there_is_never_created_again(objects: Objects) -> None:  # L-BLOB-5
    objects.create("a", b"first")

    assert not objects.create("a", b"second")
    assert not objects.create("a", large_chunks())

    assert objects.read("a") == b"first"
    assert list(objects.leftovers()) == []


def test_a_large_stream_is_created_once_and_leaves_nothing_staged(objects: Objects) -> None:  # L-BLOB-5
    assert objects.create("large", large_chunks())
    assert not objects.create("large", b"small")

    assert info_of(objects, "large").size == LARGE
    assert b"".join(objects.stream("large")) == b"".join(large_chunks())
    assert list(objects.leftovers()) == []


@pytest.mark.parametrize("data", [b"z" * 10, b"z" * LARGE])
def test_of_many_creators_at_once_one_wins(objects: Objects, data: bytes) -> None:  # L-BLOB-5
    won: list[int] = []

    def create(number: int) -> None:
        if objects.create("race", bytes([number]) + data):
            won.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(won) == 1
    assert objects.read("race") == bytes(won) + data


def test_replace_takes_the_place_of_what_was_there(objects: Objects) -> None:
    objects.create("a", b"first")

    objects.replace("a", b"second")
    objects.replace("b", large_chunks())

    assert objects.read("a") == b"second"
    assert info_of(objects, "b").size == LARGE
    assert list(objects.leftovers()) == []


def test_a_name_may_be_known_only_after_the_last_chunk(objects: Objects) -> None:
    taken: list[int] = []

    def chunks() -> Iterator[bytes]:
        for chunk in large_chunks():
            taken.append(len(chunk))
            yield chunk

    objects.replace(lambda: f"size/{sum(taken)}", chunks())

    assert names(objects) == [f"size/{LARGE}"]


@pytest.mark.parametrize("before", [0, LARGE])
def test_an_error_of_the_callers_own_iterator_passes_as_it_is_and_nothing_is_stored(
    objects: Objects, before: int
) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"x" * before
        raise FileNotFoundError("mine")

    with pytest.raises(FileNotFoundError, match="mine"):
        objects.create("a", chunks())

    assert names(objects) == []
    assert list(objects.leftovers()) == []


def test_what_is_not_there_is_told_apart(objects: Objects) -> None:
    assert objects.head("none") is None
    assert not objects.renew("none")
    assert not objects.delete_older("none", FAR)
    objects.delete("none")
    with pytest.raises(NotFoundError):
        objects.read("none")
    with pytest.raises(NotFoundError):  # at the call, not at the first chunk
        objects.stream("none")


def test_a_stream_can_start_anywhere(objects: Objects) -> None:
    objects.create("a", bytes(range(100)))

    assert b"".join(objects.stream("a", first=90)) == bytes(range(90, 100))
    assert b"".join(objects.stream("a", first=10, size=5)) == bytes(range(10, 15))
    assert b"".join(objects.stream("a", first=98, size=50)) == bytes([98, 99])
    assert b"".join(objects.stream("a", first=100)) == b""


def test_a_scan_is_in_order_of_code_points_and_stays_below_its_folder(objects: Objects) -> None:
    stored = ["a b/x", "a-b", "a.b", "a/b/c", "a/b/d", "a/c", "a0", "source=x%2Fy/1", "ä/ü"]
    for name in stored:
        objects.create(name, b"")

    assert names(objects) == sorted(stored)
    assert names(objects, "a/b") == ["a/b/c", "a/b/d"]
    assert names(objects, "no/such") == []


@pytest.mark.parametrize(
    "name", ["", "/a", "a/", "a//b", "../a", "a/../b", ".staged/x", "a/.b", "a\\b", "a\0b"]
)
def test_a_name_cannot_leave_its_place(objects: Objects, name: str) -> None:  # L-BLOB-1
    for act in (objects.read, objects.head, objects.delete, lambda bad: objects.create(bad, b"x")):
        with pytest.raises(UsageError):
            act(name)
    assert names(objects) == []


def test_only_what_is_old_is_removed_by_age(objects: Objects) -> None:
    objects.create("a", b"x")
    modified = info_of(objects, "a").modified

    assert not objects.delete_older("a", modified)
    assert names(objects) == ["a"]
    assert objects.delete_older("a", modified + timedelta(microseconds=1))
    assert names(objects) == []


def test_a_renewal_makes_an_object_young_and_keeps_its_bytes(objects: Objects) -> None:  # P-BLB-9
    objects.create("a", b"x")
    limit = info_of(objects, "a").modified + timedelta(microseconds=1)

    renew_later(objects, "a", lambda: objects.renew("a"))

    assert not objects.delete_older("a", limit)
    assert objects.read("a") == b"x"
    assert list(objects.leftovers()) == []


def test_a_put_at_the_instant_of_a_removal_by_age_is_never_undone(tmp_path: Path) -> None:  # P-BLB-9
    """Either the removal comes first, and the put stores it anew, or the put does, and then it is young."""
    objects, path = open_objects(tmp_path), tmp_path / "a"
    objects.create("a", b"x")
    limit = datetime.now(UTC) - timedelta(hours=1)
    done = threading.Event()

    def remove() -> None:
        while not done.is_set():
            objects.delete_older("a", limit)

    def name() -> str:
        """Asked for when all is staged: what is there grows old just before it is replaced."""
        os.utime(path, times=(limit.timestamp() - 1,) * 2)
        return "a"

    removers = [threading.Thread(target=remove) for _ in range(2)]
    for remover in removers:
        remover.start()
    try:
        for _ in range(500):
            objects.replace(name, b"x")
            assert path.read_bytes() == b"x"
    finally:
        done.set()
        for remover in removers:
            remover.join()


def test_another_object_over_the_same_place_sees_everything(durable_place: Place) -> None:  # P-BLB-3
    durable_place.open().create("a", b"x")

    assert durable_place.open().read("a") == b"x"


def test_each_kind_of_url_is_opened(tmp_path: Path) -> None:
    assert isinstance(open_objects("memory:"), MemoryObjects)
    assert isinstance(open_objects(tmp_path), FolderObjects)
    assert open_objects((tmp_path / "a b").as_uri()).url == str(tmp_path / "a b")
    for url in ("ftp://host/x", "", "file://host/x"):
        with pytest.raises(UsageError):
            open_objects(url)
    with pytest.raises(UsageError, match="endpoint"):
        open_objects(tmp_path, endpoint="http://127.0.0.1:1")
    with pytest.raises(UsageError, match="bogus"):
        open_objects("s3://bucket/x", bogus="1")


def test_without_obstore_a_bucket_says_what_to_install_and_a_folder_works(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['obstore'] = None\n"
        "from strandline.storage.objects import open_objects\n"
        f"open_objects({str(tmp_path)!r}).create('a', b'x')\n"
        "try: open_objects('s3://bucket')\n"
        "except ValueError as error: print(error.hint)\n"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == 'pip install "strandline[objects]"\n'


def test_a_bucket_that_cannot_be_reached_is_unavailable() -> None:
    retries = {"max_retries": 0, "retry_timeout": timedelta(seconds=1)}
    objects = open_objects("s3://bucket/x", **s3_options("http://127.0.0.1:9"), retry_config=retries)

    for act in (objects.read, objects.head, objects.delete, lambda name: objects.create(name, b"x")):
        with pytest.raises(UnavailableError) as raised:
            act("a")
        assert "\n" not in raised.value.message


def test_a_bucket_that_is_not_there_is_unavailable_and_not_merely_empty(s3_endpoint: str) -> None:
    objects = open_objects("s3://no-such-bucket/x", **s3_options(s3_endpoint))

    for act in (
        objects.head,
        objects.renew,
        lambda name: objects.create(name, b"x"),
        lambda _: names(objects),
    ):
        with pytest.raises(UnavailableError):
            act("a")


def test_a_folder_that_is_no_folder_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")

    with pytest.raises(UnavailableError):
        open_objects(tmp_path / "file").create("a", b"x")
    with pytest.raises(UnavailableError):  # never a False, which would say that it is there
        open_objects(tmp_path).create("file/a", b"x")


def test_a_full_disk_is_unavailable_and_leaves_nothing(tmp_path: Path) -> None:
    code = (
        "import resource, signal\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "from strandline.errors import UnavailableError\n"
        "from strandline.storage.objects import open_objects\n"
        f"objects = open_objects({str(tmp_path)!r})\n"
        "try: objects.create('a', b'x' * 1001)\n"
        "except UnavailableError as error: print(error.kind)\n"
        "print(list(objects.scan()), list(objects.leftovers()))\n"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "unavailable\n[] []\n"


def test_a_folder_that_was_removed_under_a_writer_comes_back_with_the_next_try(tmp_path: Path) -> None:
    objects = open_objects(tmp_path)
    objects.create("a/b", b"x")
    (tmp_path / "a" / "b").unlink()
    (tmp_path / "a").rmdir()

    with pytest.raises(UnavailableError):
        objects.create("a/c", b"x")

    assert objects.create("a/c", b"x")


@pytest.mark.parametrize("verb", ["create", "replace"])
@pytest.mark.parametrize("step", STEPS)
def test_a_put_killed_at_any_step_leaves_a_whole_object_or_none(  # P-REC-9, L-BLOB-6
    tmp_path: Path, step: str, verb: str
) -> None:
    code = (
        "from strandline.storage.objects import open_objects\n"
        f"open_objects({str(tmp_path)!r}).{verb}('a/b', (b'x' * 70_000 for _ in range(10)))\n"
    )

    env = {**os.environ, "STRANDLINE_FAILPOINT": step}
    killed = subprocess.run([sys.executable, "-c", code], env=env, check=False)
    objects = open_objects(tmp_path)

    assert killed.returncode == -signal.SIGKILL
    stored = [(info.name, info.size) for info in objects.scan()]
    assert stored == ([("a/b", 700_000)] if step in STEPS[3:] else [])
    assert len(list(objects.leftovers())) <= 1
    assert objects.create("a/b", b"again") is not bool(stored)
    for info in objects.leftovers():
        assert objects.delete_older(info.name, FAR)
    assert list((tmp_path / STAGED).iterdir()) == []
    assert len(names(objects)) == 1


@pytest.mark.parametrize("step", ["objects.staged", "objects.published"])
def test_a_large_put_to_a_bucket_killed_at_any_step_leaves_a_whole_object_or_none(  # P-REC-9
    place_of: Callable[[str], Place], step: str
) -> None:
    place = place_of("s3")
    code = (
        "from strandline.storage.objects import open_objects\n"
        f"open_objects({place.url!r}, **{place.options!r}).create('a', bytes({LARGE}))\n"
    )

    env = {**os.environ, "STRANDLINE_FAILPOINT": step}
    killed = subprocess.run([sys.executable, "-c", code], env=env, check=False)
    objects = place.open()

    assert killed.returncode == -signal.SIGKILL
    assert [(info.name, info.size) for info in objects.scan()] == [("a", LARGE)] * (
        step == "objects.published"
    )
    (left,) = objects.leftovers()
    assert objects.delete_older(left.name, FAR)
    assert list(objects.leftovers()) == []
