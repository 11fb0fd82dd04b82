"""The receiver over real HTTP: what is stored, once; what is refused, and how (L-SRV, L-FWD)."""

import gzip
import re
import socket
import threading
import time
import zlib
from base64 import b64encode
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from strandline.config.keys import ServerSection, SpoolSection
from strandline.ingest.append import append
from strandline.persist import read
from strandline.rows.dataset import Column, Dataset, Strand
from strandline.rows.unit import HEADERS, INGEST, NODE, RANGE, ROWS, SCHEMA, SHA256, SOURCE, UNIT_ID
from strandline.server import serve as server_run
from strandline.server.bearer_tokens import new_token, revoke
from strandline.state.dataset_versions import recorded
from strandline.state.strand_entries import OriginRange, Spooled, entry_of
from tests.server.hosts import read_message
from tests.server.receivers import ORIGIN, Answer, Sender, ndjson, receiving, unit_of
from tests.sites import StillClock, spooled_rows

ROWS_OF = [{"n": 1}, {"n": 2}, {"n": 3}]


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Sender]:
    with receiving(tmp_path) as sender:
        yield sender


def stored(here: Sender, dataset: str = "logs", source: str = "laptop/web-1") -> list[dict[str, Any]]:
    return [row for _, row in spooled_rows(here.site, dataset, source)]


def no_row(here: Sender) -> bool:
    return here.site.b.stream_scan("strand/", after="", limit=1) == []


# What is stored


def test_a_unit_becomes_rows_of_a_strand_of_this_node(here: Sender) -> None:  # L-SRV-7, L-SRV-8
    answer = here.send(ROWS_OF)

    assert (answer.status, answer.body) == (202, {"stored": 3, "duplicate": False})
    assert spooled_rows(here.site, "logs", "laptop/web-1") == [(1, {"n": 1}), (2, {"n": 2}), (3, {"n": 3})]


def test_each_spooled_event_names_the_origin_range_that_it_holds(here: Sender) -> None:  # L-SRV-8
    here.send(ROWS_OF, lo=7, epoch=2)

    (event,) = read(here.site.b, Strand("logs", "laptop/web-1").ledger)
    entry = entry_of(event)
    assert isinstance(entry, Spooled)
    assert entry.origin == OriginRange(ORIGIN, 2, "logs", "web-1", 7, 10)


def test_an_event_without_an_origin_is_read_as_ever() -> None:  # L-SRV-8
    from strandline.persist import BlobRef, Event
    from strandline.state.strand_entries import append_of

    old = Spooled(BlobRef("sha256-" + "0" * 64, 1, "x"), 1, 0, 1, 0, 1)

    write = append_of("strand/logs/a", old, 5)

    assert "origin" not in write.data
    assert entry_of(Event("strand/logs/a", 1, write.type, 5, write.data)) == old


def test_sources_come_as_they_are_where_the_server_keeps_them(tmp_path: Path) -> None:  # L-SRV-8
    with receiving(tmp_path, settings=ServerSection(keep_source=True)) as here:
        here.send(ROWS_OF, source="a/b")

        assert stored(here, source="a/b") == ROWS_OF


@pytest.mark.parametrize(
    ("node", "source", "wanted"),
    [
        ("laptop", "a/b", "laptop/a/b"),
        ("a/b", "c", "a%2Fb/c"),
        ("a%2Fb", "c", "a%252Fb/c"),
        ("ö", "ü", "ö/ü"),
    ],
)
def test_no_two_nodes_share_a_strand(
    here: Sender, node: str, source: str, wanted: str
) -> None:  # L-SRV-8, L-SCH-2
    assert here.send(ROWS_OF, node=node, source=source).status == 202

    assert stored(here, source=wanted) == ROWS_OF


def test_received_rows_can_be_sent_on_to_a_third_node(here: Sender) -> None:  # L-SRV-8, F-40
    for n, value in enumerate([2**53 - 1, 2**53 + 1]):
        here.send([{"n": value}], lo=n)
    second = [row for _, row in spooled_rows(here.site, "logs", "laptop/web-1")]

    here.send(second, origin="f" * 32, source="laptop/web-1", node="site")

    assert stored(here, source="site/laptop/web-1") == [{"n": 2**53 - 1}, {"n": 2**53 + 1}]


def test_a_signal_leads_to_a_dataset_of_another_name(tmp_path: Path) -> None:  # L-FWD-1
    with receiving(tmp_path, dataset_of={"access": "logs"}.get) as here:
        assert here.send(ROWS_OF, signal="access", dataset="weblogs").status == 202

        assert stored(here) == ROWS_OF
        assert [each["dataset"] for each in here.ranges().body["strands"]] == ["weblogs"]


# Types


