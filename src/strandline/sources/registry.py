"""The kinds of providers by name: those that ship, and those that installed packages bring.

[project.entry-points."strandline.providers"]
mail = "my_package.mail:configure"          # configure(options: ProviderOptions) -> Provider
"""

from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Final, TypeAlias, cast

from strandline.errors import NotFoundError, UsageError
from strandline.sources.provider import Provider, ProviderOptions

GROUP: Final = "strandline.providers"
BUILT_IN: Final[Mapping[str, str]] = {
    "claude-code": "strandline.sources.claude_code:configure",
    "codex": "strandline.sources.codex:configure",
    "files": "strandline.sources.files:configure",
    "spark": "strandline.sources.spark_source:configure",
}

Configure: TypeAlias = Callable[[ProviderOptions], Provider]


class ProviderTypeUnknown(NotFoundError):
    """No provider of this type is installed."""

    def __init__(self, type_: str, known: list[str]) -> None:
        super().__init__(
            f"there is no provider of type {type_!r:.80}; there are {', '.join(known)}",
            hint="correct the type, or install the package that brings it",
        )
        self.type, self.known = type_, known


def provider_types() -> list[str]:
    """The names of all kinds."""
    return sorted({*BUILT_IN, *(point.name for point in entry_points(group=GROUP))})


def make_provider(type_: str, options: ProviderOptions) -> Provider:
    """A configured provider. What ships goes before a plug-in of the same name."""
    if type_ in BUILT_IN:
        point = EntryPoint(type_, BUILT_IN[type_], GROUP)
    else:
        found = tuple(entry_points(group=GROUP, name=type_))
        if not found:
            raise ProviderTypeUnknown(type_, provider_types())
        point = found[0]
    try:
        configure = cast("Configure", point.load())
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"the provider type {type_!r} ({point.value}) cannot be loaded: {error}",
            hint="correct or remove the package that brings it",
        ) from error
    return configure(options)
