"""What tests of delivery stand on: a simulated world in which nothing goes wrong by itself, or the parts of a
node on either Spark."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from strandline.config.lake_settings import LakeSettings
from strandline.state.context import Site
from tests.delivery.destinations import Server
from tests.delivery.rig import Rig
from tests.simulation import World, calm_world
from tests.storage.places import s3_endpoint

__all__ = ["s3_endpoint"]


@pytest.fixture
def rig(each_spark: SparkSession, each_spark_lake: LakeSettings, tmp_path: Path) -> Iterator[Rig]:
    made = Rig(each_spark, each_spark_lake, tmp_path)
    yield made
    made.site.b.close()


@pytest.fixture
def world() -> World:
    return calm_world()


@pytest.fixture
def site(world: World) -> Site:
    return world.site()


@pytest.fixture
def server(world: World) -> Server:
    return Server(world)
