"""Fetch Iceberg's jars and make Spark's class archive, where they are not there yet, for tests."""

from strandline.config.lake_settings import LakeSettings, SparkSettings
from strandline.lake.spark.classic import prepare

prepare(LakeSettings(warehouse="unused", uri="unused"), SparkSettings("local[1]"), print)
