"""A node whose tables are in Iceberg's reference REST catalog, which adds no codec of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.config.lake_settings import LakeSettings
from strandline.lake.spark.connect import CONNECT_MODE
from tests.crash.pipeline_case import DATASET, Case, Nursery, session_conf
from tests.lake.catalogs.servers import rest_catalog
from tests.spark_sessions import ConnectServer, lake_session


@pytest.fixture
def rest_lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LakeSettings]:
    is_slow = request.node.get_closest_marker("slow") is not None
    with rest_catalog(tmp_path, fetch=is_slow) as lake:
        yield lake


@pytest.fixture
def case(
    rest_lake: LakeSettings,
    nursery: Nursery,
    connect_server: ConnectServer,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Case]:
    """A node in the REST catalog."""
    monkeypatch.setenv(CONNECT_MODE, "1")
    home = nursery.home(lake=rest_lake)
    with lake_session(connect_server, session_conf(rest_lake)) as session:
        yield Case(nursery, home, session)


def test_rows_in_a_rest_catalog_land_once_and_their_table_grows(case: Case) -> None:  # L-SCH-1, L-SCH-5
    with case.node() as node:
        case.hand_in(node, case.oracle.request("append", {"web-1": 3, "web-2": 2}))
        node.flush(DATASET)
        case.hand_in(node, case.oracle.request("append", {"web-1": 2, "a/b": 4}, later="a new column"))
        node.flush(DATASET)

        rows = case.oracle.check(node)

    assert len(rows) == 11
    assert sum(row["later"] is not None for row in rows) == 6
