"""`strandline prove`: the whole way of the rows, checked step by step."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from strandline.cli.command_group import command
from strandline.cli.node_options import Home, home_options, note
from strandline.cli.show import print_json, print_table, progress

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from strandline.delivery.audit.compare import Fault
    from strandline.delivery.audit.prove import Proof
    from strandline.lake.jobs.count_rows import Counted
    from strandline.node.node import Node
    from strandline.rows.dataset import Dataset

_UNKNOWN: Final = 3
_WHOLE: Final = "whole"  # no gap, no overlap, nothing lost


@command("prove")
@click.argument("sink", required=False)
@click.argument("dataset", required=False)
@home_options
def prove_(home: Home, as_json: bool, sink: str | None, dataset: str | None) -> int:
    """Check the rows of every strand from their numbers to where they were delivered: that nothing is lost,
    double, altered or strange; or tell exactly which range is.

    SINK alone, or all; DATASET alone, or all (a first name that no sink has is taken for a dataset). It
    counts each table once with Spark (two columns of it), reads the segments of rows that have not landed,
    and asks each destination what it has; a folder's objects are read. It writes nothing. Ends with 1 if
    anything is wrong, with 3 if something could not be checked.

    A strand is "whole", or "fault", or "unknown". With --json one object a strand: dataset, source, status
    ("ok" is whole), numbered, visible_through, pending, gaps, landed, rows, left_out, removed, faults,
    unknown, sinks (each as `strandline sink verify --json`). A fault is kind, lo, hi (without lo), text,
    epoch, target.

    For example: strandline prove centre logs
    """
    from strandline.delivery.audit.prove import prove

    with home.node() as node:
        sink, dataset = _meant(node, sink, dataset)
        sinks = [(node.deliveries.sink(name), node.deliveries.terms(name)) for name in _names(node, sink)]
        proofs = []
        with progress("proving") as shown:
            for proof in prove(node.site, _census(node), sinks, node.deliveries.sender, dataset=dataset):
                proofs.append(proof)
                shown.step()
    if as_json:
        for proof in proofs:
            print_json(_facts(proof))
    else:
        _print(proofs)
    states = {proof.status for proof in proofs}
    return 1 if "fault" in states else _UNKNOWN if "unknown" in states else 0


def _census(node: "Node") -> "Callable[[Dataset], Mapping[str, Counted]]":
    """Spark is started by the first dataset of which something has landed."""

    def count(dataset: "Dataset") -> "Mapping[str, Counted]":
        from strandline.lake.jobs.count_rows import census

        return census(node.reader, dataset)

    return count


def _meant(node: "Node", sink: str | None, dataset: str | None) -> tuple[str | None, str | None]:
    if sink is not None and dataset is None and sink not in node.config.sinks and sink in node.datasets():
        return None, sink
    return sink, dataset


def _names(node: "Node", sink: str | None) -> list[str]:
    if sink is not None:
        return [sink]
    for name in node.site.standing.lines().instances():
        if name not in node.config.sinks:
            note(f"sink {name} is not configured any more, so what it has delivered is not looked at")
    return sorted(node.config.sinks)


def _facts(proof: "Proof") -> dict[str, Any]:
    facts = asdict(proof)
    facts["faults"] = [asdict(each) for each in proof.faults]
    facts["sinks"] = [_verdict_facts(each) for each in proof.sinks]
    return {**facts, "status": proof.status}


def _verdict_facts(verdict: Any) -> dict[str, Any]:
    facts = asdict(verdict)
    facts = {"sink": facts.pop("instance"), **facts, "status": verdict.status}
    return {**facts, "epochs": list(verdict.epochs), "faults": [asdict(each) for each in verdict.faults]}


def _print(proofs: "list[Proof]") -> None:
    lines: list[tuple[Any, ...]] = []
    told: list[str] = []
    for proof in proofs:
        strand = (proof.dataset, proof.source, proof.numbered, proof.landed, proof.rows)
        named = f"{proof.dataset}/{proof.source}"
        own = "fault" if proof.faults else "unknown" if proof.unknown else _WHOLE
        told += [_fault_line(named, each) for each in proof.faults]
        if not proof.sinks:
            lines.append((*strand, "", "", "", own))
        for verdict in proof.sinks:
            status = own if own != _WHOLE else _WHOLE if verdict.status == "ok" else verdict.status
            lines.append((*strand, verdict.instance, verdict.mark, verdict.rows, status))
            told += [_fault_line(f"{named} at {verdict.instance}", each) for each in verdict.faults]
    if not lines:
        click.echo("there is no strand to prove anything of", err=True)
        return
    heads = ("DATASET", "SOURCE", "NUMBERED", "LANDED", "IN TABLE", "SINK", "LINE", "DELIVERED", "VERDICT")
    print_table(heads, lines)
    for line in told:
        click.echo(line)
    for proof in proofs:
        for name, text in ((None, proof.unknown), *((each.instance, each.unknown) for each in proof.sinks)):
            if text:
                note(f"{proof.dataset}/{proof.source}{f' at {name}' if name else ''}: {text}")


def _fault_line(where: str, fault: "Fault") -> str:
    epoch = f" of epoch {fault.epoch}" if fault.epoch else ""
    target = f" ({fault.target})" if fault.target else ""
    range_ = f" ({fault.lo:,}, {fault.hi:,}]" if fault.lo < fault.hi else ""
    return f"{where}: {fault.kind}{range_}{epoch}: {fault.text}{target}"
