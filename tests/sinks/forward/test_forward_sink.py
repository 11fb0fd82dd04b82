"""The forward sink against a server that answers as the test says: what is sent, and what an answer means."""

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.base.ranges import Range, RangeSet
from strandline.base.secret import Secret, SecretMissing
from strandline.errors import UnavailableError, UsageError
from strandline.rows.dataset import Column, Dataset
from strandline.rows.unit import UnitHead
from strandline.sinks.forward.forward_sink import ForwardSink, configure
from strandline.sinks.forward.http import retry_after_s
from strandline.sinks.registry import SinkOptions
from strandline.sinks.sink import Limits, Outcome, RangesUnavailable, Stored
from strandline.sinks.unit_runner import Told, deliver
from tests.sinks.scripted import Asked, Reply, Scripted, scripted
from tests.sinks.shipping import DATASET, SHIPMENT, batch, batches, part, ship

LIMITS = Limits(10, 1024**2, "ndjson")
TEN = range(1, 11)


@pytest.fixture
def there() -> Iterator[Scripted]:
    with scripted() as script:
        yield script


def sink_to(there: Scripted, **keys: Any) -> ForwardSink:
    return ForwardSink(url=there.url, **keys)


def send(
    there: Scripted,
    seqs: Sequence[int] = TEN,
    *,
    since: int = 0,
    until: int = 10,
    limits: Limits = LIMITS,
    **keys: Any,
) -> list[Outcome]:
    """The outcomes of one strand's units."""
    told = ship(sink_to(there, **keys), part("web/1", since, until, limits), seqs)
    return [each.outcome for each in told]


def told(outcomes: Sequence[Outcome]) -> list[tuple[int, int, str]]:
    return [(each.lo, each.hi, each.status) for each in outcomes]


def size_of(seqs: Sequence[int]) -> int:
    """Bytes of these rows as a body."""
    with scripted() as script:
        send(script, seqs, until=max(seqs), limits=Limits(10**6))
        return len(script.asked[0].body)


# What is sent


def test_a_unit_is_one_request_that_says_what_it_holds(there: Scripted) -> None:  # L-FWD-1, -3, -4
    (outcome,) = send(there, [2, 3, 7])

    (asked,) = there.asked
    body = asked.body
    headers = {name: text for name, text in asked.headers.items() if name.startswith("X-Strandline-")}
    unit_id = sha256(b"\0".join([b"origin-1", b"0", b"logs", b"web/1", b"0", b"10"])).hexdigest()[:32]
    assert (asked.method, asked.path) == ("POST", "/v1/ingest/logs")
    assert asked.headers["Content-Type"] == "application/x-ndjson"
    assert headers == {
        "X-Strandline-Unit-Id": unit_id,
        "X-Strandline-Origin": "origin-1",
        "X-Strandline-Node": "node-1",
        "X-Strandline-Instance": "archive",
        "X-Strandline-Epoch": "0",
        "X-Strandline-Dataset": "logs",
        "X-Strandline-Source": "web%2F1",
        "X-Strandline-Range": "0-10",
        "X-Strandline-Rows": "3",
        "X-Strandline-Sha256": sha256(body).hexdigest(),
        "X-Strandline-Schema": '{"n":"bigint","text":"string","at":"timestamp","price":"decimal(10,2)",'
        '"raw":"binary","more":"json","rate":"double"}',
        "X-Strandline-Intent": "intent-1",
        "X-Strandline-Through": "0",
    }
    assert [each["n"] for each in asked.rows()] == [2, 3, 7]
    assert body.endswith(b"\n")
    assert not {key for each in asked.rows() for key in each} & {"source", "_sl_seq", "_sl_row_id"}
    assert outcome == Outcome(
        0,
        10,
        "stored",
        rows=3,
        bytes=len(body),
        digest=sha256(body).hexdigest(),
        target=unit_id,
        requests=1,
        http_status=202,
    )


