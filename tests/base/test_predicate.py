"""Which predicates say the same of a row each time (L-POL-1)."""

from pathlib import Path

import pytest

from strandline.base.predicate import why_unsteady
from strandline.config.config import FILE_NAME, load_config
from strandline.config.toml_file import ConfigError

UNSTEADY = {
    "rand() < 0.5": "rand()",
    "n > 1 AND RANDN (3) > 0": "randn()",
    "id = uuid()": "uuid()",
    "at < now()": "now()",
    "at < current_timestamp()": "current_timestamp()",
    "at < Current_Timestamp": "current_timestamp",
    "day = current_date": "current_date",
    "at < timestamp 'now'": "'now'",
    "day = DATE'today'": "'today'",
    "n < unix_timestamp()": "unix_timestamp()",
    "name = user()": "user()",
    "name = current_user": "current_user",
    "shuffle(xs)[0] = 1": "shuffle()",
    "monotonically_increasing_id() < 7": "monotonically_increasing_id()",
    "n IN (SELECT n FROM other)": "a query",
    "reflect('java.util.UUID', 'randomUUID') = n": "reflect()",
}
STEADY = [
    "level = 'secret'",
    "text LIKE '%rand()%' OR text = 'it''s now()'",
    "`current_date` = day AND `rand` (1)",
    "now = 1 AND user = 'x' AND uuid IS NULL AND lower(uuid) = 'y'",
    "payload.current_date = 1",
    "n = 1 -- at < now()",
    "n = /* uuid() */ 1",
    "unix_timestamp(at) > 5 AND exists(xs, x -> x > 1)",
    "selected AND at < timestamp '2026-01-01'",
]


@pytest.mark.parametrize(("where", "named"), UNSTEADY.items())
def test_what_depends_on_more_than_the_row_is_named(where: str, named: str) -> None:
    found = why_unsteady(where)

    assert found is not None
    assert found.startswith(named)


@pytest.mark.parametrize("where", STEADY)
def test_what_depends_on_the_row_alone_is_steady(where: str) -> None:
    assert why_unsteady(where) is None


def test_a_policy_that_changes_its_mind_is_refused_when_the_configuration_is_read(tmp_path: Path) -> None:
    """L-POL-1: the version that an intent names must say the same in each try."""
    rule = '[[policy.withhold]]\ndatasets = ["*"]\nwhere = "at > now()"\n'
    (tmp_path / FILE_NAME).write_text("version = 1\n" + rule)

    with pytest.raises(
        ConfigError, match=r"now\(\) tells the time, so that a retry may not withhold"
    ) as caught:
        load_config(tmp_path / FILE_NAME)

    assert "policy.withhold" in str(caught.value)
