"""Legacy import: an Iceberg table or a Parquet folder of rows without numbers becomes part of a dataset,
once.

It is a load that marks each thing it brings, the table or every single file, in the transaction that reserves
the numbers. A repeat brings what is not marked: nothing, the files that are new, or, after an import that was
given up, all of it. What is marked and has changed since is refused: its old rows are in the dataset already.

    imported/<dataset>/<digest>    {"name", "request", "version", "size", "modified"}

The digest is of the kind, the source, and a name. The name of a file is the last part of the folder's name
and the file's path inside the folder, so a folder that was copied or moved is the same one. Its version is a
digest of its rows, in whatever order they stand; it is compared only where the size is the same and the time
is not, as after a copy. The version of a table is its snapshot.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from os.path import normpath
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import unquote

import msgspec
from pyspark.errors import AnalysisException, SparkRuntimeException
from pyspark.sql.functions import expr

from strandline.errors import HeldError, NotFoundError, UsageError
from strandline.ingest.append import ExpectationUnmet
from strandline.ingest.load import LoadResult, LoadTables, load, settled_load
from strandline.lake.jobs.table_schema import literal, quoted
from strandline.lake.ports.stage import Settle
from strandline.persist import ABSENT, ExpectKey, Put
from strandline.state.context import Site
from strandline.state.flush_plan import readable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Kind = Literal["iceberg", "parquet"]
MAX_FILES: Final = 10_000  # one transaction marks them all
_TRIES: Final = 5
_FILE: Final = "_metadata.file_path"


class ImportChanged(HeldError):
    """What was imported has changed since. Which of its rows are new cannot be told."""

    def __init__(self, dataset: str, names: Sequence[str]) -> None:
        more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
        super().__init__(
            f"{', '.join(map(repr, names[:3]))}{more} changed after being imported into {dataset!r}; nothing "
            "was imported now",
            hint="put the old version back, or leave it out and bring its new rows by `strandline load`; for "
            "another folder with files of the same names rename the folder",
        )
        self.dataset, self.names = dataset, tuple(names)


class TooManyFiles(UsageError):
    """A folder has more files than one import can mark."""

    def __init__(self, folder: str, found: int) -> None:
        super().__init__(
            f"{folder!r} holds {found:,} files, at most {MAX_FILES:,} fit in one import",
            hint="import its subfolders one by one",
        )
        self.folder, self.found = folder, found


class FolderNested(UsageError):
    """Files in subfolders that Spark passes over: it goes down into partitions, `name=value`, alone."""

    def __init__(self, folder: str, unread: Sequence[str]) -> None:
        super().__init__(
            f"{folder!r} has {len(unread):,} files in subfolders that are no partitions, such as "
            f"{unread[0]!r}; nothing was imported",
            hint="import its subfolders one by one",
        )
        self.folder, self.unread = folder, tuple(unread)


class _Mark(msgspec.Struct, frozen=True):
    """What is kept of a thing that a load has brought, or was to bring."""

    name: str
    request: str
    version: str
    size: int
    modified: int


@dataclass(frozen=True, slots=True)
class _Thing:
    """A file as it is found, or a table. The version of a file is found when it is needed."""

    key: str
    name: str
    modified: int
    size: int = 0
    path: str = ""
    version: str = ""


def import_rows(
    site: Site,
    tables: LoadTables,
    spark: "SparkSession",
    dataset: str,
    place: str,
    *,
    kind: Kind,
    source: str | None = None,
    settle: Settle | None = None,
) -> LoadResult:
    """Bring in what was not brought in before of `place`: an Iceberg table by its name in Spark, or a folder
    of Parquet files, which must not change meanwhile. ImportChanged if some of it has since it was imported;
    nothing is imported then."""
    if kind not in ("iceberg", "parquet"):
        raise UsageError(f"an import from {kind!r:.40}", hint="'iceberg' or 'parquet'")

    def key(name: str) -> str:
        return f"imported/{dataset}/{sha256(chr(0).join((kind, source or '', name)).encode()).hexdigest()}"

    if kind == "iceberg":
        df, snapshot = _iceberg(spark, place)
        things = [_Thing(key(place), place, snapshot, version=str(snapshot))]
    else:
        df, files = _parquet(spark, place)
        names = file_names(place, [path for path, _, _ in files])
        things = [_Thing(key(names[path]), names[path], at, size, path) for path, size, at in sorted(files)]
    return _Import(site, tables, dataset, source, settle, df).run(things)


@dataclass(frozen=True, slots=True)
class _Import:
    site: Site
    tables: LoadTables
    dataset: str
    source: str | None
    settle: Settle | None
    df: "DataFrame"

    def run(self, things: Sequence[_Thing]) -> LoadResult:
        if not things:
            return LoadResult(self.dataset, "", 0, 0)
        for _ in range(_TRIES):
            kept = {each.key: self.site.b.kv_get(each.key) for each in things}
            marks = {key: _mark(key, value) for key, value in kept.items() if value is not None}
            results = self._results(marks.values())
            # One whose load was released does not count: none of its rows landed.
            landed = {key: mark for key, mark in marks.items() if mark.request in results}
            self._refuse_changed([each for each in things if each.key in landed], landed)
            new = [each for each in things if each.key not in landed]
            if not new:
                return max(results.values(), key=lambda result: result.number)
            try:
                return self._load(new, kept, is_all=len(new) == len(things))
            except ExpectationUnmet:
                continue  # another imports the same: look again
        raise HeldError(
            f"others import the same into {self.dataset!r}", hint="repeat the import when they are done"
        )

    def _results(self, marks: Iterable[_Mark]) -> dict[str, LoadResult]:
        """The loads of these marks that have landed. One that was left open is finished here."""
        found = {
            request: settled_load(self.site, self.tables, self.dataset, request, settle=self.settle)
            for request in sorted({mark.request for mark in marks})
        }
        return {request: result for request, result in found.items() if result is not None}

    def _refuse_changed(self, things: Sequence[_Thing], marks: Mapping[str, _Mark]) -> None:
        resized = [each for each in things if each.size != marks[each.key].size]
        touched = [
            each for each in things if each not in resized and each.modified != marks[each.key].modified
        ]
        versions = self._versions(touched)
        changed = [each for each in touched if versions[each.key] != marks[each.key].version]
        if resized or changed:
            raise ImportChanged(self.dataset, sorted(each.name for each in (*resized, *changed)))

    def _load(self, new: Sequence[_Thing], kept: Mapping[str, Any], *, is_all: bool) -> LoadResult:
        request, versions = f"import-{self.site.random_hex()}", self._versions(new)
        marks = {
            each.key: _Mark(each.name, request, versions[each.key], each.size, each.modified) for each in new
        }
        return load(
            self.site,
            self.tables,
            self.dataset,
            self.df if is_all else self.df.where(_is_one_of(new)),
            source=self.source,
            request_id=request,
            settle=self.settle,
            expected=[ExpectKey(key, ABSENT if kept[key] is None else kept[key]) for key in marks],
            also=[Put(key, msgspec.structs.asdict(mark)) for key, mark in marks.items()],
        )

    def _versions(self, things: Sequence[_Thing]) -> dict[str, str]:
        """By key. Of files it is how many rows each has and the sum of their hashes; one job for all."""
        files = {each.path: each.key for each in things if not each.version}
        found = {each.key: each.version for each in things if each.version}
        if not files:
            return found
        columns = [
            # A map has no hash, its text has.
            f"to_json(struct({quoted(each.name)}))"
            if "map<" in each.dataType.simpleString()
            else quoted(each.name)
            for each in sorted(self.df.schema.fields, key=lambda each: each.name)
        ]
        hashed = self.df.where(_is_one_of(things)).selectExpr(
            f"{_FILE} as file", f"cast(xxhash64({', '.join(columns)}) as decimal(38, 0)) as hash"
        )
        rows = hashed.groupBy("file").agg(expr("count(1)"), expr("sum(hash)")).collect()
        return found | {files[file]: f"{count}:{total}" for file, count, total in rows}


def _is_one_of(things: Sequence[_Thing]) -> str:
    return f"{_FILE} in ({', '.join(literal(each.path) for each in things)})"


def _mark(key: str, value: Any) -> _Mark:
    with readable(key, None):
        return msgspec.convert(value, _Mark)


def file_names(folder: str, paths: Iterable[str]) -> dict[str, str]:
    """The name of each file, which a copy of the folder gives it too. `paths` are Spark's: encoded URIs."""
    root = _bare(folder if re.match(_SCHEME, folder) else normpath(Path(folder).absolute()))
    cut = len(root.rpartition("/")[0]) + 1
    names = {}
    for path in paths:
        bare = _bare(unquote(path))
        if bare == root:  # a file by itself is named as by its folder
            names[path] = "/".join(bare.rsplit("/", 2)[-2:])
        else:  # what no folder leads to was found by a pattern
            names[path] = bare[cut:] if bare.startswith(f"{root}/") else bare
    return names


