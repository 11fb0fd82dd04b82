"""The Postgres that tests run on is real, can crash, and leaves nothing behind."""

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from strandline.conformance.scratch_postgres import (
    ScratchPostgres,
    find_binaries,
    scratch_postgres,
    wheel_places,
)
from strandline.errors import UnavailableError

needs_wheel = pytest.mark.skipif(
    not wheel_places(), reason="the wheel that carries Postgres is not installed: none is needed here"
)


@pytest.fixture(scope="module")
def server() -> Iterator[ScratchPostgres]:
    """For tests that leave it running, whatever they have done to it."""
    with ScratchPostgres() as started:
        yield started


COUNTS_FORKS = """
import ctypes
from strandline.conformance.scratch_postgres import ScratchPostgres

forks = []
before = ctypes.CFUNCTYPE(None)(lambda: forks.append(1))
ctypes.CDLL(None).__register_atfork(before, None, None, None)
with ScratchPostgres() as server:
    server.kill()
    server.start()
print(len(forks))
"""


def ask(url: str, question: str) -> str:
    with psycopg.connect(url) as connection:
        row = connection.execute(question.encode()).fetchone()
    assert row is not None
    return str(row[0])


def ask_for_a_while(connection: psycopg.Connection) -> None:
    """The helpers of a killed server notice soon, not at once."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        connection.execute("SELECT n FROM kept")


def write_row(url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("DROP TABLE IF EXISTS kept")
        connection.execute("CREATE TABLE kept (n int)")
        connection.execute("INSERT INTO kept VALUES (42)")


def test_a_committed_row_survives_a_kill(server: ScratchPostgres) -> None:
    write_row(server.url)
    seen = len(server.log)

    server.kill()
    server.start()

    assert ask(server.url, "SELECT n FROM kept") == "42"
    assert "automatic recovery in progress" in server.log[seen:]


def test_a_kill_ends_open_connections_and_what_they_had_not_committed(server: ScratchPostgres) -> None:
    write_row(server.url)
    with psycopg.connect(server.url) as connection:
        connection.execute("UPDATE kept SET n = 43")

        server.kill()
        with pytest.raises(psycopg.OperationalError):
            ask_for_a_while(connection)
    server.start()

    assert ask(server.url, "SELECT n FROM kept") == "42"


@pytest.mark.parametrize("mode", ["fast", "immediate", "smart"])
def test_a_stopped_server_starts_again_at_the_same_url(server: ScratchPostgres, mode: str) -> None:
    write_row(server.url)

    server.stop(mode)  # type: ignore[arg-type]  # parametrize gives plain strings
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(server.url)
    server.start()

    assert ask(server.url, "SELECT n FROM kept") == "42"


def test_it_syncs_and_takes_settings_and_listens_on_no_network() -> None:
    with scratch_postgres(settings={"work_mem": "5MB"}) as url:
        shown = {name: ask(url, f"SHOW {name}") for name in ("fsync", "work_mem", "listen_addresses")}

    assert shown == {"fsync": "on", "work_mem": "5MB", "listen_addresses": ""}


def test_two_live_side_by_side_and_leave_nothing_behind() -> None:
    with ScratchPostgres() as one, ScratchPostgres() as other:
        write_row(one.url)
        write_row(other.url)
        folders = [one.folder, other.folder]

    assert folders[0] != folders[1]
    assert [folder.exists() for folder in folders] == [False, False]


def crash_inside(server: ScratchPostgres) -> None:
    with server:
        server.kill()
        _ = 1 / 0


def test_the_folder_goes_also_when_the_block_fails_after_a_kill() -> None:
    server = ScratchPostgres()

    with pytest.raises(ZeroDivisionError):
        crash_inside(server)

    assert not server.folder.exists()


def test_no_library_of_the_program_has_its_fork_handlers_run() -> None:
    """Those of gRPC crash a child now and then: it would be the server that ended with SIGSEGV."""
    done = subprocess.run(
        [sys.executable, "-c", COUNTS_FORKS], capture_output=True, text=True, check=True, timeout=120
    )

    assert done.stdout == "0\n"


def test_a_server_that_cannot_start_says_why_and_leaves_nothing_behind() -> None:
    server = ScratchPostgres(settings={"no_such_setting": "1"})

    with pytest.raises(UnavailableError, match="no_such_setting"), server:
        pytest.fail("it started")

    assert not server.folder.exists()


def test_a_kept_folder_holds_the_log(tmp_path: Path) -> None:
    with scratch_postgres(keep=tmp_path / "kept") as url:
        write_row(url)

    assert "ready to accept connections" in (tmp_path / "kept" / "log").read_text()


def test_without_binaries_the_error_names_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="no Postgres binaries") as raised:
        find_binaries([tmp_path])

    assert "apt install postgresql" in str(raised.value.hint)


def test_a_variable_names_the_only_folder_to_look_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRANDLINE_POSTGRES_BIN", str(tmp_path))

    with pytest.raises(UnavailableError):
        find_binaries()


@needs_wheel
def test_the_binaries_in_the_wheel_work_too() -> None:
    with ScratchPostgres(binaries=find_binaries(wheel_places())) as server:
        write_row(server.url)

        server.kill()
        server.start()

        assert ask(server.url, "SELECT n FROM kept") == "42"


@needs_wheel
def test_binaries_that_the_other_user_cannot_reach_are_copied(tmp_path: Path) -> None:
    prefix = find_binaries(wheel_places()).parent
    libraries = prefix.parent.with_name(f"{prefix.parent.name}.libs")
    hidden = tmp_path / "hidden"
    hidden.mkdir(mode=0o700)
    shutil.copytree(prefix, hidden / prefix.parent.name / prefix.name, symlinks=True)
    if libraries.is_dir():
        shutil.copytree(libraries, hidden / libraries.name)

    with ScratchPostgres(binaries=hidden / prefix.parent.name / prefix.name / "bin") as server:
        write_row(server.url)

        assert ask(server.url, "SELECT n FROM kept") == "42"