ALL_TYPES = {
    "s": ("string", "ä\n", "ä\n"),
    "i": ("int", 7, 7),
    "b": ("bigint", 2**53 + 1, 2**53 + 1),
    "f": ("float", 0.5, 0.5),
    "d": ("double", "-Infinity", float("-inf")),
    "o": ("boolean", True, True),
    "t": ("timestamp", "2026-01-31T12:00:00.000001Z", datetime(2026, 1, 31, 12, 0, 0, 1, UTC)),
    "y": ("date", "2026-01-31", date(2026, 1, 31)),
    "m": ("decimal(38,2)", "123456789012345678901234567890123456.78", None),
    "x": ("binary", b64encode(b"\0\xff").decode(), b"\0\xff"),
    "j": ("json", {"b": [1, None], "a": "x"}, '{"a":"x","b":[1,null]}'),
}


def test_a_new_column_has_the_type_that_the_sender_announces(
    here: Sender,
) -> None:  # L-SCH-5, L-FWD-3, L-FWD-5
    answer = here.send(
        [{name: sent for name, (_, sent, _) in ALL_TYPES.items()}],
        schema={**{name: type_ for name, (type_, _, _) in ALL_TYPES.items()}, "never": "date"},
    )

    assert answer.status == 202, answer.body
    schema = recorded(here.site.b, "logs")
    assert schema is not None
    assert schema.dataset.version == schema.event == 1
    assert {column.name: column.type for column in schema.dataset.columns} == {
        name: type_ for name, (type_, _, _) in ALL_TYPES.items()
    }
    (row,) = stored(here)
    wanted = {name: kept for name, (_, _, kept) in ALL_TYPES.items()}
    assert row == {**wanted, "m": Decimal("123456789012345678901234567890123456.78")}


def test_an_integer_of_any_size_stays_exact(here: Sender) -> None:  # L-FWD-5, F-40
    huge = b'{"n":12345678901234567890123456789012345678}\n'

    assert here.send([huge], schema={"n": "decimal(38,0)"}).status == 202

    assert stored(here) == [{"n": Decimal("12345678901234567890123456789012345678")}]


def test_nan_of_a_second_hop_stays_nan(here: Sender) -> None:  # L-FWD-5
    here.send([{"d": "NaN"}, {"d": 1.5}], schema={"d": "double"})

    first, second = stored(here)
    assert (str(first["d"]), second["d"]) == ("nan", 1.5)


@pytest.mark.parametrize(
    ("have", "announced", "value"),
    [
        ("string", "timestamp", "2026-01-31T12:00:00Z"),
        ("string", "binary", "AAAA"),
        ("string", "decimal(3,1)", "1.5"),
        ("json", "date", "2026-01-31"),
        ("binary", "string", "AAAA"),
    ],
)
def test_a_value_is_never_taken_for_one_of_another_type(
    tmp_path: Path, have: str, announced: str, value: Any
) -> None:  # L-SPOOL-8, G-3
    with receiving(tmp_path, datasets=[Dataset("logs", (Column("c", have),))]) as here:
        answer = here.send([{"n": 1}, {"c": value}], schema={"c": announced})

        assert (answer.status, answer.body["error"], answer.body["lines"]) == (422, "row_refused", [2])
        assert no_row(here)


def test_the_sources_and_row_ids_in_rows_are_taken_off(here: Sender) -> None:  # L-FWD-6, L-STAMP-8
    row = {"source": "web-1", "_sl_row_id": "0" * 64, "n": 1}

    assert here.send([row, {"source": None, "n": 2}]).status == 202

    assert stored(here) == [{"n": 1}, {"n": 2}]


# Ranges


def test_a_repeat_is_known_and_stored_once(here: Sender) -> None:  # L-SRV-3, F-13
    here.send(ROWS_OF)

    for answer in (here.send(ROWS_OF), here.send(ROWS_OF[:1], lo=1, hi=2)):
        assert (answer.status, answer.body) == (200, {"stored": 0, "duplicate": True})
    assert stored(here) == ROWS_OF


def test_a_repeat_with_another_body_is_a_duplicate_and_counted(here: Sender) -> None:  # L-SRV-3
    here.send(ROWS_OF)

    answer = here.send([{"n": 9}] * 3)

    assert answer.body["duplicate"] is True
    assert here.app.counts["range_body_mismatch"] == 1
    assert stored(here) == ROWS_OF


def test_a_partial_overlap_is_refused_with_what_is_held(here: Sender) -> None:  # L-SRV-3, L-FWD-12
    here.send(ROWS_OF, lo=10)
    here.send(ROWS_OF, lo=20)

    answer = here.send([{"n": 0}] * 20, lo=5, hi=25)

    assert (answer.status, answer.body["error"]) == (409, "range_conflict")
    assert answer.body["ranges"] == [[10, 13], [20, 23]]
    assert len(stored(here)) == 6


