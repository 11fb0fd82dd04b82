"""Commits that come together are stored together, and each caller is told what its own came to."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

from strandline.errors import NotStorable, StrandlineError
from strandline.persist import Append, AtomicBackend, Conflict, Event, ExpectSeq, Put, mem_backend, open_store
from strandline.persist.backends.remote import RemoteBackend
from strandline.server.event_store.committer import Committer
from strandline.server.event_store.open_stores import one_store
from tests.server.event_store.test_host import ask, hosted

CALLERS = 30


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def url(
    path: Path, group_sizes: list[int]
) -> Iterator[str]:  # the store is made after its method was changed
    with hosted(one_store(lambda: open_store(path))) as made:
        yield made


def at_once(url: str, commits: list[Any]) -> list[Any]:
    """What each comes to, asked by a client and a thread of its own."""

    def one(commit: Any) -> Any:
        with closing(RemoteBackend(url)) as b:
            start.wait()
            try:
                return b.commit(*commit)
            except StrandlineError as error:
                return error

    start = threading.Barrier(len(commits))
    with ThreadPoolExecutor(len(commits)) as threads:
        return list(threads.map(one, commits))


def test_those_who_come_while_the_store_is_held_share_a_transaction(
    url: str, path: Path, group_sizes: list[int]
) -> None:  # P-BKD-11
    commits = [([ExpectSeq(f"s{n}", n % 2)], [Append(f"s{n}", "t", 1, n)]) for n in range(CALLERS)]
    with closing(apsw.Connection(str(path))) as holder:
        holder.execute("BEGIN IMMEDIATE")
        threading.Timer(1.5, lambda: holder.execute("ROLLBACK")).start()
        outcomes = at_once(url, commits)

    assert outcomes == [
        Conflict(1, 0, "STALE") if n % 2 else [Event(f"s{n}", 1, "t", 1, n)] for n in range(CALLERS)
    ]
    assert sum(group_sizes) == CALLERS
    assert len(group_sizes) < CALLERS / 2


def test_what_is_wrong_with_one_is_told_to_that_one(url: str) -> None:  # P-BKD-11
    append = b'{"args":[[],[["append","%s","t",1,%d,false]],null],"op":"persist/commit"}'
    bodies = [append % (b"s" if n % 3 else b"", n) for n in range(CALLERS)]
    bodies += [b'nonsense"op":"persist/commit"}', b'{"args":[[],[["frob"]],null],"op":"persist/commit"}']

    with ThreadPoolExecutor(len(bodies)) as threads:
        answers = list(threads.map(lambda body: ask(url, body), bodies))

    statuses = [status for status, _, _ in answers]
    assert statuses == [200 if n % 3 else 400 for n in range(CALLERS)] + [400, 400]
    seqs = [told["result"][0][1] for status, told, _ in answers if status == 200]
    assert sorted(seqs) == list(range(1, len(seqs) + 1))


def test_a_value_too_large_for_one_is_no_matter_of_the_others(url: str) -> None:  # P-OPS-4
    large = "x" * (17 * 1024 * 1024)

    outcomes = at_once(url, [([], [Put(f"k{n}", n)]) for n in range(5)])
    with closing(RemoteBackend(url)) as b, pytest.raises(NotStorable):
        b.commit([], [Put("large", large)])

    assert outcomes == [[]] * 5


def test_a_store_that_gathers_nothing_serves_all_the_same() -> None:
    with hosted(one_store(mem_backend)) as url:
        for _ in range(2):
            outcomes = at_once(url, [([], [Append("s", "t", 1, 1)]) for _ in range(8)])

            assert all(isinstance(outcome, list) for outcome in outcomes)
        assert sorted(event.seq for outcome in outcomes for event in outcome) == list(range(9, 17))


def test_only_small_commits_are_for_it(tmp_path: Path) -> None:
    def opened() -> AtomicBackend:
        return open_store(tmp_path / "s.db")

    stores = one_store(opened)
    with ThreadPoolExecutor(1) as threads:
        committer = Committer(stores, threads)
        end = b'"op":"persist/commit"}'

        assert committer.takes(b'{"args":[[],[],null],' + end)
        assert not committer.takes(b'{"args":["s"],"op":"persist/read"}')
        assert not committer.takes(b" " * 64 * 1024 + end)
        assert not committer.takes(b'{"args":[[],[["truncate","s",1]],null],' + end)
    stores.close()


def test_a_loop_that_ends_leaves_the_next_one_served(tmp_path: Path) -> None:
    stores = one_store(lambda: open_store(tmp_path / "s.db"))
    body = b'{"args":[[],[["append","s","t",1,1,false]],null],"op":"persist/commit"}'
    with ThreadPoolExecutor(4) as threads:
        committer = Committer(stores, threads)

        async def ask_twice() -> tuple[bytes, bytes]:
            return await asyncio.gather(committer.answer(None, body), committer.answer(None, body))

        for _ in range(20):
            answers = asyncio.run(asyncio.wait_for(ask_twice(), 60))
            assert all(answer.startswith(b'{"result"') for answer in answers)
    with pytest.raises(RuntimeError):  # no thread is to be had any more
        asyncio.run(committer.answer(None, body))
    stores.close()
