"""A Python worker of Spark that dies while it hosts a sink, right after something was stored: nobody is told,
Spark tries the task again, and each row arrives once (L-DRV-11, L-WM-10)."""

import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from strandline.base.secret import Secret
from strandline.rows.dataset import Dataset
from strandline.sinks.blob.blob_sink import BlobSink
from strandline.sinks.forward.forward_sink import ForwardSink
from strandline.sinks.sink import Delivery, Outcome, Unit
from tests.delivery.rig import Rig, blob_rows, once
from tests.server.receivers import receiving
from tests.sites import spooled_rows

pytestmark = pytest.mark.parametrize("each_spark", ["classic"], indirect=True)
ROWS = 12_000  # more than the driver delivers itself


@dataclass
class Dying:
    """Delivers as it should, and kills its process after the second unit, the first time."""

    inner: Delivery
    flag: Path
    units: int = 0

    def deliver(self, unit: Unit, rows: Iterator[pa.RecordBatch]) -> Iterator[Outcome]:
        for outcome in self.inner.deliver(unit, rows):
            self.units += 1
            if self.units == 2 and not self.flag.exists():
                self.flag.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield outcome


@dataclass(frozen=True, kw_only=True)
class DyingForward(ForwardSink):
    flag: str

    @contextmanager
    def opened(self) -> Iterator[Delivery]:
        with ForwardSink.opened(self) as inner:
            yield Dying(inner, Path(self.flag))


@dataclass(frozen=True)
class DyingBlob(BlobSink):
    flag: str = ""

    @contextmanager
    def opened(self) -> Iterator[Delivery]:
        with BlobSink.opened(self) as inner:
            yield Dying(inner, Path(self.flag))


def test_objects_that_a_killed_worker_wrote_are_known_to_the_next_try(rig: Rig, tmp_path: Path) -> None:
    """L-DRV-11, L-BLOB-5."""
    values = rig.land(ROWS)
    folder, flag = tmp_path / "archive", tmp_path / "died"
    sink = DyingBlob("local", dir=str(folder), encoder="jsonl", max_object_rows=1_000, flag=str(flag))

    result = rig.sync(sink)

    assert flag.exists()
    assert (result.status, result.rows) == ("exported", ROWS)
    assert blob_rows(folder) == once(values)
    assert rig.line().mark == ROWS


def test_requests_that_a_killed_worker_made_are_not_stored_again(rig: Rig, tmp_path: Path) -> None:
    """L-DRV-11, L-SRV-2."""
    values = rig.land(ROWS)
    flag = tmp_path / "died"
    (tmp_path / "centre").mkdir()
    with receiving(tmp_path / "centre", datasets=(Dataset(rig.dataset),)) as receiver:
        token = Secret("file:token", tmp_path, receiver.token)
        sink = DyingForward(url=receiver.url, token=token, max_unit_rows=1_000, flag=str(flag))

        result = rig.sync(sink)

        assert flag.exists()
        assert (result.status, result.rows) == ("exported", ROWS - 2_000)  # the others were there
        assert receiver.app.counts["rows_stored"] == ROWS
        stored = [row["n"] for _, row in spooled_rows(receiver.site, rig.dataset, "edge/web-1")]
        assert Counter(stored) == once(values)
        assert rig.line().mark == ROWS
