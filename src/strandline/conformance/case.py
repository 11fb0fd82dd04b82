"""Cases and suites: a case is a function with a sentence for a name, over a store that nobody has used.

    LOG = Suite("log", floor=9, expected=24)

    @LOG.case("P-LOG-1")
    def the_first_event_of_a_stream_has_seq_1(b: Backend) -> None: ...

Its id, `log/the-first-event-of-a-stream-has-seq-1`, is made of the two names and stays for good: scoreboards
of different times and backends are compared by it.
"""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from strandline.conformance.fixture import BackendFixture, FixtureFactory, Level
from strandline.errors import UsageError

Body = TypeVar("Body", bound=Callable[..., None])


@dataclass(frozen=True, slots=True)
class Case:
    """One promise put to the test. It pickles, by the name of its function."""

    id: str
    rules: tuple[str, ...]
    level: Level
    needs: tuple[str, ...]
    body: Callable[..., None]
    wants: tuple[str, ...]  # of `b`, a backend on a fresh store, and `f`, the fixture that made it

    @property
    def title(self) -> str:
        return self.id.partition("/")[2].replace("-", " ")

    def reason_against(self, fixture: BackendFixture) -> str | None:
        return fixture.capabilities.reason_against(self.level, self.needs)

    def run(self, fixture: BackendFixture) -> None:
        """On a fresh store: returns if the promise holds, raises if it does not."""
        given = {"b": fixture.fresh(), "f": fixture}
        self.body(**{name: given[name] for name in self.wants})


class Suite:
    """Cases under one name, run in one process of their own, within one time limit.

    `floor` is how many cases the baseline has, `expected` how many there are: running fewer is a failure. A
    `fixture_factory` of its own goes before the one that is certified.
    """

    def __init__(
        self,
        name: str,
        *,
        expected: int | None = None,
        floor: int = 0,
        timeout_s: float | None = None,
        fixture_factory: FixtureFactory | None = None,
    ) -> None:
        self.name = name
        self.floor = floor
        self.timeout_s = timeout_s
        self.fixture_factory = fixture_factory
        self._expected = expected
        self._cases: dict[str, Case] = {}

    @property
    def cases(self) -> tuple[Case, ...]:
        return tuple(self._cases.values())

    @property
    def expected(self) -> int:
        return max(self.floor, len(self._cases)) if self._expected is None else self._expected

    def case(self, *rules: str, level: Level = "basic", needs: Iterable[str] = ()) -> Callable[[Body], Body]:
        """Register a function of `b`, of `f`, or of both; it stays as it is."""

        def register(body: Body) -> Body:
            case_id = f"{self.name}/{body.__name__.replace('_', '-')}"
            if case_id in self._cases:
                raise UsageError(f"case {case_id} is there already", hint="name each promise once")
            wants = tuple(inspect.signature(body).parameters)
            self._cases[case_id] = Case(case_id, rules, level, tuple(needs), body, wants)
            return body

        return register
