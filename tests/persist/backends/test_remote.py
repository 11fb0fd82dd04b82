"""The store over HTTP, end to end: a real host, answers that get lost, processes that get killed."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from copy import copy
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from strandline.errors import (
    NotFoundError,
    NotStorable,
    OutcomeUnknown,
    ProtocolError,
    SequenceError,
    StoreUnavailable,
    UsageError,
)
from strandline.persist import (
    ABSENT,
    Append,
    BlobRef,
    Compacted,
    Conflict,
    Delete,
    Event,
    ExpectKey,
    ExpectSeq,
    MoveCursor,
    ProjectionState,
    Put,
    Redact,
    Truncate,
    ack,
    append,
    append_batch,
    append_batch_once,
    append_expect,
    append_once,
    compact,
    consumer,
    count,
    erase_stream,
    events,
    gappend,
    global_pos,
    hold,
    holds,
    kv_cas,
    kv_get,
    kv_items,
    kv_put,
    kv_put_new,
    kv_update,
    last_seq,
    open_store,
    poll,
    project,
    read,
    read_by_type,
    read_global,
    read_window,
    redact,
    replay,
    seen,
    snapshot_load,
    snapshots,
    streams,
    total_events,
    truncate_through,
)
from strandline.persist import commit as commit_facet
from strandline.persist.backend import Expectation, Write
from strandline.persist.backends import remote
from strandline.persist.backends.remote import RemoteBackend
from strandline.persist.core.prepare import prepare
from strandline.persist.durable import req_commit
from strandline.persist.features.upkeep import backup, restore, stats, verify
from strandline.persist.reserved import COMMIT_SCOPE, HOLD
from strandline.persist.value import MAX_VALUE_BYTES, encode_wire
from strandline.persist.wire import commit_body
from tests.conftest import as_any
from tests.server.hosts import HostProcess, Proxy, free_port, http_answer, scripted_server, wait_for_line

ODD_VALUES: list[Any] = [
    None, True, False, 0, 1, 1.0, -0.0, 1e300, 5e-324, 2**63, -(2**200), "", "1", "é\0\u2028😀", [], {}, [[]],
    {"$x": 1}, {"$map": {}}, {"$event": []}, {"a": {"$int": "ff"}}, {"$absent": []},
    BlobRef("sha256-0", 3, "a/b"),
    ProjectionState({"n": 2**70}, 7), Event("s", 1, "t", 2.5, {"$y": None}), {"z": 1, "a": [1, {"b": None}]},
]  # fmt: skip


@pytest.fixture(scope="module", params=["memory", "sqlite"])
def host(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostProcess]:
    store = "memory:" if request.param == "memory" else tmp_path_factory.mktemp("host") / "store.db"
    with HostProcess(store, "--scratch") as started:
        yield started


@pytest.fixture
def scratch() -> str:
    return uuid4().hex


@pytest.fixture
def b(host: HostProcess, scratch: str) -> Iterator[RemoteBackend]:
    with closing(RemoteBackend(host.url, scratch=scratch)) as opened:
        yield opened


@pytest.fixture
def proxy(host: HostProcess) -> Iterator[Proxy]:
    with Proxy(host.port) as started:
        yield started


@pytest.fixture
def through(proxy: Proxy, scratch: str, quick_pauses: None) -> Iterator[RemoteBackend]:
    """A client of the same scratch store as `b`, behind the proxy."""
    with closing(RemoteBackend(proxy.url, scratch=scratch)) as opened:
        yield opened


@pytest.fixture
def quick_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_FIRST_PAUSE_S", 0.001)


# The facets over it


def test_values_come_back_as_they_were(b: RemoteBackend) -> None:  # P-VAL-1, P-VAL-2, P-DUR-14
    for value in ODD_VALUES:
        event = append(b, "values", "v", 1, value)
        kv_put(b, "value", value)

        for found in (event.data, b.event_at("values", event.seq).data, kv_get(b, "value")):  # type: ignore[union-attr]
            assert encode_wire(found) == encode_wire(value)
            assert type(found) is type(value)


def test_the_log_counts_truncates_and_is_listed(b: RemoteBackend) -> None:  # P-LOG-1 to P-LOG-8, P-CAT
    written = append_batch(b, "cart-1", [("t", n, {"n": n}) for n in range(1, 1201)])
    truncate_through(b, "cart-1", 100)
    append(b, "cart-2", "opened", "noon", None)

    assert [event.seq for event in written] == [*range(1, 1201)]
    assert read(b, "cart-1") == written[100:]
    assert b.read("cart-1") == written[100:]
    assert (last_seq(b, "cart-1"), count(b, "cart-1"), b.truncated_through("cart-1")) == (1200, 1100, 100)
    assert streams(b) == ["cart-1", "cart-2"]
    assert b.streams() == ["cart-1", "cart-2"]
    assert total_events(b) == 1201
    assert [event.seq for event in read_window(b, "cart-1", 150, 152)] == [150, 151, 152]
    assert read_by_type(b, "cart-2", "opened")[0].at == "noon"


def test_expectations_and_keys_conflict_as_values(b: RemoteBackend) -> None:  # P-CON-2, P-CAS-1 to P-CAS-3
    append(b, "s", "t", 1, {})
    kv_put(b, "none", None)

    assert append_expect(b, "s", 0, "t", 2, {}) == Conflict(0, 1, "STALE")
    assert isinstance(append_expect(b, "s", 1, "t", 2, {}), Event)
    assert kv_cas(b, "k", ABSENT, 1) == 1
    assert kv_cas(b, "k", True, 2) == Conflict(True, 1, "STALE")
    assert kv_put_new(b, "k", 3) == Conflict(ABSENT, 1, "EXISTS")
    assert b.commit([ExpectKey("none", ABSENT)], []) == Conflict(ABSENT, None, "STALE")
    assert b.commit([ExpectKey("gone", 1)], []) == Conflict(1, ABSENT, "STALE")
    assert b.commit([ExpectSeq("s", 9)], []).name == "s"  # type: ignore[union-attr]


def test_idempotency_outlives_truncation(b: RemoteBackend) -> None:  # P-IDM-1, P-IDM-4, P-IDM-7, P-DUR-16
    first = append_once(b, "s", "k", "t", 1, {"n": 1})
    truncate_through(b, "s", 1)

    assert append_once(b, "s", "k", "t", 2, {"n": 1}) == first
    reused = append_once(b, "s", "k", "t", 2, {"n": 2})
    assert reused == Conflict("k", Compacted("s", 1), "KEY_REUSED")
    assert isinstance(reused, Conflict)
    assert reused.name == "s"
    assert seen(b, "s", "k")
    kept = append_once(b, "s", "l", "t", 1, {})
    assert append_once(b, "s", "l", "u", 1, {}) == Conflict("l", kept, "KEY_REUSED")
    assert append_batch_once(b, "s", "m", []) == []


def test_the_global_order_names_what_is_gone(b: RemoteBackend) -> None:  # P-GLB-4, P-GLB-9
    one, two = gappend(b, "x", "t", 1, 1), gappend(b, "y", "t", 2, {"$z": 2})
    assert read_global(b) == [one, two]
    truncate_through(b, "x", 1)

    assert read_global(b) == [Compacted("x", 1), two]
    assert global_pos(b) == 2


def _sum(value: int, event: Event) -> int:
    return value + int(event.data["n"])


def test_folds_snapshots_and_compaction(b: RemoteBackend) -> None:  # P-PRJ-1, P-SNP-6, P-CMP-5, P-CMP-10
    append_batch(b, "s", [("t", n, {"n": n}) for n in range(10)])
    hold(b, "s", "exporter", 4)
    compact(b, "s", "sum", _sum, 0)
    append(b, "s", "t", 11, {"n": 100})

    assert [event.seq for event in read(b, "s")] == [5, 6, 7, 8, 9, 10, 11]
    assert replay(b, "s", "sum", _sum, 0) == ProjectionState(145, 11)
    assert snapshot_load(b, "sum", 0) == ProjectionState(45, 10)
    assert snapshots(b, "s") == [("sum", 10)]
    assert [found.name for found in holds(b, "s")] == ["exporter"]
    assert kv_update(b, "n", 0, lambda n: n + 1) == 1
    assert dict(kv_items(b)) == {"n": 1}


def test_erasure_upkeep_and_what_is_refused(
    b: RemoteBackend, tmp_path: Path
) -> None:  # P-ERA-1, -2, P-OPS-2, -5
    append_batch(b, "s", [("t", 1, {"name": "x", "n": 1})] * 2)

    assert redact(b, "s", 1, ["name"], 2, reason="asked").event.type == "redacted"
    assert read(b, "s")[0].data == {"name": None, "n": 1}
    erase_stream(b, "s", 3, reason="asked")
    assert (read(b, "s"), last_seq(b, "s")) == ([], 2)
    assert verify(b) == []
    assert stats(b)["streams"] == 1
    for verb in (backup, restore):
        with pytest.raises(UsageError, match="does not work through RemoteBackend"):
            verb(b, tmp_path / "copy.db")


def test_errors_of_the_host_come_back_as_their_class_with_their_facts(b: RemoteBackend) -> None:  # P-DUR-16
    append(b, "s", "t", 1, {})

    with pytest.raises(SequenceError) as caught:
        b.append("s", Event("s", 5, "t", 1, {}))
    assert (caught.value.stream, caught.value.seq, caught.value.last_seq) == ("s", 5, 1)
    assert "the next one is 2" in caught.value.message
    assert caught.value.hint
    with pytest.raises(SequenceError):
        b.append("s", Event("s", 0, "t", 1, {}))
    with pytest.raises(NotFoundError):
        redact(b, "s", 9, [], 1, reason="r")
    with pytest.raises(NotFoundError):
        b.quarantine("s", 9, 1)
    with pytest.raises(UsageError, match="stream is empty"):
        b.last_seq("")


def test_basic_operations(b: RemoteBackend) -> None:  # P-BKD-2, P-DUR-4, P-DUR-8
    assert b.append("s", Event("s", 1, "t", 1, [1])) == 1
    b.kv_put("k", {"$x": None})

    assert b.read("s") == [Event("s", 1, "t", 1, [1])]
    assert (b.kv_get("k"), b.kv_has("k"), b.kv_keys()) == ({"$x": None}, True, ["k"])
    b.kv_delete("k")
    assert (b.kv_get("k"), b.kv_has("k")) == (None, False)
    assert list(b.read_range("s", -(2**70), 2**70, limit=2**70)) == b.read("s")
    b.truncate_through("s", -(2**70))
    assert len(b.read("s")) == 1
    b.truncate_through("s", 2**70)
    assert (b.read("s"), b.event_at("s", 1), b.event_at("s", 2**70), b.last_seq("s")) == ([], None, None, 1)
    assert b.info()["events"] == 1
    b.scrub()


# What is sent


@pytest.mark.parametrize("value", ODD_VALUES)
def test_a_commit_is_sent_as_the_one_encoding_has_it(value: Any) -> None:  # P-VAL-6
    preconditions: list[Expectation] = [
        ExpectSeq("é", 3), ExpectKey("k", value), ExpectKey("k", ABSENT), ExpectKey("k", None),
    ]  # fmt: skip
    writes: list[Write] = [
        Append('s"\\', "t\n", 1e300, value), Append('s"\\', "t", "at", value, globally=True), Put("k", value),
        Append("z", "t", -1, value), Delete("k"), Truncate("s", 0), Truncate("s", 2**63 - 1),
        Redact("s", 1, ["a", 0]),
    ]  # fmt: skip

    for once in (None, (COMMIT_SCOPE, "key")):
        body = commit_body(prepare(preconditions, writes, once))
        assert body == encode_wire(req_commit(preconditions, writes, once))


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    "write",
    [
        lambda b: append(b, "s", "t", 1, float("nan")),
        lambda b: append(b, "s", "t", 1, {"a": b"bytes"}),
        lambda b: append(b, "s", "t", 1, (1,)),
        lambda b: append(b, "s", "t", 1, deep(101)),
        lambda b: append(b, "s", "t", 1, "x" * (MAX_VALUE_BYTES + 1)),
        lambda b: append(b, "s", "t", 1, "\ud800"),
        lambda b: append(b, "s", "t", 1, ABSENT),
        lambda b: append_batch(b, "s", [("t", 1, "x" * 15_000_000)] * 5),
        lambda b: append_batch(b, "s", [("t", 1, "x" * 13_400_000)] * 5 + [("t", 1, "x" * 108_700)]),
        lambda b: b.kv_put("k", deep(101)),
        lambda b: b.append("s", Event("s", 1, "t", 1, {1})),
    ],
)
def test_what_cannot_be_stored_is_refused_before_it_is_sent(
    proxy: Proxy, through: RemoteBackend, write: Any
) -> None:  # P-VAL-3, P-OPS-4
    with pytest.raises(NotStorable):
        write(through)

    assert proxy.requests == 0


@pytest.mark.parametrize(
    "write",
    [
        lambda b: append(b, "", "t", 1, 1),
        lambda b: append(b, "s", "", 1, 1),
        lambda b: append(b, "s" * 1025, "t", 1, 1),
        lambda b: append(b, "s\0", "t", 1, 1),
        lambda b: append(b, "s", "t", True, 1),
        lambda b: append(b, "$s", "t", 1, 1),
        lambda b: append_once(b, "s", "", "t", 1, 1),
        lambda b: append_expect(b, "s", -1, "t", 1, 1),
        lambda b: b.commit([], [Append("s", "t", 1, 1)], once=("other", "k")),
        lambda b: b.kv_put("", 1),
        lambda b: b.kv_delete("x\0"),
        lambda b: b.truncate_through("", 1),
        lambda b: b.append("s", Event("s", as_any("1"), "t", 1, 1)),
    ],
)
def test_what_is_called_wrong_is_refused_before_it_is_sent(
    proxy: Proxy, through: RemoteBackend, write: Any
) -> None:
    with pytest.raises(UsageError):
        write(through)

    assert proxy.requests == 0


def test_one_connection_is_kept(proxy: Proxy, through: RemoteBackend) -> None:  # P-DUR-16
    for n in range(50):
        append(through, "s", "t", n, {})
    assert len(read(through, "s")) == 50

    assert proxy.accepted == 1
    assert proxy.requests > 50


# Answers that get lost


def test_a_lost_answer_has_one_effect_and_one_answer(
    b: RemoteBackend, proxy: Proxy, through: RemoteBackend
) -> None:  # P-DUR-9, P-BKD-10
    append(through, "s", "t", 1, {"n": 1})
    proxy.cut_answers = 2

    event = append(through, "s", "t", 2, {"n": 2})

    assert event == Event("s", 2, "t", 2, {"n": 2})
    assert [found.data["n"] for found in read(b, "s")] == [1, 2]
    assert proxy.cut_answers == 0


def test_a_lost_answer_to_an_expectation_is_no_conflict(
    b: RemoteBackend, proxy: Proxy, through: RemoteBackend
) -> None:  # P-DUR-9: the repeat would meet its own event, were it not known
    proxy.cut_answers = 1

    assert append_expect(through, "s", 0, "t", 1, {}) == Event("s", 1, "t", 1, {})
    proxy.cut_answers = 1
    assert kv_put_new(through, "k", 5) == 5
    proxy.cut_answers = 1
    assert kv_update(through, "n", 0, lambda n: n + 1) == 1
    assert (last_seq(b, "s"), kv_get(b, "k"), kv_get(b, "n")) == (1, 5, 1)


def test_reads_are_repeated(proxy: Proxy, through: RemoteBackend) -> None:
    append(through, "s", "t", 1, {})
    proxy.cut_answers = proxy.cut_requests = 1

    assert len(read(through, "s")) == 1


def test_when_the_retries_are_used_up_the_outcome_is_unknown_and_the_key_is_told(
    b: RemoteBackend, proxy: Proxy, through: RemoteBackend
) -> None:  # P-DUR-9
    proxy.cut_answers = 4

    with pytest.raises(OutcomeUnknown) as caught:
        append(through, "s", "t", 1, {"n": 1})

    assert proxy.requests == 4
    assert caught.value.once is not None
    assert caught.value.once[0] == COMMIT_SCOPE
    assert last_seq(b, "s") == 1
    scope, key = caught.value.once
    repeated = through.commit([], [Append("s", "t", 1, {"n": 1})], once=(scope, key))
    assert repeated == [Event("s", 1, "t", 1, {"n": 1})]
    assert last_seq(b, "s") == 1


def test_commits_that_bring_no_key_get_one_each_and_those_of_a_client_lie_side_by_side(
    b: RemoteBackend, through: RemoteBackend
) -> None:  # P-DUR-9
    def drawn(client: RemoteBackend) -> str:
        known = set(b.kv_keys())
        client.commit([], [Append("s", "t", 1, None)])
        (key,) = set(b.kv_keys()) - known
        return key

    of_one, of_other = [drawn(b) for _ in range(17)], drawn(through)

    assert of_one == sorted(of_one)
    assert len({key[:-28] for key in of_one}) == 1  # its end: 12 digits of a number, 16 drawn for each
    assert of_other[:-28] != of_one[0][:-28]


def test_a_client_and_its_copy_do_not_take_their_commits_for_each_others(
    b: RemoteBackend, through: RemoteBackend
) -> None:  # P-BKD-10: a process is copied by resuming a snapshot of its machine twice
    through._drawn, through._numbers = b._drawn, copy(b._numbers)

    events = [append(client, "s", "t", 1, {"n": 1}) for client in (b, through)]

    assert [event.seq for event in events] == [1, 2]


class Late:
    """The first request of a client has no answer, and arrives once another was sent `after` it."""

    def __init__(self, b: RemoteBackend, client: RemoteBackend, *, after: int | None = None) -> None:
        self._b, self._client, self._after = b, client, after
        self._post, self._first, self.sent = client._post, b"", 0

    def __call__(self, pool: Any, body: bytes, timeout_s: float) -> Any:
        self.sent += 1
        if self.sent == 1:
            self._first = body
            raise remote._Lost("timed out", sent=True)
        answer = self._post(pool, body, timeout_s)
        if self.sent == self._after:
            self.arrive()
        return answer

    def arrive(self) -> None:
        """What it expects is so by now."""
        self._b.kv_delete("lock")
        self._post(self._client._open_pool(), self._first, 30)


TAKING: list[Write] = [Append("s", "taken", 1, {}), Put("lock", "mine")]


def test_a_conflict_after_a_lost_answer_stays_one_when_the_first_try_arrives_at_last(
    b: RemoteBackend, through: RemoteBackend, monkeypatch: pytest.MonkeyPatch, quick_pauses: None
) -> None:  # P-DUR-9, P-BKD-10
    late = Late(b, through)
    monkeypatch.setattr(through, "_post", late)
    kv_put(b, "lock", "another's")

    outcome = through.commit([ExpectKey("lock", ABSENT)], TAKING)
    late.arrive()

    assert outcome == Conflict(ABSENT, "another's", "STALE")
    assert (kv_get(b, "lock"), last_seq(b, "s")) == (None, 0)
    assert late.sent == 3  # the last uses up the key


def test_a_conflict_is_an_unknown_outcome_if_the_first_try_may_arrive_and_the_host_is_gone(
    quick_pauses: None,
) -> None:  # P-DUR-9
    busy = b'{"error":"store_unavailable","message":"busy","details":{}}'
    stale = b'{"conflict":[{"$absent":[]},"another\'s","STALE","lock"]}'
    answers = [b"", http_answer("200 OK", stale), http_answer("503 Service Unavailable", busy)]
    with scripted_server(answers) as (url, got):
        with closing(RemoteBackend(url)) as b, pytest.raises(OutcomeUnknown) as caught:
            b.commit([ExpectKey("lock", ABSENT)], TAKING)
        assert caught.value.once is not None
        assert len(got) == 3


def test_a_first_try_that_arrives_after_the_conflict_of_its_repeat_is_answered(
    b: RemoteBackend, through: RemoteBackend, monkeypatch: pytest.MonkeyPatch, quick_pauses: None
) -> None:  # P-DUR-9, P-BKD-10
    monkeypatch.setattr(through, "_post", Late(b, through, after=2))
    kv_put(b, "lock", "another's")

    outcome = through.commit([ExpectKey("lock", ABSENT)], TAKING)

    assert outcome == [Event("s", 1, "taken", 1, {})]
    assert type(outcome) is list
    assert kv_get(b, "lock") == "mine"


def test_so_is_one_that_only_keeps_the_books_of_the_store(
    b: RemoteBackend, through: RemoteBackend, monkeypatch: pytest.MonkeyPatch, quick_pauses: None
) -> None:  # P-BKD-10: of a hold nothing is hashed
    monkeypatch.setattr(through, "_post", Late(b, through, after=2))
    kv_put(b, "lock", "another's")

    outcome = through.commit([ExpectKey("lock", ABSENT)], [Put(f"{HOLD}/s/mine", 1)])

    assert outcome == []
    assert b.kv_get(f"{HOLD}/s/mine") == 1


@pytest.mark.parametrize(("expected", "sent"), [(0, 2), (2, 3)])
def test_a_stream_that_has_gone_on_is_a_conflict_for_good_and_costs_no_request(
    b: RemoteBackend,
    through: RemoteBackend,
    monkeypatch: pytest.MonkeyPatch,
    quick_pauses: None,
    expected: int,
    sent: int,
) -> None:  # P-DUR-9, P-DUR-10
    late = Late(b, through)
    monkeypatch.setattr(through, "_post", late)
    append(b, "s", "t", 1, {})

    outcome = append_expect(through, "s", expected, "t", 2, {})
    append(b, "s", "t", 3, {})
    late.arrive()

    assert outcome == Conflict(expected, 1, "STALE")
    assert [event.at for event in read(b, "s")] == [1, 3]
    assert late.sent == sent


def test_the_callers_own_key_is_told_too(proxy: Proxy, through: RemoteBackend) -> None:
    proxy.cut_requests = 4

    with pytest.raises(OutcomeUnknown) as caught:
        append_once(through, "s", "payment-7", "t", 1, {})

    assert caught.value.once == ("s", "payment-7")


@pytest.mark.parametrize(
    "write",
    [
        lambda b: b.append("s", Event("s", 1, "t", 1, {})),
        lambda b: b.kv_put("k", 1),
        lambda b: b.kv_delete("k"),
        lambda b: b.truncate_through("s", 1),
        lambda b: b.quarantine("s", 1, 1),
    ],
)
def test_a_write_without_a_key_is_sent_once(
    proxy: Proxy, through: RemoteBackend, write: Any
) -> None:  # P-DUR-9
    proxy.cut_answers = 1

    with pytest.raises(OutcomeUnknown) as caught:
        write(through)

    assert caught.value.once is None
    assert proxy.requests == 1


def test_a_host_that_is_down_is_unavailable_and_nothing_was_written(quick_pauses: None) -> None:
    with closing(RemoteBackend(f"http://127.0.0.1:{free_port()}")) as b:
        for call in (
            lambda: append(b, "s", "t", 1, {}),
            lambda: read(b, "s"),
            lambda: b.kv_put("k", 1),
            lambda: b.wait("s", 0, timeout_s=1),
        ):
            with pytest.raises(StoreUnavailable, match="after 4 tries"):
                call()


def test_a_host_that_never_answers_is_given_up_in_time(quick_pauses: None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with closing(RemoteBackend(url, timeout_s=0.2, retries=1)) as b:
            with pytest.raises(OutcomeUnknown):
                append(b, "s", "t", 1, {})
            with pytest.raises(StoreUnavailable):
                b.last_seq("s")


def test_a_projection_over_a_bad_line_counts_each_event_once(
    b: RemoteBackend, proxy: Proxy, through: RemoteBackend
) -> None:  # P-SUB-12: exactly once by MoveCursor
    append_batch(b, "s", [("t", n, {"n": n}) for n in range(1, 101)])
    proxy.cut_every = 3
    reader, total = consumer(through, "sum", "s"), 0

    while page := poll(reader, limit=7):
        total = sum(event.data["n"] for event in page) + (kv_get(through, "total") or 0)
        outcome = commit_facet(through, [], [Put("total", total), MoveCursor(reader, page[-1].seq)])
        assert not isinstance(outcome, Conflict)

    assert kv_get(b, "total") == 5050
    assert consumer(b, "sum", "s").seq == 100
    assert ack(reader, 100) == 100


# Answers that are none


@pytest.mark.parametrize(
    ("status", "body"),
    [
        ("200 OK", b""),
        ("200 OK", b"null"),
        ("200 OK", b"{}"),
        ("200 OK", b'{"result":null}'),
        ("200 OK", b'{"result":"3"}'),
        ("200 OK", b'{"result":true}'),
        ("200 OK", b'{"result":3,"more":1}'),
        ("200 OK", b'{"result":{"$what":1}}'),
        ("200 OK", b'{"error":"usage","message":"m","details":{}}'),
        ("200 OK", b"<html>"),
        ("200 OK", b'{"result":3'),
        ("200 OK", b"[" * 5000),
        ("404 Not Found", b"not here"),
        ("500 Internal Server Error", b'{"error":"internal","message":"it failed","details":{}}'),
        ("500 Internal Server Error", b'{"error":"subscriber_errors","message":"m","details":{}}'),
        ("400 Bad Request", b'{"result":3}'),
        ("302 Found", b""),
        ("204 No Content", b""),
    ],
)
def test_anything_else_is_a_protocol_error(status: str, body: bytes) -> None:  # P-DUR-8, P-DUR-16
    with scripted_server([http_answer(status, body, "Location: http://127.0.0.1:1/")]) as (url, got):
        with closing(RemoteBackend(url)) as b, pytest.raises(ProtocolError):
            b.last_seq("s")
        assert len(got) == 1


@pytest.mark.parametrize(
    "result",
    [
        b"null",
        b"7",
        b"[]",
        b"[1]",
        b'{"conflict":[1]}',
        b'[["s",1,1,2]]',
        b'[["s",1,1]]',
    ],
)
def test_a_commit_that_is_not_acknowledged_raises(result: bytes) -> None:  # P-DUR-8
    with (
        scripted_server([http_answer("200 OK", b'{"result":' + result + b"}")]) as (url, _),
        closing(RemoteBackend(url)) as b,
        pytest.raises(ProtocolError),
    ):
        append(b, "s", "t", 1, 1)


@pytest.mark.parametrize(
    ("call", "result"),
    [
        (lambda b: b.append("s", Event("s", 1, "t", 1, 1)), b"2"),
        (lambda b: b.kv_put("k", 1), b"null"),
        (lambda b: b.kv_put("k", 1), b"1"),
        (lambda b: b.stream_scan("", after="", limit=1), b"[[1]]"),
        (lambda b: b.kv_scan("", after="", limit=1), b"[3]"),
        (lambda b: list(b.global_range(1, limit=1)), b"[[1]]"),
        (lambda b: list(b.read_range("s", 1, 2, limit=1)), b"[null]"),
        (lambda b: b.event_at("s", 1), b"5"),
        (lambda b: b.verify(), b"[[]]"),
        (lambda b: b.kv_has("k"), b"null"),
    ],
)
def test_results_of_another_shape_raise(call: Any, result: bytes) -> None:  # P-DUR-8
    with (
        scripted_server([http_answer("200 OK", b'{"result":' + result + b"}")]) as (url, _),
        closing(RemoteBackend(url)) as b,
        pytest.raises(ProtocolError),
    ):
        call(b)


def test_a_busy_host_is_asked_again_when_it_says(quick_pauses: None) -> None:  # 429 and 503 with Retry-After
    busy = b'{"error":"store_unavailable","message":"busy","details":{"hint":"later"}}'
    answers = [
        http_answer("503 Service Unavailable", busy, "Retry-After: 0"),
        http_answer("429 Too Many Requests", b"", "Retry-After: 0"),
        http_answer("502 Bad Gateway", b"<html>"),
        http_answer("200 OK", b'{"result":[["s",1,1,1]]}'),
    ]
    with scripted_server(answers) as (url, got), closing(RemoteBackend(url)) as b:
        assert append(b, "s", "t", 1, 1) == Event("s", 1, "t", 1, 1)
    bodies = {request.partition(b"\r\n\r\n")[2] for request in got}
    assert (len(got), len(bodies)) == (4, 1)  # the same key each time


def test_a_busy_host_that_asks_for_more_time_than_there_is_is_given_up(quick_pauses: None) -> None:
    busy = b'{"error":"store_unavailable","message":"busy","details":{"hint":"later"}}'
    with scripted_server([http_answer("503 Service Unavailable", busy, "Retry-After: 600")]) as (url, got):
        with closing(RemoteBackend(url)) as b, pytest.raises(StoreUnavailable, match="busy") as caught:
            append(b, "s", "t", 1, 1)
        assert caught.value.hint == "later"
        assert len(got) == 1


def test_unavailable_after_a_lost_answer_is_an_unknown_outcome(quick_pauses: None) -> None:  # P-DUR-9
    busy = b'{"error":"store_unavailable","message":"busy","details":{}}'
    with scripted_server([b"", http_answer("503 Service Unavailable", busy)]) as (url, got):
        with closing(RemoteBackend(url)) as b, pytest.raises(OutcomeUnknown) as caught:
            append(b, "s", "t", 1, 1)
        assert caught.value.once is not None
        assert len(got) == 2


def test_an_unknown_outcome_at_the_host_is_asked_for_again(quick_pauses: None) -> None:  # P-DUR-9
    lost = b'{"error":"outcome_unknown","message":"lost","details":{"once":["$commit","k"]}}'
    answers = [
        http_answer("503 Service Unavailable", lost),
        http_answer("200 OK", b'{"result":[["s",1,1,1]]}'),
        http_answer("503 Service Unavailable", lost),
    ]
    with scripted_server(answers) as (url, _), closing(RemoteBackend(url)) as b:
        assert append(b, "s", "t", 1, 1).seq == 1
        with pytest.raises(OutcomeUnknown) as caught:
            b.kv_put("k", 1)
        assert caught.value.once == ("$commit", "k")


# Opening and closing


@pytest.mark.parametrize(
    "url",
    ["http://user:secret@127.0.0.1:1", "http://secret@127.0.0.1", "http://", "http:///x", "http://a:99999",
     "http://127.0.0.1/?token=secret", "http://127.0.0.1#x"],
)  # fmt: skip
def test_a_url_that_holds_more_than_an_address_is_refused(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_store(url)
    assert "secret@" not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [{"timeout_s": 0}, {"timeout_s": float("nan")}, {"timeout_s": "1"}, {"retries": -1}, {"retries": 1.5},
     {"token": ""}, {"token": "a b"}, {"token": "a\r\nX: y"}, {"scratch": "a\nb"}, {"frob": 1}],
)  # fmt: skip
def test_options_are_checked(options: dict[str, Any]) -> None:  # P-API-4
    with pytest.raises(UsageError):
        open_store("http://127.0.0.1:1", **options)


def test_a_path_before_the_host_is_kept() -> None:
    with (
        scripted_server([http_answer("200 OK", b'{"result":3}')]) as (url, got),
        closing(open_store(f"{url}/team/store/")) as b,
    ):
        assert b.last_seq("s") == 3
    assert got[0].startswith(b"POST /team/store/v1/persist HTTP/1.1\r\n")


def test_the_token_goes_into_a_header_and_nowhere_else() -> None:
    with (
        scripted_server([http_answer("200 OK", b'{"result":3}')]) as (url, got),
        closing(open_store(url, token="secret", create=False)) as b,
    ):
        b.last_seq("s")
    head, _, body = got[0].partition(b"\r\n\r\n")
    assert b"\r\nAuthorization: Bearer secret\r\n" in head + b"\r\n"
    assert (got[0].count(b"secret"), body) == (1, b'{"args":["s"],"op":"persist/last-seq"}')


def test_a_wrong_token_is_refused(tmp_path: Path) -> None:
    with HostProcess("memory:", token="right") as host:
        for token in (None, "wrong", "righ", "right2"):
            with closing(RemoteBackend(host.url, token=token)) as b, pytest.raises(UsageError, match="token"):
                append(b, "s", "t", 1, 1)
        with closing(RemoteBackend(host.url, token="right")) as b:
            assert append(b, "s", "t", 1, 1).seq == 1


def test_use_after_close_and_after_a_fork_is_refused(b: RemoteBackend) -> None:  # P-API-5
    append(b, "s", "t", 1, 1)
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            b.last_seq("s")
            os.write(write_end, b"used")
        except UsageError:
            os.write(write_end, b"refused")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read_end, 10) == b"refused"
    assert b.last_seq("s") == 1

    b.close()
    b.close()

    with pytest.raises(UsageError, match="closed"):
        b.last_seq("s")


def test_without_urllib3_the_error_names_the_extra() -> None:  # P-API-4
    code = (
        "import sys; sys.modules['urllib3'] = None\n"
        "from strandline.persist import open_store\n"
        "try: open_store('http://127.0.0.1:1')\n"
        "except ValueError as error: print(error.hint)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == 'pip install "strandline[remote]"'


# Many at once


def test_64_threads_share_one_backend(b: RemoteBackend) -> None:  # P-API-5, P-LOG-11, P-KV-7
    def work(n: int) -> list[int]:
        seqs = [append(b, "s", "t", n, {"n": n}).seq for _ in range(5)]
        kv_update(b, "count", 0, lambda count: count + 1)
        return seqs

    with ThreadPoolExecutor(64) as threads:
        seqs = [seq for found in threads.map(work, range(64)) for seq in found]

    assert sorted(seqs) == [*range(1, 321)]
    assert kv_get(b, "count") == 64
    assert project(b, "s", lambda n, _: n + 1, 0) == ProjectionState(320, 320)


def test_a_wait_ends_with_the_commit(b: RemoteBackend) -> None:  # P-BKD-7
    assert b.wait("s", 0, timeout_s=0.05) == 0
    with ThreadPoolExecutor(1) as threads:
        begun = time.monotonic()
        waiting = threads.submit(b.wait, "s", 0, timeout_s=60)
        append(b, "s", "t", 1, 1)
        assert waiting.result(30) == 1
        assert time.monotonic() - begun < 20


def test_a_wait_is_cut_into_slices(monkeypatch: pytest.MonkeyPatch, b: RemoteBackend) -> None:
    asked: list[float] = []

    def answer(request: dict[str, Any]) -> int:
        asked.append(request["args"][2])
        time.sleep(asked[-1])
        return 0

    monkeypatch.setattr(remote, "WAIT_SLICE_S", 0.05)
    monkeypatch.setattr(b, "_transport", answer)

    assert b.wait("s", 0, timeout_s=0.2) == 0
    assert 4 <= len(asked) <= 6
    assert max(asked) <= 0.05


def test_long_polls_keep_nobody_waiting(b: RemoteBackend) -> None:
    waiters = [threading.Thread(target=b.wait, args=("s", 0), kwargs={"timeout_s": 60}) for _ in range(150)]
    for waiter in waiters:
        waiter.start()

    begun = time.monotonic()
    for n in range(20):
        append(b, "other", "t", n, {})
    assert time.monotonic() - begun < 15
    append(b, "s", "t", 1, {})
    for waiter in waiters:
        waiter.join(30)
        assert not waiter.is_alive()


# Processes that get killed


def test_a_killed_host_has_everything_after_a_restart(tmp_path: Path) -> None:  # P-DUR-15, P-REC-1, P-REC-2
    acknowledged: list[Event] = []
    with HostProcess(tmp_path / "store.db") as host, closing(RemoteBackend(host.url, retries=8)) as b:
        kv_put(b, "k", {"v": 1})

        def write() -> None:
            acknowledged.extend(append(b, "s", "t", n, {"n": n}) for n in range(300))

        writer = threading.Thread(target=write)
        writer.start()
        for _ in range(2):
            seen_before = len(acknowledged)
            while len(acknowledged) < seen_before + 20 and writer.is_alive():
                writer.join(0.01)
            host.kill()
            host.restart()
        writer.join(120)

        assert [event.seq for event in acknowledged] == [*range(1, 301)]  # retried through it, each once
        assert read(b, "s") == acknowledged
        assert kv_get(b, "k") == {"v": 1}
        assert append(b, "s", "t", 1, None).seq == 301
        assert verify(b) == []


def test_scratch_stores_are_there_after_a_kill(tmp_path: Path) -> None:
    with HostProcess(tmp_path / "store.db", "--scratch") as host:
        for name in ("one", "two"):
            with closing(RemoteBackend(host.url, scratch=name)) as b:
                append(b, "s", "t", 1, name)
        host.kill()
        host.restart()

        for name in ("one", "two"):
            with closing(RemoteBackend(host.url, scratch=name)) as b:
                assert [event.data for event in read(b, "s")] == [name]
        with closing(RemoteBackend(host.url, scratch="three")) as b:
            assert streams(b) == []
    assert not (tmp_path / "store.db").exists()


def test_a_killed_client_leaves_whole_commits(
    host: HostProcess, scratch: str, b: RemoteBackend
) -> None:  # P-REC-9
    code = (
        "import sys\n"
        "from strandline.persist import append_batch, open_store\n"
        f"b = open_store({host.url!r}, scratch={scratch!r})\n"
        "n = 0\n"
        "while True:\n"
        "    n += 1\n"
        "    append_batch(b, 's', [('t', n, {'n': n})] * 3)\n"
        "    print(n, flush=True)\n"
    )
    client = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    told = 0
    for _ in range(25):
        told = int(wait_for_line(client))
    client.send_signal(signal.SIGKILL)
    client.wait(30)
    assert client.stdout is not None
    client.stdout.close()

    stored = [event.data["n"] for event in events(b, "s")]
    assert stored == [n for n in range(1, len(stored) // 3 + 1) for _ in range(3)]
    assert len(stored) // 3 >= told