def test_neighbouring_ranges_are_one(here: Sender) -> None:  # L-SRV-1
    for lo in (3, 0, 9, 6):
        here.send(ROWS_OF, lo=lo)

    (strand,) = here.ranges().body["strands"]
    assert strand == {
        "epoch": 0,
        "dataset": "logs",
        "source": "web-1",
        "ranges": [[0, 12]],
        "newest": {},
    }


def test_a_sender_that_was_put_back_is_refused_and_nothing_is_stored(
    here: Sender,
) -> None:  # L-SRV-3, L-CTL-7
    here.send(ROWS_OF, lo=0, intent="first", through=0)
    here.send(ROWS_OF, lo=3, intent="second", through=3)

    known = here.send(ROWS_OF, lo=3, intent="second", through=3)  # a repeat of its own delivery
    rewound = here.send(ROWS_OF, lo=3, intent="third", through=6)  # of one that knows of that
    answers = [
        here.send(ROWS_OF, lo=3, intent="other", through=3),
        here.send(ROWS_OF, lo=4, intent="other", through=3),  # with other bounds
        here.send(ROWS_OF, lo=6, intent="other", through=3),  # with no number that is here
    ]
    another = here.send(ROWS_OF, lo=3, intent="fourth", through=0, instance="another sink")

    assert (known.body["duplicate"], rewound.body["duplicate"]) == (True, True)
    assert [(each.status, each.body["error"], each.body["newest"]) for each in answers] == [
        (409, "other_life", 6)
    ] * 3
    assert another.body["duplicate"] is True  # two sinks of one node may share a receiver
    (strand,) = here.ranges().body["strands"]
    assert strand["ranges"] == [[0, 6]]
    assert strand["newest"]["centre"] == {"seq": 6, "intent": "second"}


def test_a_unit_tells_both_its_intent_and_what_came_before_or_neither(here: Sender) -> None:  # L-SRV-3
    refused = here.send(ROWS_OF, headers={"X-Strandline-Through": "3"})

    assert (refused.status, refused.body["header"]) == (400, "X-Strandline-Intent")


def test_seqs_without_a_row_count_as_received(here: Sender) -> None:  # L-SRV-1, L-RET-4
    assert here.send([{"n": 1}], lo=0, hi=10).body == {"stored": 1, "duplicate": False}
    assert here.send([], lo=10, hi=20).body == {"stored": 0, "duplicate": False}

    assert here.ranges().body["strands"][0]["ranges"] == [[0, 20]]
    assert here.send([], lo=10, hi=20).body["duplicate"] is True


def test_origins_epochs_datasets_and_sources_have_ranges_of_their_own(here: Sender) -> None:  # L-SRV-1
    others: list[dict[str, Any]] = [
        {},
        {"epoch": 1},
        {"origin": "f" * 32},
        {"dataset": "orders"},
        {"source": "w"},
    ]

    assert [here.send(ROWS_OF, **each).status for each in others] == [202] * 5

    assert len(here.ranges().body["strands"]) == 4


def test_another_instance_sends_the_same_rows(here: Sender) -> None:  # L-SRV-1
    here.send(ROWS_OF, instance="one")

    assert here.send(ROWS_OF, instance="two", node="renamed").body["duplicate"] is True


def test_ranges_are_told_by_origin_epoch_dataset_and_source(here: Sender) -> None:  # L-SRV-9, L-FWD-7
    for epoch, dataset, source in ((0, "logs", "a/b"), (1, "logs", "a/b"), (0, "orders", "c")):
        here.send(ROWS_OF, epoch=epoch, dataset=dataset, source=source)

    def told(query: str) -> list[tuple[int, str, str]]:
        strands = here.ranges(query).body["strands"]
        return [(each["epoch"], each["dataset"], each["source"]) for each in strands]

    assert len(told("")) == 3
    assert told("?epoch=1") == [(1, "logs", "a/b")]
    assert told("?dataset=logs") == [(0, "logs", "a/b"), (1, "logs", "a/b")]
    assert told("?source=a%2Fb&dataset=logs&epoch=0") == [(0, "logs", "a/b")]
    assert told("?source=c") == [(0, "orders", "c")]
    assert here.ranges(origin="f" * 32).body == {"origin": "f" * 32, "strands": [], "after": None}


