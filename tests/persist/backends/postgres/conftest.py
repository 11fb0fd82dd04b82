"""A Postgres store of its own for each test, in the schema `schema`."""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from strandline.persist.backends.postgres import PostgresBackend
from tests.persist.backends.postgres.beside import Opened, Sql


@pytest.fixture
def schema() -> str:
    return f"t{uuid4().hex[:16]}"


@pytest.fixture
def opened(postgres_url: str, schema: str) -> Iterator[Opened]:
    """Opens the store of this test, any number of times."""
    stores: list[PostgresBackend] = []

    def open_it(**options: Any) -> PostgresBackend:
        stores.append(PostgresBackend(postgres_url, schema=schema, **options))
        return stores[-1]

    yield open_it
    for store in stores:
        store.close()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f'drop schema if exists "{schema}" cascade')


@pytest.fixture
def b(opened: Opened) -> PostgresBackend:
    return opened()


@pytest.fixture
def sql(postgres_url: str, schema: str) -> Iterator[Sql]:
    """Runs a statement beside the store's back."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f'set search_path = "{schema}"')

        def run(query: str, *given: Any) -> list[Any]:
            cursor = connection.execute(query, given or None)
            return cursor.fetchall() if cursor.description else []

        yield run
