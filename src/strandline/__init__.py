"""Strandline: an event store, and a data pipeline on top of it that delivers each row exactly once."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from strandline.node.node import open_node as open  # noqa: A004  # strandline.open, as one opens a file

__all__ = ["open"]


def __getattr__(name: str) -> Any:
    """`strandline.open(home)`, looked up when it is used: `import strandline.persist` stays light."""
    if name == "open":
        from strandline.node.node import open_node

        return open_node
    raise AttributeError(f"module 'strandline' has no attribute {name!r}")
