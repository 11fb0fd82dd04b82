"""The whole way of the rows: each kind of fault is found in the simulated world, and two with real Spark."""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner

from strandline.base.ranges import Range, RangeSet
from strandline.cli import cli
from strandline.config.config import FILE_NAME, load_config
from strandline.delivery.audit.prove import Proof, prove
from strandline.delivery.operate_sink import forget, release, rewind, skip
from strandline.delivery.owed import Terms
from strandline.delivery.policy import Rule
from strandline.errors import HeldError, NotFoundError, UnavailableError, UsageError
from strandline.flush.flush import flush
from strandline.ingest.append import append
from strandline.lake.jobs.count_rows import Counted
from strandline.lake.jobs.table_schema import AT, FLUSH, ROW_ID, SEQ, table_name
from strandline.lake.spark.conf import catalog_conf
from strandline.lake.spark.connect import CONNECT_MODE
from strandline.node.node import Node
from strandline.rows.dataset import Dataset, Strand
from strandline.sinks.blob.blob_sink import BlobSink
from strandline.sinks.sink import Outcome, Sink
from strandline.state.context import Site
from strandline.state.strand_entries import Raised, append_of
from tests.delivery.audit.test_verify import SENDER, TellingBucketSink
from tests.delivery.destinations import Bucket, Server, ServerSink
from tests.delivery.simulated import BUCKET, SERVER, Destinations, delivers, operates, settle
from tests.delivery.tampering import changing, tampered
from tests.delivery.test_run import TERMS, land, run
from tests.simulation import DATASET, TableRow, World, flushes, produce
from tests.spark_sessions import ConnectServer, lake_session

ANSWERS = [
    None,
    Outcome(0, 0, "failed", kind="timeout"),
    Outcome(0, 0, "pace", wait_s=1000.0),
    *[Outcome(0, 0, "poison", kind="bad")] * 3,
]
LEDGER = Strand(DATASET, "web-1").ledger


def counted(world: World) -> dict[str, Counted]:
    """A census of the simulated table."""
    by_source: dict[str, Counter[int]] = {}
    for row in world.table.rows:
        by_source.setdefault(row.source, Counter())[row.seq] += 1
    return {
        source: Counted(
            seqs.total(),
            RangeSet.of(Range(seq - 1, seq) for seq in seqs),
            tuple(sorted(seq for seq, count in seqs.items() if count > 1)),
        )
        for source, seqs in by_source.items()
    }


def proofs(world: World, site: Site, sinks: list[Any] | None = None) -> list[Proof]:
    return list(prove(site, lambda _: counted(world), sinks or [], SENDER))


def proof(world: World, site: Site, server: Server | None = None) -> Proof:
    (only,) = proofs(world, site, [(ServerSink(server), TERMS)] if server else [])
    return only


def faults(found: Proof) -> list[tuple[str, int, int]]:
    every = [*found.faults, *(fault for each in found.sinks for fault in each.faults)]
    return [(each.kind, each.lo, each.hi) for each in every]


def without_rows(world: World, *seqs: int) -> None:
    for snapshot in world.table.published:
        snapshot.rows = [row for row in snapshot.rows if row.seq not in seqs]


def add_row(world: World, seq: int) -> None:
    world.table.published[0].rows.append(TableRow("web-1", seq, 1, 1, f"stray {seq}"))


def test_a_strand_that_is_whole_says_so_and_in_numbers(world: World, site: Site, server: Server) -> None:
    """G-1, G-2: also with withheld rows, and rows that have not landed."""
    land(site, world, 1, 12)
    run(site, ServerSink(server), rules=(Rule(("logs",), "key LIKE '1%'"),))
    append(site, DATASET, [{"key": "13"}], source="web-1")
    found = proof(world, site, server)
    assert (found.status, faults(found)) == ("ok", [])
    assert (found.numbered, found.landed, found.rows, found.pending) == (13, 12, 12, 1)
    assert (found.sinks[0].rows, found.sinks[0].withheld) == (8, 4)


