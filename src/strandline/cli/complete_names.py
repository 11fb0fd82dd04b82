"""Names that a shell completes: datasets, sinks and providers, as the node's file has them. No store is
opened, and no Spark started."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

import click
from click.shell_completion import CompletionItem

from strandline.errors import StrandlineError

if TYPE_CHECKING:
    from strandline.config.config import Config


def _datasets(config: "Config") -> Iterable[str]:
    from strandline.config.datasets import BUILT_IN_TABLES

    return {*config.datasets, *BUILT_IN_TABLES}


# By the name of the parameter that takes one.
COMPLETED: Final[dict[str, Callable[["Config"], Iterable[str]]]] = {
    "dataset": _datasets,
    "datasets": _datasets,
    "sink": lambda config: config.sinks,
    "provider": lambda config: config.backfill,
}


class Named(click.types.StringParamType):
    """A text that a shell can complete."""

    def __init__(self, names: Callable[["Config"], Iterable[str]]) -> None:
        self._names = names

    def shell_complete(
        self,
        ctx: click.Context,
        param: click.Parameter,  # noqa: ARG002  # as click calls it
        incomplete: str,
    ) -> list[CompletionItem]:
        from strandline.config.config import FILE_NAME, find_home, load_config

        try:
            config = load_config(find_home(ctx.params.get("home_")) / FILE_NAME)
        except StrandlineError:
            return []  # whoever runs the command is told; amid a line nobody would understand it
        return [CompletionItem(name) for name in sorted(self._names(config)) if name.startswith(incomplete)]
