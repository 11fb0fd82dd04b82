"""The Postgres backend: many processes on one store, each commit one round trip."""

from strandline.errors import UsageError

try:
    import psycopg as _psycopg  # noqa: F401  # only to see that it is there
except ImportError as error:
    raise UsageError(
        "a postgresql:// store needs psycopg, which is not installed",
        hint='pip install "strandline[postgres]"',
    ) from error

from strandline.persist.backends.postgres.backend import PostgresBackend

__all__ = ["PostgresBackend"]
