"""Control state that cannot be understood stops the work that it governs, and is never read as nothing
(L-CTL-4); what is only derived is made anew."""

import pickle
import warnings
from typing import Any

import pytest

from strandline.ingest.append import append
from strandline.ingest.quarantine import entries, quarantine_stream
from strandline.persist import (
    Append,
    AtomicBackend,
    ProjectionState,
    kv_get,
    kv_put,
    mem_backend,
    snapshot_load,
    snapshot_save,
)
from strandline.rows.dataset import Strand
from strandline.state.lease import holder_of, take_lease
from strandline.state.next_number import floor_key, head_of
from strandline.state.node_state import KeptUnreadable, Standing
from strandline.state.strand_entries import ControlUnreadable
from tests.sites import StillClock, make_site

LEASE = {"holder": "h", "who": "w", "fence": 1, "until": 0}


@pytest.mark.parametrize(
    "value",
    [
        "held",
        7,
        [],
        {},
        {**LEASE, "until": "soon"},
        {**LEASE, "until": None},
        {**LEASE, "who": 3},
        {**LEASE, "fence": True},
        {key: value for key, value in LEASE.items() if key != "holder"},
    ],
)
def test_a_damaged_lease_is_nobodys_to_take(value: Any) -> None:  # L-CTL-4, L-CTL-5
    b, clock = mem_backend(), StillClock()
    kv_put(b, "lease/s", value)

    with pytest.raises(ControlUnreadable, match="the key 'lease/s' cannot be read") as caught:
        take_lease(b, clock, "s")
    with pytest.raises(ControlUnreadable):
        holder_of(b, clock, "s")

    assert pickle.loads(pickle.dumps(caught.value)).facts == caught.value.facts


@pytest.mark.parametrize("value", ["1", 0, -1, 1.5, True, {}])
def test_a_damaged_fence_stops_who_would_count_on_from_it(value: Any) -> None:  # L-CTL-4, L-CTL-5
    b = mem_backend()
    kv_put(b, "fence/s", value)

    with pytest.raises(ControlUnreadable, match="the key 'fence/s' cannot be read"):
        take_lease(b, StillClock(), "s")


@pytest.mark.parametrize("value", ["1", -1, 1.5, {}])
def test_a_damaged_floor_stops_a_new_strand(value: Any) -> None:  # L-CTL-4, L-SEQ-9
    b = mem_backend()
    kv_put(b, floor_key("logs"), value)

    with pytest.raises(ControlUnreadable, match="the key 'floor/logs' cannot be read"):
        head_of(b, Strand("logs", "a"))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda _: 7,
        lambda _: {},
        lambda marker: {**marker, "digest": None},
        lambda marker: {**marker, "receipt": None},
        lambda marker: {**marker, "receipt": {}},
        lambda marker: {**marker, "receipt": {**marker["receipt"], "ranges": {"a": [1]}}},
        lambda marker: {**marker, "refused": [[0, 1]]},
        lambda marker: {**marker, "refused": [5], "refused_digest": "x"},
    ],
)
def test_a_damaged_marker_neither_repeats_nor_refuses_a_request(tmp_path: Any, spoil: Any) -> None:  # L-CTL-4
    b = mem_backend()
    site = make_site(b, tmp_path)
    append(site, "logs", [{"n": 1}], source="a", request_id="r")
    kv_put(b, "request/logs/r", spoil(kv_get(b, "request/logs/r")))

    with pytest.raises(ControlUnreadable, match="the key 'request/logs/r' cannot be read"):
        append(site, "logs", [{"n": 1}], source="a", request_id="r")

    assert site.standing.strand_state(Strand("logs", "a")).pending_rows == 1


@pytest.mark.parametrize(
    ("type_", "data"),
    [
        ("quarantined", {}),
        ("quarantined", {"rows": None, "count": "x", "reasons": [], "source": None}),
        ("quarantined", {"rows": None, "count": 1, "reasons": 5, "source": None}),
        ("retried", {}),
        ("dropped", {"entry": None}),
    ],
)
def test_a_damaged_quarantine_is_not_an_empty_one(type_: str, data: Any) -> None:  # L-CTL-4, L-SPOOL-9
    b = mem_backend()
    b.commit([], [Append(quarantine_stream("logs"), type_, 1, data)])

    with pytest.raises(ControlUnreadable, match="event 1 of 'quarantine/logs' cannot be read"):
        entries(b, "logs")


# What is only kept


def filled(tmp_path: Any) -> AtomicBackend:
    b = mem_backend()
    site = make_site(b, tmp_path)
    append(site, "logs", [{"n": 1}, {"n": 2}], source="a")
    append(site, "logs", [{"n": 3}], source="b")
    site.standing._keep()
    return b


def spoiled(value: Any, path: list[Any], found: Any) -> Any:
    """The value with `found` at a place in it."""
    if not path:
        return found
    first, *rest = path
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[first] = spoiled(copy[first], rest, found)
    return copy


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ([], 7),
        ([], {}),
        (["strands"], None),
        (["strands", 0], []),
        (["strands", 0, 2], "x"),
        (["strands", 0, 3], [[2]]),
        (["strands", 0, 4], None),
        (["numbers"], 5),
        (["schemas"], "xyz"),
    ],
)
def test_a_kept_snapshot_that_is_damaged_is_made_anew_from_the_events(
    tmp_path: Any, path: list[Any], found: Any
) -> None:  # L-CTL-4
    b = filled(tmp_path)
    kept = snapshot_load(b, "standing", None)
    snapshot_save(b, "standing", ProjectionState(spoiled(kept.value, path, found), kept.seq))

    standing = Standing(b)
    with pytest.warns(KeptUnreadable, match="the kept snapshot 'standing' cannot be read"):
        standing.catch_up()

    waiting = standing.pending("logs")
    assert {source: strand_state.pending_rows for source, strand_state in waiting.items()} == {"a": 2, "b": 1}
    assert standing.datasets() == ["logs"]
    assert standing.pending_bytes() > 0


def test_a_kept_snapshot_that_is_whole_is_taken_without_a_word(tmp_path: Any) -> None:
    b = filled(tmp_path)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Standing(b).strand_state(Strand("logs", "a")).pending_rows == 2
