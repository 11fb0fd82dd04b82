"""A run of a sink, over the real store and a simulated table: what is owed, sent, recorded and left."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from strandline.base.secret import Secret
from strandline.config.config import FILE_NAME, load_config
from strandline.delivery.api import Deliveries
from strandline.delivery.owed import Terms
from strandline.delivery.policy import Rule
from strandline.delivery.result import SyncResult
from strandline.delivery.run import sync
from strandline.delivery.session import Sender
from strandline.flush.flush import flush
from strandline.ingest.append import append
from strandline.persist import Append
from strandline.rows.dataset import Strand
from strandline.sinks.blob.blob_sink import BlobSink
from strandline.sinks.forward.forward_sink import ForwardSink
from strandline.sinks.sink import Outcome, Patience, Sink, Unit
from strandline.state.context import Site
from strandline.state.lease import LeaseHeld, take_lease
from strandline.state.sink_progress import SinkProgress, sink_stream
from strandline.state.strand_entries import Entry, Raised, Released, Reserved, append_of
from tests.delivery.destinations import Bucket, BucketSink, Keys, Server, ServerSink, TableCourier
from tests.simulation import DATASET, Killed, TableRow, World
from tests.sinks.scripted import Asked, Reply, Scripted, scripted

TERMS = Terms("centre")


def land(site: Site, world: World, first: int, last: int, source: str = "web-1") -> None:
    append(site, DATASET, [{"key": str(number)} for number in range(first, last + 1)], source=source)
    flush(site, world.table, DATASET)


def run(
    site: Site,
    sink: Sink,
    terms: Terms = TERMS,
    *,
    rules: tuple[Rule, ...] = (),
    courier: TableCourier | None = None,
    is_command: bool = False,
) -> SyncResult:
    world: World = site.clock.world  # type: ignore[attr-defined]
    sender = Sender("origin", "edge", lambda name: name, rules)
    made = courier or TableCourier(world)
    return sync(site, lambda: made, sink, terms, sender, is_command=is_command)


def line(site: Site, source: str = "web-1", instance: str = "centre") -> SinkProgress:
    return site.standing.lines().line(instance, Strand(DATASET, source))


def keys(server: Server) -> list[str]:
    return [key for _, key in server.rows]


def numbers(first: int, last: int) -> list[str]:
    return [str(number) for number in range(first, last + 1)]


def test_what_is_new_is_delivered_in_order_and_then_nothing(world: World, site: Site, server: Server) -> None:
    """L-WM-3, L-DRV-5, L-DRV-7, F-38."""
    land(site, world, 1, 12)
    result = run(site, ServerSink(server))
    assert (result.status, result.rows, result.units) == ("exported", 12, 3)
    assert keys(server) == numbers(1, 12)
    assert line(site).mark == 12


def test_an_idle_run_reads_the_store_and_nothing_else(world: World, site: Site, server: Server) -> None:
    """L-COST-1, L-FWD-16: no job, no request, no write, no lease."""
    land(site, world, 1, 12)
    run(site, ServerSink(server))
    posted, written = len(server.requests), world.counts["commit"]
    courier = TableCourier(world)
    result = run(site, ServerSink(server), courier=courier)
    assert result.status == "idle"
    assert (courier.jobs, len(server.requests), world.counts["commit"]) == (0, posted, written)
    assert (result.control_writes, result.requests) == (0, 0)


def test_nothing_is_delivered_that_is_not_visible(world: World, site: Site, server: Server) -> None:
    """L-SEQ-7: rows in the spool are not owed yet."""
    append(site, DATASET, [{"key": "1"}], source="web-1")
    assert run(site, ServerSink(server)).status == "idle"


def test_a_lost_answer_is_learnt_from_the_server_and_new_rows_wait_for_the_next_intent(
    world: World, site: Site, server: Server
) -> None:
    """F-12, L-WM-7, L-WM-8, L-WM-10: the range of an open intent does not grow."""
    land(site, world, 1, 7)
    sink = ServerSink(server, patient=Patience(inline_wait_s=0))
    lost = Outcome(0, 0, "failed", kind="timeout")
    server.answers = [None, lost]
    first = run(site, sink)
    assert first.status == "partial"
    unit = server.requests[1]
    server.store(unit.unit, unit.keys, unit.unit.lo, unit.unit.hi)  # it had arrived all the same
    land(site, world, 8, 9)
    world.now_us += 400_000_000
    assert run(site, sink).status == "exported"
    assert keys(server) == numbers(1, 9)
    assert [(each.unit.lo, each.unit.hi) for each in server.requests] == [(0, 5), (5, 7), (7, 9)]


def test_after_a_failure_only_what_is_left_is_sent_again(world: World, site: Site, server: Server) -> None:
    """F-11, L-FWD-7: 50 units, the 40th fails, 11 are left."""
    land(site, world, 1, 250)
    server.answers = [*[None] * 39, Outcome(0, 0, "failed", kind="timeout")]
    sink = ServerSink(server, patient=Patience(inline_wait_s=0))
    assert run(site, sink).status == "partial"
    assert len(server.requests) == 40
    world.now_us += 400_000_000
    run(site, sink)
    assert len(server.requests) == 51
    assert keys(server) == numbers(1, 250)


class DyingServer(Server):
    """Stores the 40th unit; whoever sent it dies before it has the answer."""

    def store(self, unit: Unit, keys: Keys, lo: int, hi: int) -> Outcome:
        outcome = super().store(unit, keys, lo, hi)
        if len(self.requests) == 40:
            raise Killed
        return outcome


def test_after_a_kill_only_what_is_not_there_is_sent_again(world: World, site: Site) -> None:
    """F-11, L-WM-10: 50 units, killed at the 40th with nothing recorded; what is there is asked first."""
    land(site, world, 1, 250)
    server = DyingServer(world)
    with pytest.raises(Killed):
        run(site, ServerSink(server))
    assert line(world.site()).mark == 0
    world.now_us += 400_000_000  # its lease is over

    assert run(world.site(), ServerSink(server)).status == "exported"

    assert len(server.requests) == 50
    assert keys(server) == numbers(1, 250)


def test_back_off_outlives_the_process(world: World, site: Site, server: Server) -> None:
    """L-DRV-8, L-FWD-9, F-30: a pause of an hour is one request, however often it is tried."""
    land(site, world, 1, 3)
    server.answers = [Outcome(0, 0, "pace", kind="busy", wait_s=3600.0)]
    for _ in range(10):
        result = run(world.site(), ServerSink(server), is_command=True)
        assert result.status == "failed"
        world.now_us += 60_000_000
    assert len(server.requests) == 1
    world.now_us += 3600_000_000
    assert run(world.site(), ServerSink(server)).status == "exported"


def test_a_short_pause_is_waited_for_in_the_run(world: World, site: Site, server: Server) -> None:
    """L-FWD-9, L-FWD-10: no pause is ever zero; without a number it is 30, 60, 120 s."""
    land(site, world, 1, 3)
    server.answers = [Outcome(0, 0, "pace", wait_s=0.0), Outcome(0, 0, "pace")]
    began = world.now_us
    assert run(site, ServerSink(server)).status == "exported"
    assert world.now_us - began >= 90_000_000
    assert len(server.requests) == 3


@pytest.fixture
def there() -> Iterator[Scripted]:
    with scripted() as script:
        yield script


def has_nothing(asked: Asked) -> Reply:
    """A receiver that has no range yet, and takes what comes."""
    return Reply(200, {"strands": []}) if asked.method == "GET" else Reply(202)


def with_an_open_intent(site: Site, world: World, there: Scripted, folder: Path) -> ForwardSink:
    """Of which it is not known what has arrived: the next run asks first."""
    (folder / "token").write_text("old")
    sink = ForwardSink(url=there.url, token=Secret.read("file:token", folder), inline_wait_s=0)
    land(site, world, 1, 3)
    there.say(Reply(500))
    assert run(site, sink).status == "failed"
    world.now_us += 400_000_000
    there.asked.clear()
    return sink


@pytest.mark.parametrize("status", [429, 503])
def test_a_pause_that_is_asked_for_in_answer_to_the_question_what_is_there_outlives_the_process(
    world: World, site: Site, there: Scripted, tmp_path: Path, status: int
) -> None:
    """L-FWD-9, F-30: a pause of an hour is one request, on command too."""
    sink = with_an_open_intent(site, world, there, tmp_path)
    there.say(Reply(status, {"error": "busy"}, {"Retry-After": "3600"}))
    for _ in range(10):
        (trouble,) = run(world.site(), sink, is_command=True).troubles
        assert trouble.kind == "ranges_unavailable"
        world.now_us += 60_000_000
    assert [each.method for each in there.asked] == ["GET"]
    world.now_us += 3600_000_000
    there.answer = has_nothing
    assert run(world.site(), sink).status == "exported"
    assert [each.method for each in there.asked] == ["GET", "GET", "POST"]


def test_where_the_question_what_is_there_is_denied_it_is_asked_once_more_with_the_token_read_anew(
    world: World, site: Site, there: Scripted, tmp_path: Path
) -> None:
    """L-FWD-8."""
    sink = with_an_open_intent(site, world, there, tmp_path)
    there.answer = lambda _: Reply(401)
    (trouble,) = run(site, sink).troubles
    assert (trouble.kind, len(there.asked)) == ("auth_failed", 2)
    assert run(site, sink).status == "failed"
    assert len(there.asked) == 2  # its back-off is kept
    (tmp_path / "token").write_text("new")
    there.answer = lambda asked: (
        has_nothing(asked) if asked.headers["Authorization"] == "Bearer new" else Reply(401)
    )
    assert run(site, sink, is_command=True).status == "exported"


def test_refused_rows_become_dead_letters_and_the_rest_flows(
    world: World, site: Site, server: Server
) -> None:
    """F-28, L-FWD-13, L-FWD-14."""
    land(site, world, 1, 12)
    server.answers = [None, *[Outcome(0, 0, "poison", kind="bad_request", http_status=400)] * 3]
    result = run(site, ServerSink(server))
    assert (result.status, result.dead_letters, result.rows) == ("partial", 1, 7)
    assert keys(server) == [*numbers(1, 5), *numbers(11, 12)]
    assert line(site).mark == 12
    (letter,) = line(site).letters
    event = site.b.event_at(sink_stream("centre", DATASET, "web-1"), letter)
    assert event is not None
    data: Any = event.data
    assert (data["lo"], data["hi"], data["rows"], data["http_status"]) == (5, 10, 5, 400)
    body = site.content.get(data["body"].cid)
    assert body == b"".join(b'{"key":"%d"}\n' % number for number in range(6, 11))


def test_a_run_that_gives_up_every_row_has_failed(world: World, site: Site, server: Server) -> None:
    """L-DRV-7, F-33: what is set aside has not arrived."""
    land(site, world, 1, 12)
    server.answers = [Outcome(0, 0, "poison", kind="bad_request")] * 9

    result = run(site, ServerSink(server))

    assert (result.status, result.units, result.dead_letters) == ("failed", 0, 3)


PAGES = {
    "a wrong path": Reply(404, b"<html>no such page</html>"),
    "an error of a router": Reply(404, {"error": "not_found", "message": "Not Found"}),
    "a proxy": Reply(403, b"<html>blocked</html>"),
    "a filter": Reply(400, b""),
    "a server for something else": Reply(405, {"detail": "Method Not Allowed"}),
    "an old address": Reply(410, b"gone"),
    "a captive portal": Reply(200, b"<html>please sign in</html>"),
}


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES.keys())
def test_no_row_is_given_up_for_what_something_in_between_answers(
    world: World, site: Site, there: Scripted, page: Reply
) -> None:
    """L-FWD-13, L-DRV-7: it backs off, is held in the end, and goes on once the way is free."""
    land(site, world, 1, 12)
    sink = ForwardSink(url=there.url, max_unit_rows=5, inline_wait_s=0, failed_attempts=3)
    there.answer = lambda _: page

    for status in ("failed", "failed", "held"):
        result = run(site, sink)
        assert (result.status, result.units, result.dead_letters) == (status, 0, 0)
        (trouble,) = result.troubles
        assert (trouble.kind, trouble.source) == ("unexpected_answer", "web-1")
        assert f"{there.url}/v1/ingest/{DATASET} got HTTP {page.status}" in trouble.text
        posts = len(there.asked)
        assert (run(world.site(), sink).status, len(there.asked)) == (status, posts)  # its back-off is kept
        world.now_us += 400_000_000
    asked = len(there.asked)

    assert (run(world.site(), sink).status, len(there.asked)) == ("held", asked)
    there.answer = has_nothing
    result = run(site, sink, is_command=True)
    assert (result.status, result.rows, line(site).letters) == ("exported", 12, ())


def test_a_line_that_is_down_counts_for_no_hold(world: World, site: Site, there: Scripted) -> None:
    """L-FWD-11, L-FWD-13: it is tried again as long as it takes."""
    land(site, world, 1, 3)
    sink = ForwardSink(url=there.url, inline_wait_s=0, failed_attempts=2)
    for status in [500] * 5 + [404] + [500] * 5:
        there.answer = lambda asked, status=status: (  # type: ignore[misc]  # a default binds it
            Reply(200, {"strands": []}) if asked.method == "GET" else Reply(status)
        )
        assert run(site, sink).status == "failed"
        world.now_us += 400_000_000
    there.answer = lambda _: Reply(404)
    run(site, sink)

    assert line(site).hold is not None


def test_a_row_that_is_refused_without_its_line_is_alone_in_its_letter(
    world: World, site: Site, there: Scripted
) -> None:
    """F-28, L-FWD-13: of 5,000 rows in one unit."""
    land(site, world, 1, 5_000)
    refusal = Reply(422, {"error": "row_refused", "message": "one of them does not fit"})
    there.answer = lambda asked: refusal if b'{"key":"3210"}' in asked.body else has_nothing(asked)

    result = run(site, ForwardSink(url=there.url))

    assert (result.status, result.rows, result.dead_letters) == ("partial", 4_999, 1)
    (letter,) = line(site).letters
    event = site.b.event_at(sink_stream("centre", DATASET, "web-1"), letter)
    assert event is not None
    data: Any = event.data
    assert (data["lo"], data["hi"], data["rows"], data["kind"]) == (3209, 3210, 1, "row_refused")
    assert site.content.get(data["body"].cid) == b'{"key":"3210"}\n'


def test_a_sink_that_holds_on_poison_stops_there(world: World, site: Site, server: Server) -> None:
    """L-FWD-13: on_poison = "hold"."""
    land(site, world, 1, 3)
    server.answers = [Outcome(0, 0, "poison", kind="bad_request")] * 3
    sink = ServerSink(server, patient=Patience(on_poison="hold"))
    assert run(site, sink).status == "held"
    assert run(site, sink).status == "held"
    assert len(server.requests) == 3
    assert run(site, sink, is_command=True).status == "exported"


def test_once_a_foreign_object_is_moved_away_a_sync_on_command_delivers_what_it_was_in_the_way_of(
    world: World, site: Site, tmp_path: Path
) -> None:
    """L-BLOB-5, L-BLOB-10: an object is created or not at all, so trying again overwrites nothing."""
    archive = BlobSink("local", dir=str(tmp_path), encoder="jsonl", max_object_rows=3)
    land(site, world, 1, 3)
    run(site, archive)
    land(site, world, 4, 6)
    foreign = tmp_path / DATASET / "source=web-1" / f"{3:020}-{6:020}.jsonl"
    foreign.write_text("something else\n")
    for is_command in (False, True, False):
        result = run(site, archive, is_command=is_command)
        assert [each.kind for each in result.troubles] == ["key_conflict"]
    assert foreign.read_text() == "something else\n"
    foreign.rename(tmp_path / "moved away")
    assert run(site, archive).status == "held"
    assert run(site, archive, is_command=True).status == "exported"
    assert (line(site).mark, line(site).hold) == (6, None)
    assert [orjson.loads(each)["key"] for each in foreign.read_text().splitlines()] == numbers(4, 6)


def test_objects_that_this_node_has_not_written_hold_the_strand_before_a_row_leaves(
    world: World, site: Site, tmp_path: Path
) -> None:
    """L-CTL-7: a home that was put back gives out numbers again that are in names of objects."""
    archive = BlobSink("local", dir=str(tmp_path), encoder="jsonl", max_object_rows=3)
    land(site, world, 1, 3)
    run(site, archive)
    folder = tmp_path / DATASET / "source=web-1"
    (folder / f"{3:020}-{5:020}.jsonl").write_text("of another life\n")
    land(site, world, 4, 8)

    result = run(world.site(), archive)  # another process, which has not compared yet

    assert [each.kind for each in result.troubles] == ["other_life"]
    assert "sink rewind centre logs --to 3" in result.troubles[0].text
    assert (line(site).mark, len(list(folder.iterdir()))) == (3, 2)


def test_a_sink_that_is_held_as_a_whole_is_tried_once_by_each_configuration_that_is_read(
    world: World, site: Site, tmp_path: Path
) -> None:
    """L-BLOB-10: by a daemon that starts and by one that reloads; else it stays held."""
    file, folder = tmp_path / FILE_NAME, tmp_path / "archive"
    file.write_text('version = 1\n[sinks.archive]\ntype = "blob"\ndestination = "local"\ndir = "archive"\n')
    folder.write_text("a file where a folder belongs")

    courier = TableCourier(world)

    def started() -> Deliveries:
        return Deliveries(load_config(file), world.site(), lambda: courier)

    def by_schedule(deliveries: Deliveries) -> tuple[str, str]:
        world.now_us += 60_000_000
        result = deliveries.sync("archive", is_command=False)
        return result.status, result.troubles[0].kind if result.troubles else ""

    land(site, world, 1, 3)
    for tries in (1, 2):
        deliveries = started()
        assert by_schedule(deliveries) == ("failed", "bucket_missing")
        assert by_schedule(deliveries) == ("held", "bucket_missing")
        assert courier.jobs == tries
    folder.unlink()
    assert by_schedule(deliveries) == ("held", "bucket_missing")
    assert by_schedule(started()) == ("exported", "")
    assert line(site, instance="archive").mark == 3


def test_strands_fail_independently(world: World, site: Site, server: Server) -> None:
    """L-DRV-4."""
    land(site, world, 1, 3, "web-1")
    land(site, world, 4, 6, "web-2")
    server.answers = [Outcome(0, 0, "held", kind="dataset_unknown")]
    result = run(site, ServerSink(server))
    assert (result.status, keys(server)) == ("partial", numbers(4, 6))
    assert [each.source for each in result.troubles] == ["web-1"]


def test_a_denied_request_is_repeated_once_with_the_credential_read_anew(
    world: World, site: Site, server: Server
) -> None:
    """L-FWD-8."""
    land(site, world, 1, 3)
    server.answers = [Outcome(0, 0, "denied", kind="unauthorized")]
    assert run(site, ServerSink(server)).status == "exported"
    land(site, world, 4, 6)
    server.answers = [Outcome(0, 0, "denied", kind="unauthorized")] * 2
    result = run(site, ServerSink(server, patient=Patience(inline_wait_s=0)))
    assert (result.status, result.troubles[0].kind) == ("failed", "auth_failed")
    assert keys(server) == numbers(1, 3)


def test_two_instances_keep_their_own_lines(world: World, site: Site, server: Server) -> None:
    """F-15, L-WM-4: the failing one gets every row later."""
    other = Server(world)
    land(site, world, 1, 3)
    other.answers = [Outcome(0, 0, "failed", kind="timeout")]
    impatient = Patience(inline_wait_s=0)
    run(site, ServerSink(server), Terms("one"))
    run(site, ServerSink(other, patient=impatient), Terms("two"))
    land(site, world, 4, 6)
    world.now_us += 10_000_000
    run(site, ServerSink(server), Terms("one"))
    run(site, ServerSink(other, patient=impatient), Terms("two"))
    assert keys(server) == keys(other) == numbers(1, 6)


def test_one_run_of_an_instance_at_a_time(world: World, site: Site, server: Server) -> None:
    """L-DRV-2, F-31."""
    land(site, world, 1, 3)
    take_lease(site.b, site.clock, "sink/centre")
    with pytest.raises(LeaseHeld):
        run(world.site(), ServerSink(server))
    assert server.requests == []


def test_a_backlog_drains_as_a_series_of_intents(world: World, site: Site, server: Server) -> None:
    """L-WM-9."""
    land(site, world, 1, 25)
    assert run(site, ServerSink(server), Terms("centre", max_intent_rows=10)).status == "exported"
    stream = sink_stream("centre", DATASET, "web-1")
    events = list(site.b.read_range(stream, 1, 100, limit=100))
    intents = [(each.data["lo"], each.data["hi"]) for each in events if each.type == "intended"]
    assert intents == [(0, 10), (10, 20), (20, 25)]


def test_rows_of_numbers_that_were_raised_over_are_delivered(
    world: World, site: Site, server: Server
) -> None:
    """L-SEQ-9, G-1: a store that was behind its table does not know these rows, and the table has them."""
    land(site, world, 1, 3)
    run(site, ServerSink(server))
    ledger = Strand(DATASET, "web-1").ledger
    site.b.commit([], [append_of(ledger, Raised(3, 6, "the table has them"), 1)])
    world.table.published[0].rows.append(TableRow("web-1", 5, 1, 0, "5"))
    assert run(site, ServerSink(server)).status == "exported"
    assert keys(server) == [*numbers(1, 3), "5"]
    assert line(site).mark == 6


def test_a_gap_is_passed_without_a_job(world: World, site: Site, server: Server) -> None:
    """L-WM-9: what was released has no row."""
    land(site, world, 1, 3)
    run(site, ServerSink(server))
    ledger, at = Strand(DATASET, "web-1").ledger, 1
    gap: list[Entry] = [Reserved("l", 9, "id", 1, 3, 8), Released("l", 9, 3, 8)]
    site.b.commit([], [append_of(ledger, each, at) for each in gap])
    courier = TableCourier(world)
    assert run(site, ServerSink(server), courier=courier).status == "exported"
    assert (courier.jobs, line(site).mark) == (0, 8)


def test_start_now_means_v_when_the_instance_was_first_seen(world: World, site: Site, server: Server) -> None:
    """L-WM-6: a strand that is born later is delivered whole."""
    land(site, world, 1, 3, "web-1")
    terms = Terms("centre", start="now")
    assert run(site, ServerSink(server), terms).status == "idle"
    land(site, world, 4, 6, "web-1")
    land(site, world, 7, 9, "web-2")
    run(site, ServerSink(server), terms)
    assert sorted(keys(server)) == numbers(4, 9)


def test_another_destination_under_the_same_name_is_not_sent_to(
    world: World, site: Site, server: Server
) -> None:
    """L-WM-5."""
    land(site, world, 1, 3)
    run(site, ServerSink(server))
    land(site, world, 4, 6)
    with pytest.raises(Exception, match="delivered to server and is now configured for elsewhere"):
        run(site, ServerSink(server, place="elsewhere"))
    assert keys(server) == numbers(1, 3)


def test_a_damaged_stream_holds_its_strand_and_no_other(world: World, site: Site, server: Server) -> None:
    """F-37, L-WM-12: it is never read as "nothing was sent"."""
    land(site, world, 1, 3, "web-1")
    land(site, world, 4, 6, "web-2")
    run(site, ServerSink(server))
    stream = sink_stream("centre", DATASET, "web-1")
    site.b.commit([], [Append(stream, "delivered", 1, {"nonsense": True}, globally=True)])
    land(site, world, 7, 9, "web-1")
    land(site, world, 10, 12, "web-2")
    for _ in range(3):
        result = run(site, ServerSink(server), is_command=True)
    assert [each.kind for each in result.troubles] == ["control_unreadable"]
    assert sorted(keys(server), key=int) == [*numbers(1, 6), *numbers(10, 12)]


def test_objects_are_named_by_the_intent_whatever_a_try_finds(world: World, site: Site) -> None:
    """L-BLOB-2, L-WM-11: a unit that was emptied between two tries leaves its place empty."""
    bucket = Bucket(world)
    land(site, world, 1, 21)
    gone = {str(number) for number in range(8, 15)}
    snapshot = world.table.published[0]
    snapshot.rows = [row for row in snapshot.rows if row.key not in gone]
    assert run(site, BucketSink(bucket)).status == "exported"
    assert list(bucket.objects) == [f"web-1/0/{lo:020}-{hi:020}" for lo, hi in ((0, 7), (14, 21))]
    world.table.published[0].rows = []
    land(site, world, 22, 23)
    assert run(site, BucketSink(bucket)).status == "exported"
    assert list(bucket.objects)[-1] == f"web-1/0/{21:020}-{23:020}"


def test_withheld_rows_are_passed_and_remembered(world: World, site: Site, server: Server) -> None:
    """L-POL-1, L-POL-2."""
    land(site, world, 1, 12)
    rules = (Rule(("logs",), "key LIKE '1%'"),)
    result = run(site, ServerSink(server), rules=rules)
    assert (result.status, result.rows, result.withheld) == ("exported", 8, 4)
    assert keys(server) == numbers(2, 9)
    found = line(site)
    assert found.mark == 12
    assert [(each.lo, each.hi) for each in found.withheld.ranges] == [(0, 1), (9, 12)]


def test_what_is_kept_of_the_fold_is_what_the_whole_order_says(
    world: World, site: Site, server: Server
) -> None:
    """L-WM-1, L-CTL-6: a fresh process starts from the kept snapshot and knows the same."""
    land(site, world, 1, 12)
    server.answers = [None, Outcome(0, 0, "failed", kind="timeout")]
    run(site, ServerSink(server, patient=Patience(inline_wait_s=0)), rules=(Rule(("*",), "key LIKE '1%'"),))
    lines = site.standing.lines()
    site.standing._keep()
    fresh = world.site().standing
    assert fresh.lines().data() == lines.data()
    assert fresh.position() == site.standing.position()
