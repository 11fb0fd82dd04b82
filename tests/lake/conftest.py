"""An S3 server for the lake's tests."""

from tests.content.places import s3_endpoint

__all__ = ["s3_endpoint"]
