"""`strandline flush`: what is pending lands in the tables."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from strandline.base.ranges import Range
from strandline.cli.command_group import command, exit_code, tell
from strandline.cli.node_options import Home, home_options, note, note_holder
from strandline.cli.show import print_json, print_table
from strandline.errors import StrandlineError

if TYPE_CHECKING:
    from strandline.flush.flush import FlushReport, FlushResult
    from strandline.node.node import Node

_PATH = "strandline flush"
_HELD = 3


@command("flush")
@click.argument("dataset", required=False)
@home_options
def flush_(home: Home, as_json: bool, dataset: str | None) -> int:
    """Land everything that is pending now in the table of DATASET, or of every dataset.

    Spark is started only if something is pending. One dataset that fails stops no other. Ends with 3 if rows
    are held back by a damaged segment: `strandline spool check` looks at it.

    With --json one object a dataset: dataset, rows, flushes (number, reason, rows, bytes, files, ms,
    duplicates, dropped, settle_failure, resumed, ranges by source), held (ranges by source), landed_loads and
    released_loads (of processes that died); or dataset, error. Ranges are [lo, hi], without lo.

    For example: strandline flush logs
    """
    with home.node() as node:
        names = [dataset] if dataset is not None else node.datasets()
        codes = [_flush_one(node, name, as_json) for name in names]
    if dataset is not None:
        return codes[0]
    if not any(codes):
        return 0
    return _HELD if set(codes) <= {0, _HELD} else 1


def _flush_one(node: "Node", dataset: str, as_json: bool) -> int:
    note_holder(node.site, f"flush/{dataset}")
    try:
        report = node.flush(dataset)
    except StrandlineError as error:
        if as_json:
            facts = {"kind": error.kind, "message": error.message, "hint": error.hint}
            print_json({"dataset": dataset, "error": facts})
        return tell(f"{_PATH} {dataset}", error.kind, error.message, error.hint, exit_code(error))
    if as_json:
        print_json(_report_facts(report))
    elif report.flushes:
        _print_flushes(report)
    elif not (report.landed_loads or report.released_loads):
        click.echo(f"{dataset}: nothing to flush", err=True)
    for load in report.landed_loads:
        note(f"{dataset}: load {load}, whose process had died, has landed")
    for load in report.released_loads:
        note(f"{dataset}: load {load}, whose process had died, is released, its numbers a gap: run it again")
    if not report.held:
        return 0
    rows = sum(len(each) for ranges in report.held.values() for each in ranges)
    return tell(
        f"{_PATH} {dataset}",
        "held",
        f"{rows:,} rows of {len(report.held):,} strands wait for segments that cannot be read",
        f"`strandline spool check {dataset}` names them: put them back from a copy, or give their rows up "
        "with `strandline spool lost`",
        _HELD,
    )


def _print_flushes(report: "FlushReport") -> None:
    rows = [
        (each.dataset, each.number, each.rows, each.files, each.duplicates, f"{each.ms / 1000:.1f} s")
        for each in report.flushes
    ]
    print_table(("DATASET", "FLUSH", "ROWS", "FILES", "DUPLICATES", "TOOK"), rows)


def _report_facts(report: "FlushReport") -> dict[str, Any]:
    return {
        "dataset": report.dataset,
        "rows": report.rows,
        "flushes": [_flush_facts(each) for each in report.flushes],
        "held": _ranges(report.held),
        "landed_loads": list(report.landed_loads),
        "released_loads": list(report.released_loads),
    }


def _flush_facts(flush: "FlushResult") -> dict[str, Any]:
    return {
        "number": flush.number,
        "reason": flush.reason,
        "rows": flush.rows,
        "bytes": flush.bytes,
        "files": flush.files,
        "ms": flush.ms,
        "duplicates": flush.duplicates,
        "dropped": flush.dropped,
        "settle_failure": flush.settle_failure,
        "resumed": flush.is_resumed,
        "ranges": _ranges(flush.ranges),
    }


def _ranges(ranges: Mapping[str, tuple[Range, ...]]) -> dict[str, list[list[int]]]:
    return {source: [[each.lo, each.hi] for each in found] for source, found in ranges.items()}