def test_rows_and_places_make_no_other_id_or_body(there: Scripted) -> None:  # F-12, F-13, F-14
    send(there, TEN)
    send(there, [3, 4], parallel=1, max_unit_rows=77)  # rows were removed, the configuration is another
    asked = part("web/1", 0, 10, LIMITS)
    list(deliver(sink_to(there), SHIPMENT, {"web/1": asked}, [batch("web/1", [3]), batch("web/1", [4])]))

    ids = [each.headers["X-Strandline-Unit-Id"] for each in there.asked]
    assert len(set(ids)) == 1
    assert there.asked[1].body == there.asked[2].body  # however the rows were batched


def test_a_retry_after_new_rows_sends_the_same_again(there: Scripted) -> None:  # F-12, L-WM-8
    there.say(Reply(drop=True))
    (lost,) = send(there, TEN)
    (found,) = send(there, range(1, 31))  # more rows have come; the intent is what it was

    first, second = there.asked
    assert (lost.status, found.status) == ("failed", "stored")
    assert (first.headers["X-Strandline-Unit-Id"], first.body) == (
        second.headers["X-Strandline-Unit-Id"],
        second.body,
    )


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_a_body_may_be_packed(there: Scripted, compression: Any) -> None:  # L-FWD-1, L-FWD-3
    (outcome,) = send(there, compression=compression)

    (asked,) = there.asked
    assert asked.headers["Content-Encoding"] == compression
    assert sha256(asked.plain()).hexdigest() == asked.headers["X-Strandline-Sha256"] == outcome.digest
    assert outcome.bytes == len(asked.plain())
    assert len(asked.body) < len(asked.plain())


def test_the_row_id_goes_along_if_that_is_configured(there: Scripted) -> None:  # L-FWD-6
    sink = sink_to(there, include_row_id=True)
    rows = batch("web/1", [1]).append_column("_sl_row_id", ["ab" * 32])

    list(deliver(sink, SHIPMENT, {"web/1": part("web/1", 0, 10, LIMITS)}, [rows]))

    assert sink.wants_row_id
    assert there.asked[0].rows()[0]["_sl_row_id"] == "ab" * 32


def test_units_go_one_after_another_over_one_connection(there: Scripted) -> None:  # L-FWD-15, L-FWD-7
    outcomes = send(there, range(1, 101), until=100)

    assert there.ranges() == [(lo, lo + 10) for lo in range(0, 100, 10)]
    assert len({each.connection for each in there.asked}) == 1
    assert {each.status for each in outcomes} == {"stored"}


def test_where_there_are_no_rows_nothing_is_asked(there: Scripted) -> None:  # L-FWD-16, L-WM-11
    assert send(there, []) == []
    send(there, [25], until=30)

    assert there.ranges() == [(20, 30)]


def test_the_signal_and_a_path_before_it_make_the_address(there: Scripted) -> None:  # L-FWD-1
    shipment = replace(SHIPMENT, signal="access.logs")
    sink = ForwardSink(url=f"{there.url}/behind/a-proxy/")

    list(deliver(sink, shipment, {"web/1": part("web/1", 0, 10, LIMITS)}, [batch("web/1", [1])]))

    assert there.asked[0].path == "/behind/a-proxy/v1/ingest/access.logs"
    assert there.asked[0].headers["X-Strandline-Dataset"] == "logs"


def test_of_very_many_columns_those_are_announced_that_values_do_not_tell(there: Scripted) -> None:  # L-FWD-3
    columns = [Column(f"column-number-{n}", "string" if n % 100 else "date") for n in range(2000)]
    dataset = Dataset("wide", (Column("n", "bigint"), *columns))
    rows = batch("web/1", [1], dataset=dataset)

    shipment = replace(SHIPMENT, dataset=dataset)
    list(deliver(sink_to(there), shipment, {"web/1": part("web/1", 0, 10, LIMITS)}, [rows]))

    announced = there.asked[0].headers["X-Strandline-Schema"]
    assert len(announced) < 8192
    assert announced.count('"date"') == 20


# Halves


def test_a_unit_over_the_byte_limit_is_halved_at_its_middle_seq(there: Scripted) -> None:  # L-WM-8, L-FWD-2
    limit = size_of(range(1, 17)) // 3

    outcomes = send(there, range(1, 17), until=16, limits=Limits(16, limit))

    assert there.ranges() == [(0, 4), (4, 8), (8, 12), (12, 16)]
    assert max(len(each.body) for each in there.asked) <= limit
    assert [each["n"] for asked in there.asked for each in asked.rows()] == [*range(1, 17)]
    assert told(outcomes) == [(lo, lo + 4, "stored") for lo in (0, 4, 8, 12)]


