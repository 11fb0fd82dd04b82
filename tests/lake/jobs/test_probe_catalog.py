"""The probe of a catalog, over Iceberg's JDBC catalog; see tests/lake/catalogs for others."""

import secrets

import pytest
from pyspark.sql import SparkSession

from strandline.errors import UnavailableError
from strandline.lake.jobs.probe_catalog import CatalogProbe


def test_the_probe_finds_nothing_missing_and_leaves_nothing(each_spark: SparkSession) -> None:  # L-FLUSH-14
    table = f"probe_{secrets.token_hex(8)}"

    missing = CatalogProbe(each_spark, format=2).missing(table)

    assert missing == []
    assert not each_spark.catalog.tableExists(f"strandline.scratch.{table}")


def test_a_probe_drops_what_a_killed_one_has_left(spark: SparkSession) -> None:  # L-FLUSH-14
    table = f"probe_{secrets.token_hex(8)}"
    spark.sql("CREATE NAMESPACE IF NOT EXISTS strandline.scratch")
    spark.sql(f"CREATE TABLE strandline.scratch.{table} (n BIGINT) USING iceberg")

    CatalogProbe(spark, format=2).drop(table)
    CatalogProbe(spark, format=2).drop(table)

    assert not spark.catalog.tableExists(f"strandline.scratch.{table}")


def test_a_catalog_whose_tables_cannot_be_made_is_unavailable(spark: SparkSession) -> None:  # L-FLUSH-14
    table = f"probe_{secrets.token_hex(8)}"
    spark.sql("CREATE NAMESPACE IF NOT EXISTS strandline.scratch")
    spark.sql(f"CREATE TABLE strandline.scratch.{table} (n BIGINT) USING iceberg")

    with pytest.raises(UnavailableError, match="cannot try the catalog"):
        CatalogProbe(spark, format=2).missing(table)
