"""A simulated world in which nothing goes wrong by itself, for tests of delivery without Spark."""

import pytest

from strandline.pipeline.site import Site
from tests.delivery.destinations import Server
from tests.pipeline.simulation import World


@pytest.fixture
def world() -> World:
    made = World(0)
    made.is_calm = True
    return made


@pytest.fixture
def site(world: World) -> Site:
    return world.site()


@pytest.fixture
def server(world: World) -> Server:
    return Server(world)
