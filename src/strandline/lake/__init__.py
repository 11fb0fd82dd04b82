"""Tables of Iceberg. `ports/` and `metadata/` need no Spark; `spark/` starts it, and `jobs/` run on it."""
