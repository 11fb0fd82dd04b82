"""`strandline persist stats`, `verify`, `erase`, `redact`, `backup` and `restore`."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from strandline.cli.command_group import command, confirmed, tell
from strandline.cli.parse_values import now_us, parse_value
from strandline.cli.show import Progress, print_event, print_facts, print_json, print_table, progress, shown
from strandline.cli.store_options import Target, store_options
from strandline.errors import CorruptionError, NotFoundError, UsageError
from strandline.persist.backend import AtomicBackend, Backend, Damage, Portable, Record
from strandline.persist.core.commit import redacted
from strandline.persist.features.erasure import erase_stream, redact
from strandline.persist.features.log import count
from strandline.persist.features.upkeep import backup, quarantine, restore, stats, verify, verify_file
from strandline.persist.opening import sqlite_path
from strandline.persist.reserved import guard
from strandline.persist.value import check_name, check_seq


@command("stats")
@store_options
def stats_(target: Target, as_json: bool) -> None:
    """Sizes, longest tails, lags of snapshots, holds and consumers.

    For example: strandline persist stats --store events.db
    """
    with target.opened() as b:
        found = stats(b)
    if as_json:
        print_json(found)
        return
    print_facts({name: value for name, value in found.items() if not isinstance(value, list)})
    for name, rows in found.items():
        if isinstance(rows, list) and rows:
            click.echo(f"\n{name.replace('_', ' ')}")
            headers = list(rows[0])
            print_table(
                [header.upper() for header in headers], [[row.get(h) for h in headers] for row in rows]
            )


@command("verify")
@click.option(
    "--quarantine", "sets_aside", is_flag=True, help="Set damaged events aside, so that reads go past."
)
@click.option("--dry-run", is_flag=True, help="With --quarantine: tell the count, change nothing.")
@click.option("--yes", is_flag=True, help="With --quarantine: do not ask.")
@store_options
def verify_(target: Target, as_json: bool, sets_aside: bool, dry_run: bool, yes: bool) -> int:
    """Read everything and name what is damaged or missing; ends with 1 if there is any.

    What was set aside before is listed and does not count as damage.

    For example: strandline persist verify --store events.db
    """
    try:
        with target.opened() as b:
            with progress("verifying"):
                found = verify(b)
            events = [damage for damage in found if damage.what == "event"]
            aside = _set_aside(b, events, dry_run, yes) if sets_aside and events else 0
    except CorruptionError:
        found, aside = _verified_closed(target), 0
        if not found:
            raise
    damaged = [damage for damage in found if damage.what != "quarantined"]
    if as_json:
        print_json(
            {
                "damage": [damage._asdict() for damage in damaged],
                "quarantined": [damage._asdict() for damage in found if damage.what == "quarantined"],
                "set_aside": aside,
                "dry_run": dry_run,
            }
        )
    else:
        if found:
            print_table(("WHAT", "NAME", "SEQ", "FOUND"), found)
        click.echo(f"{len(damaged)} damaged, {len(found) - len(damaged)} set aside before", err=True)
        if sets_aside:
            click.echo(f"{aside} {'would be ' if dry_run else ''}set aside", err=True)
    return 1 if damaged else 0


def _verified_closed(target: Target) -> list[Damage]:
    """What is damaged in a store that does not open; nothing is known of one that is not in SQLite."""
    path = sqlite_path(target.url)
    if path is None:
        return []
    with progress("verifying"):
        return verify_file(path)


def _set_aside(b: AtomicBackend, damaged: list[Damage], dry_run: bool, yes: bool) -> int:
    """How many were. Of a run of missing events it is the first: repeat the command for the next."""
    if dry_run:
        return len(damaged)
    if not confirmed(f"Set {len(damaged)} damaged events aside? Reads then go past them.", yes=yes):
        return 0
    done = 0
    for damage in damaged:
        try:
            quarantine(b, damage.name, damage.seq, now_us())
            done += 1
        except (NotFoundError, CorruptionError) as error:  # set aside with another, or out of reach
            tell("strandline persist verify", error.kind, error.message, error.hint, 1)
    return done


@command("erase")
@click.argument("stream")
@click.option("--reason", required=True, metavar="TEXT", help="Why; it is kept in the record of the erasure.")
@click.option("--dry-run", is_flag=True, help="Tell the count, erase nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@store_options
def erase_(target: Target, as_json: bool, stream: str, reason: str, dry_run: bool, yes: bool) -> int:
    """Remove every event of STREAM, its snapshots, and what markers and quarantine keep of it.

    Its name and last seq stay. Backups made before are not touched.

    For example: strandline persist erase cart-1 --reason "asked for by ann" --store events.db --dry-run
    """
    guard("stream", check_name("stream", stream))
    check_name("reason", reason)
    with target.opened() as b:
        if b.last_seq(stream) == 0:
            raise NotFoundError(
                f"there is no stream {stream!r}", hint="`strandline persist streams` lists them"
            )
        stored = count(b, stream)
        if not dry_run:
            if not confirmed(f"Erase {stored:,} events of stream {stream!r} for good?", yes=yes):
                return 1
            with progress("erasing"):
                erase_stream(b, stream, now_us(), reason=reason)
    if as_json:
        print_json({"stream": stream, "erased": stored, "dry_run": dry_run})
    else:
        click.echo(f"{stored:,} events {'would be ' if dry_run else ''}erased")
    return 0


@command("redact")
@click.argument("stream")
@click.argument("seq", type=int)
@click.argument("path")
@click.option("--reason", required=True, metavar="TEXT", help="Why; it is kept in the record.")
@click.option("--dry-run", is_flag=True, help="Tell what would go, change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@store_options
def redact_(
    target: Target, as_json: bool, stream: str, seq: int, path: str, reason: str, dry_run: bool, yes: bool
) -> int:
    """Put null in place of the value at PATH, a JSON list of keys and indexes, in event SEQ of STREAM.

    The snapshots that have folded the event are named: rebuild them.

    For example: strandline persist redact users 7 '["address"]' --reason "request 12" --store events.db
    """
    guard("stream", check_name("stream", stream))
    check_seq("seq", seq, least=1)
    steps = parse_value(path, "PATH")
    if not isinstance(steps, list) or not all(type(step) in (str, int) for step in steps):
        raise UsageError(
            "PATH is no JSON list of keys and indexes", hint="""such as '["address", "street"]'"""
        )
    with target.opened() as b:
        event = b.event_at(stream, seq)
        if event is None:
            raise NotFoundError(f"event {seq} of stream {stream!r} is not stored", hint="it may be truncated")
        redacted(event.data, steps)  # a path that leads nowhere raises before anyone is asked
        if dry_run:
            found: Mapping[str, Any] = {"redacted": 1, "snapshots": []}
        else:
            if not confirmed(f"Blank {path} in event {seq} of stream {stream!r} for good?", yes=yes):
                return 1
            done = redact(b, stream, seq, steps, now_us(), reason=reason)
            found = {"redacted": 1, "snapshots": done.snapshots}
    if as_json:
        print_json({"stream": stream, "seq": seq, "path": steps, **found, "dry_run": dry_run})
        return 0
    if dry_run:
        print_event(event, as_json)
    click.echo(f"1 value {'would be ' if dry_run else ''}redacted")
    for name in found["snapshots"]:
        click.echo(f"rebuild snapshot {shown(name)}", err=True)
    return 0


@command("backup")
@click.argument("file", type=click.Path(path_type=Path))
@store_options
def backup_(target: Target, as_json: bool, file: Path) -> None:
    """Write the store as of one instant into the new SQLite store FILE, while it is in use.

    For example: strandline persist backup events.backup --store events.db
    """
    with target.opened() as b, progress("backing up, records") as shown_:
        counts = backup(_counted(b, shown_), file)
    _print_counts(counts, as_json)


@command("restore")
@click.argument("file", type=click.Path(path_type=Path))
@store_options
def restore_(target: Target, as_json: bool, file: Path) -> None:
    """Fill the store, which must be empty, from the backup FILE, and verify it before it says done.

    For example: strandline persist restore events.backup --store restored.db
    """
    if not file.exists():
        raise NotFoundError(f"there is no file {file}", hint="name a backup")
    with target.opened(create=True) as b, progress("restoring, records") as shown_:
        counts = restore(_counted(b, shown_), file)
    _print_counts(counts, as_json)


def _print_counts(counts: Mapping[str, int], as_json: bool) -> None:
    kinds = {kind: counts.get(kind, 0) for kind in ("stream", "event", "key", "pointer")}
    if as_json:
        print_json({f"{kind}s": n for kind, n in kinds.items()})
    else:
        print_facts({f"{kind}s": n for kind, n in kinds.items()})


class _Counted:
    """A store whose records are counted on their way out and in."""

    def __init__(self, b: Portable, shown_: Progress) -> None:
        self._b, self._shown = b, shown_

    def dump(self, *, raw: bool = False) -> Iterator[Record]:
        return self._each(self._b.dump(raw=raw))

    def load(self, records: Iterable[Record]) -> Mapping[str, int]:
        return self._b.load(self._each(records))

    def _each(self, records: Iterable[Record]) -> Iterator[Record]:
        for record in records:
            self._shown.step()
            yield record

    def __getattr__(self, name: str) -> Any:
        return getattr(self._b, name)


def _counted(b: Backend, shown_: Progress) -> Any:
    return _Counted(b, shown_) if isinstance(b, Portable) else b
