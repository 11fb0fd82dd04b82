"""Is there an order of these calls, each between its start and its end, that a single thread could have made?

The search of Wing and Gong, with the memory of Lowe: of all calls that may come next, take one that the model
allows, go on with the rest; a set of calls done with a state that was met before is not looked at again. Each
key, and each stream, is searched alone: an order of each is an order of all.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

UNKNOWN: Final = "unknown"  # the result of a write that may have been made, then or later
NEVER: Final = 1 << 62  # when such a call ends


class Call(NamedTuple):
    """One call and what it gave; times are of one clock for all processes."""

    about: str  # the key or stream
    what: str
    arguments: tuple[Any, ...]
    result: Any
    start: int
    end: int


# The next state, or None if the model could not have given this result.
Model: TypeAlias = Callable[[Any, Call], Hashable | None]


class State(NamedTuple):
    """What a model knows; one field, so that no state is None."""

    value: Any


def register(state: Any, call: Call) -> Hashable | None:
    """One key: put, get, and swap (expected, new), whose result is True or the value that was there."""
    if call.what == "put":
        return State(call.arguments[0])
    if call.what == "get":
        return state if call.result == state.value else None
    expected, new = call.arguments
    if call.result is True or call.result == UNKNOWN:
        return State(new) if state.value == expected else None
    return state if call.result == state.value != expected else None


def stream(state: Any, call: Call) -> Hashable | None:
    """One stream, known by its mark: append (data) and expect (expected, data) give [seq], and an expect that
    lost gives the mark that was there."""
    if call.what == "mark":
        return state if call.result == state.value else None
    following = State(state.value + 1)
    if call.what == "append":
        return following if call.result in ([following.value], UNKNOWN) else None
    expected = call.arguments[0]
    if isinstance(call.result, list) or call.result == UNKNOWN:
        is_next = state.value == expected and call.result in ([following.value], UNKNOWN)
        return following if is_next else None
    return state if call.result == state.value != expected else None


def not_stored(calls: Sequence[Call], rows: Sequence[tuple[int, Any]]) -> list[str]:
    """What is wrong with the rows (seq, data) of one stream after those calls: each acknowledged row must be
    there, and no other but those whose writers do not know."""
    writes = [call for call in calls if call.what in ("append", "expect")]
    acked = [(call.result[0], call.arguments[-1]) for call in writes if isinstance(call.result, list)]
    maybe = [call.arguments[-1] for call in writes if call.result == UNKNOWN]
    lost = [
        f"event {seq} with {data} was acknowledged and is not stored"
        for seq, data in acked
        if (seq, data) not in rows
    ]
    extra = [
        f"event {seq} with {data} was never acknowledged"
        for seq, data in rows
        if (seq, data) not in acked and data not in maybe
    ]
    dense = [seq for seq, _ in rows] == [*range(1, len(rows) + 1)]
    return [*lost, *extra, *([] if dense else [f"{len(rows)} events have seqs up to {max(rows)[0]}"])]


def not_linear(calls: Sequence[Call], model: Model, first: Any) -> list[str]:
    """The keys or streams whose calls have no such order."""
    by_name: dict[str, list[Call]] = {}
    for call in calls:
        by_name.setdefault(call.about, []).append(call)
    return [name for name, of_it in sorted(by_name.items()) if not has_order(of_it, model, State(first))]


def has_order(calls: Sequence[Call], model: Model, first: State) -> bool:
    """Depth first, with a stack of our own: a history may be long. What is unknown may be left out."""
    waiting = sorted(calls, key=lambda call: call.start)
    met: set[tuple[int, Hashable]] = set()
    stack: list[tuple[int, Any]] = [(0, first)]  # which calls are done, as bits, and the state
    needed = sum(1 << number for number, call in enumerate(waiting) if call.result != UNKNOWN)
    while stack:
        done, state = stack.pop()
        if done & needed == needed:
            return True
        for number in reversed(candidates(waiting, done)):
            after = model(state, waiting[number])
            now = done | 1 << number
            if after is not None and (now, after) not in met:
                met.add((now, after))
                stack.append((now, after))
    return False


def candidates(waiting: Sequence[Call], done: int) -> list[int]:
    """The calls that may come next: those that began before any that is left has ended."""
    found: list[int] = []
    first_end: int | None = None
    number = first_open(done)
    while number < len(waiting):
        call = waiting[number]
        if not done >> number & 1:
            if first_end is not None and call.start > first_end:
                break
            first_end = call.end if first_end is None else min(first_end, call.end)
            found.append(number)
        number += 1
    return [number for number in found if waiting[number].start <= (first_end or 0)]


def first_open(done: int) -> int:
    """The lowest call that is not done."""
    return (~done & (done + 1)).bit_length() - 1