def test_halves_without_rows_are_not_sent(there: Scripted) -> None:  # L-WM-8, L-WM-11
    limit = size_of([1, 2, 3]) - 1

    outcomes = send(there, [1, 2, 1000], until=1000, limits=Limits(1000, limit))

    assert there.ranges() == [(0, 500), (500, 1000)]
    assert told(outcomes) == [(0, 500, "stored"), (500, 1000, "stored")]


def test_a_row_over_the_limit_of_a_unit_travels_alone(there: Scripted) -> None:  # L-FWD-2
    outcomes = send(there, [6, 7], limits=Limits(10, 10))

    assert there.ranges() == [(5, 6), (6, 7)]
    assert [each.rows for each in outcomes] == [1, 1]


def test_a_row_over_the_limit_of_a_body_is_given_up_unsent(there: Scripted) -> None:  # L-FWD-2
    limit = size_of([1])
    dataset = Dataset("logs", (Column("text", "string"),))
    wide = batch("web/1", [1, 2, 3], dataset=dataset).set_column(0, "text", [["x", "y" * limit, "z"]][0])
    sink = sink_to(there, max_body_bytes=limit)

    shipment = replace(SHIPMENT, dataset=dataset)
    found = list(deliver(sink, shipment, {"web/1": part("web/1", 0, 10, Limits(10, limit))}, [wide]))

    outcomes = [each.outcome for each in found]
    assert told(outcomes) == [(0, 1, "stored"), (1, 2, "bad_rows"), (2, 5, "stored")]
    assert (outcomes[1].kind, outcomes[1].requests, outcomes[1].rows) == ("row_too_large", 0, 1)
    assert there.ranges() == [(0, 1), (2, 5)]


def test_413_halves_down_to_one_row_which_is_given_up(there: Scripted) -> None:  # L-FWD-12, F-28
    there.answer = lambda asked: Reply(413 if b'"n":6,' in asked.body else 202)

    outcomes = send(there)

    assert told(outcomes) == [
        (0, 5, "stored"),
        (5, 6, "bad_rows"),
        (6, 7, "stored"),
        (7, 10, "stored"),
    ]
    assert there.ranges() == [(0, 10), (0, 5), (5, 10), (5, 7), (5, 6), (6, 7), (7, 10)]
    assert (outcomes[1].kind, outcomes[1].http_status) == ("row_too_large", 413)
    assert [each.requests for each in outcomes] == [2, 3, 1, 1]
    assert [each["n"] for asked in there.asked if asked.range != (0, 10) for each in asked.rows()][:5] == [
        1,
        2,
        3,
        4,
        5,
    ]


def test_a_413_for_a_single_row_of_a_wide_range_asks_no_more(there: Scripted) -> None:  # L-FWD-12
    there.answer = lambda _: Reply(413)

    (outcome,) = send(there, [6])

    assert (outcome.lo, outcome.hi, outcome.status, outcome.requests) == (5, 6, "bad_rows", 1)


# What an answer means


@pytest.mark.parametrize("status", [200, 201, 202, 204])
def test_these_are_acknowledgements(there: Scripted, status: int) -> None:  # L-FWD-7
    there.say(Reply(status))

    assert told(send(there)) == [(0, 10, "stored")]


def test_a_repeat_is_known_for_one(there: Scripted) -> None:  # L-FWD-7, L-SRV-3
    there.say(Reply(200, {"stored": 0, "duplicate": True}))

    (outcome,) = send(there)

    assert (outcome.status, outcome.rows) == ("known", 10)


