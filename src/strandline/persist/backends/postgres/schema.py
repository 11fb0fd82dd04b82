"""The store's tables: made, or brought to this version, in one transaction, by one opener at a time."""

import secrets
from functools import cache
from hashlib import sha256
from importlib import resources
from typing import Final

import psycopg
from psycopg import sql

from strandline.errors import NotFoundError, UnsupportedFormat, UsageError
from strandline.persist.backends.postgres.connection import Connection
from strandline.persist.backends.postgres.pool import raise_translated

MAX_SCHEMA_BYTES: Final = 63


@cache
def migrations() -> list[tuple[int, str]]:
    """(version, statements) of every schema/postgres/NNNN_name.sql, in order; the last is the format."""
    folder = resources.files("strandline.persist.backends").joinpath("schema", "postgres")
    files = sorted(
        (file for file in folder.iterdir() if file.name.endswith(".sql")), key=lambda file: file.name
    )
    return [(int(file.name.partition("_")[0]), file.read_text(encoding="utf-8")) for file in files]


def current_format() -> int:
    return migrations()[-1][0]


def check_schema(schema: object) -> str:
    """`schema` itself, if it may name one: what is longer Postgres would cut, and two stores would be one."""
    if not isinstance(schema, str) or not schema or "\0" in schema or len(schema.encode()) > MAX_SCHEMA_BYTES:
        raise UsageError(
            f"schema is {schema!r:.80}",
            hint=f"a schema has 1 to {MAX_SCHEMA_BYTES} bytes in UTF-8, no U+0000",
        )
    if schema.startswith("pg_") or schema == "information_schema":
        raise UsageError(f"schema {schema!r} belongs to Postgres", hint="choose another name")
    return schema


def prepare_schema(connection: Connection, schema: str, *, create: bool) -> None:
    """Make or upgrade the store if it must be."""
    try:
        _refuse_encoding(connection)
        if _found_format(connection, schema) != current_format():
            with connection.transaction():
                lock = int.from_bytes(
                    sha256(f"strandline schema {schema}".encode()).digest()[:8], signed=True
                )
                connection.execute("select pg_advisory_xact_lock(%s::bigint)", [lock])
                _upgrade(connection, schema, _found_format(connection, schema), create)
    except psycopg.Error as error:
        raise_translated(error)


def lineage(connection: Connection) -> str:
    """The lineage of the store that is in the schema now: it may have been replaced since it was opened."""
    row = connection.execute("select value from meta where name = 'lineage'").fetchone()
    assert row is not None, "the lineage is made with the tables"
    return str(row[0])


def _found_format(connection: Connection, schema: str) -> int:
    """The version of the store, 0 if there is none; a newer one is refused."""
    there = connection.execute(
        "select from pg_class c join pg_namespace n on n.oid = c.relnamespace"
        " where n.nspname = %s and c.relname = 'meta' and c.relkind = 'r'",
        [schema],
    )
    if there.rowcount == 0:
        return 0
    row = connection.execute("select value from meta where name = 'format'").fetchone()
    found = int(row[0]) if row else 0
    if found > current_format():
        raise UnsupportedFormat(
            f"the store in schema {schema!r} has format {found}, this version knows {current_format()}",
            hint="use the version of Strandline that wrote it, or a newer one",
        )
    return found


def _upgrade(connection: Connection, schema: str, found: int, create: bool) -> None:
    if found == 0:
        if not create:
            raise NotFoundError(
                f"there is no store in schema {schema!r}",
                hint="check the URL and the schema, or let it be created",
            )
        connection.execute(sql.SQL("create schema if not exists {}").format(sql.Identifier(schema)))
    for version, statements in migrations():
        if version > found:
            connection.execute(statements.encode())
    if found == 0:
        connection.execute("insert into meta (name, value) values ('lineage', %s)", [secrets.token_hex(16)])
    connection.execute(
        "insert into meta (name, value) values ('format', %s)"
        " on conflict (name) do update set value = excluded.value",
        [str(current_format())],
    )


def _refuse_encoding(connection: Connection) -> None:
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise UsageError(
            f"the database is encoded in {encoding}",
            hint="create one with ENCODING 'UTF8' TEMPLATE template0",
        )