def test_nothing_landed_needs_no_table(site: Site) -> None:
    """L-CLI-4: no Spark is started for it."""

    def never(_: Dataset) -> Any:
        raise AssertionError("the table was looked at")

    append(site, DATASET, [{"key": "1"}], source="web-1")
    (found,) = prove(site, never, [], SENDER)
    assert (found.status, found.numbered, found.pending) == ("ok", 1, 1)


def test_a_table_that_cannot_be_counted_leaves_it_unknown(world: World, site: Site) -> None:
    """G-3: what could not be checked never passes for proved."""
    land(site, world, 1, 3)

    def fails(_: Dataset) -> Any:
        raise UnavailableError("no Spark", hint="later")

    (found,) = prove(site, fails, [], SENDER)
    assert (found.status, faults(found)) == ("unknown", [])
    assert found.unknown == "the table was not counted: unavailable: no Spark"


def test_a_ledger_that_cannot_be_read_leaves_its_neighbours_unknown(world: World, site: Site) -> None:
    """G-3: a flush counts what it left out for all strands at once, so rows may be missing unseen. What can
    be told of a strand by itself still is."""
    land(site, world, 1, 3, "web-1")
    land(site, world, 4, 6, "web-2")
    append(site, DATASET, [{"key": "7"}], source="web-3")
    damaged = tampered(site, changing(LEDGER, "flushed", lambda _: {"nonsense": True}))
    site.standing.catch_up()
    damaged = replace(damaged, standing=site.standing)
    without_rows(world, 2)
    found = {each.source: each for each in proofs(world, damaged)}
    assert {source: each.status for source, each in found.items()} == {
        "web-1": "unknown",
        "web-2": "unknown",
        "web-3": "ok",
    }
    assert found["web-2"].unknown.startswith(
        "rows that the table lacks were not looked for: the ledger of 'web-1'"
    )
    world.table.published[0].rows.append(TableRow("web-2", 9, 1, 1, "stray"))
    found = {each.source: each for each in proofs(world, damaged)}
    assert faults(found["web-1"]) == []
    assert faults(found["web-2"]) == [("row_unexpected", 8, 9)]


def test_rows_that_land_and_are_delivered_meanwhile_are_no_fault(
    world: World, site: Site, server: Server
) -> None:
    """L-CLI-4: it runs beside a daemon."""
    land(site, world, 1, 6)
    run(site, ServerSink(server))

    def beside(_: Dataset) -> dict[str, Counted]:
        land(site, world, 7, 12)
        run(site, ServerSink(server))
        return counted(world)

    (found,) = prove(site, beside, [(ServerSink(server), TERMS)], SENDER)
    assert (found.status, faults(found), found.rows) == ("ok", [], 12)


# Ledger and spool


def test_numbers_that_leave_one_out_are_not_dense(world: World, site: Site) -> None:
    """L-SEQ-1."""
    append(site, DATASET, [{"key": "1"}], source="web-1")
    append(site, DATASET, [{"key": "2"}, {"key": "3"}], source="web-1")

    def shifted(data: Any) -> Any:
        return {**data, "lo": 3, "hi": 5} if data["lo"] == 1 else data

    damaged = tampered(site, changing(LEDGER, "spooled", shifted))
    assert ("not_dense", 1, 3) in faults(proof(world, damaged))


def test_a_number_below_v_that_nothing_settles_is_told(world: World, site: Site) -> None:
    """L-SEQ-7: V is kept by a fold, and the ledger is read again beside it."""
    land(site, world, 1, 6)
    damaged = tampered(site, changing(LEDGER, "flushed", lambda data: {**data, "ranges": [[0, 2], [4, 6]]}))
    site.standing.catch_up()
    assert ("not_settled", 2, 4) in faults(proof(world, replace(damaged, standing=site.standing)))


