"""Where does the time of an append go, part by part? A profile for the ratios beside it."""

import gc
import resource
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any, cast

import apsw
import orjson
import psycopg

from benchmarks import ours, raw_postgres, raw_sqlite
from benchmarks.frame import Bench, Case, Contender, main
from benchmarks.how_do_threads_share import THREADS, together
from benchmarks.how_much_does_http_cost import served
from benchmarks.payload import STREAM, TYPE, feed, key, payloads
from benchmarks.steps import noted
from strandline.persist import Append, AtomicBackend, ExpectSeq, open_store
from strandline.persist.backend import Commit
from strandline.persist.backends.sqlite import SqliteBackend
from strandline.persist.backends.sqlite.file import connect, open_file
from strandline.persist.backends.sqlite.transaction import SEQ_BITS
from strandline.persist.core.block import event_crc
from strandline.persist.core.group_commit import GroupCommit
from strandline.persist.core.prepare import prepare
from strandline.persist.durable import commit_of
from strandline.persist.event import make_event
from strandline.persist.value import are_plain
from strandline.persist.wire import commit_body
from strandline.server.event_store.requests import read_request

QUESTION = "Where does an append go?"
BATCH = 1000
TIMES = 10
_LOG_HEAD_BYTES = 32
_LOG_PAGE_BYTES = 4096 + 24
NOTE = (
    "Processor time. The bare table does what the first row says; ours does all the others that are not in"
    " brackets, and hands over between them. *Checked* is the look at the types of all values that refuses"
    " what JSON would change in silence (NaN, a tuple, a subclass), which no encoder does for us; *the table*"
    " is our insert with page checksums and without indexes, *its indexes* what those by type and by time"
    " add. So a batch with the full contract is bound by what is prepared and by the three B-trees of an"
    " event, which the bare table has two of."
)


SINGLE_NOTE = (
    "Time that passes, of the very same appends as in *How fast is an append?*, from each place on their way"
    " to the next. By hand the same statements are run, and nothing is checked. *Prepared*: names and values"
    " checked, encoded, summed and hashed. *Decided and written*: begun, the key looked up, the expectation"
    " compared, the rows written. *Committed*: the log written and synced. So ours is bound by Python before"
    " the commit, and most by what decides and hands over rows."
)


POSTGRES_NOTE = (
    "The bare table gets one row and two index entries. Ours updates the row of its stream and adds an event"
    " with three, by one statement. The global order adds a row to a line, which the next reader puts in"
    " order; a key is looked for and adds a marker; an expectation is looked at while the stream's row is"
    " locked. It is one round trip each time, asked without a cursor: what bounds a full append is what the"
    " server does for those rows, and then Python."
)


THREADS_NOTE = (
    "Each thread appends to a stream of its own, with the full contract, and waits for its acknowledgement."
    " Python runs one of them at a time, so what all spend is what each waits for. *The threads alone* make,"
    " check, encode and hand over, and what is handed over is thrown away; *all brought by one thread* is the"
    " same commits, 64 at a time, without a change of threads. What these two do not add up to is what they"
    " cost each other: turns at Python's lock, and caches that the other has filled. *A raw table instead* is"
    " the least that a shared sync costs as many threads, nearly all of it their sleeping and waking, and"
    " *prepared as ours* adds to it what each caller checks and encodes: whatever keeps the contract takes"
    " that and its own work besides, so what a third of one raw append has over it is all that there is for"
    " three times. Between that and ours is the store's own work, of which most is the log, see the pages"
    " below."
)


PAGES_NOTE = (
    "What 64 commits in one transaction write to the log, for each. In ours the streams lie apart, each with"
    " its events together, so that a stream is read without the others: a commit changes pages of its own, of"
    " events, of their indexes and of keys. The raw table's rows lie in the order in which they came."
)


