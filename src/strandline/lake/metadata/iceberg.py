"""The same tables without Spark: by PyIceberg, and by the one row of the catalog that names their metadata.

    catalog row ──▶ metadata.json ──▶ manifest list ──▶ manifests ──▶ data files
    (pointer)       (history)                           (marks)

Each step costs more than the one before. A pointer that is the one known already says that nothing changed.
PyIceberg is slow to import, so that happens where it is first needed.
"""

import gzip
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import orjson

from strandline.config.lake_settings import CATALOG, NAMESPACE, LakeSettings
from strandline.errors import CorruptionError, HeldError, NotFoundError, UnavailableError, UsageError

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.partitioning import PartitionField
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot
    from pyiceberg.types import NestedField

T = TypeVar("T")

CATALOG_TIMEOUT_S: Final = 30
HIGHEST_SEQ: Final = "strandline.highest-seq"  # properties of a table: see lake/jobs/keep_highest.py
HIGHEST_FLUSH: Final = "strandline.highest-flush"
WAP_IDS: Final = ("wap.id", "published-wap-id")  # of a fast-forward pick, and of a pick that made a copy
_POINTERS: Final = (
    "SELECT table_name, metadata_location FROM iceberg_tables "
    "WHERE catalog_name = {0} AND table_namespace = {0}"
)
_GZIP: Final = b"\x1f\x8b"
_PYICEBERG_NAMES: Final = {"client.region": "s3.region"}  # what Spark's side of Iceberg calls otherwise


class TableMissing(NotFoundError):
    """The catalog has no such table."""

    def __init__(self, dataset: str) -> None:
        super().__init__(
            f"dataset {dataset!r} has no table",
            hint="the first flush or load makes it; check the name, and which catalog is configured",
        )
        self.dataset = dataset


class WarehouseMoved(HeldError):
    """The catalog names metadata that is not there. It is never taken for an empty table."""

    def __init__(self, dataset: str, location: str) -> None:
        super().__init__(
            f"the table of dataset {dataset!r} should be at {location}, and nothing is there",
            hint="put the warehouse back, or name where it is in [lake] and re-point its tables: "
            "`strandline maintain --relocate`",
        )
        self.dataset, self.location = dataset, location


class SnapshotGone(UnavailableError):
    """A pinned snapshot was expired: go on with the current one, after the last row that was given."""

    def __init__(self, dataset: str, snapshot: int) -> None:
        super().__init__(
            f"snapshot {snapshot} of dataset {dataset!r} is gone",
            hint="read on with the current one; compaction.min_snapshots keeps them for longer",
        )
        self.dataset, self.snapshot = dataset, snapshot


class UnstampedRows(CorruptionError):
    """Rows that have no number: nobody can say whether they are new or old."""

    def __init__(self, dataset: str, found: str) -> None:
        super().__init__(
            f"the table of dataset {dataset!r} has rows without a seq: {found}",
            hint="something else wrote them; take them out of the table and bring them in by append or load",
        )
        self.dataset, self.found = dataset, found


class CatalogUnreadable(CorruptionError):
    """The catalog answered, and what it said is no catalog."""


class BoundsMissing(CorruptionError):
    """A data file does not say which seqs and flushes it holds, so nobody can say which numbers are taken."""

    def __init__(self, dataset: str, file: str, column: str) -> None:
        super().__init__(
            f"dataset {dataset!r}: the data file {file} has no upper bound of {column}",
            hint=f"something else wrote it; rewrite it with write.metadata.metrics.column.{column}=full",
        )
        self.dataset, self.file, self.column = dataset, file, column


class KeptNumbers(NamedTuple):
    """The highest seq of any strand and the highest flush number that a table keeps apart from its rows."""

    seq: int = 0
    flush: int = 0


@dataclass(frozen=True, slots=True)
class TableHistory:
    """What the metadata alone tells: which flush ids are part of the table now."""

    pointer: str
    snapshot: int | None
    flush_ids: frozenset[str]
    newest_flush_id: str | None
    kept: KeptNumbers


