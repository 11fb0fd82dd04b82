"""The fixtures of the tests in which a pipeline crashes."""

from tests.crash.maintenance_case import books
from tests.crash.pipeline_case import case, classic_case, nursery

__all__ = ["books", "case", "classic_case", "nursery"]