def test_rows_that_wait_in_a_damaged_segment_are_told(world: World, site: Site) -> None:
    """L-SPOOL-7, L-SPOOL-13."""
    append(site, DATASET, [{"key": "1"}, {"key": "2"}], source="web-1")
    for each in list(world.disk.scan()):
        world.disk.replace(each.name, b"damaged")
    assert faults(proof(world, site)) == [("segment_damaged", 0, 2)]


# The table


def test_rows_that_are_gone_from_the_table_are_missing(world: World, site: Site, server: Server) -> None:
    """G-1: those that no record removed."""
    land(site, world, 1, 12)
    run(site, ServerSink(server))
    without_rows(world, 4, 5, 9)
    assert faults(proof(world, site, server)) == [("row_missing", 3, 5), ("row_missing", 8, 9)]


def test_rows_that_a_flush_left_out_as_repeats_are_not_missing() -> None:
    """L-STAMP-7, L-FLUSH-9: as many as its record says, and no more."""
    world = World(0, has_identity=True)
    world.is_calm = True
    site = world.site()
    append(site, DATASET, [{"key": key} for key in "abab"], source="web-1")
    flush(site, world.table, DATASET)
    found = proof(world, site)
    assert (found.status, found.landed, found.rows, found.left_out) == ("ok", 4, 2, 2)
    without_rows(world, 1)
    assert [each.kind for each in proof(world, site).faults] == ["row_missing"] * 2
    add_row(world, 1)
    add_row(world, 3)
    assert [each.kind for each in proof(world, site).faults] == ["row_unexpected"]


def test_two_rows_of_one_number_are_told(world: World, site: Site) -> None:
    """L-SEQ-1, F-6."""
    land(site, world, 1, 6)
    add_row(world, 4)
    assert faults(proof(world, site)) == [("seq_twice", 3, 4)]


def test_rows_that_were_never_numbered_are_unexpected(world: World, site: Site) -> None:
    """F-3: above the last number, of a strand that has none, and of rows that wait in the spool."""
    land(site, world, 1, 6)
    append(site, DATASET, [{"key": "7"}, {"key": "8"}], source="web-1")
    add_row(world, 7)
    add_row(world, 10)
    world.table.published[0].rows.append(TableRow("stranger", 3, 1, 1, "x"))
    known, strange = sorted(proofs(world, site), key=lambda each: each.source == "stranger")
    assert faults(known) == [("row_unexpected", 6, 7), ("row_unexpected", 9, 10)]
    assert faults(strange) == [("row_unexpected", 2, 3)]


# The table, and what was delivered of it


def test_a_row_that_appeared_behind_the_line_is_told(world: World, site: Site, server: Server) -> None:
    """L-SEQ-7: no line comes back for it, so it would be lost."""
    land(site, world, 1, 12)
    without_rows(world, 8)
    run(site, ServerSink(server))
    add_row(world, 8)
    assert faults(proof(world, site, server)) == [("behind_line", 5, 10)]


def test_a_row_in_a_unit_that_was_void_is_told_exactly(world: World, site: Site, server: Server) -> None:
    """L-WM-11."""
    land(site, world, 1, 12)
    without_rows(world, 6, 7, 8, 9, 10)
    run(site, ServerSink(server))
    add_row(world, 7)
    add_row(world, 9)
    shown = [each for each in faults(proof(world, site, server)) if each[0] == "behind_line"]
    assert shown == [("behind_line", 6, 7), ("behind_line", 8, 9)]


def test_a_row_that_appears_behind_the_line_is_told(world: World, site: Site, server: Server) -> None:
    """G-3: a store that was behind its table raises numbers that the table has rows of."""
    land(site, world, 1, 3)
    run(site, ServerSink(server))
    raised = Raised(3, 6, "the table has them")
    site.b.commit([], [append_of(LEDGER, raised, 1)])
    land(site, world, 7, 9)
    run(site, ServerSink(server))
    assert proof(world, site, server).status == "ok"
    add_row(world, 5)
    assert faults(proof(world, site, server)) == [("behind_line", 3, 8)]  # the unit that would have had it


