"""Which place a path or URL names."""

from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from strandline.errors import UsageError
from strandline.storage.objects.bucket import BucketObjects
from strandline.storage.objects.folder import FolderObjects
from strandline.storage.objects.memory import MemoryObjects
from strandline.storage.objects.object import Objects


def open_objects(url: str | Path, **options: Any) -> Objects:
    """The objects at a path or URL. Options are obstore's, for a bucket: `endpoint`, `region`…"""
    if isinstance(url, Path):
        url = str(url)
    scheme = urlsplit(url).scheme if "://" in url or url.startswith("memory:") else ""
    if scheme in ("s3", "gs", "az"):
        return BucketObjects(url, **options)
    if options:
        raise UsageError(f"{url!r} takes no options, not {', '.join(options)}", hint="only buckets take them")
    if scheme == "memory":
        return MemoryObjects()
    if scheme in ("", "file"):
        return FolderObjects(_path_of(url))
    raise UsageError(f"no objects at {url!r}", hint="a path, or file:///, s3://, gs://, az:// or memory:")


def _path_of(url: str) -> Path:
    if not url.startswith("file:"):
        if not url:
            raise UsageError("the path of the objects is empty", hint="name a folder")
        return Path(url)
    parsed = urlsplit(url)
    if parsed.netloc not in ("", "localhost") or not parsed.path.startswith("/"):
        raise UsageError(f"{url!r} names a host", hint="a file URL has three slashes: file:///folder")
    return Path(unquote(parsed.path))
