"""Whether small files hold the same rows as what they became, told without Spark."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO

from strandline.lake.jobs import compare_files
from strandline.lake.jobs.compare_files import are_same, is_worth
from strandline.lake.ports.rewrite import Bin, DataFile

IO = PyArrowFileIO()


class Files:
    """Files of a bin, written as given."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._count = folder, 0

    def of(self, seqs: list[int], *, place: str = "a", bytes_: int | None = None, **columns: Any) -> DataFile:
        self._count += 1
        path = self._folder / f"{self._count}.parquet"
        values = columns or {"v": [f"v{seq}" for seq in seqs]}
        pq.write_table(pa.table({"_sl_seq": pa.array(seqs, pa.int64()), **values}), path)
        size = path.stat().st_size if bytes_ is None else bytes_
        return DataFile(Bin(place, 0), min(seqs) - 1, max(seqs), len(seqs), size, 1, str(path))


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_rows_are_the_same_however_they_are_cut(files: Files) -> None:  # L-CMP-2
    before = [files.of([3, 4]), files.of([1, 2]), files.of([5]), files.of([1, 2], place="b")]
    after = [files.of([1, 2], place="b"), files.of([1, 2, 3, 4, 5])]

    assert are_same(IO, before, after)


def test_files_are_read_by_batches(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:  # L-CMP-2, L-COST-5
    monkeypatch.setattr(compare_files, "_BATCH", 7)
    before = [files.of(list(range(lo + 1, lo + 11))) for lo in range(0, 100, 10)]

    assert are_same(IO, before, [files.of(list(range(1, 101)))])
    assert not are_same(IO, before, [files.of([*range(1, 100), 101])])


@pytest.mark.parametrize(
    ("seqs", "values"),
    [
        ([1, 2, 3], ["a", "b", "x"]),
        ([1, 2, 4], ["a", "b", "c"]),
        ([1, 2], ["a", "b"]),
        ([1, 2, 3, 4], ["a", "b", "c", "d"]),
        ([1, 2, 3], ["a", None, "c"]),
        ([1, 2, 2], ["a", "b", "b"]),
    ],
    ids=["a value", "a seq", "one less", "one more", "a null", "one twice"],
)
def test_whatever_differs_is_seen(files: Files, seqs: list[int], values: list[str | None]) -> None:  # L-CMP-2
    before = [files.of([1, 2], v=["a", "b"]), files.of([3], v=["c"])]

    assert not are_same(IO, before, [files.of(seqs, v=values)])


def test_rows_out_of_order_and_files_that_cannot_be_read_are_left_to_spark(files: Files) -> None:
    after, gone = files.of([1, 2, 3]), files.of([1, 2, 3])
    Path(gone.path).unlink()

    assert not are_same(IO, [files.of([3, 1, 2])], [after])
    assert not are_same(IO, [gone], [after])
    assert not are_same(IO, [after], [])


def test_a_column_may_have_come_or_be_wider_since(files: Files) -> None:  # L-CMP-2, L-SCH-5
    before = [files.of([1, 2], n=pa.array([1, None], pa.int32()))]
    wider = {"n": pa.array([1, None], pa.int64()), "later": pa.array([None, None], pa.string())}

    assert are_same(IO, before, [files.of([1, 2], **wider)])
    assert not are_same(IO, before, [files.of([1, 2], n=pa.array([1, 0], pa.int64()))])


def test_not_a_number_is_what_it_was_and_no_null(files: Files) -> None:  # L-CMP-2
    before = [files.of([1, 2, 3], x=[1.0, float("nan"), None])]

    assert are_same(IO, before, [files.of([1, 2, 3], x=[1.0, float("nan"), None])])
    assert not are_same(IO, before, [files.of([1, 2, 3], x=[1.0, None, float("nan")])])
    assert not are_same(IO, before, [files.of([1, 2, 3], x=[2.0, float("nan"), None])])


def test_only_small_files_one_after_the_other_are_worth_it(files: Files) -> None:
    small, large = files.of([1]), files.of([2], bytes_=compare_files.SMALL * 3)

    assert is_worth([files.of([3, 4]), small])
    assert is_worth([small, files.of([1], place="b")])
    assert not is_worth([])
    assert not is_worth([small, large])
    assert not is_worth([files.of([1, 3]), files.of([2, 4])])  # of a load that landed late
