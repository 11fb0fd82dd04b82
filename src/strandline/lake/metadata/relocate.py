"""Tables of a warehouse that was moved, re-pointed. Iceberg's metadata names every file by its whole path.

    catalog row ──▶ metadata.json ──▶ manifest lists ──▶ manifests ──▶ data files
    last, at once   written anew, beside the old ones, in the order from right to left    stay as they are

Data files are neither read nor written, and no Spark is started. A crash leaves files that nothing names;
until the catalog's row is swapped the table is as it was, and repeating it is harmless.
"""

import json
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from strandline.config.lake_settings import LakeSettings
from strandline.errors import HeldError, UnavailableError, UsageError
from strandline.lake.metadata.avro import rewritten
from strandline.lake.metadata.catalog_rows import CatalogRows, TableRow, kept_in, open_rows, tables_of
from strandline.lake.metadata.iceberg import WarehouseMoved, catalog_properties, is_there

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

_DELETES: Final = 1  # the content of a manifest that names delete files
_LIVE: Final = ("added_files_count", "existing_files_count")


class DeleteFilesFound(UsageError):
    """Delete files name data files by path inside, where nothing here changes it."""

    def __init__(self, table: str) -> None:
        super().__init__(
            f"table {table} has delete files, which Strandline never writes and which name files by path",
            hint="put the warehouse back, have Spark rewrite the table's data files, and move it then",
        )
        self.table = table


class CatalogTaken(HeldError):
    """Two catalogs name a table alike, and it is not the same one."""

    def __init__(self, table: str) -> None:
        super().__init__(
            f"the catalog has a table {table} already, and it is another one than that of before",
            hint="something was landed before the tables were taken over: drop it there, then again",
        )
        self.table = table


@dataclass(frozen=True, slots=True)
class Relocated:
    """A table that is elsewhere now: its name, and its metadata before and after (None in a dry run)."""

    table: str
    was: str
    now: str | None


def relocate(
    lake: LakeSettings, *, catalog_was: Path | None = None, dry_run: bool = False
) -> list[Relocated]:
    """Re-point each table whose metadata the catalog has elsewhere than under `[lake] warehouse`, if it is
    there. WarehouseMoved if it is in neither place.

    `catalog_was` is a SQLite catalog of before: what it names is taken over first, in one transaction.
    """
    if lake.catalog != "jdbc":
        raise UsageError(
            f"a {lake.catalog} catalog has its tables' places itself",
            hint="register them anew there, by their newest metadata file",
        )
    kept = [] if catalog_was is None else kept_in(catalog_was)
    with open_rows(lake) as catalog:
        known = {(row.namespace, row.name): _Table(lake, row) for row in catalog.tables()}
        taken = [_Table(lake, row) for row in tables_of(kept)]
        for table in taken:
            _check_same(table, known.setdefault((table.row.namespace, table.row.name), table))
        moved = [table for table in known.values() if table.is_elsewhere or table in taken]
        for table in moved:
            table.check()
        if dry_run:
            return [Relocated(table.name, table.was, None) for table in moved]
        if catalog_was is not None:
            catalog.add(kept)
        return [_relocated(catalog, table) for table in moved]


def _check_same(was: "_Table", now: "_Table") -> None:
    """One that was taken over before, and has grown since, is the same still."""
    if now.was != was.was and now.uuid() != was.uuid():
        raise CatalogTaken(now.name)


def _relocated(catalog: CatalogRows, table: "_Table") -> Relocated:
    if not table.is_elsewhere:
        return Relocated(table.name, table.was, table.was)
    now = table.rewrite()
    if not catalog.swap(table.row, now):
        raise UnavailableError(
            f"table {table.name} was changed by another meanwhile", hint="look whether it works; else again"
        )
    return Relocated(table.name, table.was, now)


