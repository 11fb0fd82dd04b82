"""A node of its own for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from strandline.node.node import Node
from tests.backfill.rig import open_here


@pytest.fixture
def node(spark: SparkSession, tmp_path: Path) -> Iterator[Node]:
    with open_here(tmp_path / "node") as opened:
        yield opened
