"""Signals that raise in a commit, wherever Python looks for them: nobody else waits for it."""

import dis
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import count
from types import CodeType, FrameType
from typing import Any, Final

import pytest

from strandline.errors import OutcomeUnknown
from strandline.persist.backend import Outcome
from strandline.persist.core import group_commit
from strandline.persist.core.group_commit import GroupCommit
from strandline.persist.core.prepare import Prepared
from tests.persist.test_commit import Callers, Disk, answer, labelled, until

LOOKS_AFTER: Final = ("CALL", "JUMP_BACKWARD", "POP_JUMP_BACKWARD")  # and where a function starts


class Interrupt(BaseException):
    pass


@cache
def instructions(code: CodeType) -> dict[int, tuple[str, int | None]]:
    """What stands at each offset, and where what it raises is handled."""
    parsed: Any = dis.Bytecode(code)
    return {
        each.offset: (
            each.opname,
            next((e.target for e in parsed.exception_entries if e.start <= each.offset < e.end), None),
        )
        for each in parsed
    }


def looks_between(code: CodeType, last: int, offset: int) -> bool:
    """Whether Python looks for signals as it comes here; what is raised there must be handled alike here."""
    (name, handler), (_, handler_here) = instructions(code)[last], instructions(code)[offset]
    return name.startswith(LOOKS_AFTER) and handler == handler_here


class Strike:
    """A trace function that raises once, at the nth place of these files where Python looks for signals."""

    def __init__(self, nth: int, *files: str) -> None:
        self.left, self._files = nth, files
        self._last: dict[FrameType, int] = {}

    def __call__(self, frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename not in self._files:
            return None
        frame.f_trace_opcodes = True
        self._look()
        return self._step

    def _step(self, frame: FrameType, event: str, _: object) -> Any:
        if event == "opcode":
            last = self._last.get(frame, frame.f_lasti)
            self._last[frame] = frame.f_lasti
            if looks_between(frame.f_code, last, frame.f_lasti):
                self._look()
        return self._step

    def _look(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise Interrupt


@contextmanager
def traced(strike: Strike) -> Iterator[None]:
    before = sys.gettrace()
    sys.settrace(strike)
    try:
        yield
    finally:
        sys.settrace(before)


class Gate:
    """A lock that a signal raises from, in the main thread, as it is taken for a time that `strikes`."""

    def __init__(self, strikes: Callable[[int], bool]) -> None:
        self._lock, self._strikes, self._taken = threading.Lock(), strikes, 0

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._taken += 1
            if self._strikes(self._taken):
                raise Interrupt
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


# What the main thread does, and how the others come to it


class Scene:
    def __init__(self) -> None:
        self.disk = Disk()
        self.group = GroupCommit(self.disk.run, most=3)
        self.callers = Callers(self.group)
        self.is_over = threading.Event()

    def act(self) -> None:
        """What the main thread does: nobody else is there."""
        self.group.submit(labelled("main"))

    def end(self) -> None:
        self.is_over.set()
        self.disk.may_go.set()


class ManyByOne(Scene):
    def act(self) -> None:
        self.group.submit_each([labelled(f"main {n}") for n in range(5)])


class AloneAndThenACrowd(Scene):
    """They come while the main thread is at the disk, and it leaves the lead to them."""

    def __init__(self) -> None:
        super().__init__()
        self.group._run = self._run

    def _run(self, group: list[Prepared]) -> Sequence[Outcome | BaseException]:
        if threading.current_thread() is threading.main_thread() and not self.callers.threads:
            self.callers.submit_in_line(range(4))
        return self.disk.run(group)


class ManyByOneAndThenACrowd(AloneAndThenACrowd):
    def act(self) -> None:
        self.group.submit_each([labelled(f"main {n}") for n in range(2)])


class InTheMiddle(Scene):
    """It waits behind one and before others, whom it leads."""

    def __init__(self) -> None:
        super().__init__()
        self.disk.may_go.clear()
        self.callers.submit(labelled("first"), "first")
        until(self.disk.is_reached.is_set)
        self._lining_up = threading.Thread(target=self._line_up, daemon=True)
        self._lining_up.start()

    def _line_up(self) -> None:
        until(lambda: bool(self.group._waiting) or self.is_over.is_set())
        for name in range(4):
            self.callers.submit(labelled(name), name)
        until(lambda: len(self.group._waiting) >= 4)
        self.disk.may_go.set()

    def end(self) -> None:
        self.is_over.set()
        self._lining_up.join()


SCENES: Final = [Scene, ManyByOne, AloneAndThenACrowd, ManyByOneAndThenACrowd, InTheMiddle]


def plays(scene: Scene, act: Callable[[], None]) -> bool:
    """Whether the act was struck; everybody has an answer then, and so has who comes next."""
    try:
        act()
        is_struck = False
    except Interrupt:
        is_struck = True
    scene.end()
    scene.callers.end()
    scene.callers.submit(labelled("later"), "later")
    outcomes = scene.callers.end()
    assert all(
        outcome == answer(name) or isinstance(outcome, OutcomeUnknown) for name, outcome in outcomes.items()
    )
    assert outcomes["later"] == answer("later")
    until(lambda: (scene.group._waiting, scene.group._served, scene.group._leader) == ([], [], None))
    return is_struck


def strike_each(new: Callable[[], Scene], *, goes_on: bool) -> int:
    """At how many places an act could be struck; `goes_on` has more signals follow, as the lock is taken."""
    for nth in count(1):
        scene, strike = new(), Strike(nth, group_commit.__file__)

        def act(scene: Scene = scene, strike: Strike = strike) -> None:
            with traced(strike):
                scene.act()

        if goes_on:
            gate: Any = Gate(lambda _, strike=strike: strike.left <= 0)  # type: ignore[misc]
            scene.group._gate = gate
        if not plays(scene, act):
            break
    return nth - 1


@pytest.mark.parametrize("new", SCENES)
def test_a_signal_at_any_place_leaves_nobody_waiting(new: Callable[[], Scene]) -> None:  # P-BKD-11
    assert strike_each(new, goes_on=False) > 5


@pytest.mark.parametrize("new", SCENES)
def test_a_signal_and_more_in_its_clean_up_leave_nobody_waiting(new: Callable[[], Scene]) -> None:
    assert strike_each(new, goes_on=True) > 5  # P-BKD-11


@pytest.mark.parametrize("new", SCENES)
@pytest.mark.parametrize("goes_on", [False, True])
def test_a_signal_in_a_wait_for_the_lock_leaves_nobody_waiting(
    new: Callable[[], Scene], goes_on: bool
) -> None:  # P-BKD-11
    for nth in count(1):
        scene = new()
        gate: Any = Gate(lambda taken, nth=nth: taken >= nth if goes_on else taken == nth)  # type: ignore[misc]
        scene.group._gate = gate
        if not plays(scene, scene.act):
            break

    assert nth > 2