def test_ranges_of_many_strands_come_in_pages(
    here: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:  # L-SRV-9
    monkeypatch.setattr("strandline.server.received_ranges.PAGE", 2)
    for n in range(5):
        here.send(ROWS_OF, source=f"s{n}")

    found, after = [], ""
    while after is not None:
        page = here.ranges(f"?after={after}" if after else "").body
        found += [each["source"] for each in page["strands"]]
        after = page["after"]

    assert found == ["s0", "s1", "s2", "s3", "s4"]


@pytest.mark.parametrize(
    "query", ["?epoch=x", "?epoch=-1", "?dataset=..%2F", "?token=secret", "?epoch=1&epoch=2"]
)
def test_a_query_for_ranges_that_could_not_be_is_refused(here: Sender, query: str) -> None:  # L-SRV-9
    answer = here.ranges(query)

    assert answer.status == 400
    assert "secret" not in str(answer.body)


def test_of_units_that_overlap_at_once_each_row_is_stored_once(here: Sender) -> None:  # L-SRV-5
    cuts = [(0, 100), (0, 100), (0, 50), (50, 100), (25, 75), (0, 100), (99, 100), (0, 1)]
    answers: list[Any] = []

    def send(lo: int, hi: int) -> None:
        answers.append(here.send([{"n": n} for n in range(lo + 1, hi + 1)], lo=lo))

    threads = [threading.Thread(target=send, args=cut) for cut in cuts]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)

    assert {each.status for each in answers} <= {200, 202, 409, 503}
    numbers = [row["n"] for row in stored(here)]
    assert len(numbers) == len(set(numbers))
    held = here.ranges().body["strands"][0]["ranges"]
    assert sorted(numbers) == [n for lo, hi in held for n in range(lo + 1, hi + 1)]


def test_a_unit_that_meets_another_body_of_its_range_in_the_store_is_a_duplicate(
    here: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:  # L-SRV-3, L-SRV-5: both passed the look at the headers
    is_first = [True]

    def overtaken(*arguments: Any, **named: Any) -> Any:
        if is_first:
            is_first.clear()
            here.send([{"n": 9}] * 3)
        return append(*arguments, **named)

    monkeypatch.setattr("strandline.server.received_ranges.append", overtaken)

    assert here.send(ROWS_OF).body == {"stored": 0, "duplicate": True}
    assert stored(here) == [{"n": 9}] * 3
    assert here.app.counts["range_body_mismatch"] == 1


def test_a_set_of_ranges_that_cannot_be_read_stops_its_strand_alone(here: Sender) -> None:  # L-CTL-4
    here.send(ROWS_OF, source="a")
    here.site.b.kv_put(f"received/{ORIGIN}/0/logs/a", {"ranges": "none"})

    answer = here.send(ROWS_OF, lo=3, source="a")

    assert (answer.status, answer.body["error"]) == (500, "corruption")
    assert here.send(ROWS_OF, source="b").status == 202
    assert len(stored(here, source="laptop/a")) == 3


# Who may send


@pytest.mark.parametrize(
    "authorization", [None, "", "Bearer", "Bearer x", "Basic eDp5", "bearer {token}", "{token}"]
)
def test_without_a_token_nothing_is_told(here: Sender, authorization: str | None) -> None:  # L-FWD-8
    value = authorization and authorization.format(token=here.token)

    for headers in ({"Authorization": value}, {"Authorization": value, RANGE: "nonsense"}):
        answer = here.send(ROWS_OF, headers=headers)
        assert (answer.status, answer.body["error"]) == (401, "unauthorized")
        assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert here.ask("GET", f"/v1/ranges/{ORIGIN}").status == 401
    assert no_row(here)


def test_a_token_in_the_query_opens_nothing_and_is_told_to_nobody(
    here: Sender, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:  # L-OBS-6
    caplog.set_level("DEBUG")
    unit = unit_of(ndjson(ROWS_OF), 0, 3, 3)
    path = f"{INGEST}/logs?token={here.token}"

    without = here.ask("POST", path, ndjson(ROWS_OF), here.headers_of(unit, {"Authorization": None}))
    with_both = here.ask("POST", path, ndjson(ROWS_OF), here.headers_of(unit))

    assert (without.status, with_both.status) == (401, 400)
    told = f"{without.body}{with_both.body}{caplog.text}{capfd.readouterr()}"
    assert here.token not in told


def test_a_revoked_token_opens_nothing_from_then_on(here: Sender) -> None:
    here.send(ROWS_OF)
    revoke(here.site.b, here.token.split("_")[1], at=1)

    assert here.send(ROWS_OF).status == 401
    assert here.ranges().status == 401


def test_only_a_hash_of_a_token_is_stored(here: Sender, tmp_path: Path) -> None:
    here.send(ROWS_OF)
    here.site.b.close()

    secret = here.token.split("_", 2)[2].encode()
    assert secret not in b"".join(each.read_bytes() for each in tmp_path.rglob("*") if each.is_file())


def test_a_token_is_for_its_datasets_and_origins_alone(here: Sender) -> None:
    b = here.site.b
    _, logs = new_token(b, "logs", at=0, datasets=["logs"])
    _, origin = new_token(b, "origin", at=0, origins=[ORIGIN])
    here.send(ROWS_OF, dataset="orders")

    here.token = logs
    refused = here.send(ROWS_OF, lo=3, dataset="orders")
    assert (refused.status, refused.body["error"]) == (403, "out_of_scope")
    assert here.send(ROWS_OF, signal="logs", dataset="orders").status == 403
    assert here.send(ROWS_OF, signal="orders", dataset="logs").status == 403
    assert here.send(ROWS_OF).status == 202
    assert here.ranges("?dataset=orders").status == 403
    assert [each["dataset"] for each in here.ranges().body["strands"]] == ["logs"]
    here.token = origin
    assert here.send(ROWS_OF, origin="f" * 32).status == 403
    assert here.ranges(origin="f" * 32).status == 403
    assert here.send(ROWS_OF, lo=3).status == 202


def test_a_configured_token_may_send_anything(tmp_path: Path) -> None:  # L-CFG-2
    with receiving(tmp_path, configured=["plain-secret"]) as here:
        here.token = "plain-secret"

        assert here.send(ROWS_OF).status == 202


# What is refused


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_that_is_missing_is_named(here: Sender, name: str) -> None:  # L-FWD-3
    answer = here.send(ROWS_OF, headers={name: None})

    assert (answer.status, answer.body["error"], answer.body["header"]) == (400, "unit_invalid", name)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (UNIT_ID, "0" * 32),
        (RANGE, "3-3"),
        (RANGE, "5-3"),
        (RANGE, "-1-3"),
        (RANGE, "0-9223372036854775808"),
        (RANGE, "0-٣"),
        (ROWS, "4"),
        (ROWS, "-1"),
        (ROWS, "1e3"),
        (SHA256, "xyz"),
        (SOURCE, "%ff"),
        (SOURCE, "%zz"),
        (SOURCE, ""),
        (NODE, ""),
        ("X-Strandline-Origin", "../../etc/passwd"),
        ("X-Strandline-Epoch", "99999999999999999999"),
        ("X-Strandline-Dataset", "../logs"),
        (SCHEMA, "[]"),
        (SCHEMA, "{"),
        (SCHEMA, '{"a":"varchar"}'),
        (SCHEMA, '{"a":1}'),
    ],
)
def test_a_header_that_says_nothing_that_could_be_is_refused(
    here: Sender, name: str, value: str
) -> None:  # L-FWD-3
    encoded = value.encode().decode("latin-1")

    answer = here.send(ROWS_OF, headers={name: encoded})

    assert (answer.status, answer.body["error"]) == (400, "unit_invalid")
    assert no_row(here)


