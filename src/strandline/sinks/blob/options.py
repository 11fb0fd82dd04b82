"""A blob sink out of the keys of its configuration."""

from typing import Any

from strandline.base.secret import is_reference
from strandline.sinks.blob.blob_sink import BlobSink
from strandline.sinks.registry import SinkOptions


def configure(options: SinkOptions) -> BlobSink:
    """A relative `dir` starts at the node's home; credentials that are references are looked up."""
    keys: dict[str, Any] = dict(options.keys)
    if keys.get("dir"):
        keys["dir"] = str(options.home / keys["dir"])
        keys["home"] = str(options.home)
    given = keys.get("credentials", {})
    keys["credentials"] = {
        name: options.secret(text) if is_reference(text) else str(text) for name, text in given.items()
    }
    return BlobSink(**keys)
