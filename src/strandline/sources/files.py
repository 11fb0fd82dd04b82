"""Files of rows below a folder or a prefix of a bucket: JSON lines, CSV, Parquet (strandline.rows.row_files).

An item is a file, by its path below. A log that grows by its end comes in the same chunks and new ones.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from strandline.base.secret import is_reference
from strandline.errors import NotFoundError
from strandline.rows.dataset import Dataset
from strandline.rows.row_files import read_rows
from strandline.sources.provider import Chunk, Item, ProviderOptions, Window
from strandline.storage.objects import ObjectInfo, Objects, open_objects

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Files:
    """`root` is set where it is a folder: then files are read where they are."""

    objects: Objects
    root: Path | None
    dataset: str
    source: str | None
    include: tuple[str, ...]
    format: str | None
    frame_bytes: int
    schema: Callable[[str], Dataset | None]

    def items(self, window: Window) -> Iterator[Item]:
        if self.root is not None and not self.root.is_dir():
            raise NotFoundError(f"there is no folder {self.root}", hint="correct `path` of the provider")
        for found in sorted(self.objects.scan(), key=lambda each: each.name):
            if self._is_asked(found.name) and found.size and window.has(found.modified):
                yield self._item(found)

    def rows(self, item: Item) -> Iterator[Chunk]:
        if self.root is not None:
            yield from self._read(self.root / item.id)
            return
        with TemporaryDirectory() as folder:
            copy = Path(folder) / PurePosixPath(item.id).name  # its endings tell what it is
            with copy.open("wb") as file:
                for block in self.objects.stream(item.id):
                    file.write(block)
            yield from self._read(copy)

    def frame(self, item: Item, spark: "SparkSession") -> "DataFrame":
        assert self.root is not None, "only files of a folder are frames"
        return spark.read.parquet(str(self.root / item.id))

    def _is_asked(self, name: str) -> bool:
        base = PurePosixPath(name).name
        return any(fnmatchcase(name, each) or fnmatchcase(base, each) for each in self.include)

    def _item(self, found: ObjectInfo) -> Item:
        is_parquet = (self.format or PurePosixPath(found.name).suffix[1:].lower()) == "parquet"
        return Item(
            found.name,
            self.dataset,
            self.source,
            found.modified,
            found.size,
            version=f"{found.size}:{int(found.modified.timestamp() * 1e6)}",
            is_frame=is_parquet and self.root is not None and found.size >= self.frame_bytes,
        )

    def _read(self, path: Path) -> Iterator[Chunk]:
        return read_rows(path, format=self.format, dataset=self.schema(self.dataset))


def configure(options: ProviderOptions) -> Files:
    keys = options.keys
    place = str(keys["path"])
    root = None if "://" in place else options.home / Path(place).expanduser()
    given: dict[str, Any] = {
        name: options.secret(value) if is_reference(value) else value
        for name, value in keys["options"].items()
    }
    return Files(
        open_objects(root if root is not None else place, **given),
        root,
        keys["dataset"],
        keys["source"] or None,
        tuple(keys["include"]),
        keys["format"] or None,
        keys["frame_bytes"],
        options.schema,
    )