HTTP_NOTE = (
    "Time that passes. The first three rows are one batch over HTTP from its begin to its end: checked,"
    " encoded and written as a request by the client; on its way and at the host; made events of by the"
    " client. The others are what is done meanwhile at the host, each in a loop of its own: it reads the"
    " batch, and checks and encodes it anew before it is stored, since it takes nobody's word for what JSON"
    " would change. They take turns, so a batch is bound by the sum of what both do; what the host takes more"
    " than in a loop is the way between them, and that it is slower after a sleep."
)


def ask(bench: Bench) -> None:
    ask_sqlite(bench)
    ask_single(bench)
    ask_threads(bench)
    ask_http(bench)
    url = bench.postgres()
    if url is not None:
        ask_postgres(bench, url)


def ask_postgres(bench: Bench, url: str) -> None:
    times, datas = bench.scaled(100), payloads(1)
    with (
        closing(psycopg.connect(url, autocommit=True)) as connection,
        closing(raw_postgres.RawTable(url)) as raw,
        closing(open_store(url, schema="where")) as b,
    ):

        def append(stream: str, *, expects: bool = False, has_key: bool = False, **more: bool) -> Contender:
            seqs = count()

            def act() -> None:
                expected = [ExpectSeq(stream, next(seqs))] if expects else []
                once = (stream, key()) if has_key else None
                b.commit(expected, [Append(stream, TYPE, 1_700_000_000, datas[0], **more)], once=once)

            return _ms(act, times)

        parts = {
            "a round trip": _ms(lambda: connection.execute("select 1", prepare=True).fetchone(), times),
            "a bare table": _ms(lambda: raw.append(datas[0]), times),
            "ours": append("plain"),
            "and in the global order": append("global", globally=True),
            "and under a key": append("key", globally=True, has_key=True),
            "and with an expectation": append("all", globally=True, has_key=True, expects=True),
        }
        bench.run(Case("Postgres: ms of one append (less is better)", "ms", parts, note=POSTGRES_NOTE))


def _ms(act: Callable[[], object], times: int, clock: Callable[[], float] = time.perf_counter) -> Contender:
    """A contender: ms for each of so many acts, by that clock."""

    def run() -> float:
        began = clock()
        for _ in range(times):
            act()
        return (clock() - began) * 1000 / times

    return run


def ask_sqlite(bench: Bench) -> None:
    folder = bench.folder
    with (
        closing(open_store(folder / "where-full.db")) as full,
        closing(raw_sqlite.RawTable(folder / "where-raw.db")) as raw,
        closing(_table(bench, "where-table.db", has_indexes=False)) as bare,
        closing(_table(bench, "where-indexes.db", has_indexes=True)) as indexed,
    ):
        parts: dict[str, Contender] = {
            "(a bare table, encoding and all)": _each(raw.append_batch),
            "(ours, full contract)": _each(ours.FullContract(full).append_batch),
            "writes made": _each(_writes),
            "checked": _each(are_plain),
            "encoded": _each(_encode),
            "summed and hashed": _each(_sum, _encode),
            "prepared, all of the above": _each(prepare_once, _writes),
            "the table": _each(_inserter(bare), _encode),
            "the table and its indexes": _each(_inserter(indexed), _encode),
            "answered": _each(_answer),
        }
        bench.run(Case("SQLite: µs for each event of a batch (less is better)", "µs", parts, note=NOTE))


def ask_single(bench: Bench) -> None:
    folder, times, data = bench.folder, bench.scaled(300), payloads(1)[0]
    with (
        closing(open_store(folder / "where-single.db")) as full,
        closing(raw_sqlite.SameTables(folder / "where-hand.db")) as hand,
    ):
        ours_full = ours.FullContract(full)
        contenders = {
            "ours": _stepwise(lambda: ours_full.append(data), times),
            "by hand": _stepwise(lambda: hand.append(data), times),
        }
        title = "SQLite: ms of one append (less is better)"
        bench.run(Case(title, "ms", contenders, ["by hand"], note=SINGLE_NOTE))


STEPS = {
    "commit.prepared": "prepared",
    "commit.before": "decided and written",
    "commit.after": "committed",
}