@dataclass(frozen=True, slots=True)
class TableMarks:
    """The highest numbers in a table, from the bounds in its manifests; no data file was opened.

    `max_seqs` is by source; under `source_buckets` by bucket, as several sources share one there.
    """

    history: TableHistory
    max_flush: int
    max_seqs: Mapping[str | int, int]
    source_buckets: int = 0

    def max_seq(self, source: str) -> int:
        """No row of `source` has a higher seq; 0 if it has none."""
        if not self.source_buckets:
            return self.max_seqs.get(source, 0)
        from pyiceberg.transforms import BucketTransform
        from pyiceberg.types import StringType

        bucket = BucketTransform(self.source_buckets).transform(StringType())(source)
        return 0 if bucket is None else self.max_seqs.get(bucket, 0)


# Opening


def open_iceberg(lake: LakeSettings) -> "Catalog":
    """PyIceberg's catalog over the same tables: `catalog.load_table((NAMESPACE, dataset))`. Close it."""
    from pyiceberg.catalog import load_catalog
    from pyiceberg.exceptions import NotInstalledError

    check_catalog_file(lake)
    try:
        return load_catalog(CATALOG, **catalog_properties(lake))
    except NotInstalledError as error:
        raise UnavailableError(
            f"a {lake.catalog} catalog is read through PyIceberg, which lacks a package: {error}",
            hint=f"pip install 'pyiceberg[{lake.catalog}]'",
        ) from error
    except ValueError as error:
        raise UsageError(
            f"PyIceberg cannot open a catalog of type {lake.catalog!r}: {error}",
            hint="name one that it opens in [lake]: jdbc, rest, glue or hive",
        ) from error
    except Exception as error:  # of whichever client the catalog has
        raise _no_answer(f"the {lake.catalog} catalog", error) from error


def catalog_properties(lake: LakeSettings) -> dict[str, str]:
    """What PyIceberg must be told to find the tables that Spark's catalog of the same name wrote."""
    conf = {_PYICEBERG_NAMES.get(key, key): value for key, value in lake.conf.items()}
    if lake.catalog != "jdbc":
        return {
            "type": lake.catalog,
            "warehouse": lake.warehouse,
            **({"uri": lake.uri} if lake.uri else {}),
            **conf,
        }
    uri = (
        lake.uri.replace("postgresql://", "postgresql+psycopg://", 1)
        if is_url(lake.uri)
        else f"sqlite:///{lake.uri}"
    )
    return {**conf, "type": "sql", "uri": uri, "warehouse": lake.warehouse, "init_catalog_tables": "false"}


def load_table(lake: LakeSettings, dataset: str) -> "Table":
    """The table as it is now, for reading. Raises TableMissing, WarehouseMoved."""
    if lake.catalog != "jdbc":
        return _load_from_catalog(lake, dataset)
    from pyiceberg.table import StaticTable

    properties = catalog_properties(lake)
    return _at_pointer(lake, dataset, lambda location: StaticTable.from_metadata(location, properties))


def load_metadata(lake: LakeSettings, dataset: str) -> dict[str, Any]:
    """The metadata file of a table in a JDBC catalog as it stands: with many snapshots a tenth of the time
    that PyIceberg takes to make objects of it. Raises as `load_table`."""
    return _at_pointer(lake, dataset, lambda location: _metadata_file(lake, location))


def _at_pointer(lake: LakeSettings, dataset: str, read: Callable[[str], T]) -> T:
    """What `read` makes of the metadata file that the catalog names."""
    location = metadata_pointer(lake, dataset)
    if location is None:
        raise TableMissing(dataset)
    try:
        return read(location)
    except FileNotFoundError as error:
        # A commit moves the pointer and may remove an old metadata file: it is gone only if still named.
        if metadata_pointer(lake, dataset) != location:
            return _at_pointer(lake, dataset, read)
        raise WarehouseMoved(dataset, location) from error
    except OSError as error:
        raise _no_answer(location, error) from error


def _metadata_file(lake: LakeSettings, location: str) -> dict[str, Any]:
    path = local_path(location)
    if path is not None:
        raw = path.read_bytes()
    else:
        from pyiceberg.io import load_file_io

        with load_file_io(catalog_properties(lake), location).new_input(location).open() as file:
            raw = file.read()
    try:
        return dict(orjson.loads(gzip.decompress(raw) if raw.startswith(_GZIP) else raw))
    except ValueError as error:
        raise CatalogUnreadable(
            f"the metadata file {location} is no JSON: {error}", hint="put it back from a copy"
        ) from error


def metadata_pointer(lake: LakeSettings, dataset: str) -> str | None:
    """Where the newest metadata of the table is, None if there is no such table."""
    return table_pointers(lake).get(dataset)


