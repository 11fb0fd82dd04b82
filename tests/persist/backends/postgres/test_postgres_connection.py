"""A statement that is asked without a cursor answers, fails and is interrupted as one with a cursor does."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from uuid import uuid4

import psycopg
import pytest

from strandline.persist import Append, append, commit, read
from strandline.persist.backends.postgres import PostgresBackend
from strandline.persist.backends.postgres.connection import Connection, Statement
from strandline.persist.backends.postgres.pack import TYPES, int_, int_of

NUMBERS = {"n": TYPES["bigint"], "m": TYPES["bigint"]}
RATIO = Statement("ratio", "select %(n)b / %(m)b where %(n)b is not null", NUMBERS)
LENGTH = Statement("length", "select length(%(text)b)::bigint", {"text": TYPES["text"]})
SLEEP = Statement("sleep", "select 1::bigint from pg_sleep(%(n)b)", NUMBERS)
WAITERS = "select pid from pg_stat_activity where query like %s and state = 'active'"


@pytest.fixture
def connection(postgres_url: str) -> Iterator[Connection]:
    with closing(Connection.connect(postgres_url, autocommit=True)) as made:
        yield made


@pytest.fixture
def beside(postgres_url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(postgres_url, autocommit=True) as made:
        yield made


def ratio(connection: Connection, n: int | None, m: int) -> int | None:
    found = connection.ask(RATIO, {"n": None if n is None else int_(n), "m": int_(m)})
    return None if found is None else int_of(found)


def sleepers(beside: psycopg.Connection) -> list[int]:
    return [pid for (pid,) in beside.execute(WAITERS, [SLEEP.text.decode()])]


def soon(is_so: Callable[[], object]) -> None:
    until = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < until, "half of the time that it sleeps has gone"
        time.sleep(0.01)


def test_it_gives_the_first_value_or_none(connection: Connection) -> None:
    assert [ratio(connection, 7, -2), ratio(connection, 2**63 - 1, 1), ratio(connection, None, 1)] == [
        -3,
        2**63 - 1,
        None,
    ]


def test_an_error_of_the_server_is_raised_and_the_next_is_asked(connection: Connection) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero):
        ratio(connection, 1, 0)

    assert ratio(connection, 6, 3) == 2


def test_what_was_dropped_is_prepared_anew(connection: Connection) -> None:
    assert ratio(connection, 6, 3) == 2
    connection.execute("deallocate all")

    assert [ratio(connection, 6, 2), ratio(connection, 6, 1)] == [3, 6]


def test_in_a_transaction_nothing_has_to_be_prepared(connection: Connection) -> None:
    assert ratio(connection, 6, 3) == 2
    with connection.transaction():
        connection.execute("deallocate all")

        assert ratio(connection, 6, 2) == 3

    assert ratio(connection, 6, 1) == 6


def test_what_no_buffer_holds_is_sent_whole(connection: Connection) -> None:
    found = connection.ask(LENGTH, {"text": "ü".encode() * 20_000_000})

    assert found == int_(20_000_000)


def test_what_is_prepared_already_is_not_prepared_again(connection: Connection) -> None:
    assert ratio(connection, 6, 3) == 2
    connection._prepared_here.clear()  # as an interrupt between the two leaves it

    assert ratio(connection, 6, 2) == 3


@contextmanager
def interrupted_when(is_so: Callable[[], object]) -> Iterator[None]:
    """The block must raise KeyboardInterrupt, which this thread gets as soon as that is so."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def send() -> None:
        soon(is_so)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    handler, sender = signal.signal(signal.SIGUSR1, interrupt), threading.Thread(target=send)
    sender.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        signal.signal(signal.SIGUSR1, handler)
        sender.join()


def test_an_interrupt_of_the_preparation_leaves_no_connection_behind(
    connection: Connection, beside: psycopg.Connection
) -> None:
    name = f"t{uuid4().hex[:16]}"
    beside.execute(f"create table {name} (n bigint)".encode())
    counting = Statement("counting", f"select count(*) from {name}", {})

    with beside.transaction():
        beside.execute(f"lock table {name}".encode())
        with interrupted_when(lambda: beside.execute("select from pg_locks where not granted").rowcount):
            connection.ask(counting, {})
    beside.execute(f"drop table {name}".encode())

    assert connection.closed


def test_an_interrupt_ends_the_statement_on_the_server_too(
    connection: Connection, beside: psycopg.Connection
) -> None:
    with interrupted_when(lambda: sleepers(beside)):
        connection.ask(SLEEP, {"n": int_(60)})

    assert connection.closed
    soon(lambda: not sleepers(beside))


def test_a_server_process_that_dies_is_a_lost_connection(
    connection: Connection, beside: psycopg.Connection
) -> None:
    def end() -> None:
        soon(lambda: sleepers(beside))
        beside.execute("select pg_terminate_backend(%s)", sleepers(beside))

    killer = threading.Thread(target=end)
    killer.start()
    with pytest.raises(psycopg.OperationalError):
        connection.ask(SLEEP, {"n": int_(60)})
    killer.join()

    assert connection.closed


def test_text_is_utf_8_whatever_the_url_asks_for(postgres_url: str) -> None:  # P-VAL-1
    schema = f"t{uuid4().hex[:16]}"
    with closing(PostgresBackend(f"{postgres_url}&client_encoding=latin1", schema=schema)) as b:
        append(b, "s-ü", "日本", "é", {"é": "日本"})
        commit(b, [], [Append("s-ü", "日本", "é", {"é": n}) for n in range(2)])

        assert [(event.type, event.at, event.data) for event in read(b, "s-ü")] == [
            ("日本", "é", {"é": data}) for data in ("日本", 0, 1)
        ]
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute(f'drop schema "{schema}" cascade')
