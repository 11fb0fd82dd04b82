"""Nodes on the Spark of the run, with a clock that a test moves: `house` is on classic Spark, `each_house` on
classic Spark and then on Connect."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from strandline.config.lake_settings import LakeSettings
from tests.maintenance.house import House


@pytest.fixture
def house(spark: SparkSession, spark_lake: LakeSettings, tmp_path: Path) -> Iterator[House]:
    made = House(spark, spark_lake, tmp_path)
    yield made
    made.site.b.close()


@pytest.fixture
def each_house(each_spark: SparkSession, each_spark_lake: LakeSettings, tmp_path: Path) -> Iterator[House]:
    made = House(each_spark, each_spark_lake, tmp_path)
    yield made
    made.site.b.close()
