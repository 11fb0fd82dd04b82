"""What an action of Spark has read, by Iceberg's own metrics of its scans.

On Connect a DataFrame brings the metrics of its last action along. Classic Spark shows them in its UI
alone, so there its REST interface is asked, for the executions under a description that no other has. The
listener behind it lags, so an execution without a job follows the action: once that one is shown,
everything before it is.

Where Spark does not tell, a counter is None: unknown, never 0. (Spark's own input bytes miss Iceberg's
reads.)
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import urlencode, urlsplit
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession

from strandline.lake.counters import ScanCounters, total_of
from strandline.lake.spark import is_connect

T = TypeVar("T")

UI_TIMEOUT_S: Final = 30.0  # its first answer takes seconds
_POLL_S: Final = 0.01
_PAGE: Final = 200
_DESCRIPTION: Final = "spark.job.description"
_SCAN: Final = "BatchScan "


class _Names(NamedTuple):
    """Iceberg's metrics of a scan: the first two of its plan, the others of its run."""

    files: str
    bytes: str
    rows: str
    splits: str


_ON_CONNECT: Final = _Names("resultDataFiles", "totalDataFileSize", "numOutputRows", "numSplits")
_IN_UI: Final = _Names(
    "number of result data files",
    "total data file size (bytes)",
    "number of output rows",
    "number of file splits read",
)


class ScanMeter:
    """Counts for one session. Threads may share it: a description is a thread's own."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._last_seen = -1  # an execution in the UI; what starts from now on has a higher id

    def counted(self, rows: DataFrame, action: Callable[[DataFrame], T]) -> tuple[T, ScanCounters]:
        """The result of `action(rows)`, and what it has read. The action is one of `rows` itself."""
        if is_connect(self._spark):
            return action(rows), _counters_of(rows)
        mark, after = uuid4().hex, self._last_seen
        with _described(self._spark, mark):
            result = action(rows)
        return result, self._in_ui(mark, after)

    def _in_ui(self, mark: str, after: int) -> ScanCounters:
        ui = _Ui.of(self._spark)
        if ui is None:
            return ScanCounters()
        end = uuid4().hex
        with _described(self._spark, end):
            self._spark.sql("SELECT 1").collect()
        try:
            executions = self._wait(ui, mark, end, after)
            scans = [scan for execution in executions for scan in ui.scans(execution["id"])]
        except (
            OSError,
            HTTPException,
            ValueError,
        ):  # switched off, behind a login, no JSON: it does not tell
            return ScanCounters()
        if not executions:
            return ScanCounters()
        jobs = sum(len(each[key]) for each in executions for key in ("successJobIds", "failedJobIds"))
        return _sum_scans(jobs, scans, _IN_UI)

    def _wait(self, ui: "_Ui", mark: str, end: str, after: int) -> list[dict[str, Any]]:
        """The executions under `mark`; none if the UI does not show `end` in time, or has dropped them."""
        until = time.monotonic() + UI_TIMEOUT_S
        while time.monotonic() < until:
            found: dict[str, list[dict[str, Any]]] = {mark: [], end: []}
            for execution in ui.executions(after):
                for each, kept in found.items():
                    if each in execution.get("description", ""):
                        kept.append(execution)
            if any(execution["status"] != "RUNNING" for execution in found[end]):
                self._last_seen = max(self._last_seen, *(execution["id"] for execution in found[end]))
                return found[mark]
            time.sleep(_POLL_S)
        return []


@dataclass(frozen=True, slots=True)
class _Ui:
    """The REST interface of the driver's UI."""

    url: str

    @classmethod
    def of(cls, spark: SparkSession) -> "_Ui | None":
        context = spark.sparkContext
        return (
            cls(f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}")
            if context.uiWebUrl
            else None
        )

    def executions(self, after: int) -> Iterator[dict[str, Any]]:
        """Those with a higher id, oldest first, by pages; some at or below it may come too."""
        oldest = self._page(0, 1)  # the list holds the newest thousand only
        offset = max(after + 1 - oldest[0]["id"], 0) if oldest else 0
        page = self._page(offset, _PAGE)
        while offset and (not page or page[0]["id"] > after + 1):  # ids lack in the list, so that was too far
            offset = max(offset - (page[0]["id"] - after - 1 if page else _PAGE), 0)
            page = self._page(offset, _PAGE)
        while page:
            yield from page
            offset += len(page)
            page = self._page(offset, _PAGE)

    def _page(self, offset: int, length: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._get(
            "/sql", details="false", planDescription="false", offset=offset, length=length
        )
        return found

    def scans(self, execution: int) -> list[Mapping[str, int]]:
        shown = self._get(f"/sql/{execution}", details="true", planDescription="false")
        return [
            {
                each["name"]: int(each["value"].replace(",", ""))
                for each in node["metrics"]
                if each["name"] in _IN_UI
            }
            for node in shown["nodes"]
            if node["nodeName"].startswith(_SCAN)
        ]

    def _get(self, path: str, **query: str | int) -> Any:
        """Not by urllib, which would ask a proxy for our own driver."""
        parts = urlsplit(self.url)
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        connection = kind(parts.netloc, timeout=UI_TIMEOUT_S)
        try:
            connection.request("GET", f"{parts.path}{path}?{urlencode(query)}")
            answer = connection.getresponse()
            if answer.status != HTTPStatus.OK:
                raise HTTPException(f"{answer.status} {answer.reason}")
            return json.loads(answer.read())
        finally:
            connection.close()


@contextmanager
def _described(spark: SparkSession, mark: str) -> Iterator[None]:
    """What runs inside is shown under the description it would have had, and `mark`."""
    context = spark.sparkContext
    before: str | None = context.getLocalProperty(_DESCRIPTION)
    context.setLocalProperty(_DESCRIPTION, f"{before or 'strandline'} {mark}")
    try:
        yield
    finally:
        context.setLocalProperty(_DESCRIPTION, before)  # type: ignore[arg-type]  # None takes it away again


def _counters_of(rows: DataFrame) -> ScanCounters:
    info = rows.executionInfo
    if info is None or info.metrics is None:
        return ScanCounters()
    nodes = info.metrics._metrics  # noqa: SLF001  # as a graph, nodes of one id hide each other
    scans = [
        {each.name: int(each.value) for each in node.metrics} for node in nodes if node.name.startswith(_SCAN)
    ]
    return _sum_scans(None, scans, _ON_CONNECT)


def _sum_scans(jobs: int | None, scans: Sequence[Mapping[str, int]], names: _Names) -> ScanCounters:
    # A DataFrame that runs again keeps its plan, and Iceberg tells of a plan once: then no file has splits.
    planned = [scan if scan.get(names.files) or not scan.get(names.splits) else {} for scan in scans]
    return ScanCounters(
        jobs,
        total_of(scan.get(names.files) for scan in planned),
        total_of(scan.get(names.bytes) for scan in planned),
        total_of(scan.get(names.rows) for scan in scans),
    )
