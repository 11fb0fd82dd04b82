"""Rows of producers over real HTTP: `POST /v1/append/{dataset}` is the append of Python."""

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest

from strandline.config.keys import ServerSection
from strandline.ingest.quarantine import entries
from strandline.rows.dataset import Column, Dataset
from strandline.server.bearer_tokens import new_token
from strandline.server.producers import ARROW, JSON, KEY, LINES
from tests.server.receivers import ORIGIN, Answer, Sender, receiving
from tests.sites import spooled_rows

NUMBERED = Dataset("numbered", (Column("n", "bigint"),))


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Sender]:
    with receiving(tmp_path, datasets=(Dataset("logs"), NUMBERED)) as sender:
        yield sender


def post(
    here: Sender,
    body: Any,
    kind: str = JSON,
    *,
    to: str = "logs?source=api-1",
    token: str | None = None,
    **headers: str,
) -> Answer:
    made = {"Authorization": f"Bearer {token or here.token}", "Content-Type": kind}
    made |= {name.replace("_", "-"): value for name, value in headers.items()}
    raw = body if isinstance(body, bytes) else orjson.dumps(body)
    return here.ask("POST", f"/v1/append/{to}", raw, made)


def stored(here: Sender, dataset: str = "logs", source: str = "api-1") -> list[dict[str, Any]]:
    return [row for _, row in spooled_rows(here.site, dataset, source)]


def test_a_json_array_is_stored_and_numbered(here: Sender) -> None:  # L-SPOOL-1
    answer = post(here, [{"n": 1}, {"n": 2}])

    assert answer.status == 202
    assert answer.body["ranges"] == {"api-1": [0, 2]}
    assert (answer.body["rows"], answer.body["quarantined"], answer.body["is_repeat"]) == (2, 0, False)
    assert spooled_rows(here.site, "logs", "api-1") == [(1, {"n": 1}), (2, {"n": 2})]


def test_one_object_is_one_row(here: Sender) -> None:  # L-SPOOL-1
    assert post(here, {"n": 1}).status == 202
    assert stored(here) == [{"n": 1}]


@pytest.mark.parametrize("written", [b'[{"a": 1}, {"a": 2}]', b'[ {"a":1} ,\n {"a" : 2}]'])
def test_it_does_not_matter_how_json_is_spaced(here: Sender, written: bytes) -> None:  # L-SPOOL-8
    assert post(here, written).status == 202
    assert stored(here) == [{"a": 1}, {"a": 2}]


def test_json_lines_are_rows(here: Sender) -> None:  # L-SPOOL-1
    assert post(here, b'{"n":1}\n\n{"n":2}', LINES).status == 202
    assert stored(here) == [{"n": 1}, {"n": 2}]


