"""The kinds of sinks by name: those that ship, and those that installed packages bring.

A package brings one with an entry point, and it is imported only where a configuration names it:

    [project.entry-points."strandline.sinks"]
    kafka = "my_package.kafka:configure"          # configure(options: SinkOptions) -> Sink
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

from strandline.base.secret import is_reference, look_up
from strandline.errors import NotFoundError, UsageError
from strandline.sinks.sink import Sink

GROUP: Final = "strandline.sinks"
BUILT_IN: Final[Mapping[str, str]] = {
    "blob": "strandline.sinks.blob.options:configure",
    "forward": "strandline.sinks.forward.forward_sink:configure",
}


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """What the configuration says of one sink: `keys` are those that are not common to all kinds."""

    instance: str
    keys: Mapping[str, Any]
    home: Path

    def secret(self, text: str) -> str:
        """What `env:NAME` or `file:PATH` stands for. Raises UsageError, SecretMissing."""
        if not is_reference(text):
            raise UsageError(
                f"sink {self.instance!r}: a secret stands in the file", hint="name it: env:NAME or file:PATH"
            )
        return look_up(text, self.home)


Configure: TypeAlias = Callable[[SinkOptions], Sink]


class SinkTypeUnknown(NotFoundError):
    """No sink of this type is installed."""

    def __init__(self, type_: str, known: list[str]) -> None:
        super().__init__(
            f"there is no sink of type {type_!r:.80}; there are {', '.join(known)}",
            hint="correct the type, or install the package that brings it",
        )
        self.type, self.known = type_, known


def sink_types() -> list[str]:
    """The names of all kinds."""
    return sorted({*BUILT_IN, *(point.name for point in entry_points(group=GROUP))})


def make_sink(type_: str, options: SinkOptions) -> Sink:
    """A configured sink. What ships goes before a plug-in of the same name. Raises SinkTypeUnknown, and what
    the kind itself finds wrong."""
    return _point(type_)(options)


def _point(type_: str) -> Configure:
    if type_ in BUILT_IN:
        point = EntryPoint(type_, BUILT_IN[type_], GROUP)
    else:
        found = tuple(entry_points(group=GROUP, name=type_))
        if not found:
            raise SinkTypeUnknown(type_, sink_types())
        point = found[0]
    try:
        return cast("Configure", point.load())
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"the sink type {type_!r} ({point.value}) cannot be loaded: {error}",
            hint="correct or remove the package that brings it",
        ) from error
