"""Old event shapes to new ones, on read. Stored events are never rewritten."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import TypeAlias

from strandline.errors import UsageError
from strandline.persist.event import Event, Storable
from strandline.persist.value import check_name

Upcaster: TypeAlias = Callable[[Event], Event]


@dataclass(frozen=True, slots=True)
class Upcasters:
    """An immutable registry. Each type has steps `(from_version, fn)`, in order; None applies to every
    version."""

    label: str = ""
    steps: dict[str, tuple[tuple[int | None, Upcaster], ...]] = field(default_factory=dict)

    def __contains__(self, type: object) -> bool:
        return type in self.steps

    @property
    def version(self) -> str:
        """Changes with the label, the types and their versions; a snapshot folded under another is not
        mixed."""
        shape = [
            f"{type_}:{','.join(str(version) for version, _ in steps)}"
            for type_, steps in sorted(self.steps.items())
        ]
        return sha256("\n".join([self.label, *shape]).encode()).hexdigest()[:16]


def upcasters(label: str = "") -> Upcasters:
    """An empty registry. Change the label when a function changes what it gives: its code is not looked
    at."""
    return Upcasters(label)


def register_upcaster(
    reg: Upcasters, type: str, fn: Upcaster, *, from_version: int | None = None
) -> Upcasters:
    """A new registry in which `fn` lifts events of `type`; with `from_version` only those of that
    `schema_version`."""
    check_name("type", type)
    kept = reg.steps.get(type, ())
    if from_version is None:
        steps: tuple[tuple[int | None, Upcaster], ...] = ((None, fn),)
    else:
        versioned = [
            (version, step) for version, step in kept if version is not None and version != from_version
        ]
        steps = tuple(sorted([*versioned, (from_version, fn)], key=lambda step: step[0] or 0))
    return replace(reg, steps={**reg.steps, type: steps})


def upcast(reg: Upcasters, event: Event) -> Event:
    """The event in its newest shape: each step of its type that applies, in order of versions."""
    lifted = event
    for from_version, fn in reg.steps.get(event.type, ()):
        if from_version is None or _schema_version(lifted) == from_version:
            lifted = fn(lifted)
            if not isinstance(lifted, Event) or (lifted.stream, lifted.seq) != (event.stream, event.seq):
                raise UsageError(
                    f"the upcaster of {event.type!r} gave {lifted!r:.90} for {event.seq} of {event.stream!r}",
                    hint="an upcaster returns an Event with the same stream and seq",
                )
    return lifted


lift_event = upcast  # the name inside this package, where `upcast` is a module too


def upcast_data(event: Event, new_data: dict[str, Storable]) -> Event:
    """The event with `new_data` merged over its data."""
    return replace(event, data={**(event.data or {}), **new_data})


def _schema_version(event: Event) -> int:
    version = event.data.get("schema_version", 1) if isinstance(event.data, dict) else 1
    return version if isinstance(version, int) else 1
