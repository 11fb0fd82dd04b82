"""The commits of many connections, run by one thread: those that come while it stores some are the next.

A thread for each would wait for the same transaction, and of a crowd of threads that wake at once Python runs
one at a time. A long request, and one to a store that does not gather commits, gets a thread of its own.
"""

import asyncio
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final, NamedTuple

from strandline.errors import OutcomeUnknown
from strandline.persist.backend import AtomicBackend, Commit, Gathering
from strandline.persist.durable import commit_of
from strandline.server.requests import outcome_answer, read_request, run
from strandline.server.stores import Stores

_COMMIT_ENDS: Final = b'"op":"persist/commit"}'  # as our own clients write it
_MOST_BYTES: Final = 64 * 1024


class _Asked(NamedTuple):
    scratch: str | None
    body: bytes
    answer: "asyncio.Future[bytes]"


class Committer:
    """Belongs to one event loop, which adds to what waits; the thread, if it runs, takes it out."""

    def __init__(self, stores: Stores, threads: ThreadPoolExecutor) -> None:
        self._stores, self._threads = stores, threads
        self._waiting: deque[_Asked] = deque()
        self._is_running = False
        self._gathers = True  # until a store is seen that does not: all those of a host are of one kind

    def takes(self, body: bytes) -> bool:
        """Whether a request is for here."""
        return self._gathers and len(body) <= _MOST_BYTES and body.endswith(_COMMIT_ENDS)

    async def answer(self, scratch: str | None, body: bytes) -> bytes:
        loop = asyncio.get_running_loop()
        asked = _Asked(scratch, body, loop.create_future())
        self._waiting.append(asked)
        self._go_on(loop)
        return await asked.answer

    def _go_on(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._waiting and not self._is_running:
            self._is_running = True
            self._threads.submit(self._work, loop)

    def _rest(self, loop: asyncio.AbstractEventLoop) -> None:
        """The thread found nothing more; by now there may be something."""
        self._is_running = False
        self._go_on(loop)

    # In the thread

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        with suppress(RuntimeError):  # the loop has ended: nobody waits for an answer
            try:
                while group := self._take():
                    loop.call_soon_threadsafe(_tell, group, self._answers(group))
            finally:
                loop.call_soon_threadsafe(self._rest, loop)

    def _take(self) -> list[_Asked]:
        """All that wait in line for the store of the first."""
        group: list[_Asked] = []
        with suppress(IndexError):
            while not group or self._waiting[0].scratch == group[0].scratch:
                group.append(self._waiting.popleft())
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
    made = [each if isinstance(each, Exception) else next(outcomes) for each in read]
    return [each if isinstance(each, Exception) else outcome_answer(each) for each in made]


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


def _tell(group: list[_Asked], answers: list[bytes | Exception]) -> None:
    for asked, answer in zip(group, answers, strict=True):
        if asked.answer.done():
            continue  # whoever asked has left
        if isinstance(answer, Exception):
            asked.answer.set_exception(answer)
        else:
            asked.answer.set_result(answer)
