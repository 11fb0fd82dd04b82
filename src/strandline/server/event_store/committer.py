"""The commits of many connections, run by one thread: those that come while it stores some are the next.

A thread for each would wait for the same transaction, and of a crowd of threads that wake at once Python runs
one at a time. A long request, and one to a store that does not gather commits, gets a thread of its own.
"""

import asyncio
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final, NamedTuple

from strandline.errors import OutcomeUnknown
from strandline.persist.backend import AtomicBackend, Commit, Gathering, Outcome
from strandline.persist.durable import commit_of
from strandline.server.event_store.open_stores import Stores
from strandline.server.event_store.requests import outcome_answer, read_request, run

_COMMIT_ENDS: Final = b'"op":"persist/commit"}'  # as our own clients write it
_TRUNCATES: Final = b'"truncate"'  # what it hides is swept before it is answered: nobody else waits for that
_MOST_BYTES: Final = 64 * 1024


class _Asked(NamedTuple):
    scratch: str | None
    body: bytes
    loop: asyncio.AbstractEventLoop
    answer: "asyncio.Future[bytes]"


class Committer:
    """Event loops add to what waits; the thread, if it runs, takes it out."""

    def __init__(self, stores: Stores, threads: ThreadPoolExecutor) -> None:
        self._stores, self._threads = stores, threads
        self._lock = threading.Lock()
        self._waiting: deque[_Asked] = deque()
        self._is_running = False
        self._gathers = True  # until a store is seen that does not: all those of a host are of one kind

    def takes(self, body: bytes) -> bool:
        """Whether a request is for here."""
        is_small_commit = len(body) <= _MOST_BYTES and body.endswith(_COMMIT_ENDS)
        return self._gathers and is_small_commit and _TRUNCATES not in body

    async def answer(self, scratch: str | None, body: bytes) -> bytes:
        loop = asyncio.get_running_loop()
        asked = _Asked(scratch, body, loop, loop.create_future())
        with self._lock:
            self._waiting.append(asked)
            starts, self._is_running = not self._is_running, True
        if starts:
            try:
                self._threads.submit(self._work)
            except BaseException:  # the host is closed
                with self._lock:
                    self._is_running = False
                raise
        return await asked.answer

    # In the thread

    def _work(self) -> None:
        while group := self._take():
            answers = self._answers(group)
            for loop in dict.fromkeys(asked.loop for asked in group):
                told = [pair for pair in zip(group, answers, strict=True) if pair[0].loop is loop]
                with suppress(RuntimeError):  # it has ended: nobody waits for an answer
                    loop.call_soon_threadsafe(_tell, told)

    def _take(self) -> list[_Asked]:
        """All that wait in line for the store of the first; after none the thread has ended."""
        group: list[_Asked] = []
        with self._lock:
            while self._waiting and (not group or self._waiting[0].scratch == group[0].scratch):
                group.append(self._waiting.popleft())
            self._is_running = bool(group)
        return group

    def _answers(self, group: list[_Asked]) -> list[bytes | Exception]:
        answers: list[bytes | Exception] = []
        try:
            with self._stores.use(group[0].scratch) as store:
                answers = self._stored(store, [asked.body for asked in group])
                for answer in answers:
                    if isinstance(answer, OutcomeUnknown):
                        raise answer  # so that this store is given up
        except Exception as error:  # noqa: BLE001  # each caller is told
            return answers or [error] * len(group)
        return answers

    def _stored(self, store: AtomicBackend, bodies: list[bytes]) -> list[bytes | Exception]:
        if isinstance(store, Gathering):
            return _gathered(store, bodies)
        self._gathers = False
        return list(self._threads.map(lambda body: _alone(store, body), bodies))


def _gathered(store: Gathering, bodies: list[bytes]) -> list[bytes | Exception]:
    read = [_read(body) for body in bodies]
    outcomes = iter(store.commit_each([each for each in read if not isinstance(each, Exception)]))
    return [_answer(each if isinstance(each, Exception) else next(outcomes)) for each in read]


def _answer(outcome: Outcome | Exception) -> bytes | Exception:
    try:
        return outcome if isinstance(outcome, Exception) else outcome_answer(outcome)
    except Exception as error:  # noqa: BLE001  # it is the answer
        return error


def _read(body: bytes) -> Commit | Exception:
    try:
        return commit_of(*read_request(body).args)
    except Exception as error:  # noqa: BLE001  # it is the answer
        return error


def _alone(store: AtomicBackend, body: bytes) -> bytes | Exception:
    try:
        return run(store, read_request(body))
    except Exception as error:  # noqa: BLE001  # it is the answer
        return error


def _tell(told: list[tuple[_Asked, bytes | Exception]]) -> None:
    for asked, answer in told:
        if asked.answer.done():
            continue  # whoever asked has left
        if isinstance(answer, Exception):
            asked.answer.set_exception(answer)
        else:
            asked.answer.set_result(answer)