@pytest.mark.parametrize(
    ("status", "body", "wanted", "kind"),
    [
        (401, {"error": "unauthorized"}, "denied", "unauthorized"),
        (429, {"error": "rate_exceeded"}, "pace", "rate_exceeded"),
        (503, b"<html>", "pace", "http_503"),
        (408, {}, "failed", "http_408"),
        (500, {"error": "internal"}, "failed", "internal"),
        (501, {}, "failed", "http_501"),
        (502, b"", "failed", "http_502"),
        (504, b"", "failed", "http_504"),
        (203, {}, "failed", "http_203"),
        (404, {"error": "dataset_unknown"}, "held", "dataset_unknown"),
        (403, {"error": "out_of_scope"}, "held", "out_of_scope"),
        (404, {"error": "not_found"}, "refused", "unexpected_answer"),
        (403, b"no", "refused", "unexpected_answer"),
        (400, {"error": "integrity"}, "refused", "unexpected_answer"),
        (400, {"error": "Robert'); DROP"}, "refused", "unexpected_answer"),
        (409, {"error": "other"}, "refused", "unexpected_answer"),
        (409, {"error": "range_conflict", "ranges": [[20, 30]]}, "refused", "unexpected_answer"),
        (409, {"error": "range_conflict", "ranges": [[5, 2]]}, "refused", "unexpected_answer"),
        (409, {"error": "range_conflict", "ranges": "all"}, "refused", "unexpected_answer"),
        (409, {"error": "range_conflict"}, "refused", "unexpected_answer"),
        (404, b"<html>no such page</html>", "refused", "unexpected_answer"),
        (404, {"error": "row_refused"}, "refused", "unexpected_answer"),
        (405, {"error": "usage"}, "refused", "unexpected_answer"),
        (400, b"", "refused", "unexpected_answer"),
        (400, {"detail": "no"}, "refused", "unexpected_answer"),
        (410, b"gone", "refused", "unexpected_answer"),
        (415, {"error": "encoding_unknown"}, "refused", "unexpected_answer"),
        (200, b" <!DOCTYPE html><title>Sign in</title>", "refused", "unexpected_answer"),
        (422, {"error": "source_invalid"}, "poison", "source_invalid"),
    ],
)
def test_any_other_answer_ends_the_strand_there(
    there: Scripted, status: int, body: Any, wanted: str, kind: str
) -> None:  # L-FWD-8, -9, -11, -13, L-DRV-6, F-28, F-39
    there.say(Reply(), Reply(status, body))

    outcomes = send(there, range(1, 31), until=30)

    assert told(outcomes) == [(0, 10, "stored"), (10, 20, wanted), (20, 30, "put_off")]
    assert (outcomes[1].kind, outcomes[1].http_status, outcomes[1].scope) == (kind, status, "strand")
    assert len(there.asked) == 2


def test_an_answer_from_something_in_between_is_told_with_status_url_and_body(
    there: Scripted,
) -> None:  # L-FWD-13
    there.say(Reply(404, b"<html>\n<title>No such page</title>" + b"x" * 5000))

    (outcome,) = send(there)

    assert outcome.text.startswith(
        f"POST {there.url}/v1/ingest/logs got HTTP 404, which is not a refusal of rows by a Strandline "
        "receiver; the body begins '<html> <title>No such page</title>xx"
    )
    assert len(outcome.text) < 600


def test_redirects_are_not_followed(there: Scripted) -> None:  # L-FWD-7
    there.say(Reply(307, headers={"Location": f"{there.url}/elsewhere"}))

    assert told(send(there)) == [(0, 10, "failed")]
    assert len(there.asked) == 1


def test_what_is_left_of_a_halved_unit_is_put_off_behind_a_failure(there: Scripted) -> None:  # L-FWD-15
    there.say(Reply(413), Reply(), Reply(500))

    outcomes = send(there, range(1, 21), until=20)

    assert told(outcomes) == [(0, 5, "stored"), (5, 10, "failed"), (10, 20, "put_off")]
    there.say(Reply(413), Reply(413), Reply(500))
    assert told(send(there)) == [(0, 2, "failed"), (2, 10, "put_off")]


def test_of_fifty_units_a_retry_sends_what_is_not_acknowledged(there: Scripted) -> None:  # F-11
    there.answer = lambda asked: Reply(500 if asked.range[0] >= 390 else 202)
    outcomes = send(there, range(1, 501), until=500)
    done = RangeSet.of(Range(each.lo, each.hi) for each in outcomes if each.status == "stored")
    there.asked.clear()
    there.answer = lambda _: Reply()

    again = part("web/1", 0, 500, LIMITS, ranges=done.holes(Range(0, 500)))
    ship(sink_to(there), again, range(1, 501))

    assert done.ranges == (Range(0, 390),)
    assert there.ranges() == [(lo, lo + 10) for lo in range(390, 500, 10)]