def test_a_header_given_twice_is_refused(here: Sender) -> None:
    unit = unit_of(ndjson(ROWS_OF), 0, 3, 3)
    lines = [f"{name}: {value}" for name, value in here.headers_of(unit).items()]
    head = "\r\n".join(
        [f"POST {INGEST}/logs HTTP/1.1", "Host: x", *lines, f"{RANGE}: 0-3", "Content-Length: 0"]
    )

    assert raw(here, f"{head}\r\n\r\n".encode()).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("signal", ["..", "%2e%2e%2f", "a%2fb", "1", "a%00", "%ff"])
def test_a_signal_that_is_no_name_leads_nowhere(here: Sender, signal: str) -> None:
    assert here.send(ROWS_OF, signal=signal).status in (400, 404)
    assert no_row(here)


@pytest.mark.parametrize("source", ["../../x", "..", "a\nb", "'; DROP TABLE", "\u202e"])
def test_a_source_of_any_shape_stays_in_its_place(
    here: Sender, source: str, tmp_path: Path
) -> None:  # L-SCH-2
    assert here.send(ROWS_OF, source=source).status == 202

    assert stored(here, source=f"laptop/{source}") == ROWS_OF
    assert {each.name for each in tmp_path.iterdir()} <= {
        "content",
        *(f"strandline.db{end}" for end in ("", "-wal", "-shm")),
        "strandline.db.lock",
    }


def test_a_source_that_could_never_land_is_refused(here: Sender) -> None:  # L-SCH-2
    for source in ("x" * 240, "ü" * 50, "\0"):
        answer = here.send(ROWS_OF, source=source)
        assert (answer.status, answer.body["error"]) == (422, "source_invalid")


def test_a_dataset_that_nobody_declared_is_unknown(here: Sender) -> None:  # L-SPOOL-12, F-39
    here.send(ROWS_OF)

    answer = here.send(ROWS_OF, dataset="other")

    assert (answer.status, answer.body["error"]) == (404, "dataset_unknown")
    assert "logs" not in str(answer.body)


def test_a_server_that_is_not_strict_makes_datasets(tmp_path: Path) -> None:  # L-SPOOL-12
    with receiving(tmp_path, is_strict=False) as here:
        assert here.send(ROWS_OF, dataset="other").status == 202


