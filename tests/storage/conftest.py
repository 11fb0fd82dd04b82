"""The fixtures of places.py, and a content store over each kind of objects."""

import pytest

from strandline.storage import ContentStore
from strandline.storage.objects import Objects
from tests.storage.places import durable_place, objects, place_of, s3_endpoint

__all__ = ["content", "durable_place", "objects", "place_of", "s3_endpoint"]


@pytest.fixture
def content(objects: Objects) -> ContentStore:
    return ContentStore(objects)