def table_pointers(lake: LakeSettings) -> dict[str, str]:
    """Where the newest metadata of each dataset's table is.

    With a JDBC catalog it is one small query: no PyIceberg, no file of the warehouse.
    """
    if lake.catalog != "jdbc":
        return _catalog_pointers(lake)
    key = (CATALOG, NAMESPACE)
    return _postgres_pointers(lake.uri, key) if is_url(lake.uri) else _sqlite_pointers(lake.uri, key)


def check_warehouse(lake: LakeSettings, dataset: str) -> None:
    """Raise WarehouseMoved if the catalog names metadata that is not there. Other catalogs than JDBC read it
    themselves, and say so."""
    if lake.catalog != "jdbc":
        return
    location = metadata_pointer(lake, dataset)
    while location is not None and not is_there(lake, location):
        # A commit moves the pointer and may remove an old metadata file: it is gone only if still named.
        now = metadata_pointer(lake, dataset)
        if now == location:
            raise WarehouseMoved(dataset, location)
        location = now


def check_pointers(lake: LakeSettings, pointers: Mapping[str, str]) -> None:
    """`check_warehouse` of all tables at once, with a look at each file in a folder. In a bucket, where a
    look is a request, at one of them: it is moved as a whole."""
    if lake.catalog != "jdbc":
        return
    is_remote = any(is_url(location) and not location.startswith("file:") for location in pointers.values())
    for dataset, location in [*pointers.items()][: 1 if is_remote else None]:
        if not is_there(lake, location):
            check_warehouse(lake, dataset)


def is_there(lake: LakeSettings, location: str) -> bool:
    """Whether there is a file; UnavailableError where nobody can say."""
    path = local_path(location)
    if path is not None:
        return path.exists()
    from pyiceberg.io import load_file_io

    try:
        return load_file_io(catalog_properties(lake), location).new_input(location).exists()
    except OSError as error:
        raise _no_answer(location, error) from error


def local_path(location: str) -> Path | None:
    """Where a file is on this machine; None for one that is elsewhere."""
    if is_url(location) and not location.startswith("file:"):
        return None
    return Path(location.removeprefix("file://").removeprefix("file:"))


def is_url(uri: str) -> bool:
    return "://" in uri


def check_catalog_file(lake: LakeSettings) -> None:
    """SQLAlchemy would make an empty file where none is."""
    if lake.catalog == "jdbc" and not is_url(lake.uri) and not Path(lake.uri).exists():
        raise NotFoundError(
            f"there is no catalog at {lake.uri}", hint="it is made by the first start of Spark"
        )


def _load_from_catalog(lake: LakeSettings, dataset: str) -> "Table":
    from pyiceberg.exceptions import NoSuchTableError

    with open_iceberg(lake) as catalog:
        try:
            return catalog.load_table((NAMESPACE, dataset))
        except NoSuchTableError as error:
            raise TableMissing(dataset) from error
        except Exception as error:  # of whichever client the catalog has
            raise _no_answer(f"the {lake.catalog} catalog", error) from error


def _catalog_pointers(lake: LakeSettings) -> dict[str, str]:
    from pyiceberg.exceptions import NoSuchNamespaceError

    with open_iceberg(lake) as catalog:
        try:
            names = [name[-1] for name in catalog.list_tables(NAMESPACE)]
            return {name: catalog.load_table((NAMESPACE, name)).metadata_location for name in names}
        except NoSuchNamespaceError:
            return {}
        except Exception as error:  # of whichever client the catalog has
            raise _no_answer(f"the {lake.catalog} catalog", error) from error


def _no_answer(place: str, error: Exception) -> UnavailableError:
    return UnavailableError(f"{place} cannot be read: {error}", hint="try again when it can be reached")


def _sqlite_pointers(path: str, key: tuple[str, str]) -> dict[str, str]:
    if not Path(path).is_file():
        return {}
    try:
        # Not read-only: a crashed writer leaves a journal that the next opener has to roll back.
        with closing(
            sqlite3.connect(f"{Path(path).as_uri()}?mode=rw", uri=True, timeout=CATALOG_TIMEOUT_S)
        ) as db:
            if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'iceberg_tables'").fetchone():
                return {}
            return dict(db.execute(_POINTERS.format("?"), key).fetchall())
    except sqlite3.OperationalError as error:
        raise _no_answer(path, error) from error
    except sqlite3.DatabaseError as error:
        raise CatalogUnreadable(
            f"the catalog {path} is no SQLite file: {error}", hint="put it back from a copy"
        ) from error


