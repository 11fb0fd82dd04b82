"""One holder a scope, across threads, processes and machines, and a fence that outlives it.

    lease/<scope>   {"holder", "who", "fence", "until", "place"}    gone when it is let go
    fence/<scope>   a number, one higher with each holder

A control write rests on the fence (`lease.guard`): once another has taken over, it is a Conflict. What
happens outside the store cannot carry the fence; there a late repeat is harmless by its id.

A lease ends with its time, or at once where its holder is a process of this machine that has ended: a node
that was killed takes up its work as soon as it is started again.
"""

import os
import socket
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

from strandline.base.clock import Clock
from strandline.base.process_identity import is_gone, place_of_this_process
from strandline.errors import HeldError, UnavailableError
from strandline.persist import ABSENT, AtomicBackend, Conflict, Delete, ExpectKey, Put
from strandline.state.strand_entries import ControlUnreadable

TTL_S: Final = 60
RENEW_S: Final = 20
_POLL_S: Final = 0.2


class LeaseHeld(HeldError):
    """Another holds the lease."""

    def __init__(self, scope: str, who: str, left_s: float) -> None:
        super().__init__(
            f"{scope!r} is held by {who} for another {max(left_s, 0):.0f} s, unless it renews",
            hint="wait for it to finish; if it has died, its lease ends by itself",
        )
        self.scope, self.who = scope, who


class LeaseLost(HeldError):
    """Another took the lease over; what was under way is theirs now."""

    def __init__(self, scope: str) -> None:
        super().__init__(
            f"the lease {scope!r} was taken over by another holder while this one did not renew it",
            hint="nothing is lost: the new holder finishes what was begun",
        )
        self.scope = scope


@dataclass(frozen=True, slots=True)
class Lease:
    """A scope that is held, by its fence."""

    b: AtomicBackend
    clock: Clock
    scope: str
    holder: str
    fence: int

    @property
    def guard(self) -> ExpectKey:
        """What every control write under this lease expects."""
        return ExpectKey(_fence_key(self.scope), self.fence)

    def renew(self) -> None:
        """Hold on for another TTL_S. LeaseLost if another has taken over."""
        value = _value(self.holder, self.fence, self.clock)
        if isinstance(self.b.commit([self.guard], [Put(_lease_key(self.scope), value)]), Conflict):
            raise LeaseLost(self.scope)

    def release(self) -> None:
        """Let go. One that was taken over is no longer ours to let go."""
        self.b.commit([self.guard], [Delete(_lease_key(self.scope))])


def holder_of(b: AtomicBackend, clock: Clock, scope: str) -> str | None:
    """Who holds `scope` now, None if nobody does."""
    current = _kept(b, scope)
    return current["who"] if current is not None and _is_on(current, clock) else None


def take_lease(b: AtomicBackend, clock: Clock, scope: str) -> Lease:
    """Take `scope` now, or raise LeaseHeld with who holds it."""
    while True:
        current = _kept(b, scope)
        if current is not None and _is_on(current, clock):
            raise LeaseHeld(scope, current["who"], (current["until"] - clock.now_us()) / 1e6)
        fence = _kept_fence(b, scope)
        seen = [
            ExpectKey(_lease_key(scope), ABSENT if current is None else current),
            ExpectKey(_fence_key(scope), fence or ABSENT),
        ]
        holder, mine = uuid.uuid4().hex, fence + 1
        writes = [Put(_lease_key(scope), _value(holder, mine, clock)), Put(_fence_key(scope), mine)]
        if not isinstance(b.commit(seen, writes), Conflict):
            return Lease(b, clock, scope, holder, mine)


def _is_on(lease: Mapping[str, Any], clock: Clock) -> bool:
    place = lease.get("place", "")
    return lease["until"] > clock.now_us() and not (isinstance(place, str) and is_gone(place))


def _kept(b: AtomicBackend, scope: str) -> Any:
    """The lease as it is stored, None if there is none. What is no lease is nobody's to take over."""
    found: Any = b.kv_get(_lease_key(scope))
    if found is None:
        return None
    types = {"holder": str, "who": str, "fence": int, "until": int}
    if isinstance(found, Mapping) and all(type(found.get(name)) is kind for name, kind in types.items()):
        return found
    raise ControlUnreadable(_lease_key(scope), None, f"{found!r:.80} is no lease")


def _kept_fence(b: AtomicBackend, scope: str) -> int:
    """The fence of the newest holder, 0 if there was none."""
    found: Any = b.kv_get(_fence_key(scope))
    if found is None:
        return 0
    if type(found) is int and found > 0:
        return found
    raise ControlUnreadable(_fence_key(scope), None, f"{found!r:.80} is no fence")


def await_lease(b: AtomicBackend, clock: Clock, scope: str, *, timeout_s: float) -> Lease:
    """Take `scope` as soon as it is free, for at most `timeout_s`, then LeaseHeld."""
    until = clock.now_us() + int(timeout_s * 1e6)
    while True:
        try:
            return take_lease(b, clock, scope)
        except LeaseHeld:
            if clock.now_us() >= until:
                raise
            clock.sleep(_POLL_S)


class LeaseRenewal:
    """Renews a lease from a thread of its own while long work is under way."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._renew, name=f"lease {lease.scope}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    def _renew(self) -> None:
        while not self._done.wait(RENEW_S):
            try:
                self._lease.renew()
            except LeaseLost:
                return  # whoever works under it learns so from its guard
            except UnavailableError:
                continue  # the store may answer in time; if not the lease ends, and the guard says so


@contextmanager
def held(b: AtomicBackend, clock: Clock, scope: str, *, timeout_s: float = 0) -> Iterator[Lease]:
    """Hold `scope` inside the block, renewing it, and let it go at the end."""
    lease = await_lease(b, clock, scope, timeout_s=timeout_s)
    try:
        with LeaseRenewal(lease):
            yield lease
    finally:
        lease.release()


def _value(holder: str, fence: int, clock: Clock) -> dict[str, Any]:
    return {
        "holder": holder,
        "who": f"{socket.gethostname()} pid {os.getpid()}",
        "fence": fence,
        "until": clock.now_us() + TTL_S * 1_000_000,
        "place": place_of_this_process(),
    }


def _lease_key(scope: str) -> str:
    return f"lease/{scope}"


def _fence_key(scope: str) -> str:
    return f"fence/{scope}"
