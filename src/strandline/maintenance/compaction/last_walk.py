"""What the last walk over a table found, kept in the store.

walked/<dataset>    {"pointer", "rests_on", "is_done", "at", "files", "rows", "bytes", "snapshots"}
"""

from collections.abc import Mapping
from typing import Any

from strandline.state.context import Site


def walked(site: Site, dataset: str) -> Mapping[str, Any] | None:
    """None before the first."""
    found: Any = site.b.kv_get(walked_key(dataset))
    return found if isinstance(found, Mapping) else None


def walked_key(dataset: str) -> str:
    return f"walked/{dataset}"
