"""An S3 server for the lake's tests."""

from tests.storage.places import s3_endpoint
from tests.tcp_postgres import tcp_postgres

__all__ = ["s3_endpoint", "tcp_postgres"]
