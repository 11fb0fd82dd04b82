"""Leases: one holder a scope, and fences that outlive it (L-CTL-5)."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from strandline.base.clock import SystemClock
from strandline.base.process_identity import is_gone, place_of_this_process
from strandline.persist import (
    ABSENT,
    AtomicBackend,
    Conflict,
    ExpectKey,
    Put,
    kv_get,
    mem_backend,
    open_store,
)
from strandline.state.lease import TTL_S, LeaseHeld, LeaseLost, await_lease, held, take_lease
from tests.conftest import open_backend
from tests.sites import NOON_US, StillClock

_HOLDS = """
import sys
from strandline.base.clock import SystemClock
from strandline.persist import open_store
from strandline.state.lease import take_lease
take_lease(open_store(sys.argv[1]), SystemClock(), "flush/logs")
print(flush=True)
sys.stdin.read()
"""


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def b(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AtomicBackend]:
    with closing(open_backend(request.param, tmp_path)) as opened:
        yield opened


def test_a_scope_has_one_holder_and_says_who(b: AtomicBackend) -> None:
    clock = StillClock()
    take_lease(b, clock, "flush/logs")

    with pytest.raises(LeaseHeld, match=r"pid \d+") as caught:
        take_lease(b, clock, "flush/logs")

    assert caught.value.scope == "flush/logs"
    take_lease(b, clock, "flush/others")


def test_a_lease_that_is_not_renewed_is_taken_over_with_a_higher_fence(b: AtomicBackend) -> None:
    clock = StillClock()
    first = take_lease(b, clock, "s")
    clock.us += TTL_S * 1_000_000 + 1

    second = take_lease(b, clock, "s")

    assert second.fence == first.fence + 1


def test_the_stale_holder_can_neither_write_nor_renew_nor_release(b: AtomicBackend) -> None:  # L-CTL-5
    clock = StillClock()
    stale = take_lease(b, clock, "s")
    clock.us += TTL_S * 1_000_000 + 1
    second = take_lease(b, clock, "s")

    assert isinstance(b.commit([stale.guard], [Put("k", 1)]), Conflict)
    with pytest.raises(LeaseLost):
        stale.renew()
    stale.release()

    assert kv_get(b, "k") is None
    with pytest.raises(LeaseHeld):
        take_lease(b, clock, "s")
    assert not isinstance(b.commit([second.guard], [Put("k", 2)]), Conflict)


def test_renewing_keeps_the_fence(b: AtomicBackend) -> None:
    clock = StillClock()
    lease = take_lease(b, clock, "s")
    clock.us += (TTL_S - 1) * 1_000_000

    lease.renew()
    clock.us += (TTL_S - 1) * 1_000_000

    with pytest.raises(LeaseHeld):
        take_lease(b, clock, "s")
    assert not isinstance(b.commit([lease.guard], [Put("k", 1)]), Conflict)


def test_a_fence_never_goes_back_though_its_lease_is_gone(b: AtomicBackend) -> None:
    clock = StillClock()
    with held(b, clock, "s") as first:
        pass

    assert kv_get(b, "lease/s") is None
    with held(b, clock, "s") as second:
        assert second.fence == first.fence + 1
    assert isinstance(b.commit([first.guard, ExpectKey("k", ABSENT)], [Put("k", 1)]), Conflict)


def test_waiting_ends_with_the_holder_or_with_the_time() -> None:
    b, clock = mem_backend(), StillClock()
    take_lease(b, clock, "s")

    with pytest.raises(LeaseHeld):
        await_lease(b, clock, "s", timeout_s=10)
    assert clock.us == NOON_US + 10_000_000
    assert await_lease(b, clock, "s", timeout_s=TTL_S).fence == 2


def test_an_error_inside_lets_go() -> None:
    b, clock = mem_backend(), StillClock()

    with pytest.raises(ZeroDivisionError), held(b, clock, "s"):
        _ = 1 / 0

    assert take_lease(b, clock, "s").fence == 2


def test_the_lease_of_a_process_that_was_killed_is_free_at_once(tmp_path: Path) -> None:  # L-CTL-5
    child = subprocess.Popen(
        [sys.executable, "-c", _HOLDS, str(tmp_path / "s.db")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    assert child.stdin is not None
    child.stdout.readline()
    with closing(open_store(tmp_path / "s.db")) as b:
        with pytest.raises(LeaseHeld, match=f"pid {child.pid}"):
            take_lease(b, SystemClock(), "flush/logs")
        child.kill()
        child.wait()
        child.stdout.close()
        child.stdin.close()

        assert take_lease(b, SystemClock(), "flush/logs").fence == 2


def test_of_a_process_elsewhere_nobody_can_tell_that_it_has_ended() -> None:  # L-CTL-5
    here = place_of_this_process()
    kernel, pid, started = here.rsplit("/", 2)

    assert not is_gone(here)
    assert is_gone(f"{kernel}/{pid}/{int(started) + 1}")  # the id was given to another process
    assert not is_gone(f"other-{kernel}/{pid}/{int(started) + 1}")
    assert not any(map(is_gone, ("", "/", "a/b", "a/b/c", f"{kernel}/x/1")))


_FORKS = """
import os
from strandline.base.process_identity import is_gone, place_of_this_process

before = place_of_this_process()
reading, writing = os.pipe()
if os.fork() == 0:
    os.write(writing, place_of_this_process().encode())
    os._exit(0)
os.wait()
child = os.read(reading, 1_000).decode()
print(before == place_of_this_process(), child not in ("", before), is_gone(child), is_gone(before))
"""


def test_a_forked_child_is_a_process_of_its_own() -> None:  # L-CTL-5
    told = subprocess.run([sys.executable, "-c", _FORKS], capture_output=True, text=True, check=True)

    assert told.stdout.split() == ["True", "True", "True", "False"]
