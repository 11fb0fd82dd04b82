"""An S3 server and a Postgres on loopback, for the page of a node that outgrows one machine."""

from tests.storage.places import s3_endpoint
from tests.tcp_postgres import tcp_postgres

__all__ = ["s3_endpoint", "tcp_postgres"]