def _stepwise(act: Callable[[], object], times: int, named: Mapping[str, str] = STEPS) -> Contender:
    """A contender: ms of an act, by the places that it comes by; after the last it is answered."""

    def run() -> dict[str, float]:
        spent = dict.fromkeys([*named.values(), "answered"], 0.0)
        for _ in range(times):
            with noted() as steps:
                began = time.perf_counter()
                act()
                spans = steps.spans_ms(began, time.perf_counter())
            for span, ms in spans.items():
                spent[named.get(span.rpartition(" to ")[2], "answered")] += ms / times
        return {**spent, "all": sum(spent.values())}

    return run


def ask_threads(bench: Bench) -> None:
    each, folder = bench.scaled(50), bench.folder
    with (
        closing(open_store(folder / "where-threads.db")) as b,
        closing(SqliteBackend(folder / "where-gathered.db")) as gathered,
        closing(raw_sqlite.RawTable(folder / "where-alone.db")) as alone,
        closing(raw_sqlite.RawTable(folder / "where-least.db")) as least,
        closing(raw_sqlite.RawTable(folder / "where-checked.db")) as checked,
    ):
        nothing = GroupCommit(lambda group: [[] for _ in group])
        seqs, one = count(), feed(bench.scaled(500), alone.append)

        def crowd(act: Callable[[int], Callable[[dict[str, Any]], object]], **clock: Any) -> Contender:
            run = together(THREADS, each, act, **clock)
            return lambda: 1e6 / run()

        def ours_full(number: int) -> Callable[[dict[str, Any]], object]:
            return ours.FullContract(b, f"order-{number}").append

        def bring() -> float:
            groups = [_commits(next(seqs)) for _ in range(each)]
            gc.collect()
            began = time.perf_counter()
            for group in groups:
                outcomes = gathered.commit_each(group)
                assert all(isinstance(outcome, list) for outcome in outcomes), outcomes[:1]
            return (time.perf_counter() - began) * 1e6 / (each * THREADS)

        parts: dict[str, Contender] = {
            "(elapsed)": crowd(ours_full),
            "processor, in the process": crowd(ours_full, clock=lambda: _used().ru_utime),
            "processor, in the kernel": crowd(ours_full, clock=lambda: _used().ru_stime),
            "(elapsed, the threads alone)": crowd(lambda n: _prepared(f"order-{n}", nothing.submit)),
            "(elapsed, all brought by one thread)": bring,
            "(elapsed, a raw table, one thread)": lambda: 1e6 / one(),
            "(elapsed, a raw table instead)": crowd(lambda _: least.append_in_group),
            "(elapsed, the same, and prepared as ours)": crowd(
                lambda n: _prepared(f"order-{n}", lambda p: checked.append_in_group(p.writes[0].data))
            ),
        }
        title = f"SQLite: µs of one append by {THREADS} threads (less is better)"
        bench.run(Case(title, "µs", parts, note=THREADS_NOTE))
        pages: dict[str, Contender] = {
            "ours": _pages(folder / "where-gathered.db", lambda: gathered.commit_each(_commits(next(seqs)))),
            "a raw table": _pages(folder / "where-least.db", lambda: least.append_batch(payloads(THREADS))),
        }
        title = f"SQLite: pages of the log for one of {THREADS} appends (less is better)"
        bench.run(Case(title, "pages", pages, note=PAGES_NOTE))