def test_released_rows_are_accounted_for_by_those_that_were_asked_for(
    world: World, site: Site, tmp_path: Path
) -> None:
    """L-POL-1: an object of a release is named by a whole unit, and holds some rows of it."""
    archive = BlobSink("local", dir=str(tmp_path), max_object_rows=7)
    rows = [{"key": f"{'secret' if n in (2, 4, 9) else 'open'} {n}"} for n in range(1, 15)]
    append(site, DATASET, rows, source="web-1")
    flush(site, world.table, DATASET)
    run(site, archive, rules=(Rule(("logs",), "key LIKE 'secret%'"),))
    release(site, archive, TERMS, ())
    run(site, archive)
    (found,) = proofs(world, site, [(archive, TERMS)])
    assert (found.status, faults(found)) == ("ok", [])
    assert (found.sinks[0].epochs, found.sinks[0].rows) == ((0, 1), 14)
    for path in tmp_path.rglob("epoch=1/*"):
        path.unlink()
    (found,) = proofs(world, site, [(archive, TERMS)])
    assert faults(found) == [("missing", 1, 9)]


def test_a_destination_that_lost_rows_fails_the_proof(world: World, site: Site, server: Server) -> None:
    """L-SRV-9."""
    land(site, world, 1, 12)
    run(site, ServerSink(server))
    server.ranges[0, "web-1"] = RangeSet((Range(0, 5),))
    assert faults(proof(world, site, server)) == [("missing", 5, 12)]


def test_a_sink_whose_destination_changed_leaves_its_part_unknown(
    world: World, site: Site, server: Server
) -> None:
    """L-WM-5."""
    land(site, world, 1, 3)
    run(site, ServerSink(server))
    (found,) = proofs(world, site, [(ServerSink(server, place="elsewhere"), TERMS)])
    assert (found.status, found.faults, found.sinks[0].status) == ("unknown", (), "unknown")


def test_whatever_happened_on_the_way_everything_is_proved() -> None:
    """G-1: processes killed, power cut, answers lost, loads released, at every step of the way."""
    for seed in range(4):
        world = World(seed)
        to = Destinations(Server(world), Bucket(world), set())
        bodies = {
            "producer": produce,
            "flusher": flushes,
            "sender": delivers(to, 0),
            "archiver 1": delivers(to, 1),
            "archiver 2": delivers(to, 1),
            "operator": operates(to),
        }
        world.run(bodies, 900)
        sinks: list[tuple[Any, Terms]] = [
            (ServerSink(to.server), SERVER),
            (TellingBucketSink(to.bucket), BUCKET),
        ]
        world.disk.put_back()
        for found in proofs(world, world.site(), sinks):  # in the middle of it all
            assert faults(found) == [], f"seed {seed}: {faults(found)}"
        settle(world, to)
        for found in proofs(world, world.site(), sinks):
            assert (found.status, faults(found)) == ("ok", []), f"seed {seed}: {faults(found)}"


