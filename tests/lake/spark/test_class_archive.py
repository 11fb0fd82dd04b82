"""The class archive: who has one starts Spark from it, and whatever is wrong with it costs time alone."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import pytest

from strandline.lake.spark.class_archive import (
    OPTIONS_KEY,
    UNUSED_S,
    archive_file,
    archive_options,
    can_archive,
    make_archive,
)
from strandline.lake.spark.java import Java, find_java

CHILD: Final = Path(__file__).with_name("start_child.py")
CHILD_ENDS_S: Final = 240
FROM_ARCHIVE: Final = "source: shared objects file (top)"  # that of ours; Java's own is without "(top)"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in ("SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "strandline").mkdir()
    return tmp_path / "strandline"


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In a cache of its own: that of the run if it has one, else it is made."""
    java = find_java()
    if not can_archive(java):
        pytest.skip(f"the Java at {java.home} has no archive of its own classes to add to")
    of_run = archive_file(java)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = archive_file(java)
    file.parent.mkdir(parents=True)
    if of_run.is_file():
        shutil.copyfile(of_run, file)
    else:
        with (tmp_path / "log").open("wb") as log:
            assert make_archive(java, {}, log)
    return file


@pytest.mark.slow
def test_spark_starts_without_an_archive_that_is_damaged(archive: Path, tmp_path: Path) -> None:
    os.truncate(archive, archive.stat().st_size // 2)
    assert archived_of(tmp_path) == 0


@pytest.mark.slow
def test_what_a_first_start_would_do_can_be_done_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if not can_archive(find_java()):
        pytest.skip("this Java has no archive of its own classes to add to")
    assert "without a class archive" in doctor(tmp_path)
    told = doctor(tmp_path, "--prepare")
    assert "keeping Spark's classes ready, once" in told
    assert "with a class archive" in told
    assert "keeping" not in doctor(tmp_path, "--prepare")  # once
    assert archived_of(tmp_path) > 5_000, (tmp_path / "sharing").read_text()

    archive = archive_file(find_java())
    os.truncate(archive, archive.stat().st_size // 2)
    assert archived_of(tmp_path) == 0
    assert not archive.exists()  # Java does not survive it


def doctor(home: Path, *options: str) -> str:
    if not (home / "strandline.toml").exists():
        subprocess.run(
            [sys.executable, "-m", "strandline", "init", str(home)], check=True, capture_output=True
        )
    done = subprocess.run(
        [sys.executable, "-m", "strandline", "doctor", "--home", str(home), *options],
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout + done.stderr


def archived_of(folder: Path) -> int:
    """How many classes a start takes from the archive. Whether it takes any is for Java to decide: what it
    has to say is in the file `sharing`."""
    done = subprocess.run(
        [sys.executable, CHILD, "listing", folder],
        capture_output=True,
        text=True,
        timeout=CHILD_ENDS_S,
        check=False,
        cwd=folder,  # where a Java that dies leaves its report
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, '"rows: 3"\n', "")
    return (folder / "classes").read_text().count(FROM_ARCHIVE)


def test_java_is_told_of_an_archive_that_is_there_unless_the_user_chose(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = Java(cache / "java", 21)
    assert archive_options(java, {}) == []
    archive_file(java).write_bytes(b"classes")
    os.utime(archive_file(java), (0, 0))
    assert archive_options(java, {}) == [f"-XX:SharedArchiveFile={archive_file(java)}"]
    assert time.time() - archive_file(java).stat().st_mtime < 3600  # in use: not swept by age
    assert archive_options(java, {OPTIONS_KEY: "-Xshare:off"}) == []
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-XX:SharedArchiveFile=mine.jsa")
    assert archive_options(java, {}) == []


def test_another_java_has_another_archive(cache: Path) -> None:
    homes = [cache / "a", cache / "b"]
    for home in homes:
        home.mkdir()
    first, second = (archive_file(Java(home, 17)) for home in homes)
    (homes[0] / "release").write_text('JAVA_VERSION="17.0.16"')
    assert len({first, second, archive_file(Java(homes[0], 17))}) == 3


def test_a_java_that_was_cut_down_makes_none(cache: Path) -> None:
    assert not can_archive(Java(cache, 21))


def test_what_cannot_be_made_is_told_in_the_log_and_leaves_nothing(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, recent = cache / "spark-old.jsa", cache / "spark-recent.jsa"
    old.write_bytes(b"")
    recent.write_bytes(b"")
    os.utime(old, (0, time.time() - UNUSED_S - 60))
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with (tmp_path / "log").open("wb") as log:
        assert not make_archive(Java(cache, 21), {}, log)
    assert "no class archive was made" in (tmp_path / "log").read_text()
    assert sorted(each.name for each in cache.iterdir()) == [old.name, recent.name]

    monkeypatch.setattr(sys, "executable", str(_touching(tmp_path)))
    with (tmp_path / "log").open("wb") as log:
        assert make_archive(Java(cache, 21), {}, log)
    assert sorted(cache.iterdir()) == sorted([recent, archive_file(Java(cache, 21))])


def _touching(folder: Path) -> Path:
    """A program in place of Python that makes the file it is asked for: `… -m <module> <file>`."""
    program = folder / "touching"
    program.write_text('#!/bin/sh\n: > "$3"\n')
    program.chmod(0o755)
    return program
