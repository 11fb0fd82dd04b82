"""Which numbers a table has rows of, on classic Spark and on Connect."""

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from strandline.base.ranges import Range, RangeSet
from strandline.config.lake_settings import LakeSettings
from strandline.lake.jobs.count_rows import BLOCK, Counted, _ranges, census
from strandline.lake.jobs.scan import LakeReader
from tests.lake.numbered import made, put

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_census_tells_every_seq_and_those_that_are_there_twice(
    each_spark: "SparkSession", each_spark_lake: LakeSettings
) -> None:
    """L-SEQ-1: holes, seqs of two rows, blocks that are full and blocks that are not."""
    dataset = made(each_spark)
    reader = LakeReader(each_spark, each_spark_lake)
    nothing = census(reader, dataset)
    put(each_spark, dataset, "a'b", Range(0, BLOCK + 10))
    put(each_spark, dataset, "web-1", Range(2, 5))
    put(each_spark, dataset, "web-1", Range(7, 9), flush=2)
    put(each_spark, dataset, "web-1", Range(3, 4), flush=3)
    found = census(reader, dataset)
    assert nothing == {}
    assert found == {
        "a'b": Counted(BLOCK + 10, RangeSet((Range(0, BLOCK + 10),))),
        "web-1": Counted(6, RangeSet((Range(2, 5), Range(7, 9))), (4,)),
    }


@given(st.sets(st.integers(1, BLOCK), max_size=50))
def test_a_bitmap_is_the_seqs_whose_bits_are_set(seqs: set[int]) -> None:
    word = sum(1 << (seq - 1) for seq in seqs)
    found = RangeSet.of(_ranges(word.to_bytes(BLOCK // 8, "little"), 2 * BLOCK))
    assert found == RangeSet.of(Range(2 * BLOCK + seq - 1, 2 * BLOCK + seq) for seq in seqs)
