"""What an operator asks of a store: is it sound, how big is it, a copy of it, and that copy back."""

import errno
import os
from typing import TYPE_CHECKING, Any, Final

from strandline.base.failpoint import reach
from strandline.errors import CorruptionError, OutcomeUnknown, StoreUnavailable, UsageError
from strandline.persist.audit import audit, checked
from strandline.persist.backend import Backend, Damage, Inspectable, Portable
from strandline.persist.core.lift import atomic
from strandline.persist.event import Scalar
from strandline.persist.features.consumer import consumers
from strandline.persist.features.kv import kv_items
from strandline.persist.features.log import PAGE
from strandline.persist.reserved import GLOBAL, HOLD, ONCE, SNAPSHOT_OF

if TYPE_CHECKING:
    from pathlib import Path

_NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


def verify(b: Backend) -> list[Damage]:
    """Everything that is damaged, missing or set aside, reading all there is.

    It finds each event, value and pointer that does not match its checksum, each event and position that is
    missing, and damaged pages. It does not find a key that is gone as a whole, or whose value is an older one
    as a whole: keys have no numbers to miss one by.
    """
    if not isinstance(b, Inspectable):
        raise UsageError(f"{type(b).__name__} cannot look at its own rows", hint="verify beside the data")
    return b.verify()


def verify_file(path: "str | Path") -> list[Damage]:
    """Verify a SQLite store that does not open any more: it is read without the check of its pages."""
    from pathlib import Path

    from strandline.persist.backends.sqlite.repair import damage_of

    return damage_of(Path(path))


def repair(path: "str | Path") -> int:
    """Give all pages of a SQLite store the right checksums, if another SQLite program has written to it.

    Return how many did not have them. All rows must be sound, or it raises CorruptionError and changes
    nothing. The store may be in use. It needs as much room on the disk as the store takes.
    """
    from pathlib import Path

    from strandline.persist.backends.sqlite.repair import repair as repair_file

    return repair_file(Path(path))


def quarantine(b: Backend, stream: str, seq: int, at: Scalar) -> None:
    """Set one event aside that is damaged or missing: reads go past it, folds over it raise HistoryGap,
    verify goes on naming it."""
    if not isinstance(b, Inspectable):
        raise UsageError(f"{type(b).__name__} cannot look at its own rows", hint="quarantine beside the data")
    b.quarantine(stream, seq, at)


def backup(b: Backend, path: "str | Path") -> dict[str, int]:
    """Write the store as of one instant into a new SQLite store file, checking each row; how many of each
    kind.

    The file appears under its name only when it is whole, and never in the place of another. A crash leaves
    at most a `.strandline-backup-…` beside it, which nothing reads.
    """
    from pathlib import Path

    from strandline.persist.backends.sqlite.file import sync_folder

    source, target = _portable(b, "backup"), Path(path)
    partial = target.with_name(f".strandline-backup-{os.urandom(4).hex()}")
    try:
        _refuse_unless_free(target)
        try:
            counts = _fill(source, partial)
            _name(partial, target)
            reach("backup.named")
        finally:
            _remove(partial)
        sync_folder(target.parent)
    except OSError as error:
        raise StoreUnavailable(
            f"the backup {str(target)!r:.200} cannot be written: {error.strerror}",
            hint="check its name, its folder and the disk",
        ) from error
    return counts


def _fill(source: Portable, partial: "Path") -> dict[str, int]:
    from strandline.persist.backends.sqlite import SqliteBackend

    copy = SqliteBackend(partial)
    try:
        counts = dict(copy.load(checked(source.dump())))
        reach("backup.filled")
        copy.seal()
    except OutcomeUnknown as error:  # that of the copy is known: nobody will see it
        raise StoreUnavailable(f"no backup was made: {error.message}", hint="check the disk") from error
    finally:
        copy.close()
    reach("backup.sealed")
    return counts


def _name(partial: "Path", target: "Path") -> None:
    """Give a whole file its name, unless something has it: also what was made since we looked."""
    try:
        target.hardlink_to(partial)
    except FileExistsError as error:
        raise _is_there(target) from error
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # A file system without links. A crash between the two leaves an empty file, which no one can open
        # as a store, and the partial one.
        try:
            target.touch(exist_ok=False)
        except FileExistsError:
            raise _is_there(target) from error
        partial.rename(target)


def _refuse_unless_free(target: "Path") -> None:
    try:
        target.lstat()
    except FileNotFoundError:
        return
    except ValueError as error:
        raise UsageError(
            f"{str(target)!r:.200} cannot name a file: {error}", hint="choose another"
        ) from error
    raise _is_there(target)


def _is_there(target: "Path") -> UsageError:
    return UsageError(f"{target} is there already", hint="name a file that does not exist")


def restore(b: Backend, path: "str | Path") -> dict[str, int]:
    """Fill an empty store from a backup, then verify it: how many of each kind. It gets a lineage of its
    own."""
    from strandline.persist.backends.sqlite import SqliteBackend

    target = _portable(b, "restore")
    copy = SqliteBackend(path, create=False, read_only=True)
    try:
        counts = dict(target.load(checked(copy.dump())))
        _compare(audit(target.dump()), counts, target)
    finally:
        copy.close()
    return counts


def stats(b: Backend, *, longest: int = 10) -> dict[str, Any]:
    """Sizes, tails and lags. It pages through the catalogue and the reserved keys, so it takes time on a
    large store."""
    store = atomic(b)
    tails: list[tuple[int, str]] = []
    after = ""
    while page := store.stream_scan("", after=after, limit=PAGE):
        tails += [(head.last_seq - head.truncated_through, head.name) for head in page]
        tails = sorted(tails, key=lambda tail: (-tail[0], tail[1]))[:longest]
        after = page[-1].name
    info = store.info()
    return {
        **info,
        "longest_tails": [{"stream": name, "events": size} for size, name in tails],
        "snapshots": _lags(b, SNAPSHOT_OF),
        "holds": _lags(b, HOLD),
        "consumers": [status._asdict() for status in consumers(b)],
        "pointers": b.last_seq(GLOBAL) - store.truncated_through(GLOBAL),
        "markers": sum(1 for _ in kv_items(b, prefix=ONCE + "/", reserved=True)),
    }


def _lags(b: Backend, space: str) -> list[dict[str, Any]]:
    return [
        {**value, "lag": max(b.last_seq(value["stream"]) - value["seq"], 0)}
        for _, value in kv_items(b, prefix=space + "/", reserved=True)
    ]


def _compare(found: list[Damage], counts: dict[str, int], target: Portable) -> None:
    damaged = [damage for damage in found if damage.what != "quarantined"]
    stored: dict[str, int] = {}
    for kind, _ in target.dump():
        stored[kind] = stored.get(kind, 0) + 1
    short = {kind: count for kind, count in counts.items() if kind != "meta" and stored.get(kind, 0) != count}
    if damaged or short:
        raise CorruptionError(
            f"the restored store differs from its backup: {damaged[:3] or short}",
            hint="do not use this store; restore into a new one and look at the disk",
        )


def _portable(b: Backend, verb: str) -> Portable:
    if not isinstance(b, Portable):
        raise UsageError(
            f"{verb} does not work through {type(b).__name__}",
            hint=f"run `strandline persist {verb}` beside the host, on its own store",
        )
    return b


def _remove(partial: "Path") -> None:
    for suffix in ("", "-wal", "-shm", "-journal"):
        partial.with_name(partial.name + suffix).unlink(missing_ok=True)
