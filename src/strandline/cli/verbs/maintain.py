"""`strandline maintain`: tables are kept small and quick; and what an operator does after the store or the
warehouse was moved or put back."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from strandline.cli.command_group import command, confirmed, exit_code, tell
from strandline.cli.node_options import Home, home_options, note, note_holder
from strandline.cli.show import print_json, print_table, progress
from strandline.cli.show_store_upkeep import tell_tidied
from strandline.cli.verbs.sync import worst
from strandline.errors import StrandlineError, UsageError

if TYPE_CHECKING:
    from strandline.lake.metadata.relocate import Relocated
    from strandline.maintenance.compaction.merge import LandedRewrite
    from strandline.maintenance.table_upkeep import Maintained

_PATH: Final = "strandline maintain"


@command("maintain")
@click.argument("dataset", required=False)
@click.option("--compact-only", is_flag=True, help="Merge files, and do nothing else.")
@click.option("--expire-only", is_flag=True, help="Let old snapshots and files go, and do nothing else.")
@click.option("--force", is_flag=True, help="Merge files that are not due too.")
@click.option(
    "--relocate", is_flag=True, help="Re-point tables whose warehouse was moved to [lake] warehouse."
)
@click.option(
    "--catalog",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="With --relocate: take over what this SQLite catalog of before names.",
)
@click.option("--confirm-restore", is_flag=True, help="Let the orphan sweep go on after a restore.")
@click.option("--dry-run", is_flag=True, help="Tell what would be done, change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@home_options
def maintain_(
    home: Home,
    as_json: bool,
    dataset: str | None,
    compact_only: bool,
    expire_only: bool,
    force: bool,
    relocate: bool,
    catalog: Path | None,
    confirm_restore: bool,
    dry_run: bool,
    yes: bool,
) -> int:
    """Merge small files of the table of DATASET, or of every dataset; let snapshots that [compaction] does
    not keep go, and once a day files that no snapshot names. It is what the daemon does by itself every
    [compaction] interval_min, and takes [compaction] max_tick_s a dataset at most, one merge aside.

    Rows stay as they are, but for repeats in datasets that collapse them. Where nothing is due no Spark is
    started. Ends with 1 if files could not be merged; the others are all the same.

    With --json one object a dataset: dataset, compacted (level, bins, files_in, files_out, rows, bytes_in,
    bytes_out, duplicates, resumed), due (stretches of files that are left for the next time), conflicts,
    failed (place, first seq, reason), expired (snapshots), orphans (files; null: not looked for), dry_run; or
    dataset, error. Where no dataset is named the store is tidied as well: segments that have landed, blobs
    that nothing names, markers that have served, history that is closed; then one object more: tidied.

    --relocate writes the metadata of each table anew, with the paths of [lake] warehouse, where the files
    must be already; data files are not touched. Where the catalog is another one now, as after a move to
    Postgres, --catalog names the file of the old one, whose tables are taken over. With --json one object a
    table: table, was, now (null with --dry-run).

    --confirm-restore says that what the restored store does not know may go: rows that were acknowledged
    after the backup are orphans now, and the sweep, which waits since, removes them. With --json: dataset,
    at, reason of what it waited for, dry_run; null if it did not wait.

    For example: strandline maintain logs --dry-run
    """
    if sum((relocate, confirm_restore, compact_only or force, expire_only)) > 1:
        raise UsageError(
            "two things are named that do not go together",
            hint="one of --relocate, --confirm-restore, --expire-only, or --compact-only and --force",
        )
    if (relocate or confirm_restore) and dataset is not None:
        raise UsageError("it is about all datasets", hint=f"leave {dataset!r} out")
    if catalog is not None and not relocate:
        raise UsageError("--catalog is for --relocate", hint="add that")
    if relocate:
        return _relocate(home, as_json, catalog, dry_run)
    if confirm_restore:
        return _confirm(home, as_json, dry_run, yes)
    from strandline.maintenance.table_upkeep import UpkeepAsked

    asked = UpkeepAsked(compact=not expire_only, expire=not compact_only, force=force)
    with home.node() as node:
        for name in [dataset] if dataset is not None else node.datasets():
            note_holder(node.site, f"maintain/{name}")
        with progress("maintaining") as shown:
            results = node.keeping.maintain(
                dataset, asked, dry_run=dry_run, tell=lambda name, done: shown.show(_so_far(name, done))
            )
        tidied = node.keeping.tidy() if dataset is None and not (dry_run or compact_only) else None
    codes: list[int] = []
    lines = []
    for name, result in results.items():
        if isinstance(result, StrandlineError):
            if as_json:
                facts = {"kind": result.kind, "message": result.message, "hint": result.hint}
                print_json({"dataset": name, "error": facts})
            where = f"{_PATH} {name}"
            codes.append(tell(where, result.kind, result.message, result.hint, exit_code(result)))
            continue
        if as_json:
            print_json(_facts(result))
        lines.append(_line(result))
        codes += _tell_failed(result)
    if lines and not as_json:
        print_table(("DATASET", "MERGED", "INTO", "REPEATS", "DUE", "EXPIRED", "ORPHANS"), lines)
    if tidied is not None:
        codes += tell_tidied(_PATH, tidied, as_json=as_json)
    if dry_run:
        note("nothing was changed")
    return worst(codes)


def _so_far(dataset: str, done: "LandedRewrite") -> str:
    return f"{dataset}: {done.files_in:,} files are {done.files_out:,} now, {done.bytes_in / 1e6:,.1f} MB"


def _tell_failed(result: "Maintained") -> list[int]:
    found = [f"{bin_.place} from seq {bin_.first:,}: {why}" for bin_, why in result.walk.failed.items()]
    if not found:
        return []
    more = f" and {len(found) - 1:,} more" if len(found) > 1 else ""
    return [
        tell(
            f"{_PATH} {result.dataset}",
            "degraded",
            f"files could not be merged: {found[0]}{more}",
            "they are tried again in a day, when something in them changes, or with --force",
            1,
        )
    ]


def _line(result: "Maintained") -> tuple[Any, ...]:
    runs = result.walk.runs
    return (
        result.dataset,
        sum(each.files_in for each in runs),
        sum(each.files_out for each in runs),
        sum(each.duplicates for each in runs),
        result.walk.due,
        result.expired,
        "" if result.orphans is None else result.orphans,
    )


def _facts(result: "Maintained") -> dict[str, Any]:
    return {
        "dataset": result.dataset,
        "compacted": [
            {
                "level": each.level,
                "bins": each.bins,
                "files_in": each.files_in,
                "files_out": each.files_out,
                "rows": each.rows,
                "bytes_in": each.bytes_in,
                "bytes_out": each.bytes_out,
                "duplicates": each.duplicates,
                "resumed": each.is_resumed,
            }
            for each in result.walk.runs
        ],
        "due": result.walk.due,
        "conflicts": result.walk.conflicts,
        "failed": [
            {"place": bin_.place, "first": bin_.first, "reason": why}
            for bin_, why in result.walk.failed.items()
        ],
        "expired": result.expired,
        "orphans": result.orphans,
        "dry_run": result.is_dry,
    }


def _relocate(home: Home, as_json: bool, catalog: Path | None, dry_run: bool) -> int:
    from strandline.lake.metadata.relocate import relocate

    done = relocate(home.config().lake_settings(), catalog_was=catalog, dry_run=dry_run)
    if as_json:
        for each in done:
            print_json({"table": each.table, "was": each.was, "now": each.now})
    elif done:
        print_table(("TABLE", "WAS", "NOW"), [_moved(each) for each in done])
    would = "would be " if dry_run else ""
    click.echo(f"{len(done):,} tables {would}re-pointed", err=True)
    return 0


def _moved(moved: "Relocated") -> tuple[str, str, str]:
    return moved.table, moved.was, moved.now or ""


def _confirm(home: Home, as_json: bool, dry_run: bool, yes: bool) -> int:
    from strandline.flush.reconcile import confirm_restore, paused

    with home.site() as site:
        found = paused(site)
        if found is not None and not dry_run:
            question = f"Let go of what the restored store does not know? ({found['reason']})"
            if not confirmed(question, yes=yes):
                return 1
            confirm_restore(site)
    if as_json:
        print_json(None if found is None else {**found, "dry_run": dry_run})
    elif found is None:
        note("the orphan sweep does not wait for anything")
    else:
        click.echo(f"the orphan sweep {'would go' if dry_run else 'goes'} on; it waited: {found['reason']}")
    return 0
