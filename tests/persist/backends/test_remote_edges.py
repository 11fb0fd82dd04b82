"""The edges of the store over HTTP: odd URLs and options, commits without writes."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from strandline.errors import UsageError
from strandline.persist import ABSENT, Conflict, ExpectKey, ExpectSeq, append_batch, append_batch_expect
from strandline.persist.backends.remote import RemoteBackend
from tests.conftest import place_of
from tests.server.hosts import http_answer, scripted_server


@pytest.fixture
def b(tmp_path: Path) -> Iterator[RemoteBackend]:
    place = place_of("remote", tmp_path)
    with closing(RemoteBackend(place.target, **place.options)) as opened:
        yield opened


@pytest.mark.parametrize("url", ["http://a b/", "http://[::1", "http://a:b/", "http://%zz%/"])
def test_a_url_that_cannot_be_is_refused(url: str) -> None:  # P-API-4
    with pytest.raises(UsageError, match="URL of a store"):
        RemoteBackend(url)


def test_a_host_name_that_cannot_be_is_refused_when_it_is_used() -> None:  # P-API-4
    with (
        closing(RemoteBackend(f"http://{'a' * 300}/")) as b,
        pytest.raises(UsageError, match="URL of a store"),
    ):
        b.last_seq("s")


@pytest.mark.parametrize(
    "options",
    [
        {"timeout_s": 0}, {"timeout_s": -1}, {"timeout_s": float("nan")}, {"timeout_s": float("inf")},
        {"timeout_s": 1e300}, {"timeout_s": "1"}, {"timeout_s": True}, {"retries": -1}, {"retries": 1.0},
        {"retries": True}, {"retries": None},
    ],
)  # fmt: skip
def test_an_option_that_cannot_be_is_refused(options: dict[str, Any]) -> None:  # P-API-4
    with pytest.raises(UsageError, match=next(iter(options))):
        RemoteBackend("http://127.0.0.1:1", **options)


@pytest.mark.parametrize("timeout_s", [-1, float("nan"), float("inf"), "1", None])
def test_a_wait_that_cannot_be_is_refused(timeout_s: Any) -> None:  # P-BKD-7
    with closing(RemoteBackend("http://127.0.0.1:1")) as b, pytest.raises(UsageError, match="timeout_s"):
        b.wait("s", 0, timeout_s=timeout_s)


def test_a_commit_without_writes_writes_nothing_and_still_looks(b: RemoteBackend) -> None:  # P-BAT-3
    assert append_batch(b, "s", []) == []
    assert append_batch_expect(b, "s", 0, []) == []
    assert append_batch_expect(b, "s", 1, []) == Conflict(1, 0, "STALE", "s")
    assert b.commit([ExpectSeq("s", 0), ExpectKey("k", ABSENT)], []) == []
    assert b.commit([ExpectKey("k", 1)], []) == Conflict(1, ABSENT, "STALE", "k")

    assert (b.streams(), b.kv_keys()) == ([], [])


def test_a_commit_without_writes_is_repeated_as_a_read_is() -> None:  # P-DUR-9
    answers = [b"", http_answer("200 OK", b'{"result":[]}')]
    with scripted_server(answers) as (url, got), closing(RemoteBackend(url)) as b:
        assert b.commit([ExpectSeq("s", 0)], []) == []

    assert len(got) == 2
    assert b"$commit" not in got[0]