class _Table:
    """One table: where its catalog has it, and where it is."""

    def __init__(self, lake: LakeSettings, row: TableRow) -> None:
        namespace, name, pointer = row
        self.row, self.was = row, pointer
        self.name = f"{namespace}.{name}"
        self._lake = lake
        tail = f"/{namespace}/{name}/metadata/{PurePosixPath(pointer).name}"
        self._old = pointer.removesuffix(tail)
        if self._old == pointer:
            raise UsageError(
                f"table {self.name} is at {pointer}, a place of its own", hint="register it anew"
            )
        self._new = lake.warehouse.rstrip("/")
        self._made: dict[str, tuple[str, int]] = {}  # manifests by their old path: the new one, and its size

    @property
    def is_elsewhere(self) -> bool:
        return self._old != self._new

    def check(self) -> None:
        if not is_there(self._lake, self._here(self.was)):
            raise WarehouseMoved(self.row.name, self._here(self.was))

    def uuid(self) -> str:
        """What Iceberg knows it by, wherever it is."""
        return str(json.loads(_read(self._io(), self._here(self.was)))["table-uuid"])

    def rewrite(self) -> str:
        """Write all metadata anew; the place of the newest."""
        io = self._io()
        metadata = json.loads(_read(io, self._here(self.was)))
        for snapshot in metadata.get("snapshots", []):
            snapshot["manifest-list"] = self._manifest_list(io, snapshot["manifest-list"])
        metadata = self._here_within(metadata)
        version = int(PurePosixPath(self.was).name.partition("-")[0]) + 1
        place = f"{metadata['location']}/metadata/{version:05d}-{uuid4()}.metadata.json"
        _write(io, place, json.dumps(metadata).encode())
        return place

    def _io(self) -> "FileIO":
        from pyiceberg.io import load_file_io

        return load_file_io(catalog_properties(self._lake), self._new)

    def _manifest_list(self, io: "FileIO", was: str) -> str:
        def change(record: str, fields: dict[str, Any]) -> None:
            if record == "manifest_file":
                if fields["content"] == _DELETES and any(_plain(fields[name]) for name in _LIVE):
                    raise DeleteFilesFound(self.name)
                now, size = self._manifest(io, fields["manifest_path"])
                fields["manifest_path"], fields["manifest_length"] = now, size

        return self._written(io, was, rewritten(_read(io, self._here(was)), change))[0]

    def _manifest(self, io: "FileIO", was: str) -> tuple[str, int]:
        def change(_: str, fields: dict[str, Any]) -> None:
            if "file_path" in fields:
                fields["file_path"] = self._here(fields["file_path"])

        if was not in self._made:
            self._made[was] = self._written(io, was, rewritten(_read(io, self._here(was)), change))
        return self._made[was]

    def _written(self, io: "FileIO", was: str, data: bytes) -> tuple[str, int]:
        folder, _, name = self._here(was).rpartition("/")
        place = f"{folder}/moved-{uuid4()}-{name.removeprefix('moved-')[-80:]}"
        _write(io, place, data)
        return place, len(data)

    def _here(self, place: str) -> str:
        return self._new + place.removeprefix(self._old) if place.startswith(f"{self._old}/") else place

    def _here_within(self, value: Any) -> Any:
        """Every text in it that is a place in the old warehouse: locations, logs, statistics, properties."""
        if isinstance(value, dict):
            return {key: self._here_within(each) for key, each in value.items()}
        if isinstance(value, list):
            return [self._here_within(each) for each in value]
        return self._here(value) if isinstance(value, str) else value


def _plain(value: Any) -> Any:
    """Of a field that may be null."""
    return value[1] if isinstance(value, tuple) else value


def _read(io: "FileIO", place: str) -> bytes:
    try:
        with io.new_input(place).open() as file:
            return bytes(file.read())
    except FileNotFoundError as error:
        raise UnavailableError(
            f"{place} is not there: the warehouse was not moved whole", hint="move the rest of it, then again"
        ) from error


def _write(io: "FileIO", place: str, data: bytes) -> None:
    with io.new_output(place).create() as file:
        file.write(data)
