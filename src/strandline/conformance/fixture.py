"""What the kit asks of whoever wants a backend certified: a fixture that makes, reopens and crashes stores.

    class MyFixture:
        name = "mine"
        capabilities = Capabilities({"damage": "its bytes cannot be reached"})

        def fresh(self) -> Backend: ...          # and so on: see BackendFixture

    certify(MyFixture)

A case asks for what it needs; what a fixture declares as missing shows as skipped, with the reason given, and
never as a pass.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol, TypeAlias

from strandline.errors import UsageError
from strandline.persist.backend import Backend
from strandline.persist.blob import BlobStore

Level: TypeAlias = Literal["basic", "atomic", "shared", "durable"]
LEVELS: Final[tuple[Level, ...]] = ("basic", "atomic", "shared", "durable")

# What can be missing: the levels above basic, then what no level demands.
CAPABILITIES: Final[Mapping[str, str]] = {
    "atomic": "decides and writes in one step, reads by pages, serves many threads",
    "shared": "several processes use one store, each opened by `opener()`",
    "durable": "`crash()` really kills whatever holds the data; what was acknowledged is there afterwards",
    "reopen": "a store can be left and opened again",
    "damage": "`damage()` can change the stored bytes of one event",
    "verify": "the backend looks at its own rows: verify and quarantine",
    "redact": "the backend can change a stored event",
    "backup": "the backend stands beside its data: backup and restore",
}


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a fixture has: everything, but for what is `missing`, each with the reason."""

    missing: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, reason in self.missing.items():
            if name not in CAPABILITIES:
                raise UsageError(
                    f"there is no capability {name!r}", hint=f"there are {', '.join(CAPABILITIES)}"
                )
            if not reason:
                raise UsageError(f"capability {name!r} is missing without a reason", hint="say why")

    def reason_against(self, level: Level, needs: tuple[str, ...]) -> str | None:
        """Why a case of this level with these needs cannot run, None if it can."""
        wanted = (*LEVELS[1 : LEVELS.index(level) + 1], *needs)
        return next((f"{name}: {self.missing[name]}" for name in wanted if name in self.missing), None)


Opener: TypeAlias = Callable[[], Backend]


class BackendFixture(Protocol):
    """Makes stores of one kind of backend, one at a time: `fresh` may end the store before it.

    A fixture never touches a store that it has not made.
    """

    @property
    def name(self) -> str:
        """What the scoreboard calls the backend."""

    @property
    def capabilities(self) -> Capabilities:
        """What is missing, and why."""

    def fresh(self) -> Backend:
        """A new, empty store, and a backend on it."""

    def reopen(self) -> Backend:
        """Drop the backend object and open another on the same store."""

    def crash(self) -> Backend:
        """Kill the process that holds the data, where there is one beside ours, and open the store again.

        Where the data is held by the process that uses it, the object is left as it is, unclosed; cases of
        the durable level kill such a process themselves.
        """

    def content_store(self) -> BlobStore:
        """A content store that survives `reopen` and `crash` of this store."""

    def opener(self) -> Opener:
        """What opens the present store once more. It pickles: other processes call it."""

    def damage(self, stream: str, seq: int) -> Backend:
        """Change the stored bytes of one event behind the backend's back; the backend to go on with."""

    def close(self) -> None:
        """End the present store and remove what the fixture has made."""


FixtureFactory: TypeAlias = Callable[[], BackendFixture]