def test_bad_rows_are_named_by_line_and_nothing_is_stored(tmp_path: Path) -> None:  # L-SRV-6, L-FWD-13
    with receiving(
        tmp_path, datasets=[Dataset("logs", (Column("n", "int"), Column("k", "string", True)))]
    ) as here:
        answer = here.send([{"n": 1, "k": "a"}, {"n": "x", "k": "b"}, {"n": 2}, {"n": 2**40, "k": "c"}])

        assert (answer.status, answer.body["error"], answer.body["lines"]) == (422, "row_refused", [2, 3])
        assert {each["column"] for each in answer.body["refused"]} == {"n", "k"}
        assert no_row(here)
        assert here.ranges().body["strands"] == []


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"[]",
        b"nonsense",
        b'"x"',
        b'{"a":1,"a":2}',
        b'{"a":NaN}',
        b'{"a":"\xff"}',
        b'{"_sl_seq":1}',
    ],
)
def test_a_line_that_is_no_row_is_named(here: Sender, line: bytes) -> None:  # L-SRV-6
    answer = here.send([{"n": 1}, line + b"\n"])

    assert (answer.status, answer.body["error"], answer.body["lines"]) == (422, "row_refused", [2])


def test_a_row_with_another_source_than_its_header_is_refused(here: Sender) -> None:  # L-SPOOL-8
    assert here.send([{"source": "web-1"}, {"source": "web-2"}]).body["lines"] == [2]


def test_a_body_that_is_not_what_its_headers_say_is_refused(here: Sender) -> None:  # L-SRV-6
    whole = ndjson(ROWS_OF)
    other_digest = here.send(ROWS_OF, sha256="0" * 64)
    other_bytes = here.send(ROWS_OF, body=whole.replace(b"3", b"4"))
    fewer = here.send(ROWS_OF, rows=2)
    unended = here.send([whole[:-1]], hi=3, rows=3)

    for answer in (other_digest, other_bytes, fewer, unended):
        assert (answer.status, answer.body["error"]) == (400, "integrity")
    assert no_row(here)
    assert here.send(ROWS_OF).status == 202


# Bodies


def packed(body: bytes, encoding: str) -> bytes:
    return gzip.compress(body) if encoding == "gzip" else pa.compress(body, "zstd", asbytes=True)


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_packed_body_is_unpacked(here: Sender, encoding: str) -> None:  # L-FWD-1
    answer = here.send(
        ROWS_OF, body=packed(ndjson(ROWS_OF), encoding), headers={"Content-Encoding": encoding}
    )

    assert answer.status == 202
    assert stored(here) == ROWS_OF


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_packed_body_that_is_damaged_is_refused(here: Sender, encoding: str) -> None:  # L-SRV-6
    whole = packed(ndjson(ROWS_OF), encoding)

    for body in (whole[:-9], b"nonsense", b"", whole + b"nonsense"):
        answer = here.send(ROWS_OF, body=body, headers={"Content-Encoding": encoding})
        assert (answer.status, answer.body["error"]) == (400, "integrity")


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_bomb_is_refused_before_it_fills_the_memory(tmp_path: Path, encoding: str) -> None:  # L-SRV-6
    limit = 1024 * 1024
    zeros = b"\0" * 200 * limit
    bomb = zlib.compress(zeros, 9, 31) if encoding == "gzip" else packed(zeros, "zstd")
    assert len(bomb) < limit
    with receiving(tmp_path, settings=ServerSection(max_body_bytes=limit)) as here:
        answer = here.send(ROWS_OF, body=bomb, headers={"Content-Encoding": encoding})

        assert (answer.status, answer.body["error"], answer.body["limit"]) == (413, "body_too_large", limit)


@pytest.mark.parametrize(
    "headers", [{"Content-Encoding": "br"}, {"Content-Type": "application/json"}, {"Content-Type": None}]
)
def test_a_body_of_another_form_is_refused(here: Sender, headers: dict[str, str | None]) -> None:
    answer = here.send(ROWS_OF, headers=headers)

    assert (answer.status, answer.body["error"]) == (415, "encoding_unknown")


def test_a_body_over_the_limit_is_refused_and_its_repeat_is_not(tmp_path: Path) -> None:  # L-SRV-6, L-SRV-4
    rows = [{"text": "x" * 300}] * 3
    with receiving(tmp_path) as here:
        here.send(rows)
    with receiving(tmp_path, settings=ServerSection(max_body_bytes=500)) as here:
        declared = here.send(rows, lo=3)
        chunked = here.send(rows, lo=3, body=iter([ndjson(rows)]))  # type: ignore[arg-type]  # sent in chunks

        assert [(each.status, each.body["error"]) for each in (declared, chunked)] == [
            (413, "body_too_large")
        ] * 2
        assert here.send(rows).body["duplicate"] is True


def test_a_body_may_come_in_chunks(here: Sender) -> None:
    pieces = iter([ndjson([each]) for each in ROWS_OF])

    assert here.send(ROWS_OF, body=pieces).status == 202  # type: ignore[arg-type]  # sent in chunks


