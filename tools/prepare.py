"""Fetch Iceberg's jars and make Spark's class archive, where they are not there yet, for tests."""

from strandline.lake.classic import prepare
from strandline.lake.settings import LakeSettings, SparkSettings

prepare(LakeSettings(warehouse="unused", uri="unused"), SparkSettings("local[1]"), print)
