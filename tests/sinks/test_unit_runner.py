"""The host: rows of many strands in, outcomes of a tiny sink out."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.base.ranges import Range
from strandline.sinks.sink import Delivery, Limits, Outcome, Sink, Status, Unit
from strandline.sinks.unit_runner import IntentPart, Told, deliver
from tests.sinks.shipping import SHIPMENT, batch, part

ALL_STATUSES: tuple[Status, ...] = (
    "stored",
    "known",
    "bad_rows",
    "poison",
    "pace",
    "failed",
    "denied",
    "held",
    "put_off",
)
LIMITS = Limits(10)


@dataclass
class Taken:
    """A unit, and the seqs that came with it."""

    source: str
    lo: int
    hi: int
    after: int
    seqs: list[int]


@dataclass(frozen=True)
class TinySink(Sink):
    """Tells of each unit what it is told to, by its `hi`; by default that it is stored."""

    says: Mapping[int, list[Outcome] | Exception] = field(default_factory=dict)
    ordered: bool = False
    reads: int | None = None  # so many batches of a unit, and no more
    taken: list[Taken] = field(default_factory=list)
    opens: list[str] = field(default_factory=list)

    @property
    def is_ordered(self) -> bool:
        return self.ordered

    @property
    def fingerprint(self) -> str:
        return "tiny"

    def limits(self, mean_row_bytes: float) -> Limits:
        return LIMITS

    @contextmanager
    def opened(self) -> Iterator[Delivery]:
        self.opens.append("opened")
        yield self
        self.opens.append("closed")

    def deliver(self, unit: Unit, rows: Iterator[pa.RecordBatch]) -> Iterator[Outcome]:
        seqs: list[int] = []
        for number, each in enumerate(rows):
            assert "_sl_withheld" not in each.schema.names
            seqs += each.column("_sl_seq").to_pylist()
            if self.reads is not None and number + 1 >= self.reads:
                break
        self.taken.append(Taken(unit.source, unit.lo, unit.hi, unit.after, seqs))
        says = self.says.get(unit.hi, [Outcome(unit.lo, unit.hi, "stored", rows=len(seqs))])
        if isinstance(says, Exception):
            raise says
        yield from says


def host(sink: TinySink, parts: Iterable[IntentPart], batches: Iterable[pa.RecordBatch]) -> list[Told]:
    return list(deliver(sink, SHIPMENT, {each.source: each for each in parts}, batches))


def spans(told: list[Told]) -> list[tuple[str, int, int, str]]:
    return [(each.source, each.outcome.lo, each.outcome.hi, each.outcome.status) for each in told]


def test_rows_reach_their_unit_across_the_borders_of_batches() -> None:  # L-WM-8, L-DRV-11
    sink = TinySink()
    batches = [batch("a", [1, 2, 3]), batch("a", [4, 9, 10, 11]), batch("a", [12]), batch("a", [25])]

    told = host(sink, [part("a", 0, 25, LIMITS)], batches)

    assert [(each.lo, each.hi, each.seqs) for each in sink.taken] == [
        (0, 10, [1, 2, 3, 4, 9, 10]),
        (10, 20, [11, 12]),
        (20, 25, [25]),
    ]
    assert [each.outcome.rows for each in told] == [6, 2, 1]
    assert sink.opens == ["opened", "closed"]


def test_strands_in_one_batch_are_told_apart() -> None:  # L-DRV-11
    sink = TinySink()
    mixed = pa.Table.from_batches([batch("a", [1, 2]), batch("b", [1, 7]), batch("c", [3])]).combine_chunks()
    parts = [part("a", 0, 10, LIMITS), part("b", 5, 10, LIMITS, chain_hi=2), part("d", 0, 10, LIMITS)]

    told = host(sink, parts, mixed.to_batches())

    assert spans(told) == [("a", 0, 10, "stored"), ("b", 5, 10, "stored")]
    assert [(each.source, each.after, each.seqs) for each in sink.taken] == [("a", 0, [1, 2]), ("b", 2, [7])]


def test_only_what_is_not_done_is_asked_for_and_units_keep_their_bounds() -> None:  # L-WM-8, L-WM-10
    sink = TinySink()
    asked = part("a", 3, 33, LIMITS, chain_hi=1, ranges=[Range(13, 23), Range(28, 33)])

    told = host(sink, [asked], [batch("a", range(4, 34))])

    assert spans(told) == [("a", 13, 23, "stored"), ("a", 28, 33, "stored")]
    assert [each.after for each in sink.taken] == [13, 23]
    assert [each.seqs for each in sink.taken] == [[*range(14, 24)], [*range(29, 34)]]


def test_a_unit_without_a_row_has_no_outcome() -> None:  # L-WM-11
    assert spans(host(TinySink(), [part("a", 0, 30, LIMITS)], [batch("a", [5, 25])])) == [
        ("a", 0, 10, "stored"),
        ("a", 20, 30, "stored"),
    ]


@pytest.mark.parametrize("status", ALL_STATUSES)
@pytest.mark.parametrize("ordered", [True, False])
def test_a_strand_in_order_stops_where_a_unit_does_not_get_through(
    status: Status, ordered: bool
) -> None:  # L-DRV-11
    sink = TinySink({10: [Outcome(0, 10, status)]}, ordered=ordered)
    parts = [part("a", 0, 30, LIMITS), part("b", 0, 10, LIMITS)]

    told = host(sink, parts, [batch("a", [1, 2]), batch("a", [11, 21]), batch("b", [15, 16])])

    goes_on = status in ("stored", "known", "bad_rows") or not ordered
    rest = "stored" if goes_on else "put_off"
    assert spans(told) == [("a", 0, 10, status), ("a", 10, 20, rest), ("a", 20, 30, rest)]
    assert [each.hi for each in sink.taken] == ([10, 20, 30] if goes_on else [10])


def test_another_strand_goes_on() -> None:  # L-DRV-11
    sink = TinySink({10: [Outcome(0, 10, "failed")]}, ordered=True)
    parts = [part("a", 0, 10, LIMITS), part("b", 0, 20, LIMITS, ranges=[Range(10, 20)])]

    told = host(sink, parts, [batch("a", [1]), batch("b", [11])])

    assert spans(told) == [("a", 0, 10, "failed"), ("b", 10, 20, "stored")]


def test_withheld_rows_stay_and_are_told_as_ranges() -> None:  # L-POL-1
    sink = TinySink()
    withheld = [2, 3, 4, 9, *range(11, 21)]
    rows = [batch("a", range(1, 4), withheld=withheld), batch("a", range(4, 22), withheld=withheld)]

    told = host(sink, [part("a", 0, 30, LIMITS)], rows)

    assert [each.seqs for each in sink.taken] == [[1, 5, 6, 7, 8, 10], [21]]
    assert spans(told) == [("a", 0, 10, "stored"), ("a", 10, 20, "stored"), ("a", 20, 30, "stored")]
    assert [each.withheld for each in told] == [(Range(1, 4), Range(8, 9)), (Range(10, 20),), ()]
    assert [each.outcome.rows for each in told] == [6, 0, 1]


def test_a_sink_that_leaves_rows_unread_gets_the_next_unit_whole() -> None:  # L-DRV-11
    sink = TinySink(reads=1)

    told = host(sink, [part("a", 0, 20, LIMITS)], [batch("a", [seq]) for seq in range(1, 21)])

    assert [each.seqs for each in sink.taken] == [[1], [11]]
    assert len(told) == 2


def test_rows_of_which_a_sink_tells_nothing_have_failed() -> None:  # L-WM-3, G-2
    sink = TinySink({10: [Outcome(0, 4, "stored"), Outcome(6, 8, "bad_rows")], 20: []})

    told = host(sink, [part("a", 0, 20, LIMITS)], [batch("a", [1, 2, 5, 7, 10, 12])])

    assert spans(told) == [
        ("a", 0, 4, "stored"),
        ("a", 4, 6, "failed"),
        ("a", 6, 8, "bad_rows"),
        ("a", 8, 10, "failed"),
        ("a", 10, 20, "failed"),
    ]
    assert told[-1].outcome.kind == "sink_silent"


@pytest.mark.parametrize("ordered", [True, False])
def test_what_a_sink_raises_is_its_outcome(ordered: bool) -> None:  # L-DRV-11
    sink = TinySink({10: RuntimeError("broken")}, ordered=ordered)

    told = host(sink, [part("a", 0, 20, LIMITS)], [batch("a", [1, 11])])

    assert spans(told) == [("a", 0, 10, "failed"), ("a", 10, 20, "put_off" if ordered else "stored")]
    assert (told[0].outcome.kind, told[0].outcome.text) == ("sink_error", "RuntimeError: broken")


def test_an_error_of_the_rows_is_never_taken_for_their_end() -> None:  # L-WM-3
    def failing() -> Iterator[pa.RecordBatch]:
        yield batch("a", [1, 2])
        raise OSError("the table went away")

    with pytest.raises(OSError, match="went away"):
        host(TinySink(), [part("a", 0, 30, LIMITS)], failing())


@given(
    seqs=st.sets(st.integers(1, 60), min_size=1),
    withheld=st.sets(st.integers(1, 60)),
    sizes=st.lists(st.integers(1, 9), min_size=1),
    width=st.integers(1, 25),
    since=st.integers(0, 20),
)
def test_each_row_reaches_one_unit_or_is_withheld(
    seqs: set[int], withheld: set[int], sizes: list[int], width: int, since: int
) -> None:  # L-WM-8, L-POL-1
    sink = TinySink()
    there, at = sorted(seqs), 0
    batches: list[pa.RecordBatch] = []
    while at < len(there):
        size = sizes[len(batches) % len(sizes)]
        batches.append(batch("a", there[at : at + size], withheld=withheld))
        at += size

    told = host(sink, [part("a", since, 60, Limits(width))], batches)

    asked = [seq for seq in there if seq > since]
    assert [seq for each in sink.taken for seq in each.seqs] == [seq for seq in asked if seq not in withheld]
    kept = [seq for each in told for one in each.withheld for seq in range(one.lo + 1, one.hi + 1)]
    assert kept == [seq for seq in asked if seq in withheld]
    assert [(each.outcome.lo, each.outcome.hi) for each in told] == sorted(
        {bounds(since, width, seq) for seq in asked}
    )


def bounds(since: int, width: int, seq: int) -> tuple[int, int]:
    lo = since + (seq - 1 - since) // width * width
    return lo, min(lo + width, 60)


def test_memory_does_not_grow_with_a_unit() -> None:  # L-BLOB-9
    def rows() -> Iterator[pa.RecordBatch]:
        for first in range(1, 200_001, 5_000):
            sink = pa.BufferOutputStream()
            made = batch_of_texts(first)
            with pa.ipc.new_stream(sink, made.schema) as writer:
                writer.write_batch(made)
            most.append(pa.total_allocated_bytes() - before)
            yield from pa.ipc.open_stream(sink.getvalue())

    most: list[int] = []
    before = pa.total_allocated_bytes()
    host(TinySink({200_000: []}, reads=None), [part("a", 0, 200_000, Limits(200_000))], rows())

    assert max(most) < 30_000_000  # of over 100 MB that went by


def batch_of_texts(first: int) -> pa.RecordBatch:
    count = 5_000
    return pa.RecordBatch.from_pydict(
        {
            "text": pa.repeat("x" * 500, count),
            "source": pa.repeat("a", count),
            "_sl_seq": pa.array(range(first, first + count), pa.int64()),
        }
    )
