"""The rows of a JDBC catalog: which tables there are, and where the newest metadata of each is.

    iceberg_tables                 catalog_name, table_namespace, table_name, metadata_location, …
    iceberg_namespace_properties   catalog_name, namespace, property_key, property_value

Over SQLite or Postgres, which differ in the sign of a parameter alone. No Spark, no file of a warehouse.
"""

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from strandline.config.lake_settings import CATALOG, LakeSettings
from strandline.errors import NotFoundError, UnavailableError
from strandline.lake.metadata.iceberg import CATALOG_TIMEOUT_S, CatalogUnreadable, check_catalog_file, is_url

_TABLES: Final = (
    "SELECT table_namespace, table_name, metadata_location FROM iceberg_tables WHERE catalog_name = {0}"
)
_SWAP: Final = (
    "UPDATE iceberg_tables SET metadata_location = {0}, previous_metadata_location = {0} "
    "WHERE catalog_name = {0} AND table_namespace = {0} AND table_name = {0} AND metadata_location = {0}"
)
_KEPT: Final = ("iceberg_tables", "iceberg_namespace_properties")
_CREATE: Final = "CREATE TABLE "


class TableRow(NamedTuple):
    namespace: str
    name: str
    pointer: str


class CatalogTable(NamedTuple):
    """All that a catalog keeps in one of its own tables, and how that is made."""

    name: str
    statement: str
    rows: list[tuple[Any, ...]]


class CatalogRows:
    """An open catalog."""

    def __init__(self, db: Any, sign: str) -> None:
        self._db, self._sign = db, sign

    def tables(self) -> list[TableRow]:
        """None where the catalog has never been used."""
        if not self._is_made():
            return []
        found = self._db.execute(_TABLES.format(self._sign), (CATALOG,)).fetchall()
        return [TableRow(*each) for each in found]

    def swap(self, row: TableRow, now: str) -> bool:
        """Whether the row was still as it was read; Iceberg's own commits swap it in the same way."""
        key = (CATALOG, row.namespace, row.name)
        done = self._db.execute(_SWAP.format(self._sign), (now, row.pointer, *key, row.pointer))
        self._db.commit()
        return bool(done.rowcount)

    def add(self, kept: Iterable[CatalogTable]) -> None:
        """Rows of another catalog, at once. What is here already stays as it is."""
        for each in kept:
            self._db.execute(f"{_CREATE}IF NOT EXISTS {each.statement.removeprefix(_CREATE)}")
            for row in each.rows:
                signs = ", ".join([self._sign] * len(row))
                self._db.execute(f"INSERT INTO {each.name} VALUES ({signs}) ON CONFLICT DO NOTHING", row)
        self._db.commit()

    def _is_made(self) -> bool:
        if self._sign == "?":
            found = self._db.execute("SELECT name FROM sqlite_master WHERE name = 'iceberg_tables'")
        else:
            found = self._db.execute("SELECT to_regclass('iceberg_tables')")
        return any(name is not None for (name,) in found.fetchall())


@contextmanager
def open_rows(lake: LakeSettings) -> Iterator[CatalogRows]:
    """Of the catalog that is configured. NotFoundError where its SQLite file is not there."""
    if is_url(lake.uri):
        import psycopg

        try:
            opened: Any = psycopg.connect(lake.uri, connect_timeout=CATALOG_TIMEOUT_S)
        except psycopg.OperationalError as error:
            raise UnavailableError(
                f"the catalog cannot be read: {error}", hint="is its Postgres up?"
            ) from error
        sign = "%s"
    else:
        check_catalog_file(lake)
        opened, sign = sqlite3.connect(lake.uri, timeout=CATALOG_TIMEOUT_S), "?"
    with closing(opened) as db:
        yield CatalogRows(db, sign)


def kept_in(file: Path) -> list[CatalogTable]:
    """Of a catalog in a SQLite file; nothing in it is changed."""
    if not file.is_file():
        raise NotFoundError(f"there is no catalog at {file}", hint="name the catalog.db of the node")
    statement = (
        "SELECT name, sql FROM sqlite_master WHERE type = 'table' AND name IN (?, ?) ORDER BY name DESC"
    )
    try:
        # Not read-only: a crashed writer leaves a journal that the next opener has to roll back.
        uri = f"{file.resolve().as_uri()}?mode=rw"
        with closing(sqlite3.connect(uri, uri=True, timeout=CATALOG_TIMEOUT_S)) as db:
            found = db.execute(statement, _KEPT).fetchall()
            return [CatalogTable(name, sql, _rows(db, name)) for name, sql in found]
    except sqlite3.DatabaseError as error:
        raise CatalogUnreadable(
            f"the catalog {file} cannot be read: {error}", hint="name the catalog.db of the node"
        ) from error


def tables_of(kept: Iterable[CatalogTable]) -> list[TableRow]:
    return [TableRow(row[1], row[2], row[3]) for each in kept if each.name == _KEPT[0] for row in each.rows]


def _rows(db: sqlite3.Connection, name: str) -> list[tuple[Any, ...]]:
    return [*db.execute(f"SELECT * FROM {name} WHERE catalog_name = ?", (CATALOG,))]
