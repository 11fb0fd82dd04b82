"""A node whose tables are in Iceberg's reference REST catalog, which adds no codec of its own."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq
import pytest

from strandline.config.lake_settings import LakeSettings
from strandline.lake.spark.connect import CONNECT_MODE
from tests.crash.maintenance_case import SECRET, Books
from tests.crash.pipeline_case import DATASET, LEASE_S, Case, Child, Nursery, session_conf
from tests.crash.test_maintenance_kill import COMPACT, EXPIRE, PRUNE, PURGE, Verb, settle
from tests.crash.test_pipeline_kill import LAND_STEPS, LOAD_STEPS, PLAN_STEPS, begin, flushing, loading
from tests.lake.catalogs.servers import rest_catalog
from tests.spark_sessions import ConnectServer, lake_session

KILLS: Final = (
    *((step, 1, flushing) for step in (*PLAN_STEPS, *LAND_STEPS)),
    *((step, 2, flushing) for step in ("land.staged", "land.publish", "land.published", "land.record")),
    *((step, 1, loading) for step in LOAD_STEPS),
)


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


@pytest.fixture
def warm(case: Case) -> Iterator[Child]:
    """A child that is warm before the settings of its node name what reads failpoints."""
    with case.nursery.child(case.home) as child:
        yield child.await_warm()


def test_rows_in_a_rest_catalog_land_once_and_their_table_grows(case: Case) -> None:  # L-SCH-1, L-SCH-5
    with case.node() as node:
        case.hand_in(node, case.oracle.request("append", {"web-1": 3, "web-2": 2}))
        node.flush(DATASET)
        case.hand_in(node, case.oracle.request("append", {"web-1": 2, "a/b": 4}, later="a new column"))
        node.flush(DATASET)

        rows = case.oracle.check(node)

    assert len(rows) == 11
    assert sum(row["later"] is not None for row in rows) == 6


@pytest.mark.slow
def test_twenty_kills_of_flushes_and_loads_in_a_rest_catalog_lose_and_double_nothing(
    case: Case,
) -> None:  # L-FLUSH-2, L-SEQ-6, L-ACC-3
    assert len(KILLS) == 20
    begin(case)

    for step, nth, work in KILLS:
        with case.child(f"{step}:{nth}") as child:
            work(case, child)
            assert child.was_killed(), f"nobody comes by {step} {nth} times"
        with case.node() as node:
            case.recover(node)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "verb"),
    [
        ("retention.deleted", PRUNE),
        ("compaction.landed", COMPACT),
        ("maintain.expired", EXPIRE),
        ("purge.deleted", PURGE),
    ],
)
def test_tables_in_a_rest_catalog_are_kept_small_delivered_and_proven(
    warm: Child, books: Books, step: str, verb: Verb, tmp_path: Path
) -> None:  # L-RET-7, L-CMP-2, L-POL-3, L-ACC-3
    with warm.begin(failpoint=step, ahead_s=books.case.ahead_s + LEASE_S) as child:
        child.do(verb.act, **verb.arguments)
        assert child.was_killed(), f"nobody comes by {step}"

    with books.case.node() as node:
        settle(books, node, verb)

    files = list((tmp_path / "warehouse").rglob("*.parquet"))
    is_secret = [SECRET in pq.read_table(path, columns=["key"])["key"].to_pylist() for path in files]
    assert any(is_secret) == (verb is not PURGE)