@pytest.mark.parametrize(
    ("text", "wait_s"),
    [("7", 7.0), ("3600", 3600.0), (None, None), ("0", None), ("-5", None), ("soon", None), ("1.5", None)],
)
def test_a_wish_to_wait_is_told_and_nobody_sleeps(
    there: Scripted, text: str | None, wait_s: float | None
) -> None:  # L-FWD-9, L-DRV-3, F-30
    there.say(Reply(429, headers={"Retry-After": text} if text is not None else {}))

    (outcome,) = send(there)

    assert (outcome.status, outcome.wait_s) == ("pace", wait_s)


def test_a_date_to_wait_for_counts_from_the_clock_that_made_it() -> None:  # L-FWD-9
    noon = datetime(2026, 3, 1, 12, tzinfo=UTC)

    def http(minutes: int) -> str:
        return format_datetime(noon + timedelta(minutes=minutes), usegmt=True)

    assert retry_after_s(http(2), http(0)) == 120
    assert retry_after_s(http(0), http(0)) is None
    assert retry_after_s(http(-2), http(0)) is None
    assert retry_after_s(http(2), None) is None  # long ago by our own clock
    assert retry_after_s("Thu, 32 Foo 2026", http(0)) is None
    assert retry_after_s("9" * 18, None) == 1e9


@given(st.text(max_size=40))
def test_no_wait_is_ever_zero_or_less(text: str) -> None:  # L-FWD-9
    wait_s = retry_after_s(text, None)

    assert wait_s is None or wait_s > 0


# Splits


def test_a_conflict_sends_the_holes_and_counts_the_rest_as_delivered(there: Scripted) -> None:  # L-FWD-12
    there.say(Reply(409, {"error": "range_conflict", "ranges": [[1, 3], [6, 8]]}))

    outcomes = send(there)

    assert there.ranges() == [(0, 10), (0, 1), (3, 6), (8, 10)]
    assert told(outcomes) == [
        (0, 1, "stored"),
        (1, 3, "known"),
        (3, 6, "stored"),
        (6, 8, "known"),
        (8, 10, "stored"),
    ]
    assert [each.rows for each in outcomes] == [1, 2, 3, 2, 2]
    assert sum(each.requests for each in outcomes) == 4


def test_a_hole_without_rows_is_not_sent(there: Scripted) -> None:  # L-FWD-12
    there.say(Reply(409, {"error": "range_conflict", "ranges": [[2, 10]]}))

    assert told(send(there, [5, 6])) == [(2, 10, "known")]
    assert len(there.asked) == 1


def test_only_the_rows_that_are_refused_are_given_up(there: Scripted) -> None:  # L-FWD-13, F-28
    def answer(asked: Asked) -> Reply:
        lines = [n for n, each in enumerate(asked.rows(), 1) if each["n"] in (3, 4, 10)]
        return Reply(422, {"error": "row_refused", "lines": lines}) if lines else Reply()

    there.answer = answer

    outcomes = send(there, [1, 2, 3, 4, 7, 9, 10])

    assert told(outcomes) == [
        (0, 2, "stored"),
        (2, 3, "bad_rows"),
        (3, 4, "bad_rows"),
        (4, 9, "stored"),
        (9, 10, "bad_rows"),
    ]
    bad = outcomes[1]
    assert (bad.kind, bad.http_status, bad.rows) == ("row_refused", 422, 1)
    assert '"row_refused"' in bad.text
    assert len(there.asked) == 3


