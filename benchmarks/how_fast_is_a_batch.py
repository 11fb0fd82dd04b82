"""How fast is a batch of 1,000 events that is stored whole or not at all?"""

from contextlib import closing
from functools import partial

from benchmarks import ours, raw_postgres, raw_sqlite
from benchmarks.frame import Bench, Case, main
from benchmarks.payload import feed_batch
from benchmarks.peer import peer_postgres, peer_sqlite
from strandline.persist import open_store

QUESTION = "How fast is a batch?"
BATCH = 1000
NOTE = "What bounds it: *Where does an append go?*"
POSTGRES_NOTE = (
    "Binary COPY fills a table of two indexes and asks nothing; ours fills one of four."
    " A client that checks, encodes and packs, and a server that stores, take turns; half of the time each."
    " That the next reader gives the events their places in the global order is on the clock too."
)


def ask(bench: Bench) -> None:
    ask_sqlite(bench)
    url = bench.postgres()
    if url is not None:
        ask_postgres(bench, url)


def ask_sqlite(bench: Bench) -> None:
    folder = bench.folder
    with (
        closing(open_store(folder / "batch-full.db")) as full,
        closing(open_store(folder / "batch-plain.db")) as plain,
        closing(raw_sqlite.SameTables(folder / "batch-same.db")) as same,
        closing(raw_sqlite.RawTable(folder / "batch-raw.db")) as raw,
        closing(peer_sqlite(folder / "batch-peer.db")) as peer,
    ):
        contenders = {
            "ours, full contract": feed_batch(BATCH, ours.FullContract(full).append_batch),
            "ours, plain append_batch": feed_batch(BATCH, partial(ours.append_batch_plain, plain)),
            "the full contract by hand": feed_batch(BATCH, same.append_batch),
            "raw executemany": feed_batch(BATCH, raw.append_batch),
            "eventsourcing": feed_batch(BATCH, peer.append_batch),
        }
        against = ["raw executemany", "the full contract by hand"]
        bench.run(Case("SQLite: batches of 1,000", "events/s", contenders, against, note=NOTE))


def ask_postgres(bench: Bench, url: str) -> None:
    with (
        closing(open_store(url, schema="batch_full")) as full,
        closing(open_store(url, schema="batch_plain")) as plain,
        closing(raw_postgres.RawTable(url)) as raw,
        closing(peer_postgres(url, "batch_peer")) as peer,
    ):
        contract = ours.FullContract(full)
        contenders = {
            "ours, full contract": feed_batch(BATCH, contract.append_batch, contract.line_up),
            "ours, plain append_batch": feed_batch(BATCH, partial(ours.append_batch_plain, plain)),
            "raw binary COPY": feed_batch(BATCH, raw.append_batch),
            "raw executemany": feed_batch(BATCH, raw.append_many),
            "eventsourcing": feed_batch(BATCH, peer.append_batch),
        }
        against = ["raw binary COPY", "raw executemany"]
        bench.run(Case("Postgres: batches of 1,000", "events/s", contenders, against, note=POSTGRES_NOTE))


if __name__ == "__main__":
    main({QUESTION: ask})