def test_an_arrow_stream_is_rows(here: Sender) -> None:  # L-SPOOL-1
    table = pa.table({"n": [1, 2], "text": ["a", None]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)

    assert post(here, sink.getvalue().to_pybytes(), ARROW).status == 202
    assert stored(here) == [{"n": 1, "text": "a"}, {"n": 2}]


def test_a_body_may_be_packed(here: Sender) -> None:  # L-SRV-6
    assert post(here, gzip.compress(b'[{"n":1}]'), Content_Encoding="gzip").status == 202
    assert stored(here) == [{"n": 1}]


def test_a_bomb_is_refused_before_it_is_unpacked_whole(tmp_path: Path) -> None:  # L-SRV-6
    with receiving(tmp_path, settings=ServerSection(max_body_bytes=10_000)) as here:
        bomb = gzip.compress(b"[" + b'{"n":1},' * 1_000_000 + b'{"n":1}]')
        answer = post(here, bomb, Content_Encoding="gzip")

    assert (answer.status, answer.body["error"]) == (413, "body_too_large")


def test_a_repeat_under_its_key_stores_nothing(here: Sender) -> None:  # L-SPOOL-5
    first = post(here, [{"n": 1}], Idempotency_Key="order-1")
    again = post(here, [{"n": 1}], Idempotency_Key="order-1")

    assert (first.status, again.status) == (202, 200)
    assert again.body == {**first.body, "is_repeat": True}
    assert stored(here) == [{"n": 1}]


def test_a_key_that_brought_other_rows_is_refused(here: Sender) -> None:  # L-SPOOL-5
    post(here, [{"n": 1}], Idempotency_Key="order-1")
    answer = post(here, [{"n": 2}], Idempotency_Key="order-1")

    assert (answer.status, answer.body["error"]) == (400, "request_id_reused")
    assert stored(here) == [{"n": 1}]


def test_bad_rows_are_named_and_nothing_is_stored(here: Sender) -> None:  # L-SPOOL-9
    answer = post(here, [{"n": 1}, {"n": "two"}], to="numbered?source=api-1")

    assert (answer.status, answer.body["lines"]) == (422, [2])
    assert answer.body["refused"][0]["column"] == "n"
    assert stored(here, "numbered") == []


def test_bad_rows_are_quarantined_where_the_producer_asks(here: Sender) -> None:  # L-SPOOL-9
    answer = post(here, [{"n": 1}, {"n": "two"}], to="numbered?source=api-1&on_bad=quarantine")

    assert (answer.status, answer.body["rows"], answer.body["quarantined"]) == (202, 1, 1)
    assert stored(here, "numbered") == [{"n": 1}]
    assert len(entries(here.site.b, "numbered")) == 1


@pytest.mark.parametrize(
    ("body", "kind", "status", "error"),
    [
        (b'[{"n": 1}', JSON, 400, "body_unreadable"),
        (b"[1, 2]", JSON, 400, "body_unreadable"),
        (b'"text"', JSON, 400, "body_unreadable"),
        (b'[{"n": NaN}]', JSON, 400, "body_unreadable"),
        (b'[{"n": 1, "n": 2}]', JSON, 400, "body_unreadable"),
        (b"\xff\xfe", JSON, 400, "body_unreadable"),
        (b"[" * 5000 + b"]" * 5000, JSON, 400, "body_unreadable"),
        (b'{"n": 1}\n{"n": ', LINES, 422, "row_refused"),
        (b"no arrow", ARROW, 400, "body_unreadable"),
        (b"n\n1\n", "text/csv", 415, "encoding_unknown"),
    ],
)
def test_a_body_that_is_not_what_it_says_is_refused(
    here: Sender, body: bytes, kind: str, status: int, error: str
) -> None:  # L-SPOOL-8
    answer = post(here, body, kind)

    assert (answer.status, answer.body["error"]) == (status, error)
    assert stored(here) == []


def test_large_integers_come_through_exactly(here: Sender) -> None:  # L-SPOOL-8
    post(here, b'[{"n": 9007199254740993}, {"n": -9223372036854775808}]')

    assert stored(here) == [{"n": 9007199254740993}, {"n": -(2**63)}]


def test_only_a_token_that_is_for_the_dataset_may_append(here: Sender) -> None:  # L-SRV-9
    _, other_text = new_token(here.site.b, "other", at=0, datasets=["numbered"])
    _, sender_text = new_token(here.site.b, "sender", at=0, origins=[ORIGIN])

    assert here.ask("POST", "/v1/append/logs", b"[]", {"Content-Type": JSON}).status == 401
    assert post(here, [{"n": 1}], token="slt_000000000000_" + "x" * 43).status == 401
    assert post(here, [{"n": 1}], token=other_text).status == 403
    assert post(here, [{"n": 1}], token=sender_text).status == 403
    assert stored(here) == []


@pytest.mark.parametrize("to", ["logs?token=x", "logs?source=a&source=b", "logs?on_bad=drop"])
def test_a_query_that_is_not_of_this_place_is_refused(here: Sender, to: str) -> None:
    assert post(here, [{"n": 1}], to=to).status == 400


@pytest.mark.parametrize("to", ["..%2Fx", "a%2Fb", "unknown"])
def test_a_dataset_that_is_not_there_is_refused(here: Sender, to: str) -> None:  # L-SPOOL-12
    assert post(here, [{"n": 1}], to=to).status in (400, 404)


def test_its_key_has_a_limit(here: Sender) -> None:  # L-SPOOL-5
    answer = post(here, [{"n": 1}], **{KEY.replace("-", "_"): "k" * 300})

    assert answer.status == 400
