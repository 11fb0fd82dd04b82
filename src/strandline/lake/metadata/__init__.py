"""Answers that need no Spark: manifests, snapshots, rows of the catalog, bounds of files."""
