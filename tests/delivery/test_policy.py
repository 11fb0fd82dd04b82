"""Which rows stay here, judged by real Spark, classic and Connect."""

from pathlib import Path
from typing import Any

import pytest

from strandline.base.ranges import Range
from strandline.delivery.operate_sink import release
from strandline.delivery.owed import Terms
from strandline.delivery.policy import Rule
from strandline.sinks.blob.blob_sink import BlobSink
from tests.delivery.rig import Rig, blob_rows, once


@pytest.fixture
def archive(tmp_path: Path) -> BlobSink:
    return BlobSink("local", dir=str(tmp_path / "archive"), encoder="jsonl")


def rule(where: str, missing: Any = "withhold") -> tuple[Rule, ...]:
    return (Rule(("*",), where, missing),)


def test_withheld_rows_arrive_once_after_the_rule_is_lifted(
    rig: Rig, archive: BlobSink, tmp_path: Path
) -> None:
    """F-46, L-POL-1: withhold, tick, lift, release: exactly those rows."""
    terms = Terms("centre", include=(rig.dataset,))
    values = rig.land(20, level="info")
    secret = rig.land(5, level="secret")
    untold = rig.land(3)  # level is null: it cannot be told
    values += rig.land(2, level="info")
    rig.rules = rule("level = 'secret'")

    first = rig.sync(archive)

    assert (first.status, first.rows, first.withheld) == ("exported", 22, 8)
    assert blob_rows(tmp_path / "archive") == once(values)
    assert list(rig.line().withheld.ranges) == [Range(20, 28)]
    rig.rules = rule("level = 'secret'", "export")
    release(rig.site, archive, terms, rig.rules)
    assert rig.sync(archive).rows == 3
    assert blob_rows(tmp_path / "archive") == once(values + untold)
    assert list(rig.line().withheld.ranges) == [Range(20, 25)]
    rig.rules = ()
    release(rig.site, archive, terms, ())
    assert rig.sync(archive).rows == 5
    assert blob_rows(tmp_path / "archive") == once(values + untold + secret)
    assert rig.sync(archive).status == "idle"


def test_a_rule_over_a_column_that_is_not_there_does_as_missing_says(
    rig: Rig, archive: BlobSink, tmp_path: Path
) -> None:
    """L-POL-2: the safe default is to withhold."""
    values = rig.land(4)
    rig.rules = rule("`no such` = 'x' AND lower(level) = 'secret'")
    first = rig.sync(archive)
    assert (first.status, first.rows, first.withheld) == ("exported", 0, 4)
    more = rig.land(3)
    rig.rules = rule("secret", "export")
    assert rig.sync(archive).rows == 3
    assert blob_rows(tmp_path / "archive") == once(more)
    assert not set(values) & set(more)


def test_a_rule_that_cannot_be_read_holds_what_it_is_about(
    rig: Rig, archive: BlobSink, tmp_path: Path
) -> None:
    """L-POL-2: it fails closed, and names the rule; corrected, it goes on."""
    values = rig.land(2)
    for where in ("n ~~ 1", "count(n) > 1", "n = 1) --", "nobody(n)", "n.deep = 1", "n + 1"):
        rig.rules = rule(where)
        result = rig.sync(archive, is_command=rig.line().hold is not None)  # or the hold would stay
        told = [each.kind for each in result.troubles]
        assert (where, result.status, told) == (where, "held", ["policy_unreadable"])
        assert rig.line().intent is None
        assert not (tmp_path / "archive").exists()
    rig.rules = rule("n < 0")
    assert rig.sync(archive, is_command=True).rows == 2
    assert blob_rows(tmp_path / "archive") == once(values)


def test_what_stayed_here_of_a_range_is_told_by_its_rows(rig: Rig) -> None:
    """L-POL-1: for ranges that a destination knows by their bounds alone."""
    rig.land(10)
    dataset = rig.site.known(rig.dataset).dataset
    found = rig.courier.withheld(
        dataset, "web-1", [Range(0, 4), Range(6, 10)], rule("n IN (1, 2, 5, 9)")[0].sql
    )
    assert found == [Range(0, 2), Range(8, 9)]
