"""What an action of Spark has read, by Iceberg's own metrics of its scans.

On Connect a DataFrame brings the metrics of its last action along. On classic Spark the plan that has run
keeps them, and they are whole when the action returns. (Spark's UI shows them too, but its listener lags, and
one job under an execution that it has dropped makes every later list of executions a 404.)

Where Spark does not tell, a counter is None: unknown, never 0. (Spark's own input bytes miss Iceberg's
reads.)
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeVar

from pyspark.sql import DataFrame, SparkSession

from strandline.lake.ports.scan_counters import ScanCounters, total_of
from strandline.lake.spark.session import is_connect

T = TypeVar("T")
Scan = Mapping[str, int]

# Iceberg's metrics of a scan: the first two of its plan, the others of its run.
_FILES: Final = "resultDataFiles"
_BYTES: Final = "totalDataFileSize"
_ROWS: Final = "numOutputRows"
_SPLITS: Final = "numSplits"
_METRICS: Final = (_FILES, _BYTES, _ROWS, _SPLITS)

# Leaves of a plan that read no file; what a reused exchange gives again is counted where it was made.
_NO_FILES: Final = {"LocalTableScanExec", "EmptyRelationExec", "OneRowRelationExec", "ReusedExchangeExec"}


class ScanMeter:
    """Counts for one session. Threads may share it."""

    def __init__(self, spark: SparkSession) -> None:
        self._is_connect = is_connect(spark)

    def counted(self, rows: DataFrame, action: Callable[[DataFrame], T]) -> tuple[T, ScanCounters]:
        """The result of `action(rows)`, and what it has read. The action is one of `rows` itself."""
        result = action(rows)
        scans = list(_told_by_connect(rows) if self._is_connect else _told_by_plan(rows))
        # Who runs again keeps the plan, and Iceberg tells of a plan once: no file then, but splits.
        planned = [scan if scan.get(_FILES) or not scan.get(_SPLITS) else {} for scan in scans]
        return result, ScanCounters(
            1,
            total_of(scan.get(_FILES) for scan in planned),
            total_of(scan.get(_BYTES) for scan in planned),
            total_of(scan.get(_ROWS) for scan in scans),
        )


def _told_by_connect(rows: DataFrame) -> Iterator[Scan]:
    info = rows.executionInfo
    if info is None or info.metrics is None:
        yield {}
        return
    for node in info.metrics._metrics:  # noqa: SLF001  # as a graph, nodes of one id hide each other
        if node.name.startswith("BatchScan "):
            yield {each.name: int(each.value) for each in node.metrics}
        elif node.name.startswith("Scan "):  # not of Iceberg
            yield {}


def _told_by_plan(rows: DataFrame) -> Iterator[Scan]:
    plans = [rows._jdf.queryExecution().executedPlan()]  # noqa: SLF001  # PySpark has no name for it
    while plans:
        for leaf in _each(plans.pop().collectLeaves()):
            kind = leaf.getClass().getSimpleName()
            if kind == "AdaptiveSparkPlanExec":
                plans.append(leaf.executedPlan())
            elif kind.endswith("QueryStageExec"):
                plans.append(leaf.plan())
            elif kind not in _NO_FILES:
                yield _metrics_of(leaf) if kind == "BatchScanExec" else {}


def _metrics_of(scan: Any) -> Scan:
    metrics = scan.metrics()
    return {name: int(metrics.apply(name).value()) for name in _METRICS if metrics.contains(name)}


def _each(found: Any) -> Iterator[Any]:
    """Of a sequence of Scala."""
    for index in range(found.size()):
        yield found.apply(index)