def _pages(path: Path, act: Callable[[], object]) -> Contender:
    """A contender: how many pages the log, empty before, has for each append after the act."""

    def run() -> float:
        with closing(connect(path, synchronous="FULL", busy_timeout_s=30)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        act()
        log = path.with_name(path.name + "-wal").stat().st_size
        return (log - _LOG_HEAD_BYTES) / _LOG_PAGE_BYTES / THREADS

    return run


def _used() -> resource.struct_rusage:
    return resource.getrusage(resource.RUSAGE_SELF)


def _prepared(stream: str, hand_over: Callable[[Any], object]) -> Callable[[dict[str, Any]], object]:
    """What a thread does for an append but for the store's part."""
    seqs = count()

    def act(data: dict[str, Any]) -> object:
        write = Append(stream, TYPE, 1_700_000_000, data, globally=True)
        return hand_over(prepare([ExpectSeq(stream, next(seqs))], [write], (stream, key())))

    return act


def ask_http(bench: Bench) -> None:
    writes = _writes(payloads(BATCH))
    body = commit_body(prepare([], writes, (STREAM, "key"), is_sent=True))
    call = read_request(body)
    sent = {"commit.prepared": "prepared by the client", "commit.acknowledged": "on its way and at the host"}
    with (
        closing(open_store(bench.folder / "where-near.db")) as near,
        served(bench.folder / "where-far.db") as url,
        closing(open_store(url)) as far,
    ):
        parts = {
            "over HTTP": _stepwise(lambda: far.commit([], writes, once=(STREAM, key())), TIMES, sent),
            "at the host, read": _ms(lambda: commit_of(*read_request(body).args), TIMES),
            "at the host, prepared and stored": _ms(lambda: _stored(near, commit_of(*call.args)), TIMES),
        }
        title = f"HTTP: ms of a batch of {BATCH:,} (less is better)"
        bench.run(Case(title, "ms", parts, note=HTTP_NOTE))


def _stored(b: AtomicBackend, commit: Commit) -> None:
    b.commit(commit[0], commit[1], once=(STREAM, key()))


def _commits(seq: int) -> list[Commit]:
    """One for each stream."""
    return [
        (
            [ExpectSeq(f"order-{number}", seq)],
            [Append(f"order-{number}", TYPE, 1_700_000_000, data, globally=True)],
            (f"order-{number}", key()),
        )
        for number, data in enumerate(payloads(THREADS))
    ]


def _each(act: Callable[[Any], object], before: Callable[[list[Any]], Any] = list) -> Contender:
    """A contender: µs of processor for each event; `before` makes what `act` works on, off the clock."""

    def run() -> float:
        spent = 0.0
        for _ in range(TIMES):
            made = before(payloads(BATCH))
            gc.collect()
            began = time.process_time()
            act(made)
            spent += time.process_time() - began
        return spent * 1e6 / (TIMES * BATCH)

    return run


def _writes(datas: list[Any]) -> list[Append]:
    return [Append(STREAM, TYPE, 1_700_000_000, data, globally=True) for data in datas]


def prepare_once(writes: list[Append]) -> None:
    prepare([], writes, (STREAM, "key"))


def _encode(datas: list[Any]) -> list[bytes]:
    return [orjson.dumps(data, option=orjson.OPT_SORT_KEYS) for data in datas]


def _sum(texts: list[bytes]) -> None:
    for text in texts:
        event_crc(STREAM, TYPE, 1_700_000_000, text)
    sha256(b"\0\0".join(texts)).hexdigest()


def _answer(datas: list[Any]) -> None:
    for seq, data in enumerate(datas):
        make_event(STREAM, seq, TYPE, 1_700_000_000, data)


def _table(bench: Bench, name: str, *, has_indexes: bool) -> apsw.Connection:
    connection = open_file(bench.folder / name, create=True, synchronous="FULL", busy_timeout_s=30)
    if not has_indexes:
        connection.execute("DROP INDEX events_at; DROP INDEX events_type")
    return connection


def _inserter(connection: apsw.Connection) -> Callable[[list[bytes]], None]:
    numbers = count(1)
    insert = "INSERT INTO events (id, stream, type, at, data, sum) VALUES (?, 1, 1, ?, ?, ?)"

    def act(texts: list[bytes]) -> None:
        with connection:
            connection.executemany(
                insert,
                [
                    cast("Any", ((1 << SEQ_BITS) + seq, 1_700_000_000, text.decode(), seq))
                    for text, seq in zip(texts, numbers, strict=False)
                ],
            )

    return act


if __name__ == "__main__":
    main({QUESTION: ask})
