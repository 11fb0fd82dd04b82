"""The embedded backend: a store is one SQLite file, which many threads and processes share."""

from strandline.persist.backends.sqlite.backend import SqliteBackend

__all__ = ["SqliteBackend"]