@pytest.mark.parametrize("seed", range(10))
def test_whatever_an_operator_does_everything_is_accounted_for(seed: int, tmp_path: Path) -> None:
    """L-WM-13, G-2: rewound, skipped, forgotten, released, with tries that failed in between."""
    world, chosen = World(seed), random.Random(seed)
    world.is_calm = True
    site, server = world.site(), Server(world)
    archive = BlobSink("local", dir=str(tmp_path), max_object_rows=4)
    sinks: list[tuple[Sink, Terms]] = [(ServerSink(server), SERVER), (archive, BUCKET)]
    rules = (Rule(("logs",), "key LIKE '1%'"),)
    for step in range(25):
        first = 1000 * step + chosen.randrange(1, 200)
        land(site, world, first, first + chosen.randrange(1, 9))
        sink, terms = chosen.choice(sinks)
        to = chosen.randrange(site.standing.lines().line(terms.name, Strand(DATASET, "web-1")).mark + 1)
        by_hand: Any = {"reason": "a test", "abort_intent": True}
        by_operator: list[Callable[[], Any]] = [
            lambda: None,
            partial(rewind, site, sink, terms, to=to, **by_hand),
            partial(rewind, site, sink, terms, to=to, resend=True, **by_hand),
            partial(skip, site, sink, terms, **by_hand),
            partial(forget, site, terms.name, **by_hand),
            partial(release, site, sink, terms, ()),
        ]
        server.answers += chosen.choice([[], chosen.choices(ANSWERS, k=3)])
        acts: list[Callable[[], Any]] = [
            partial(run, site, sink, terms, rules=chosen.choice([(), rules])),
            chosen.choice(by_operator),
        ]
        for act in acts:
            with suppress(UsageError, HeldError, NotFoundError):  # refused, and nothing was done
                act()
            (found,) = proofs(world, site, sinks)
            assert (found.status, faults(found)) == ("ok", []), (step, found.sinks)
        world.now_us += 400_000_000


# With real tables


@pytest.fixture
def home(tmp_path: Path, connect_server: ConnectServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A node with a sink to a folder, whose commands find Spark started."""
    folder = tmp_path / "node"
    assert CliRunner().invoke(cli, ["init", str(folder)]).exit_code == 0
    with (folder / FILE_NAME).open("a") as file:
        file.write('\n[sinks.archive]\ntype = "blob"\ndestination = "local"\ndir = "archive"\n')
    monkeypatch.setenv(CONNECT_MODE, "1")
    conf = catalog_conf(load_config(folder / FILE_NAME).lake_settings())
    with lake_session(connect_server, conf) as opened:
        monkeypatch.setattr(Node, "spark", opened)
        yield folder


def command(home: Path, *args: str, stdin: str = "", expect: int = 0) -> list[Any]:
    done = CliRunner().invoke(cli, [*args, "--json", "--home", str(home)], input=stdin)
    assert done.exit_code == expect, (done.exit_code, done.output, done.exception)
    return [orjson.loads(line) for line in done.stdout.splitlines()]


def test_real_tables_and_objects_are_proved_and_a_row_that_is_gone_or_late_is_found(home: Path) -> None:
    """L-CLI-2, G-1, L-BLOB-11."""
    rows = b"".join(orjson.dumps({"n": n, "source": "ab"[n % 2]}) + b"\n" for n in range(40)).decode()
    command(home, "append", "events", stdin=rows)
    command(home, "sync", "archive")
    whole = command(home, "prove")
    assert [(each["source"], each["status"], each["rows"]) for each in whole] == [
        ("a", "ok", 20),
        ("b", "ok", 20),
    ]
    assert [sink["rows"] for each in whole for sink in each["sinks"]] == [20, 20]

    with Node(load_config(home / FILE_NAME)) as node:
        table = table_name("events")
        node.spark.sql(f"DELETE FROM {table} WHERE source = 'a' AND {SEQ} IN (3, 4)").collect()
        node.spark.sql(
            f"INSERT INTO {table} (n, source, {SEQ}, {ROW_ID}, {FLUSH}, {AT}) "
            f"SELECT n, source, {SEQ}, {ROW_ID}, {FLUSH}, {AT} FROM {table} WHERE source = 'b' AND {SEQ} = 7"
        ).collect()

    found = command(home, "prove", "archive", "events", expect=1)
    told = {each["source"]: [(f["kind"], f["lo"], f["hi"]) for f in each["faults"]] for each in found}
    assert told == {"a": [("row_missing", 2, 4)], "b": [("seq_twice", 6, 7)]}
    assert [sink["status"] for each in found for sink in each["sinks"]] == ["ok", "ok"]
    shown = CliRunner().invoke(cli, ["prove", "events", "--home", str(home)])
    assert shown.exit_code == 1
    assert "events/a: row_missing (2, 4]: flush 1 landed 2 rows that are not there" in shown.stdout
