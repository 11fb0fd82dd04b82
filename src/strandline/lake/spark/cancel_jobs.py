"""Spark jobs that can be cancelled together, on classic Spark and on Connect.

What runs inside `running` carries a tag. A job is cancelled with its tasks, and what a task was doing outside
Spark is cut off with it: whether that was done is not known.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

from pyspark.sql import SparkSession

from strandline.lake.ports.deliver import JobsCancelled
from strandline.lake.spark.session import is_connect


class Jobs:
    """Those of one holder. Threads may share it. Once cancelled, it begins no more."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark, self._tag, self._is_cancelled = spark, f"strandline-{uuid4().hex}", False

    @contextmanager
    def running(self) -> Iterator[None]:
        """The jobs that this thread runs inside. JobsCancelled in place of what ends them."""
        if self._is_cancelled:
            raise JobsCancelled
        self._add()
        try:
            yield
        except Exception as error:
            if self._is_cancelled:
                raise JobsCancelled from error
            raise
        finally:
            self._remove()

    def cancel(self) -> None:
        self._is_cancelled = True
        if is_connect(self._spark):
            self._spark.interruptTag(self._tag)
        else:
            self._spark.sparkContext.cancelJobsWithTag(self._tag)

    # On classic Spark the tags of a session do not reach what Arrow collects; those of its context do.

    def _add(self) -> None:
        if is_connect(self._spark):
            self._spark.addTag(self._tag)
        else:
            self._spark.sparkContext.addJobTag(self._tag)

    def _remove(self) -> None:
        if is_connect(self._spark):
            self._spark.removeTag(self._tag)
        else:
            self._spark.sparkContext.removeJobTag(self._tag)