def test_a_body_that_ends_early_stores_nothing(here: Sender) -> None:  # L-SRV-6
    whole = ndjson(ROWS_OF)
    head = request_head(here, whole, length=len(whole))
    with connected(here) as connection:
        connection.sendall(head + whole[:-3])
        connection.shutdown(socket.SHUT_WR)
        assert until_closed(connection) == b""  # whoever sent it is gone

    assert no_row(here)
    assert here.send(ROWS_OF).body == {"stored": 3, "duplicate": False}
    assert stored(here) == ROWS_OF


def test_a_body_longer_than_declared_stores_nothing(here: Sender) -> None:
    whole = ndjson(ROWS_OF)

    answer = raw(here, request_head(here, whole, length=len(whole) - 3) + whole)

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert no_row(here)


def test_a_body_that_does_not_come_is_not_waited_for(tmp_path: Path) -> None:
    with receiving(tmp_path, idle_s=0.2) as here:
        whole = ndjson(ROWS_OF)

        answer = raw(here, request_head(here, whole, length=len(whole)) + whole[:5])

        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b'"body_late"' in answer


def test_a_body_that_drips_is_not_waited_for(tmp_path: Path) -> None:
    with receiving(tmp_path, body_s=0.5) as here, connected(here) as connection:
        connection.sendall(request_head(here, b"", length=1000))
        for _ in range(100):
            try:
                connection.sendall(b" ")
            except OSError:
                break
            connection.settimeout(0.05)
            try:
                assert connection.recv(12) == b"HTTP/1.1 408"
                break
            except TimeoutError:
                continue
        else:
            raise AssertionError("it is waited for")


STARTS = (b"", b"POST /v1/ingest/logs HT", b"POST /v1/ingest/logs HTTP/1.1\r\nHost: x\r\nA: b")


@pytest.mark.parametrize("start", STARTS)
def test_a_head_that_does_not_come_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: bytes
) -> None:  # L-SRV-6
    monkeypatch.setattr(server_run.PatientProtocol, "patience_s", 0.3)
    with receiving(tmp_path) as here, connected(here) as connection:
        connection.sendall(start)
        assert until_closed(connection) == b""


def test_heads_that_do_not_come_delay_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # L-SRV-6
    monkeypatch.setattr(server_run.PatientProtocol, "patience_s", 600)
    with receiving(tmp_path) as here, ExitStack() as stack:
        slow = [stack.enter_context(connected(here)) for _ in range(60)]
        for connection, start in zip(slow, STARTS * 20, strict=True):
            connection.sendall(start)

        assert here.send(ROWS_OF).status == 202
        for connection in slow:  # they are still waited for
            connection.setblocking(False)
            with pytest.raises(BlockingIOError):
                connection.recv(1)


