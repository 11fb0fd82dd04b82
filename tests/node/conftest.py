"""An S3 server and a Postgres on loopback for a node that has outgrown one machine; nodes on the Connect
server of the run, with processes that can be killed."""

from tests.crash.pipeline_case import case, nursery
from tests.storage.places import s3_endpoint
from tests.tcp_postgres import tcp_postgres

__all__ = ["case", "nursery", "s3_endpoint", "tcp_postgres"]
