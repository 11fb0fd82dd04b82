"""Nodes whose tables are in a catalog of another server, on the Connect server of the run."""

from tests.crash.maintenance_case import books
from tests.crash.pipeline_case import nursery
from tests.storage.places import s3_endpoint

__all__ = ["books", "nursery", "s3_endpoint"]