@pytest.mark.parametrize(
    "refusal",
    [
        Reply(422, {"error": "row_refused", "message": "no"}),
        Reply(422, {"error": "row_refused", "lines": [5001]}),
        Reply(400, {"error": "bad_rows"}),
        Reply(400, {"error": "usage"}),
    ],
)
def test_a_row_that_is_refused_without_its_line_is_found_by_halving(
    there: Scripted, refusal: Reply
) -> None:  # L-FWD-13, F-28
    there.answer = lambda asked: refusal if b'"n":3210,' in asked.body else Reply()

    outcomes = send(there, range(1, 5001), until=5000, limits=Limits(5000))

    (refused,) = [each for each in outcomes if each.status != "stored"]
    assert (refused.lo, refused.hi, refused.rows, refused.status) == (3209, 3210, 1, "bad_rows")
    assert isinstance(refusal.body, dict)
    assert (refused.kind, refused.http_status) == (refusal.body["error"], refusal.status)
    assert sum(each.rows for each in outcomes) == 5000
    assert len(there.asked) <= 2 * 13 + 1  # two requests for each of the 13 halvings


class Model:
    """A receiver of few words: ranges as a set, bad rows, and a largest body."""

    def __init__(self, bad: frozenset[int], held: RangeSet, most: int, named: int) -> None:
        self.bad, self.held, self.most, self.named = bad, held, most, named
        self.rows: list[int] = []

    def answer(self, asked: Asked) -> Reply:
        unit = Range(*asked.range)
        if self.held.covers(unit):
            return Reply(200, {"duplicate": True})
        if held := self.held.within(unit):
            ranges = [[each.lo, each.hi] for each in held]
            return Reply(409, {"error": "range_conflict", "ranges": ranges})
        rows = [each["n"] for each in asked.rows()]
        if len(rows) > self.most:
            return Reply(413)
        if lines := [n for n, seq in enumerate(rows, 1) if seq in self.bad]:
            return Reply(422, {"error": "row_refused", "lines": lines[: self.named]})
        self.rows += rows
        self.held = self.held.with_(unit)
        return Reply()


SEQS = st.frozensets(st.integers(1, 60))


@given(
    SEQS.filter(bool),
    SEQS,
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)).map(sorted)),
    st.integers(1, 30),
    st.integers(0, 3),
    st.integers(1, 20),
    st.integers(0, 2000),
)
def test_each_row_ends_up_once_where_it_belongs_whatever_is_answered(
    there_are: frozenset[int],
    bad: frozenset[int],
    held: list[list[int]],
    most: int,
    named: int,
    unit_rows: int,
    unit_bytes: int,
) -> None:  # L-FWD-12, L-FWD-13, L-SRV-3
    before = RangeSet.of(Range(lo, hi) for lo, hi in held)
    model = Model(bad, before, most, named)
    seqs = sorted(there_are)
    with scripted() as script:
        script.answer = model.answer
        outcomes = send(script, seqs, until=60, limits=Limits(unit_rows, unit_bytes))
        repeats = send(script, seqs, until=60, limits=Limits(unit_rows, unit_bytes))

    fresh = [seq for seq in seqs if seq not in before and seq not in bad]
    given_up = [
        seq for each in outcomes if each.status == "bad_rows" for seq in range(each.lo + 1, each.hi + 1)
    ]
    assert model.rows == fresh
    assert given_up == [seq for seq in seqs if seq in bad and seq not in before]
    assert all(each.goes_on for each in outcomes)
    _check_shape(outcomes, seqs)
    assert sum(each.rows for each in repeats if each.status == "stored") == 0


def _check_shape(outcomes: list[Outcome], seqs: list[int]) -> None:
    """Disjoint, in order, and a row in none of the gaps."""
    ends = [end for each in outcomes for end in (each.lo, each.hi)]
    assert ends == sorted(ends)
    covered = RangeSet.of(Range(each.lo, each.hi) for each in outcomes)
    assert all(seq in covered for seq in seqs)
    assert sum(each.rows for each in outcomes) == len(seqs)


# Failing connections


def test_a_dropped_answer_is_a_failure_that_may_have_been_a_success(there: Scripted) -> None:  # L-FWD-11
    there.say(Reply(drop=True))

    (outcome,) = send(there)

    assert (outcome.status, outcome.kind, outcome.http_status) == ("failed", "unreachable", 0)
    assert (outcome.target, outcome.requests) == (_first_id(), 1)


