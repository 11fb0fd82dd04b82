"""The files below a table, listed and removed without Spark, in a folder and in a bucket."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from strandline.config.lake_settings import CATALOG, NAMESPACE, LakeSettings
from strandline.lake.jobs.orphan_files import bare_path
from strandline.lake.metadata.iceberg import catalog_properties
from strandline.lake.metadata.table_files import list_table_files, remove_table_files
from strandline.lake.ports.purge import FilesUnlisted
from tests.storage.places import BUCKET, s3_options

DATASET = "logs"


def lake_of(kind: str, folder: Path, request: pytest.FixtureRequest) -> LakeSettings:
    if kind == "folder":
        return LakeSettings(str(folder / "ware house"), uri=str(folder / "catalog.db"))
    endpoint = request.getfixturevalue("s3_endpoint")
    options = s3_options(endpoint)
    conf = {"s3.endpoint": endpoint, "s3.access-key-id": "test", "s3.secret-access-key": "test"}
    conf |= {"client.region": "us-east-1"}
    assert options
    return LakeSettings(f"s3://{BUCKET}/{folder.name}", uri=str(folder / "catalog.db"), conf=conf)


@pytest.mark.parametrize("kind", ["folder", "s3"])
def test_every_file_with_rows_or_bounds_is_listed_and_one_can_be_removed(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:  # L-POL-3
    lake = lake_of(kind, tmp_path, request)
    (tmp_path / "ware house").mkdir()
    properties = catalog_properties(lake) | {"init_catalog_tables": "true"}
    catalog = SqlCatalog(CATALOG, **properties)
    catalog.create_namespace(NAMESPACE)
    rows = pa.table({"n": [1, 2]})
    table = catalog.create_table((NAMESPACE, DATASET), schema=rows.schema)
    table.append(rows)
    left = f"{table.location()}/data/source=a%2Fb/left by a task.parquet"
    with table.io.new_output(left).create() as file:
        file.write(b"rows")
    snapshot = table.current_snapshot()
    assert snapshot is not None
    named = {task.file.file_path for task in table.scan().plan_files()}
    named |= {snapshot.manifest_list, *(each.manifest_path for each in snapshot.manifests(table.io))}

    listed = list_table_files(lake, DATASET)
    gone = [each for each in listed.files if bare_path(each) == bare_path(left)]

    assert {bare_path(each) for each in listed.files} == {bare_path(each) for each in [*named, left]}
    assert (len(gone), listed.keeps) == (1, "")
    assert remove_table_files(lake, DATASET, [*gone, *gone]) == []
    assert {bare_path(each) for each in list_table_files(lake, DATASET).files} == set(map(bare_path, named))
    with table.transaction() as change:
        change.set_properties({"gc.enabled": "false"})
    assert "gc.enabled is false" in list_table_files(lake, DATASET).keeps
    catalog.close()


def test_storage_that_does_not_answer_is_named(tmp_path: Path) -> None:  # L-POL-3
    lake = LakeSettings(str(tmp_path), uri=str(tmp_path / "catalog.db"))
    properties = catalog_properties(lake) | {"init_catalog_tables": "true"}
    catalog = SqlCatalog(CATALOG, **properties)
    catalog.create_namespace(NAMESPACE)
    elsewhere = {"write.data.path": "nowhere://bucket/data"}
    catalog.create_table((NAMESPACE, DATASET), schema=pa.schema([("n", pa.int64())]), properties=elsewhere)
    catalog.close()

    with pytest.raises(FilesUnlisted, match="the files of dataset 'logs' cannot be listed"):
        list_table_files(lake, DATASET)


@pytest.mark.parametrize(
    "path", ["s3://bucket/a/b", "s3a://bucket/a/b", "bucket/a/b", "/bucket/a/b", "file:/bucket/a/b"]
)
def test_a_path_is_compared_without_the_name_of_its_storage(path: str) -> None:
    assert bare_path(path) == "bucket/a/b"