_SCHEME: Final = r"^[A-Za-z][A-Za-z0-9+.-]+:/*"


def _bare(path: str) -> str:
    return re.sub(_SCHEME, "/", path).rstrip("/")


def _iceberg(spark: "SparkSession", table: str) -> "tuple[DataFrame, int]":
    """Pinned to its current snapshot, so that a repeat after a crash reads the same rows."""
    try:
        shown = spark.sql(f"SHOW TBLPROPERTIES {table} ('current-snapshot-id')").collect()[0][1]
    except AnalysisException as error:
        raise NotFoundError(
            f"there is no Iceberg table {table!r} in this Spark session",
            hint="name it as Spark does: catalog.namespace.table; [spark] conf adds catalogs",
        ) from error
    if shown == "none":
        raise NotFoundError(f"the table {table!r} has no rows", hint="nothing is to be imported")
    return spark.sql(f"SELECT * FROM {table} VERSION AS OF {int(shown)}"), int(shown)


def _parquet(spark: "SparkSession", folder: str) -> "tuple[DataFrame, list[tuple[str, int, int]]]":
    """The rows, and path, size and time of each file that has some."""
    try:
        df = spark.read.parquet(folder)
        below = spark.read.option("recursiveFileLookup", "true").parquet(folder).inputFiles()
        if unread := sorted(set(below) - set(df.inputFiles())):
            raise FolderNested(folder, unread)
        files = df.selectExpr(
            _FILE, "_metadata.file_size", "unix_micros(_metadata.file_modification_time)"
        ).distinct()
        found = [(row[0], row[1], row[2]) for row in files.limit(MAX_FILES + 1).collect()]
    except (AnalysisException, SparkRuntimeException) as error:
        raise NotFoundError(
            f"{folder!r} holds no Parquet that Spark can read: {str(error).partition(chr(10))[0][:200]}",
            hint="name a folder or a file; all files must have one schema",
        ) from error
    if len(found) > MAX_FILES:
        raise TooManyFiles(folder, files.count())
    return df, found
