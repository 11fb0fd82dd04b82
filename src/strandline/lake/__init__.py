"""Iceberg through Spark: the data plane. Import the module that you need; only some of them load Spark."""
