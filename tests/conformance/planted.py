"""Fixtures with a bug planted in each, for the kit to find. In a module, so that other processes find them
too.
"""

import os
import sys
import time
from copy import deepcopy
from pathlib import Path
from typing import Any

from strandline.conformance.case import Suite
from strandline.conformance.check import equal
from strandline.conformance.fixture import BackendFixture, Capabilities, Opener
from strandline.conformance.shipped_fixtures import MemoryFixture
from strandline.conformance.suites.workers import in_processes
from strandline.persist import append
from strandline.persist.backend import Backend
from strandline.persist.backends.memory import MemoryBackend
from strandline.persist.core.block import Block


class ForgetsTheMark(MemoryBackend):
    """Its mark is the highest row, so truncation takes it back."""

    def truncate(self, stream: str, n: int) -> None:
        super().truncate(stream, n)
        held = self._streams[stream]
        held.last_seq = max(held.rows, default=0)
        held.truncated_through = min(n, held.last_seq)


class LosesHalfABatch(MemoryBackend):
    """A block of several loses its second half, mark and all."""

    def add(self, block: Block, first: int) -> None:
        half = deepcopy(block)
        if len(block) >= 4:
            for column in (half.types, half.ats, half.texts, half.crcs, half.globally):
                del column[len(block) // 2 :]
        super().add(half, first)


class Hangs(MemoryBackend):
    """A delete never comes back, nor does the process that it starts."""

    def delete(self, key: str) -> None:
        in_processes(HangsFixture(), stay, 1, os.environ["PLANTED_PID"])


def stay(_b: Backend, _index: int, file: str) -> None:
    Path(file).write_text(str(os.getpid()))
    time.sleep(3600)


class EndsTheProcess(MemoryBackend):
    """A delete takes the process with it."""

    def delete(self, key: str) -> None:
        print("the planted end", file=sys.stderr, flush=True)
        os._exit(3)


class Planted(MemoryFixture):
    """A fixture over one of them."""

    kind: type[MemoryBackend] = MemoryBackend

    def fresh(self) -> Backend:
        self._disk = self.kind()
        return self._disk


class ForgetsTheMarkFixture(Planted):
    name = "forgets-the-mark"
    kind = ForgetsTheMark


class LosesHalfABatchFixture(Planted):
    name = "loses-half-a-batch"
    kind = LosesHalfABatch


class HangsFixture(Planted):
    name = "hangs"
    kind = Hangs

    def opener(self) -> Opener:
        return Hangs


class EndsTheProcessFixture(Planted):
    name = "ends-the-process"
    kind = EndsTheProcess


class NoStoreFixture(MemoryFixture):
    """It cannot make a store."""

    name = "no-store"

    def fresh(self) -> Backend:
        raise OSError("the disk is full")


class LacksEverythingFixture(MemoryFixture):
    name = "lacks-everything"
    capabilities = Capabilities({"atomic": "it is old", "shared": "it is old", "durable": "it is old"})


def no_fixture() -> BackendFixture:
    raise OSError("no such host")


SMALL = Suite("small", expected=3)


@SMALL.case("P-LOG-1")
def the_first_seq_is_1(b: Backend) -> None:
    equal(append(b, "s", "t", 1, {}).seq, 1)


@SMALL.case("P-LOG-1")
def the_first_seq_is_2(b: Backend) -> None:
    equal(append(b, "s", "t", 1, {}).seq, 2)


@SMALL.case("P-LOG-1", level="atomic")
def it_is_skipped_where_nothing_is_atomic(b: Backend) -> None:
    equal(append(b, "s", "t", 1, {}).seq, 1)


GREEN = Suite("green", expected=1)


@GREEN.case("P-LOG-1")
def it_passes(b: Backend) -> None:
    equal(append(b, "s", "t", 1, {}).seq, 1)


SHORT = Suite("short", expected=2)


@SHORT.case("P-LOG-1")
def the_only_case_of_two(b: Backend) -> None:
    equal(append(b, "s", "t", 1, {}).seq, 1)


EMPTY = Suite("empty", expected=0)

ITS_OWN = Suite("its-own", expected=1, fixture_factory=LosesHalfABatchFixture)


@ITS_OWN.case("P-BAT-1")
def its_fixture_is_its_own(f: BackendFixture) -> None:
    equal(f.name, "loses-half-a-batch")


def result_of(board: Any, case_id: str) -> Any:
    return next(case for case in board.cases if case.id == case_id)
