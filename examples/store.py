"""The event store in seconds: append, project, kill a writer with SIGKILL in the middle, reopen, same answer.

Run it with `make demo-store`. It leaves its store behind, to look at.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from strandline.persist import (
    Event,
    append_once,
    compact,
    count,
    last_seq,
    open_store,
    project,
    replay,
    verify,
)

ORDERS, KILL_AFTER = 2000, 700
console = Console(stderr=False, highlight=False)


def revenue(total: int, event: Event) -> int:
    return total + event.data["cents"] if event.type == "paid" else total


def write_orders(path: str, first: int) -> None:
    """The child: one durable append an order, each under its own key; it says so once acknowledged."""
    b = open_store(path)
    for number in range(first, ORDERS + 1):
        event = append_once(
            b, "orders", f"order-{number}", "paid", number, {"order": number, "cents": number % 97}
        )
        print(json.dumps([number, event.seq if isinstance(event, Event) else None]), flush=True)


def start_writer(path: Path, first: int) -> "subprocess.Popen[str]":
    command = [sys.executable, __file__, "--write", str(path), str(first)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def main() -> int:
    folder = Path(tempfile.mkdtemp(prefix="strandline-demo-"))
    path = folder / "orders.db"
    console.print(f"[bold]1.[/] A store in one SQLite file: [cyan]{path}[/]")
    console.print(f"[bold]2.[/] A process appends {ORDERS:,} orders, each durable before it is acknowledged.")
    acknowledged = 0
    with Progress(
        TextColumn("   appending"), BarColumn(), MofNCompleteColumn(), console=console, transient=True
    ) as progress:
        bar = progress.add_task("orders", total=ORDERS)
        writer = start_writer(path, 1)
        assert writer.stdout is not None
        for line in writer.stdout:
            acknowledged = json.loads(line)[0]
            progress.update(bar, completed=acknowledged)
            if acknowledged == KILL_AFTER:
                os.kill(writer.pid, signal.SIGKILL)
                break
        # What it acknowledged between our reading and the signal is in the pipe still.
        for line in writer.stdout:
            acknowledged = json.loads(line)[0]
        writer.wait()
    console.print(f"[bold]3.[/] SIGKILL in the middle: {acknowledged:,} orders were acknowledged by then.")

    b = open_store(path)
    found = last_seq(b, "orders")
    state = project(b, "orders", revenue, 0)
    lost = sum(1 for n in range(1, acknowledged + 1) if b.event_at("orders", n) is None)
    console.print(f"[bold]4.[/] Reopened: {found:,} events, none of the acknowledged ones lost ({lost}).")

    # The new process does not know how far the dead one came: it begins well before, under the same keys.
    again = max(1, acknowledged - 200)
    console.print(
        f"[bold]5.[/] A new process repeats from order {again:,} on, under the same keys, to the end."
    )
    writer = start_writer(path, again)
    assert writer.stdout is not None
    repeated = sum(1 for line in writer.stdout if json.loads(line)[1] <= found)
    writer.wait()

    final = project(b, "orders", revenue, 0)
    compacted = compact(b, "orders", "revenue", revenue, 0)
    expected = sum(number % 97 for number in range(1, ORDERS + 1))
    stored = last_seq(b, "orders")
    left = count(b, "orders")
    later = append_once(b, "orders", "order-late", "paid", ORDERS + 1, {"order": ORDERS + 1, "cents": 0})
    next_seq = later.seq if isinstance(later, Event) else 0
    table = Table(title="orders", show_header=False)
    for name, value in [
        ("orders sent", f"{ORDERS:,}"),
        ("events stored", f"{stored:,}"),
        ("lost", f"{ORDERS - stored if stored < ORDERS else 0}"),
        ("doubled", f"{stored - ORDERS if stored > ORDERS else 0}"),
        ("repeats that had no second effect", f"{repeated:,}"),
        ("revenue after the kill", f"{state.value:,} cents at seq {state.seq:,}"),
        ("revenue now", f"{final.value:,} cents (expected {expected:,})"),
        ("events left after compaction", f"{left:,}; the next append gets seq {next_seq:,}"),
        ("revenue replayed from the snapshot", f"{replay(b, 'orders', 'revenue', revenue, 0).value:,} cents"),
        ("damage found by verify", f"{len(verify(b))}"),
    ]:
        table.add_row(name, value)
    console.print(table)
    console.print(f"Look around:\n  export STRANDLINE_STORE={path}", soft_wrap=True)
    for command in ("stats", "read orders", "verify"):
        console.print(f"  .venv/bin/strandline persist {command}")
    b.close()
    right = final.value == compacted.value == expected and stored == ORDERS == next_seq - 1 and lost == 0
    console.print(
        "[green]Same answer, nothing lost, nothing doubled.[/]" if right else "[red]This is a bug.[/]"
    )
    return 0 if right else 1


if __name__ == "__main__":
    if "--write" in sys.argv:
        write_orders(sys.argv[2], int(sys.argv[3]))
    else:
        sys.exit(main())