def test_a_connection_too_many_is_told_when_to_come_back(
    here: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:  # L-SRV-6, L-SRV-7
    monkeypatch.setattr(server_run.PatientProtocol, "max_connections", 3)
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(connected(here))
        refused = asked_until(here, 503)
    assert refused.body["error"] == "crowded"
    assert int(refused.headers["Retry-After"]) > 0
    assert refused.headers["Connection"] == "close"

    asked_until(here, 200)  # once the others have left


def asked_until(here: Sender, status: int) -> Answer:
    """The first answer with it: that a connection came or went the server learns a moment later."""
    for _ in range(200):
        if (found := here.ask("GET", "/healthz")).status == status:
            return found
        time.sleep(0.05)
    raise AssertionError(f"it never answered {status}")


def test_a_head_that_is_too_long_is_refused(here: Sender) -> None:  # L-SRV-6
    answer = here.ask("GET", "/healthz", None, {"X-Large": "x" * 100_000})
    assert answer.status == 200
    head = b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Huge: "

    with connected(here) as connection:
        # No more than it reads before it gives up: what nobody reads would take the answer away.
        connection.sendall(head + b"x" * (256 * 1024 + 1 - len(head)))
        refused = until_closed(connection)

    assert refused.startswith(b"HTTP/1.1 400 ")
    assert b"\r\nconnection: close\r\n" in refused
    assert here.ask("GET", "/healthz").status == 200


def test_a_schema_of_thousands_of_columns_fits_the_head(here: Sender) -> None:  # L-FWD-3
    schema = {f"a_column_with_a_long_name_{n}": "timestamp" for n in range(3_000)}

    assert here.send(ROWS_OF, schema=schema).status == 202


# Limits


def test_a_full_spool_takes_nothing_more_but_knows_repeats(
    tmp_path: Path,
) -> None:  # L-SPOOL-12, L-SRV-4, L-SRV-6
    with receiving(tmp_path, spool=SpoolSection(max_bytes=1)) as here:
        assert here.send(ROWS_OF).status == 202

        answer = here.send(ROWS_OF, lo=3)

        assert (answer.status, answer.body["error"]) == (503, "spool_full")
        assert int(answer.headers["Retry-After"]) > 0
        assert here.send(ROWS_OF).body["duplicate"] is True
        assert here.ask("GET", "/readyz").status == 503
        assert here.ask("GET", "/healthz").status == 200


def test_a_token_that_sends_too_much_waits_and_its_repeats_do_not(tmp_path: Path) -> None:  # L-SRV-4, L-SRV-6
    clock = StillClock()
    with receiving(tmp_path, settings=ServerSection(rate_bytes_per_s=10), clock=clock) as here:
        assert here.send(ROWS_OF).status == 202  # 24 bytes

        answer = here.send(ROWS_OF, lo=3)
        assert (answer.status, answer.body["error"]) == (429, "rate_exceeded")
        wait_s = int(answer.headers["Retry-After"])
        assert wait_s == 2
        assert here.send(ROWS_OF).body["duplicate"] is True
        other = new_token(here.site.b, "other", at=0)[1]
        clock.us += wait_s * 1_000_000
        assert here.send(ROWS_OF, lo=3).status == 202
        here.token = other
        assert here.send(ROWS_OF, lo=6).status == 202


def test_bodies_beyond_what_memory_is_for_are_not_held(tmp_path: Path) -> None:
    with receiving(tmp_path, settings=ServerSection(max_body_bytes=1000)) as here:
        waiting = [connected(here) for _ in range(4)]
        for n, each in enumerate(waiting):
            each.sendall(request_head(here, b"", length=999, lo=1000 + n) + b"x" * 998)
        wait_for(lambda: here.app._intake._held >= 3992)

        answer = here.send([{"n": "x" * 500}])

        assert (answer.status, answer.body["error"]) == (503, "crowded")
        assert int(answer.headers["Retry-After"]) > 0
        for each in waiting:
            each.close()
        wait_for(lambda: here.app._intake._held == 0)
        assert here.send(ROWS_OF).status == 202


# The rest


def test_places_that_are_not_there_are_told_in_json(here: Sender) -> None:  # L-SRV-7
    assert here.ask("GET", "/healthz").body == {"status": "ok"}
    assert here.ask("GET", "/readyz").body == {"status": "ok"}
    for method, path, status in (
        ("GET", "/nothing", 404),
        ("GET", "/v1/ingest/logs", 405),
        ("PUT", "/readyz", 405),
    ):
        answer = here.ask(method, path)
        assert answer.status == status
        assert re.fullmatch("[a-z_]+", answer.body["error"])


def test_a_store_that_fails_is_told_without_its_inside(here: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    from strandline.errors import StoreUnavailable

    def fail(*_: Any) -> Any:
        raise StoreUnavailable("/secret/path/strandline.db: disk I/O error")

    monkeypatch.setattr(type(here.site.b), "commit", fail)

    answer = here.send(ROWS_OF)

    assert (answer.status, answer.body["error"]) == (503, "store_unavailable")
    assert int(answer.headers["Retry-After"]) > 0
    assert "secret" not in str(answer.body)


def test_what_nobody_thought_of_is_told_as_such(here: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("inside")

    monkeypatch.setattr("strandline.server.receiver.receive", fail)

    answer = here.send(ROWS_OF)

    assert (answer.status, answer.body["error"]) == (500, "internal")
    assert "inside" not in str(answer.body)


def test_the_description_names_what_is_served(here: Sender) -> None:
    found = here.ask("GET", "/openapi.json").body

    assert found["openapi"].startswith("3.1")
    assert {*found["paths"]} == {
        "/v1/append/{dataset}",
        "/v1/ingest/{signal}",
        "/v1/ranges/{origin}",
        "/healthz",
        "/readyz",
        "/openapi.json",
    }
    named = {each["name"] for each in found["paths"]["/v1/ingest/{signal}"]["post"]["parameters"]}
    assert {*HEADERS} <= named


# Raw connections


def connected(here: Sender) -> socket.socket:
    host, _, port = here.url.removeprefix("http://").rpartition(":")
    return socket.create_connection((host, int(port)), timeout=30)


def raw(here: Sender, request: bytes) -> bytes:
    """The answer; empty where the other side closes without one."""
    with connected(here) as connection:
        connection.sendall(request)
        return read_message(connection)


def until_closed(connection: socket.socket) -> bytes:
    """All that comes until the other side closes; TimeoutError if it does not."""
    return b"".join(iter(lambda: connection.recv(65536), b""))


def request_head(here: Sender, body: bytes, *, length: int, lo: int = 0) -> bytes:
    unit = unit_of(body, lo, lo + 3, 3)
    lines = [f"{name}: {value}" for name, value in here.headers_of(unit).items()]
    head = [f"POST {INGEST}/logs HTTP/1.1", "Host: x", *lines, f"Content-Length: {length}"]
    return "\r\n".join(head).encode() + b"\r\n\r\n"


def wait_for(what: Any, timeout_s: float = 30) -> None:
    until = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < until, "it does not come to that"
        time.sleep(0.01)
