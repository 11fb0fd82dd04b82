"""How fast is one durable append, with the whole contract on, and what does the contract cost?"""

from contextlib import closing
from functools import partial

from benchmarks import ours, raw_postgres, raw_sqlite
from benchmarks.frame import Bench, Case, main
from benchmarks.payload import feed
from benchmarks.peer import peer_postgres, peer_sqlite
from strandline.persist import open_store

QUESTION = "How fast is an append?"
NOTE = (
    "The full contract by hand checks nothing, for one caller. What is between it and ours is Python, see"
    " *Where does an append go?*; what is between both and the raw table is mostly the log, which gets seven"
    " pages with a commit."
)
POSTGRES_NOTE = (
    "A commit waits in line for its place in the global order, and the next reader gives it one: that is on"
    " the clock too. What bounds it: *Where does an append go?*"
)


def ask(bench: Bench) -> None:
    ask_sqlite(bench)
    url = bench.postgres()
    if url is not None:
        ask_postgres(bench, url)


def ask_sqlite(bench: Bench) -> None:
    count, folder = bench.scaled(300), bench.folder
    with (
        closing(open_store(folder / "append-full.db")) as full,
        closing(open_store(folder / "append-plain.db")) as plain,
        closing(raw_sqlite.SameTables(folder / "append-same.db")) as same,
        closing(raw_sqlite.RawTable(folder / "append-raw.db")) as raw,
        closing(peer_sqlite(folder / "append-peer.db")) as peer,
    ):
        contenders = {
            "ours, full contract": feed(count, ours.FullContract(full).append),
            "ours, plain append": feed(count, partial(ours.append_plain, plain)),
            "the full contract by hand": feed(count, same.append),
            "raw table": feed(count, raw.append),
            "eventsourcing": feed(count, peer.append),
        }
        against = ["raw table", "the full contract by hand"]
        case = Case(
            "SQLite: one durable append", "appends/s", contenders, against, is_durable=True, note=NOTE
        )
        bench.run(case)


def ask_postgres(bench: Bench, url: str) -> None:
    count = bench.scaled(600)
    with (
        closing(open_store(url, schema="append_full")) as full,
        closing(open_store(url, schema="append_plain")) as plain,
        closing(raw_postgres.RawTable(url)) as raw,
        closing(peer_postgres(url, "append_peer")) as peer,
    ):
        contract = ours.FullContract(full)
        contenders = {
            "ours, full contract": feed(count, contract.append, contract.line_up),
            "ours, plain append": feed(count, partial(ours.append_plain, plain)),
            "raw table": feed(count, raw.append),
            "eventsourcing": feed(count, peer.append),
        }
        title, note = "Postgres: one durable append", POSTGRES_NOTE
        bench.run(Case(title, "appends/s", contenders, ["raw table"], is_durable=True, note=note))


if __name__ == "__main__":
    main({QUESTION: ask})