def _first_id() -> str:
    """Of (0, 10] of the strand that `send` sends."""
    return UnitHead("origin-1", 0, "logs", "web/1", Range(0, 10), 0, "", "", "", {}).id


def test_a_kept_connection_that_was_closed_meanwhile_is_made_anew(there: Scripted) -> None:  # L-FWD-15
    there.say(Reply(headers={"Connection": "close"}), Reply(), Reply(drop=True))

    outcomes = send(there, range(1, 31), until=30)

    assert {each.status for each in outcomes} == {"stored"}
    assert there.ranges() == [(0, 10), (10, 20), (20, 30), (20, 30)]


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://no..name"])
def test_where_nobody_listens_it_fails(url: str) -> None:  # L-FWD-11
    sink = ForwardSink(url=url)

    (found,) = ship(sink, part("web/1", 0, 10, LIMITS), TEN)

    assert (found.outcome.status, found.outcome.kind) == ("failed", "unreachable")
    with pytest.raises(RangesUnavailable, match="did not tell"):
        sink.holdings(SHIPMENT, "web/1", 0)


def test_strands_fail_independently(there: Scripted) -> None:  # L-DRV-4
    there.answer = lambda asked: Reply(500 if asked.headers["X-Strandline-Source"] == "a" else 202)
    parts = {source: part(source, 0, 10, LIMITS) for source in "ab"}
    rows = [*batches("a", TEN), *batches("b", TEN)]

    found: list[Told] = list(deliver(sink_to(there), SHIPMENT, parts, rows))

    assert [(each.source, each.outcome.status) for each in found] == [("a", "failed"), ("b", "stored")]


# Secrets


