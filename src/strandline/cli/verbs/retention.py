"""`strandline retention`: rows that are not kept any longer go, now."""

from typing import TYPE_CHECKING, Any, Final

import click

from strandline.cli.command_group import Group, Subcommand, command, exit_code, tell
from strandline.cli.node_options import Home, home_options, note, note_holder
from strandline.cli.show import print_json, print_table
from strandline.cli.verbs.spool import at_text
from strandline.cli.verbs.sync import worst
from strandline.errors import StrandlineError

if TYPE_CHECKING:
    from strandline.maintenance.retention.prune import PruneResult

_PATH: Final = "strandline retention run"

retention = Group(
    "retention",
    help="How long rows stay, and taking out those that do not.",
    subcommands={
        "run": Subcommand(
            "strandline.cli.verbs.retention:run_", "Take out rows that are not kept any longer."
        )
    },
)


@command("run")
@click.argument("dataset", required=False)
@click.option("--dry-run", is_flag=True, help="Count what would go, and take nothing out.")
@home_options
def run_(home: Home, as_json: bool, dataset: str | None, dry_run: bool) -> int:
    """Take the rows that [retention] does not keep out of the table of DATASET, or of every dataset: what the
    daemon does by itself every [retention] interval_min.

    Rows that a sink which is waited for does not have stay, and are told. Spark is started only where rows
    can go. One dataset that fails stops no other.

    With --json one object a dataset: dataset, cutoff (UTC microseconds, null: age does not count), rows,
    evicted (rows that some sink had not delivered), strands (source: lo, hi, without lo, rows), held (sink:
    rows, at most), resumed (a run that was cut short is finished), dry_run; or dataset, error.

    For example: strandline retention run logs --dry-run
    """
    with home.node() as node:
        for name in [dataset] if dataset is not None else node.datasets():
            note_holder(node.site, f"maintain/{name}")
        results = node.keeping.prune(dataset, dry_run=dry_run)
    codes = []
    lines = []
    for name, result in results.items():
        if isinstance(result, StrandlineError):
            facts = {"kind": result.kind, "message": result.message, "hint": result.hint}
            if as_json:
                print_json({"dataset": name, "error": facts})
            where = f"{_PATH} {name}"
            codes.append(tell(where, result.kind, result.message, result.hint, exit_code(result)))
        elif as_json:
            print_json(_facts(result))
        else:
            lines.append(_line(result))
    if lines:
        print_table(("DATASET", "CUTOFF", "ROWS", "EVICTED", "STRANDS", "HELD"), lines)
    if dry_run:
        note("nothing was taken out")
    return worst(codes)


def _line(result: "PruneResult") -> tuple[Any, ...]:
    cutoff = "" if result.cutoff is None else at_text(result.cutoff)
    held = ", ".join(f"{rows:,} for {sink}" for sink, rows in sorted(result.held.items()))
    return result.dataset, cutoff, result.rows, result.evicted, len(result.strands), held


def _facts(result: "PruneResult") -> dict[str, Any]:
    return {
        "dataset": result.dataset,
        "cutoff": result.cutoff,
        "rows": result.rows,
        "evicted": result.evicted,
        "strands": {
            source: {"lo": each.seqs.lo, "hi": each.seqs.hi, "rows": each.rows}
            for source, each in result.strands.items()
        },
        "held": dict(result.held),
        "resumed": result.is_resumed,
        "dry_run": result.is_dry,
    }
