"""The catalogue: which streams there are. A stream is listed from its first event on, for ever."""

from collections.abc import Iterator

from strandline.persist.backend import Backend
from strandline.persist.core.lift import atomic
from strandline.persist.features.log import PAGE
from strandline.persist.reserved import is_reserved
from strandline.persist.value import check_name


def is_reserved_stream(name: str) -> bool:
    return is_reserved(name)


def streams_all(b: Backend) -> list[str]:
    """Every stream ever appended to."""
    return list(stream_names(b, reserved=True))


def streams(b: Backend) -> list[str]:
    """The same without those that the store keeps for itself."""
    return list(stream_names(b))


def stream_names(b: Backend, *, prefix: str = "", reserved: bool = False) -> Iterator[str]:
    """Names, lazily and by pages, in order of code points."""
    store, after = atomic(b), ""
    while page := store.stream_scan(prefix, after=after, limit=PAGE):
        yield from (head.name for head in page if reserved or not is_reserved(head.name))
        after = page[-1].name


def stream_count(b: Backend) -> int:
    return int(atomic(b).info()["streams"])


def stream_exists(b: Backend, s: str) -> bool:
    """Whether `s` is a public stream that was ever appended to."""
    return not is_reserved(check_name("stream", s)) and b.last_seq(s) > 0


def total_events(b: Backend) -> int:
    """The events ever appended to public streams, compacted ones included."""
    return int(atomic(b).info()["events"])
