"""Who may do what with a document, and who could at any time before: an access list on the event store.

Every grant and every revocation is an event in the stream of its document. The list of today is a fold of
them; the list of last Tuesday is a fold of fewer. Two people may change a list at once: each decides on what
it has seen, and the store refuses the second, who looks again.

    python examples/access_list.py            # tells a short story, on a store in memory
    python examples/access_list.py access.db  # the same on a SQLite file, once
"""

import sys
from dataclasses import dataclass
from typing import Final, Literal

from strandline.persist import (
    Backend,
    Event,
    ProjectionState,
    append_expect,
    checkpoint,
    events,
    is_conflict,
    open_store,
    replay,
)

Right = Literal["read", "write", "own"]
Access = dict[str, Right]  # one right a person; a higher one includes those below
RANK: Final[dict[Right, int]] = {"read": 1, "write": 2, "own": 3}


@dataclass(frozen=True, slots=True)
class Refused:
    """A change that the rules forbid. Nothing was stored."""

    why: str


# The fold: pure, so it gives the same list wherever and whenever it runs


def step(access: Access, event: Event) -> Access:
    who: str = event.data["who"]
    if event.type == "granted":
        return {**access, who: event.data["right"]}
    return {each: right for each, right in access.items() if each != who}


def stream_of(document: str) -> str:
    return f"access/{document}"


# Asking


def current(b: Backend, document: str) -> ProjectionState:
    """The list, and the seq of the last event in it. From the snapshot on, if there is one."""
    return replay(b, stream_of(document), stream_of(document), step, {})


def can(b: Backend, document: str, who: str, right: Right) -> bool:
    access: Access = current(b, document).value
    return who in access and RANK[access[who]] >= RANK[right]


def who_could(b: Backend, document: str, right: Right, at: int) -> list[str]:
    """Everyone who had `right` when the clock said `at`."""
    access: Access = {}
    for event in events(b, stream_of(document), end=at):  # in the order they were stored, page by page
        access = step(access, event)
    return sorted(each for each, has in access.items() if RANK[has] >= RANK[right])


# Changing


def grant(b: Backend, document: str, by: str, who: str, right: Right, at: int) -> Event | Refused:
    return _change(b, document, "granted", at, {"by": by, "who": who, "right": right})


def revoke(b: Backend, document: str, by: str, who: str, at: int) -> Event | Refused:
    return _change(b, document, "revoked", at, {"by": by, "who": who})


def _change(b: Backend, document: str, type: str, at: int, data: dict[str, str]) -> Event | Refused:
    while True:
        state = current(b, document)
        if why := forbidden(state.value, type, data):
            return Refused(why)
        # Stored only if no event came since `state`. Without that, two owners could revoke each other at
        # once, each rightly by what it saw, and leave a document that nobody owns.
        outcome = append_expect(b, stream_of(document), state.seq, type, at, data)
        if not is_conflict(outcome):
            return outcome


def forbidden(access: Access, type: str, data: dict[str, str]) -> str | None:
    """Why a change may not be made, None if it may: a pure function of the list."""
    by, who = data["by"], data["who"]
    if access and access.get(by) != "own":
        return f"{by} does not own the document"
    after = {each: right for each, right in access.items() if each != who}
    if type == "granted":
        after[who] = data["right"]  # type: ignore[assignment]  # grant() takes no other word
    if "own" not in after.values():
        return "somebody must own the document"
    return None


def keep(b: Backend, document: str) -> ProjectionState:
    """Keep the list as a snapshot, so that `current` folds only what comes after it.

    The events stay. `compact` would remove them too, and with them the answers of `who_could`.
    """
    return checkpoint(b, stream_of(document), stream_of(document), step, {})


def main(target: str = "memory:") -> None:
    b = open_store(target)
    grant(b, "plan.md", by="ann", who="ann", right="own", at=100)
    grant(b, "plan.md", by="ann", who="bob", right="own", at=110)
    grant(b, "plan.md", by="bob", who="cyd", right="read", at=120)
    revoke(b, "plan.md", by="bob", who="ann", at=130)
    print("now:", current(b, "plan.md").value)
    print("could read at 125:", who_could(b, "plan.md", "read", 125))
    print("ann grants dan:", grant(b, "plan.md", by="ann", who="dan", right="read", at=140))
    print("bob leaves:", revoke(b, "plan.md", by="bob", who="bob", at=150))
    print("kept at seq", keep(b, "plan.md").seq)
    b.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
