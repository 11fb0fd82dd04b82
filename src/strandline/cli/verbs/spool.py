"""`strandline spool`: rows that have not landed yet, what damage holds back, and bad rows in quarantine."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from strandline.cli.command_group import Group, Subcommand, command, confirmed
from strandline.cli.node_options import Home, home_options, note, note_holder
from strandline.cli.show import print_json, print_table, progress
from strandline.errors import NotFoundError, UsageError
from strandline.rows.dataset import Strand
from strandline.state.context import Site
from strandline.state.pending_rows import pending
from strandline.state.strand_state import DamagedRange, StrandState

if TYPE_CHECKING:
    from strandline.ingest.spool import SpoolLine

quarantine = Group(
    "quarantine",
    help="Rows that could not be stored; without a command it lists them.",
    subcommands={
        "drop": Subcommand("strandline.cli.verbs.quarantine:drop_", "Give the rows of an entry up."),
        "list": Subcommand("strandline.cli.verbs.quarantine:list_", "List the entries."),
        "retry": Subcommand(
            "strandline.cli.verbs.quarantine:retry_", "Append the rows of an entry once more."
        ),
        "show": Subcommand(
            "strandline.cli.verbs.quarantine:show_", "Print the rows of an entry, and the reasons."
        ),
    },
    default="list",
)

spool = Group(
    "spool",
    help="Rows that have not landed yet, and rows in quarantine; without a command it lists the strands.",
    subcommands={
        "check": Subcommand("strandline.cli.verbs.spool:check_", "Look into every pending segment."),
        "list": Subcommand("strandline.cli.verbs.spool:list_", "List what is pending, strand by strand."),
        "lost": Subcommand("strandline.cli.verbs.spool:lost_", "Give up the rows of a segment that is held."),
        "quarantine": Subcommand("strandline.cli.verbs.spool:quarantine", "Rows that could not be stored."),
    },
    default="list",
)


def datasets_of(site: Site, dataset: str | None) -> list[str]:
    """The one that is named, which must be known, or all."""
    if dataset is None:
        return site.standing.datasets()
    site.known(dataset)
    return [dataset]


def at_text(at_us: int) -> str:
    return datetime.fromtimestamp(at_us / 1e6, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@command("list")
@click.argument("dataset", required=False)
@home_options
def list_(home: Home, as_json: bool, dataset: str | None) -> None:
    """List what is pending of DATASET, or of all, strand by strand. It only reads.

    With --json one object a strand: dataset, source, rows, bytes, oldest (UTC microseconds), held (segment,
    lo, hi, reason).

    For example: strandline spool list logs
    """
    with home.site() as site:
        strands = [
            (name, source, strand_state)
            for name in datasets_of(site, dataset)
            for source, strand_state in sorted(site.standing.pending(name).items())
        ]
        facts = [_facts(site, *each) for each in strands]
    if as_json:
        for each in facts:
            print_json(each)
        return
    if not facts:
        click.echo("nothing is pending", err=True)
        return
    lines = [
        (
            each["dataset"],
            each["source"],
            each["rows"],
            each["bytes"],
            "" if each["oldest"] is None else at_text(each["oldest"]),
            sum(hold["hi"] - hold["lo"] for hold in each["held"]),
        )
        for each in facts
    ]
    print_table(("DATASET", "SOURCE", "ROWS", "BYTES", "OLDEST", "HELD"), lines)
    held = [(each["dataset"], each["source"], hold) for each in facts for hold in each["held"]]
    if held:
        click.echo()
        print_table(
            ("DATASET", "SOURCE", "HELD SEQS", "SEGMENT", "REASON"),
            [
                (name, source, f"{hold['lo'] + 1}-{hold['hi']}", hold["segment"], hold["reason"])
                for name, source, hold in held
            ],
        )


def _facts(site: Site, dataset: str, source: str, strand_state: StrandState) -> dict[str, Any]:
    oldest = next(pending(site.b, Strand(dataset, source), strand_state), None)
    return {
        "dataset": dataset,
        "source": source,
        "rows": strand_state.pending_rows,
        "bytes": strand_state.pending_bytes,
        "oldest": None if oldest is None else oldest.at,
        "held": [
            {"segment": each.segment, "lo": each.lo, "hi": each.hi, "reason": each.reason}
            for each in strand_state.holds
        ],
    }


@command("check")
@click.argument("dataset", required=False)
@home_options
def check_(home: Home, as_json: bool, dataset: str | None) -> int:
    """Look into every pending segment of DATASET, or of all; ends with 1 if one is damaged, missing, or could
    not be read now.

    It only reads, and what lands meanwhile is left out. With --json one object a range: dataset, source,
    segment, lo, hi, bytes, at, hold, fault, unread.

    For example: strandline spool check logs
    """
    from strandline.ingest.spool import spool_lines

    checked, faulty, unread = 0, 0, 0
    with home.site() as site, progress("checking segments") as shown:
        for name in datasets_of(site, dataset):
            for line in spool_lines(site, name, check=True):
                checked += 1
                shown.step()
                faulty += line.fault is not None
                unread += line.unread is not None
                if as_json:
                    print_json(_line_facts(line))
                elif line.fault is not None:
                    click.echo(f"{_place(line)}  {line.fault}")
                if line.unread is not None:
                    click.echo(f"warning: {line.unread.kind}: {_place(line)}: {line.unread}", err=True)
    untold = f", {unread:,} not read" if unread else ""
    click.echo(f"{checked:,} ranges checked, {faulty:,} damaged{untold}", err=True)
    if faulty:
        note("put segments back from a copy; `strandline spool lost SEGMENT` gives up the rows of one")
    if unread:
        note("what could not be read is no damage: check again when the storage answers")
    return 1 if faulty or unread else 0


def _place(line: "SpoolLine") -> str:
    return f"{line.dataset}/{line.source}  {line.lo + 1}-{line.hi}  {line.segment}"


def _line_facts(line: "SpoolLine") -> dict[str, Any]:
    return {
        "dataset": line.dataset,
        "source": line.source,
        "segment": line.segment,
        "lo": line.lo,
        "hi": line.hi,
        "bytes": line.bytes,
        "at": line.at,
        "hold": line.hold,
        "fault": line.fault,
        "unread": None if line.unread is None else str(line.unread),
    }


@command("lost")
@click.argument("segment")
@click.option("--reason", default="by command", show_default=True, metavar="TEXT", help="Why; it is kept.")
@click.option("--dry-run", is_flag=True, help="Tell the count, give nothing up.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@home_options
def lost_(home: Home, as_json: bool, segment: str, reason: str, dry_run: bool, yes: bool) -> int:
    """Give up the rows of SEGMENT, for good: a flush found it damaged and holds its strands in front of it.

    SEGMENT is its id, as `strandline spool list` shows it, or the beginning of it. What is not held is never
    given up. With --json: segment, dataset, rows, ranges ([lo, hi] by source, without lo), dry_run.

    For example: strandline spool lost 5a1e9c --dry-run
    """
    with home.site() as site:
        dataset, cid, ranges = _held(site, segment)
        rows = sum(hi - lo for lo, hi in ranges.values())
        if not dry_run:
            told = ", ".join(f"{source} {lo + 1}-{hi}" for source, (lo, hi) in sorted(ranges.items()))
            question = f"Give up {rows:,} rows of {dataset!r} ({told}) in segment {cid} for good?"
            if not confirmed(question, yes=yes):
                return 1
            from strandline.ingest.spool import declare_lost

            note_holder(site, f"flush/{dataset}")
            ranges = declare_lost(site, dataset, cid, reason=reason)
            rows = sum(hi - lo for lo, hi in ranges.values())
    if as_json:
        facts = {"segment": cid, "dataset": dataset, "rows": rows, "dry_run": dry_run}
        print_json({**facts, "ranges": {source: list(each) for source, each in ranges.items()}})
        return 0
    lines = [(source, f"{lo + 1}-{hi}", hi - lo) for source, (lo, hi) in sorted(ranges.items())]
    print_table(("SOURCE", "SEQS", "ROWS"), lines)
    click.echo(
        f"{rows:,} rows of {dataset} in segment {cid} {'would be ' if dry_run else ''}given up", err=True
    )
    if not dry_run:
        note(f"`strandline flush {dataset}` lands what waited behind them")
    return 0


def _held(site: Site, segment: str) -> tuple[str, str, dict[str, tuple[int, int]]]:
    """The dataset, the whole id and the ranges that wait for a segment."""
    found: dict[tuple[str, str], dict[str, tuple[int, int]]] = {}
    for dataset in site.standing.datasets():
        for source, strand_state in site.standing.pending(dataset).items():
            for hold in strand_state.holds:
                if _is_meant(hold, segment):
                    found.setdefault((dataset, hold.segment), {})[source] = (hold.lo, hold.hi)
    if not found:
        raise NotFoundError(
            f"no strand waits for a segment {segment}", hint="`strandline spool list` shows what is held"
        )
    if len(found) > 1:
        raise UsageError(f"{len(found)} segments begin with {segment}", hint="name more of it")
    ((dataset, cid), ranges) = found.popitem()
    return dataset, cid, ranges


def _is_meant(hold: DamagedRange, segment: str) -> bool:
    return bool(segment) and hold.segment.startswith(segment)
