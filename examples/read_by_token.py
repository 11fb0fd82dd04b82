"""A Spark job that reads only what is new, and counts each row once, however often it is killed.

It sums sales by shop. The sums, and the token of how far they go, are one value in a store, so they move
together or not at all:

    token ──▶ read what came after it ──▶ sum it with Spark ──▶ swap old token and sums for the new ones
              killed up to here: nothing has happened ─┘         └─ killed after it: everything has

This is exactly once for what stands in that value, and for nothing else. A mail sent before the swap may be
sent again by the next run, with other sums in it, since more is new by then; one sent after it may never be
sent. What must leave goes into the value too, as something to do. It is done after the swap, under the token
as its key, until it is done: it may go out twice, but it says the same, and whoever gets it can tell.

    python examples/read_by_token.py shop   # several times: each run sells a little, and sums what is new
"""

import sys
from pathlib import Path
from typing import Final, TypedDict

import strandline
from strandline.node import Node
from strandline.persist import Backend, is_conflict, kv_cas, kv_get, open_store

KEY: Final = "sales-by-shop"


class Progress(TypedDict):
    """Everything that was counted, and the token that stands for it."""

    token: str
    cents: dict[str, int]


def run(node: Node, jobs: Backend) -> Progress:
    """Count what is new. Two runs at once are fine: one of them finds that it was late, and looks again."""
    while True:
        before = progress(jobs)
        if before is not None and before["token"] == node.end("sales"):
            return before  # nothing is new: no Spark, no file
        after = counted(node, before)
        if kept(jobs, before, after):
            return after


def progress(jobs: Backend) -> Progress | None:
    found: Progress | None = kv_get(jobs, KEY)
    return found


def counted(node: Node, before: Progress | None) -> Progress:
    """The progress with what is new in it. It only reads, so it may be done again."""
    since = before["token"] if before else None
    # The end is fixed before the read: what lands meanwhile belongs to the next run, whole. No row ever
    # appears behind a token, so nothing is missed either.
    until = node.end("sales")
    new = node.read("sales", columns=["shop", "cents"], since=since, until=until)
    cents = dict(before["cents"]) if before else {}
    for shop, sold in new.groupBy("shop").sum("cents").collect():  # Spark sums; a row a shop comes here
        cents[shop] = cents.get(shop, 0) + sold
    return {"token": until, "cents": cents}


def kept(jobs: Backend, before: Progress | None, after: Progress) -> bool:
    """Put `after` in the place of `before`; False if that is not what is there any more."""
    return not is_conflict(kv_cas(jobs, KEY, before, after))


def main(home: str) -> None:
    jobs = open_store(Path(home) / "jobs.db")  # a store of our own: the node's is full of its own names
    with strandline.open(home, tell=print) as node:
        node.append(
            "sales", [{"shop": "north", "cents": 250}, {"shop": "south", "cents": 400}], source="till-1"
        )
        node.append("sales", [{"shop": "north", "cents": 125}], source="till-2")
        node.flush("sales")
        before = progress(jobs)
        plan = node.explain("sales", since=before["token"] if before else None)
        print(f"{plan.files_opened} files to read, {plan.files_pruned} that need no look")
        print(run(node, jobs)["cents"])
    jobs.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
