"""The node: how it is opened and used, and its status."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from strandline.node.node import Node, Refresh, open_node

__all__ = ["Node", "Refresh", "open_node"]


def __getattr__(name: str) -> Any:
    """Import the name on first use, because `strandline status` must run without pyarrow."""
    if name in __all__:
        from strandline.node import node

        return getattr(node, name)
    raise AttributeError(f"module 'strandline.node' has no attribute {name!r}")
