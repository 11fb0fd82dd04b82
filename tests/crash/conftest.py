"""The fixtures of the tests in which a pipeline crashes."""

from tests.crash.pipeline_case import case, classic_case, nursery

__all__ = ["case", "classic_case", "nursery"]