def test_the_token_goes_along_and_is_never_shown(
    there: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # L-FWD-3, L-CFG-1
    monkeypatch.setenv("CENTRE", "hunter2")
    sink = configure(SinkOptions("c", {"url": there.url, "token": "env:CENTRE"}, tmp_path))
    there.say(Reply(400, {"error": "usage", "message": "you sent Bearer hunter2"}))

    (found,) = ship(sink, part("web/1", 0, 10, LIMITS), [1])

    assert there.asked[0].headers["Authorization"] == "Bearer hunter2"
    assert "you sent Bearer …" in found.outcome.text
    assert "hunter2" not in repr(sink) + str(sink) + sink.fingerprint + repr(found)
    assert pickle.loads(pickle.dumps(sink)) == sink


def test_a_token_is_read_anew_where_it_came_from(tmp_path: Path) -> None:  # L-FWD-8
    (tmp_path / "token.txt").write_text("old\n")
    sink = configure(SinkOptions("c", {"url": "https://x.example", "token": "file:token.txt"}, tmp_path))

    (tmp_path / "token.txt").write_text("new\n")

    assert sink.token is not None
    assert sink.renewed().token == Secret("file:token.txt", tmp_path, "new")
    assert sink.token.text == "old"
    (tmp_path / "token.txt").unlink()
    with pytest.raises(SecretMissing, match="cannot read") as caught:
        sink.renewed()
    assert isinstance(pickle.loads(pickle.dumps(caught.value)), UnavailableError)


def test_without_a_token_none_is_sent(there: Scripted) -> None:  # L-FWD-3
    send(there)

    assert "Authorization" not in there.asked[0].headers
    assert sink_to(there).renewed() == sink_to(there)


def test_of_an_answer_only_the_beginning_is_kept(there: Scripted) -> None:  # L-FWD-14
    there.say(Reply(422, {"error": "source_invalid", "message": "x" * 100_000}), Reply())

    (poison,) = send(there)

    assert (poison.status, len(poison.text)) == ("poison", 2048)


# What is held


def test_holdings_are_the_ranges_that_the_receiver_tells(there: Scripted) -> None:  # L-FWD-7, L-SRV-9
    strand = {"epoch": 1, "dataset": "logs", "source": "web/1", "ranges": [[0, 5], [7, 9]]}
    other = {"epoch": 0, "dataset": "logs", "source": "web/1", "ranges": [[0, 99]]}
    there.say(Reply(200, {"strands": [strand, other], "after": None}), Reply(200, {"strands": []}))

    held = sink_to(there).holdings(SHIPMENT, "web/1", 1)
    nothing = sink_to(there).holdings(SHIPMENT, "web/1", 1)

    assert held is not None
    assert held.stored == (Stored(0, 5), Stored(7, 9))
    assert nothing is not None
    assert nothing.stored == ()
    assert there.asked[0].path == "/v1/ranges/origin-1?epoch=1&dataset=logs&source=web%2F1"


@pytest.mark.parametrize(
    "reply",
    [
        Reply(404, {"error": "not_found"}),
        Reply(405, b""),
        Reply(200, b"<html>"),
        Reply(200, {"strands": [5]}),
        Reply(200, {"strands": [{"epoch": 0, "dataset": "logs", "source": "web/1", "ranges": [[3, 1]]}]}),
    ],
)
def test_a_receiver_that_cannot_tell_is_sent_everything(there: Scripted, reply: Reply) -> None:  # L-FWD-7
    there.say(reply)

    assert sink_to(there).holdings(SHIPMENT, "web/1", 0) is None


@pytest.mark.parametrize("status", [401, 408, 429, 500, 503, 307])
def test_a_receiver_that_cannot_tell_now_is_asked_again_later(
    there: Scripted, status: int
) -> None:  # L-FWD-7
    there.say(Reply(status, {"error": "x"}, {"Retry-After": "9"}))

    with pytest.raises(RangesUnavailable) as caught:
        sink_to(there).holdings(SHIPMENT, "web/1", 0)

    assert (caught.value.http_status, caught.value.wait_s) == (status, 9.0)
    assert pickle.loads(pickle.dumps(caught.value)).facts == caught.value.facts


# The sink itself


def test_a_forward_sink_says_how_it_wants_to_be_driven() -> None:  # L-FWD-2, L-FWD-15, L-WM-7
    sink = ForwardSink(url="https://x.example", inline_wait_s=5, poison_attempts=1, on_poison="hold")

    assert ForwardSink(url="https://x.example", failed_attempts=7).patience.refused_attempts == 7
    assert (sink.is_ordered, sink.asks_first, sink.parallel, sink.wants_row_id) == (True, True, 4, False)
    assert sink.limits(1e9) == Limits(5000, 4 * 1024**2, "ndjson")
    patience = sink.patience
    assert (patience.inline_wait_s, patience.poison_attempts, patience.on_poison) == (5, 1, "hold")
    assert sink.cannot_take(DATASET) is None


def test_one_destination_has_one_fingerprint() -> None:  # L-WM-5
    def fingerprint(url: str) -> str:
        return ForwardSink(url=url, compression="gzip").fingerprint

    assert fingerprint("https://Centre.example/a/") == fingerprint("HTTPS://centre.example:443/a")
    assert fingerprint("https://centre.example/a") != fingerprint("https://centre.example/b")
    assert fingerprint("https://centre.example") != fingerprint("http://centre.example")


@pytest.mark.parametrize(
    "url",
    [
        "ftp://x",
        "centre.example",
        "http://",
        "http://me:hunter2@x",
        "http://x/?token=hunter2",
        "http://x#y",
        "http://x:99999",
        "http://[::1",
        "http://höst",
    ],
)
def test_what_is_no_address_is_refused_and_not_shown(url: str) -> None:  # L-CFG-2
    with pytest.raises(UsageError) as caught:
        ForwardSink(url=url)

    assert "hunter2" not in str(caught.value) + str(caught.value.hint)


def test_a_token_that_no_header_holds_is_refused_and_not_shown(tmp_path: Path) -> None:  # L-CFG-2
    with pytest.raises(UsageError, match="file:token") as caught:
        ForwardSink(url="https://x.example", token=Secret("file:token", tmp_path, "hunter2\nHost: evil"))

    assert "hunter2" not in str(caught.value)


def test_rows_that_a_policy_withholds_are_not_sent(there: Scripted) -> None:  # L-WM-11
    asked = part("web/1", 0, 10, LIMITS)

    found = ship(sink_to(there), asked, TEN, withheld=[2, 3])

    assert [each["n"] for each in there.asked[0].rows()] == [1, *range(4, 11)]
    assert [each.withheld for each in found] == [(Range(1, 3),)]
