"""`strandline sink`: how sinks stand, what they have delivered, and what is done to them by hand."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from strandline.cli.command_group import Group, Subcommand, command, confirmed
from strandline.cli.node_options import Home, home_options, note, note_holder
from strandline.cli.show import print_json, print_table, progress
from strandline.cli.verbs.spool import at_text
from strandline.errors import UsageError

if TYPE_CHECKING:
    from strandline.delivery.audit.verify import StrandVerdict
    from strandline.delivery.operate_sink import Moved
    from strandline.node.node import Node

sink = Group(
    "sink",
    help="Where rows go, and how far they are; without a command it lists the sinks.",
    subcommands={
        "bind": Subcommand("strandline.cli.verbs.sink:bind_", "Say what a changed destination means."),
        "forget": Subcommand("strandline.cli.verbs.sink:forget_", "Owe a sink nothing any more."),
        "history": Subcommand(
            "strandline.cli.verbs.sink:history_", "Print what became of a sink, event by event."
        ),
        "list": Subcommand("strandline.cli.verbs.sink:list_", "List the sinks and how they stand."),
        "release": Subcommand("strandline.cli.verbs.sink:release_", "Deliver rows that a policy withheld."),
        "rewind": Subcommand("strandline.cli.verbs.sink:rewind_", "Deliver rows once more."),
        "skip": Subcommand("strandline.cli.verbs.sink:skip_", "Leave rows out."),
        "verify": Subcommand(
            "strandline.cli.verbs.sink:verify_", "Compare what was delivered with what is there."
        ),
    },
    default="list",
)

_UNKNOWN: Final = 3
_REASON: Final = "by command"


def _strand_options(function: Callable[..., Any]) -> Callable[..., Any]:
    with_source = click.option("--source", metavar="SOURCE", help="This source of DATASET alone.")
    return click.argument("dataset", required=False)(with_source(function))


def _hand_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """What an act by hand takes."""
    reason = click.option(
        "--reason", default=_REASON, show_default=True, metavar="TEXT", help="Why; it is kept."
    )
    abort = click.option(
        "--abort-intent",
        is_flag=True,
        help="Give up rows that are under way, not knowing which have arrived.",
    )
    return reason(abort(click.option("--yes", is_flag=True, help="Do not ask.")(function)))


@command("list")
@home_options
def list_(home: Home, as_json: bool) -> None:
    """List the sinks and how they stand. It only reads.

    With --json one object a sink: sink, type (null: not configured any more), enabled, destination, state
    (off, new, idle, behind, waiting, held), hold (kind and text, or null), strands, held_strands, owed (rows
    that are visible and not delivered, at most), rows, bytes (delivered), withheld, dead_letters,
    delivered_at.

    For example: strandline sink list
    """
    with home.node() as node:
        known = node.site.standing.lines().instances()
        facts = [_facts(node, name) for name in sorted({*node.config.sinks, *known})]
    if as_json:
        for each in facts:
            print_json(each)
        return
    if not facts:
        click.echo("no sink is configured", err=True)
        return
    lines = [
        (
            each["sink"],
            each["type"] or "not configured",
            each["hold"]["kind"] if each["hold"] else each["state"],
            each["strands"],
            each["owed"],
            each["rows"],
            each["withheld"],
            each["dead_letters"],
            "" if each["delivered_at"] is None else at_text(each["delivered_at"]),
            each["destination"],
        )
        for each in facts
    ]
    heads = ("SINK", "TYPE", "STATE", "STRANDS", "OWED", "ROWS", "WITHHELD", "DEAD LETTERS", "LAST", "TO")
    print_table(heads, lines)


def _facts(node: "Node", name: str) -> dict[str, Any]:
    all_lines = node.site.standing.lines()
    instance, lines = all_lines.instance(name), all_lines.of(name)
    configured = node.config.sinks.get(name)
    owing = node.deliveries.owing(name) if configured is not None else []
    holds = [line.hold for line in lines.values() if line.hold is not None]
    hold = instance.hold or next(iter(holds), None)
    last = max((line.at for line in lines.values()), default=0)
    return {
        "sink": name,
        "type": None if configured is None else configured.type,
        "enabled": configured is not None and configured.enabled,
        "destination": instance.fingerprint or (node.deliveries.sink(name).fingerprint if configured else ""),
        "state": _state(configured is not None and configured.enabled, instance.is_open, hold, owing),
        "hold": None if hold is None else {"kind": hold.kind, "text": hold.text},
        "strands": len(lines),
        "held_strands": len(holds),
        "owed": sum(each.rows for each in owing),
        "rows": sum(line.rows for line in lines.values()),
        "bytes": sum(line.bytes for line in lines.values()),
        "withheld": sum(len(line.withheld) for line in lines.values()),
        "dead_letters": sum(len(line.letters) for line in lines.values()),
        "delivered_at": last or None,
    }


def _state(is_on: bool, is_open: bool, hold: Any, owing: Any) -> str:
    if not is_on:
        return "off"
    if hold is not None:
        return "held"
    owed = [each for each in owing if each.ranges]
    if not owed:
        return "idle" if is_open else "new"
    return "waiting" if all(each.not_before for each in owed) else "behind"


# What was delivered


@command("verify")
@click.argument("sink")
@click.argument("dataset", required=False)
@home_options
def verify_(home: Home, as_json: bool, sink: str, dataset: str | None) -> int:
    """Compare what SINK has recorded, of DATASET or of all, with what its destination has.

    It reads the store and asks the destination; no table is looked at (that is `strandline prove`). Ends with
    1 if something is missing, double, strange or altered, with 3 if the destination could not be asked.

    With --json one object a strand: sink, dataset, source, status (ok, fault, unknown), mark,
    visible_through, epochs, units, rows, withheld, letters, skipped, evicted, unrecorded, elsewhere, unknown,
    faults (kind, lo, hi, text, epoch, target).

    For example: strandline sink verify archive logs
    """
    from strandline.delivery.audit.verify import verify

    with home.node() as node, progress("asking the destination") as shown:
        front = node.deliveries
        verdicts = []
        for each in verify(node.site, front.sink(sink), front.terms(sink), front.sender, dataset=dataset):
            verdicts.append(each)
            shown.step()
    if as_json:
        for each in verdicts:
            print_json(_verdict_facts(each))
    elif verdicts:
        lines = [
            (
                each.dataset,
                each.source,
                each.status,
                each.mark,
                each.units,
                each.rows,
                each.withheld,
                each.letters,
            )
            for each in verdicts
        ]
        print_table(("DATASET", "SOURCE", "STATUS", "LINE", "UNITS", "ROWS", "WITHHELD", "LETTERS"), lines)
    for each in verdicts:
        for fault in each.faults:
            place = f"{each.dataset}/{each.source} ({fault.lo}, {fault.hi}]"
            click.echo(f"strandline sink verify {sink}: {fault.kind}: {place}: {fault.text}", err=True)
        if each.unknown:
            note(f"{each.dataset}/{each.source}: {each.unknown}")
    states = {each.status for each in verdicts}
    return 1 if "fault" in states else _UNKNOWN if "unknown" in states else 0


def _verdict_facts(verdict: "StrandVerdict") -> dict[str, Any]:
    return {
        "sink": verdict.instance,
        "dataset": verdict.dataset,
        "source": verdict.source,
        "status": verdict.status,
        "mark": verdict.mark,
        "visible_through": verdict.visible_through,
        "epochs": list(verdict.epochs),
        "units": verdict.units,
        "rows": verdict.rows,
        "withheld": verdict.withheld,
        "letters": verdict.letters,
        "skipped": verdict.skipped,
        "evicted": verdict.evicted,
        "unrecorded": verdict.unrecorded,
        "elsewhere": verdict.elsewhere,
        "unknown": verdict.unknown,
        "faults": [
            {
                "kind": each.kind,
                "lo": each.lo,
                "hi": each.hi,
                "text": each.text,
                "epoch": each.epoch,
                "target": each.target,
            }
            for each in verdict.faults
        ],
    }


@command("history")
@click.argument("sink")
@_strand_options
@home_options
def history_(home: Home, as_json: bool, sink: str, dataset: str | None, source: str | None) -> None:
    """Print what became of SINK, event by event, oldest first. It only reads.

    With --json one object an event: at (UTC microseconds), dataset, source (null: of the whole sink), seq,
    type, text, data.

    For example: strandline sink history centre logs --source web-1
    """
    from strandline.delivery.sink_history import history

    with home.site() as site:
        for each in history(site, sink, dataset=dataset, source=source):
            strand = each.strand
            if as_json:
                place = {"dataset": strand and strand.dataset, "source": strand and strand.source}
                facts = {"seq": each.seq, "type": each.type, "text": each.text, "data": each.event.data}
                print_json({"at": each.at, **place, **facts})
            else:
                named = f"{strand.dataset}/{strand.source}" if strand else sink
                click.echo(f"{at_text(each.at)}  {named}  {each.text}")


# By hand


@command("rewind")
@click.argument("sink")
@_strand_options
@click.option(
    "--to", type=click.IntRange(min=0), default=0, show_default=True, metavar="SEQ", help="Put it there."
)
@click.option("--resend", is_flag=True, help="Send everything behind it, also what the destination has.")
@_hand_options
@home_options
def rewind_(
    home: Home,
    as_json: bool,
    sink: str,
    dataset: str | None,
    source: str | None,
    to: int,
    resend: bool,
    reason: str,
    abort_intent: bool,
    yes: bool,
) -> int:
    """Put the lines of SINK back, so that what follows is delivered once more.

    A node that is forwarded to is sent what it lacks, with --resend everything. Objects are written again,
    into a chain of their own. Dead letters behind the line are dropped, since their rows are sent again.

    With --json one object a strand: sink, dataset, source, was, mark, epoch, dropped_letters.

    For example: strandline sink rewind centre logs --source web-1 --to 1000 --reason "the disk was lost"
    """
    with home.node() as node:
        strands = node.deliveries.strands(sink, dataset, source)
        is_again = resend or not node.deliveries.sink(sink).asks_first
        what = "Deliver again all rows" if is_again else "Look again for rows that the destination lacks"
        if not confirmed(f"{what} behind seq {to:,} of {_meant(sink, dataset, source)}?", yes=yes):
            return 1
        note_holder(node.site, f"sink/{sink}")
        options = {"reason": reason, "abort_intent": abort_intent, "resend": resend}
        moved = node.deliveries.rewind(sink, strands=strands, to=to, **options)  # type: ignore[arg-type]  # as named
    return _print_moved(sink, moved, as_json)


@command("skip")
@click.argument("sink")
@_strand_options
@click.option(
    "--to", type=click.IntRange(min=1), metavar="SEQ", help="Put it there; else at all that is visible."
)
@_hand_options
@home_options
def skip_(
    home: Home,
    as_json: bool,
    sink: str,
    dataset: str | None,
    source: str | None,
    to: int | None,
    reason: str,
    abort_intent: bool,
    yes: bool,
) -> int:
    """Put the lines of SINK forward: rows between are never delivered.

    With --json one object a strand: sink, dataset, source, was, mark, epoch, dropped_letters.

    For example: strandline sink skip centre logs --source web-1 --to 5000 --reason "too old"
    """
    with home.node() as node:
        strands = node.deliveries.strands(sink, dataset, source)
        end = "all that is visible now" if to is None else f"seq {to:,}"
        if not confirmed(f"Leave out rows up to {end} of {_meant(sink, dataset, source)}?", yes=yes):
            return 1
        note_holder(node.site, f"sink/{sink}")
        moved = node.deliveries.skip(sink, strands=strands, to=to, reason=reason, abort_intent=abort_intent)
    return _print_moved(sink, moved, as_json)


@command("release")
@click.argument("sink")
@_strand_options
@click.option("--dry-run", is_flag=True, help="Tell the count, release nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@home_options
def release_(
    home: Home,
    as_json: bool,
    sink: str,
    dataset: str | None,
    source: str | None,
    dry_run: bool,
    yes: bool,
) -> int:
    """Deliver the rows that a policy withheld from SINK, and does not any more: those rows, and each once.

    What [policy] still withholds stays withheld. With --json: sink, looked_at (rows), rows (delivered by the
    runs), still_withheld, dry_run, runs (as `strandline sync --json`).

    For example: strandline sink release centre logs --dry-run
    """
    from strandline.cli.verbs.sync import print_results, result_facts, tell_result, worst

    with home.node() as node:
        front = node.deliveries
        strands = front.strands(sink, dataset, source)
        front.terms(sink)
        count = sum(map(len, front.withheld(sink, strands).values()))
        runs: tuple[Any, ...] = ()
        if count and not dry_run:
            meant = _meant(sink, dataset, source)
            if not confirmed(
                f"Deliver those of {count:,} withheld rows of {meant} that may leave now?", yes=yes
            ):
                return 1
            note_holder(node.site, f"sink/{sink}")
            with progress("delivering") as shown:
                runs = front.release(
                    sink, strands=strands, tell=lambda result: shown.show(f"{result.rows:,} rows")
                ).runs
        left = sum(map(len, front.withheld(sink, strands).values()))
    if as_json:
        rows = sum(each.rows for each in runs)
        facts = {"sink": sink, "looked_at": count, "rows": rows, "still_withheld": left, "dry_run": dry_run}
        print_json({**facts, "runs": [result_facts(each) for each in runs]})
    elif runs:
        print_results(list(runs))
    if not count:
        click.echo(f"nothing of {_meant(sink, dataset, source)} is withheld", err=True)
    elif dry_run:
        click.echo(f"{count:,} rows are withheld", err=True)
    elif left:
        note(f"{left:,} rows stay withheld")
    return worst([tell_result("strandline sink release", each) for each in runs])


@command("forget")
@click.argument("sink")
@_hand_options
@home_options
def forget_(home: Home, as_json: bool, sink: str, reason: str, abort_intent: bool, yes: bool) -> int:
    """Owe SINK nothing any more: its lines, dead letters and withheld rows are forgotten, and retention does
    not wait for it.

    Take it out of the configuration first: one that is configured starts anew, and delivers everything again.
    With --json: sink, strands, dead_letters.

    For example: strandline sink forget old-centre --reason "it is gone"
    """
    with home.node() as node:
        letters = len(node.deliveries.letters(sink))
        again = (
            " It is still configured: its next run delivers everything again."
            if sink in node.config.sinks
            else ""
        )
        if not confirmed(f"Forget sink {sink!r}, and {letters:,} dead letters?{again}", yes=yes):
            return 1
        note_holder(node.site, f"sink/{sink}")
        strands = node.deliveries.forget(sink, reason=reason, abort_intent=abort_intent)
    if as_json:
        print_json({"sink": sink, "strands": strands, "dead_letters": letters})
    else:
        click.echo(f"{sink}: {strands:,} strands forgotten")
    return 0


@command("bind")
@click.argument("sink")
@click.option("--keep", is_flag=True, help="The new destination gets what follows.")
@click.option("--reset", is_flag=True, help="The new destination gets everything.")
@_hand_options
@home_options
def bind_(
    home: Home,
    as_json: bool,
    sink: str,
    keep: bool,
    reset: bool,
    reason: str,
    abort_intent: bool,
    yes: bool,
) -> int:
    """Say what it means that SINK is configured for another destination than it delivered to.

    With --json: sink, destination, how, strands (that begin again).

    For example: strandline sink bind archive --keep --reason "the bucket was moved"
    """
    if keep == reset:
        raise UsageError(
            "--keep or --reset", hint="--keep: it gets what follows; --reset: it gets everything"
        )
    how: Literal["keep", "reset"] = "keep" if keep else "reset"
    with home.node() as node:
        place = node.deliveries.sink(sink).fingerprint
        sent = "what follows the lines" if keep else "everything, from the start on"
        if not confirmed(f"Deliver {sent} of sink {sink!r} to {place}?", yes=yes):
            return 1
        note_holder(node.site, f"sink/{sink}")
        moved = node.deliveries.bind(sink, how, reason=reason, abort_intent=abort_intent)
    if as_json:
        print_json({"sink": sink, "destination": place, "how": how, "strands": len(moved)})
    else:
        click.echo(f"{sink} now delivers {sent} to {place}")
    return 0


def _meant(sink: str, dataset: str | None, source: str | None) -> str:
    return f"sink {sink!r}" + (f", {dataset}" if dataset else "") + (f"/{source}" if source else "")


def _print_moved(sink: str, moved: "list[Moved]", as_json: bool) -> int:
    if as_json:
        for each in moved:
            place = {"sink": sink, "dataset": each.strand.dataset, "source": each.strand.source}
            facts = {"was": each.was, "mark": each.mark, "epoch": each.epoch}
            print_json({**place, **facts, "dropped_letters": each.dropped_letters})
    elif moved:
        lines = [
            (each.strand.dataset, each.strand.source, each.was, each.mark, each.epoch, each.dropped_letters)
            for each in moved
        ]
        print_table(("DATASET", "SOURCE", "WAS", "LINE", "EPOCH", "DROPPED LETTERS"), lines)
    else:
        click.echo("no line moved: all are there already", err=True)
    if moved:
        note(f"`strandline sync {sink}` goes on from there")
    return 0
