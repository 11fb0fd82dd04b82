"""Two appends at once: what the second has looked at is old by the time that it commits."""

from pathlib import Path

from strandline.ingest.append import append
from strandline.persist import mem_backend
from strandline.state.dataset_versions import recorded
from tests.ingest.interrupted import Interrupted
from tests.sites import make_site, spooled_rows


def test_two_appends_that_grow_a_dataset_at_once_keep_both_columns(tmp_path: Path) -> None:
    """L-SCH-8, L-SCH-9: they write to two strands, so that only the schema of record can tell them apart."""
    b = mem_backend()
    one = make_site(b, tmp_path / "content")
    append(one, "logs", [{"n": 1}], source="a")
    store = Interrupted(b, lambda: append(one, "logs", [{"n": 2, "x": "theirs"}], source="a"))
    two = make_site(store, one.content)

    append(two, "logs", [{"n": 3, "y": "ours"}], source="b")

    found = recorded(b, "logs")
    assert found is not None
    assert [column.name for column in found.dataset.columns] == ["n", "x", "y"]
    assert spooled_rows(one, "logs", "a")[1:] == [(2, {"n": 2, "x": "theirs"})]
    assert spooled_rows(one, "logs", "b") == [(1, {"n": 3, "y": "ours"})]


def test_two_first_appends_at_once_agree_on_one_schema(tmp_path: Path) -> None:  # L-SCH-8, L-SCH-9
    b = mem_backend()
    one = make_site(b, tmp_path / "content")
    store = Interrupted(b, lambda: append(one, "logs", [{"x": "theirs"}], source="a"))
    two = make_site(store, one.content)

    append(two, "logs", [{"y": "ours"}], source="b")

    found = recorded(b, "logs")
    assert found is not None
    assert ([column.name for column in found.dataset.columns], found.event) == (["x", "y"], 2)
