"""The names that the store keeps for itself: they all start with `$`.

A key made of several names joins them with `/`, each percent-encoded where it must be, so that no two lists
of names give one key. A part that would be very long is replaced by its digest, so that every key fits in
an index.
"""

from hashlib import sha256
from typing import Final

from strandline.errors import ReservedName

GLOBAL: Final = "$global"
ERASED: Final = "$erased"
QUARANTINED: Final = "$quarantined"
COMMIT_SCOPE: Final = "$commit"

ONCE: Final = "$once"
SNAPSHOT: Final = "$snapshot"
SNAPSHOT_OF: Final = "$snapshot-of"
HOLD: Final = "$hold"
FLOOR: Final = "$floor"
LINEAGE: Final = "$lineage"
CONSUMER: Final = "$consumer"
QUARANTINE: Final = "$quarantine"

_LONGEST_PART_BYTES: Final = 1100


def is_reserved(name: str) -> bool:
    return name.startswith("$")


def guard(what: str, name: str) -> None:
    if name.startswith("$"):
        raise ReservedName(what, name)


def reserved_key(space: str, *names: str) -> str:
    """`reserved_key("$once", "a/b", "k")` is `$once/a%2Fb/k`."""
    return "/".join((space, *map(_part, names)))


def reserved_prefix(space: str, *names: str) -> str:
    """What every `reserved_key` that goes on after these names starts with."""
    return reserved_key(space, *names) + "/"


def _part(name: str) -> str:
    encoded = name.replace("%", "%25").replace("/", "%2F") if "/" in name or "%" in name else name
    if len(encoded) <= _LONGEST_PART_BYTES // 4 or len(encoded.encode()) <= _LONGEST_PART_BYTES:
        return encoded
    return "%sha256-" + sha256(name.encode()).hexdigest()  # no encoded name starts so: after % come 25 or 2F
