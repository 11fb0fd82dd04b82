"""The S3 server of tests/content, for sinks."""

from tests.content.places import s3_endpoint

__all__ = ["s3_endpoint"]