def _postgres_pointers(url: str, key: tuple[str, str]) -> dict[str, str]:
    import psycopg

    try:
        with psycopg.connect(url, connect_timeout=CATALOG_TIMEOUT_S) as db:
            found = db.execute("SELECT to_regclass('iceberg_tables')").fetchone()
            if found is None or found[0] is None:
                return {}
            return dict(db.execute(_POINTERS.format("%s"), key).fetchall())
    except psycopg.OperationalError as error:
        raise UnavailableError(f"the catalog cannot be read: {error}", hint="is its Postgres up?") from error


# What a table knows of flushes and seqs


def table_history(lake: LakeSettings, dataset: str) -> TableHistory:
    """The flush ids in the ancestry of the current snapshot. A staged one is not, however new it is."""
    return _history(load_table(lake, dataset))


def table_marks(lake: LakeSettings, dataset: str) -> TableMarks:
    """The highest seq of each source and the highest flush number. Reads the manifests of the snapshot."""
    from pyiceberg.transforms import BucketTransform

    table = load_table(lake, dataset)
    max_seqs: dict[str | int, int] = {}
    max_flush = 0
    upper = partial(_upper_bound, dataset)
    try:
        seq, flush = (table.schema().find_field(name) for name in ("_sl_seq", "_sl_flush"))
    except ValueError as error:
        raise UnstampedRows(dataset, "it has no column _sl_seq") from error
    place, source = _source_partition(table)
    for file in live_files(table):
        key = file.partition[place]
        max_seqs[key] = max(max_seqs.get(key, 0), upper(file, seq))
        max_flush = max(max_flush, upper(file, flush))
    buckets = source.transform.num_buckets if isinstance(source.transform, BucketTransform) else 0
    history = _history(table)
    return TableMarks(history, max(max_flush, history.kept.flush), max_seqs, buckets)


def _history(table: "Table") -> TableHistory:
    ids = [id for snapshot in _ancestry(table.metadata) if (id := _flush_id(snapshot))]
    current = table.metadata.current_snapshot_id
    newest = ids[0] if ids else None
    return TableHistory(table.metadata_location, current, frozenset(ids), newest, _kept(table.properties))


def kept_numbers(lake: LakeSettings, dataset: str) -> KeptNumbers:
    """What the table keeps of its highest numbers; zeros if it keeps none."""
    return _kept(load_table(lake, dataset).properties)


def _kept(properties: Mapping[str, str]) -> KeptNumbers:
    return KeptNumbers(int(properties.get(HIGHEST_SEQ, 0)), int(properties.get(HIGHEST_FLUSH, 0)))


def _ancestry(metadata: "TableMetadata") -> "Iterator[Snapshot]":
    """The current snapshot and what it was made from, newest first, as far as expiry has left it."""
    by_id = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    found = by_id.get(metadata.current_snapshot_id or 0)
    while found is not None:
        yield found
        found = by_id.get(found.parent_snapshot_id or 0)


def _flush_id(snapshot: "Snapshot") -> str | None:
    summary = snapshot.summary
    return next((id for name in WAP_IDS if summary is not None and (id := summary[name])), None)


def live_files(table: "Table") -> "Iterator[DataFile]":
    """The data files of the current snapshot, from its manifests."""
    from pyiceberg.manifest import DataFileContent, ManifestContent

    snapshot = table.current_snapshot()
    for manifest in snapshot.manifests(table.io) if snapshot is not None else []:
        if manifest.content == ManifestContent.DATA:
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                assert entry.data_file.content == DataFileContent.DATA
                yield entry.data_file


def _source_partition(table: "Table") -> "tuple[int, PartitionField]":
    """Where in a partition the source stands. The partitioning of a dataset never changes."""
    field_id = table.schema().find_field("source").field_id
    return next(
        (place, field) for place, field in enumerate(table.spec().fields) if field.source_id == field_id
    )


def _upper_bound(dataset: str, file: "DataFile", field: "NestedField") -> int:
    from pyiceberg.conversions import from_bytes
    from pyiceberg.types import LongType

    bound = (file.upper_bounds or {}).get(field.field_id)
    if bound is None:
        raise BoundsMissing(dataset, file.file_path, field.name)
    return int(from_bytes(LongType(), bound))
