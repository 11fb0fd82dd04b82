"""The S3 server of tests/storage, for sinks."""

from tests.storage.places import s3_endpoint

__all__ = ["s3_endpoint"]
