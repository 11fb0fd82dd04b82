"""A Python task of Spark that leaves its worker quick to begin the next one.

A worker is used again, and before each task Spark has Python look at every archive on its path anew: some
dozen importers of `pyspark.zip` and one of Spark's own jar, each of which reads a directory of thousands of
files. That is a tenth of a second, as much as all else of a small task. Importers are a cache, which Python
fills again where it needs one, so a task of ours forgets them as it ends.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias
from zipimport import zipimporter

import pyarrow as pa

Batches: TypeAlias = Iterable[pa.RecordBatch]
ArrowMap: TypeAlias = Callable[[Batches], Iterator[pa.RecordBatch]]


def lean(task: ArrowMap) -> ArrowMap:
    """The same, for `mapInArrow`."""

    def leaner(batches: Batches) -> Iterator[pa.RecordBatch]:
        yield from task(batches)
        for path, importer in list(sys.path_importer_cache.items()):
            if isinstance(importer, zipimporter):
                del sys.path_importer_cache[path]

    return leaner
