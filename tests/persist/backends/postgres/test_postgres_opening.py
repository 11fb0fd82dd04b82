"""Opening a Postgres store: what is there, what is made, what is refused, and its end."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any
from uuid import uuid4

import pytest

from strandline.conformance.scratch_postgres import ScratchPostgres
from strandline.errors import (
    NotFoundError,
    StoreUnavailable,
    UnsupportedFormat,
    UsageError,
)
from strandline.persist import open_store
from strandline.persist.backend import Append, Put
from strandline.persist.backends.postgres import PostgresBackend
from strandline.persist.event import Event
from tests.persist.backends.postgres.beside import Opened, finish, start


def test_a_store_is_found_again_with_its_lineage(opened: Opened) -> None:  # P-REC-1, P-REC-2, P-REC-8
    first = opened()
    first.commit([], [Append("s", "t", 0, 1)], once=("s", "k"))
    lineage = first.info()["lineage"]
    first.close()

    again = opened(create=False)

    assert again.info()["lineage"] == lineage
    assert again.commit([], [Append("s", "t", 9, 1)], once=("s", "k")) == [Event("s", 1, "t", 0, 1)]
    assert again.commit([], [Append("s", "t", 0, 2)]) == [Event("s", 2, "t", 0, 2)]


def test_what_is_not_there_is_created_only_on_request(
    opened: Opened, sql: Any, schema: str
) -> None:  # P-API-4
    with pytest.raises(NotFoundError, match=schema):
        opened(create=False)

    assert sql("select from pg_namespace where nspname = %s", schema) == []


def test_processes_that_create_it_at_once_get_one_store(
    postgres_url: str, opened: Opened, schema: str
) -> None:  # P-OPS-3
    children = [start("open_only", postgres_url, schema) for _ in range(6)]

    lineages = set(finish(children))

    assert lineages == {opened(create=False).info()["lineage"] + "\n"}


def test_a_newer_format_is_refused(opened: Opened, sql: Any) -> None:  # P-OPS-3
    opened().close()
    sql("update meta set value = '999' where name = 'format'")

    with pytest.raises(UnsupportedFormat, match="999"):
        opened()


def test_a_server_that_is_not_there_is_unavailable() -> None:  # P-API-4
    with pytest.raises(StoreUnavailable):
        PostgresBackend("postgresql:///x?host=/nonexistent", timeout_s=2)


@pytest.mark.parametrize("name", ["", "x" * 64, "pg_mine", "a\0b", 3])
def test_a_schema_that_cannot_be_is_refused(name: Any, postgres_url: str) -> None:  # P-API-4
    with pytest.raises(UsageError):
        PostgresBackend(postgres_url, schema=name)


def test_a_schema_name_is_quoted(postgres_url: str) -> None:  # P-API-4
    name = f'odd "{uuid4().hex[:8]}"; drop'
    with closing(open_store(postgres_url, schema=name)) as store:
        store.commit([], [Append("s", "t", 0, 1)])
        assert store.last_seq("s") == 1
        assert store.wait("s", 0, timeout_s=1) == 1


def test_a_missing_driver_names_the_extra() -> None:  # P-API-4
    code = "import sys; sys.modules['psycopg'] = None\nfrom strandline.persist import open_store\n"
    code += "try: open_store('postgresql:///x')\nexcept ValueError as e: print(type(e).__name__, e.hint)"

    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert said.split(maxsplit=1) == ["UsageError", 'pip install "strandline[postgres]"\n']


def test_after_close_every_use_is_an_error_and_no_thread_is_left(opened: Opened) -> None:  # P-BKD-7
    before = set(threading.enumerate())
    store = opened()
    store.commit([], [Append("s", "t", 0, 1)])
    store.wait("s", 1, timeout_s=0.05)

    store.close()
    store.close()

    assert set(threading.enumerate()) <= before  # those of other tests may end meanwhile
    uses: list[Callable[[], Any]] = [
        lambda: store.commit([], [Put("k", 1)]),
        lambda: store.last_seq("s"),
        lambda: store.read_range("s", 5, 1, limit=0),
        lambda: store.wait("s", 0, timeout_s=1),
        lambda: list(store.dump()),
        store.info,
    ]
    for use in uses:
        with pytest.raises(UsageError, match="closed"):
            use()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forking with threads is the point
def test_a_child_of_a_fork_must_open_its_own(b: PostgresBackend) -> None:  # P-API-5
    b.commit([], [Append("s", "t", 0, 1)])

    child = os.fork()
    if child == 0:
        code = 1
        try:
            b.last_seq("s")
        except UsageError:
            code = 0
        finally:
            os._exit(code)

    assert os.waitpid(child, 0)[1] == 0
    assert b.commit([], [Append("s", "t", 0, 2)]) == [Event("s", 2, "t", 0, 2)]


def test_the_session_flushes_its_commits_whatever_the_server_defaults_to() -> None:  # P-REC-9
    settings_ = {"synchronous_commit": "off", "default_transaction_isolation": "serializable"}
    names = ("synchronous_commit", "transaction_isolation")
    with (
        ScratchPostgres(settings=settings_) as server,
        closing(PostgresBackend(server.url)) as b,
        b._pool.borrow() as connection,
    ):
        shown = [connection.execute(f"show {name}").fetchone() for name in names]

    assert shown == [("on",), ("read committed",)]
