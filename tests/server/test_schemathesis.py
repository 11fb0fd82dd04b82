"""The receiver asked all that its OpenAPI description allows, and what it does not: it never fails, and never
says what it has not announced (L-SRV-6, L-SRV-7)."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from strandline.base.ranges import Range, RangeSet
from strandline.rows.unit import INGEST, MIME
from strandline.server.openapi import description
from tests.server.receivers import Sender, ndjson, receiving, unit_of

schemathesis.serializer.alias(MIME, "text/plain")  # a body of any text
CHECKS: Any = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
SCHEMA = schemathesis.openapi.from_dict(description())
MODES = [
    pytest.param(method, path, mode, id=f"{method} {path} {mode.value}")
    for path, item in description()["paths"].items()
    for method, operation in item.items()
    for mode in GenerationMode
    if mode is GenerationMode.POSITIVE or "parameters" in operation  # else nothing of it can be wrong
]
BOUNDED = settings(
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=[*HealthCheck],
    derandomize=True,
)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sender]:
    folder: Path = tmp_path_factory.mktemp("receiver")
    with receiving(folder, is_strict=False) as receiver:
        yield receiver


@pytest.mark.parametrize("examples", [25, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("method", "path", "mode"), MODES)
def test_no_request_makes_it_fail_or_say_what_it_has_not_announced(
    here: Sender, method: str, path: str, mode: GenerationMode, examples: int
) -> None:  # L-SRV-6
    @given(case=SCHEMA[path][method].as_strategy(mode), has_token=st.sampled_from([True, True, True, False]))
    @settings(parent=BOUNDED, max_examples=examples)
    def ask(case: Any, has_token: bool) -> None:
        headers = {"Authorization": f"Bearer {here.token}"} if has_token else {}
        answer = case.call(base_url=here.url, headers=headers)
        case.validate_response(answer, checks=CHECKS)

    ask()


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from(["n", "text", "at", "source", "_sl_seq", "_sl_row_id", "Ä b", ""])
ROWS = st.dictionaries(NAMES | st.sampled_from(["n", "text", "at"]) | st.text(max_size=4), VALUES, max_size=4)
JUNK = VALUES | st.binary(max_size=6).map(lambda each: each + b"\n")
TYPES = st.sampled_from(["string", "bigint", "double", "timestamp", "decimal(4,2)", "json", "nonsense"])


@given(
    lines=st.lists(ROWS, max_size=5) | st.lists(ROWS | JUNK, max_size=5),
    lo=st.integers(0, 40),
    more=st.integers(0, 3),
    schema=st.dictionaries(NAMES, TYPES, max_size=3),
    source=st.text(min_size=1, max_size=5),
    dataset=st.sampled_from(["logs", "orders", "fresh"]),
)
@settings(parent=BOUNDED, max_examples=300)
def test_no_body_under_headers_that_fit_it_makes_it_fail(
    here: Sender,
    lines: list[Any],
    lo: int,
    more: int,
    schema: dict[str, str],
    source: str,
    dataset: str,
) -> None:  # L-SRV-6, L-SRV-7: the rows themselves are judged, and a refusal stores nothing
    body = ndjson(lines)
    count = body.count(b"\n")
    unit = replace(
        unit_of(body, lo, lo + max(count + more, 1), count), schema=schema, source=source, dataset=dataset
    )

    before = held(here, dataset, source)
    answer = here.ask("POST", f"{INGEST}/{dataset}", body, here.headers_of(unit))

    assert answer.status in (200, 202, 400, 404, 409, 422), answer
    assert answer.body.keys() >= ({"stored"} if answer.status < 300 else {"error"})
    after = held(here, dataset, source)
    assert after == (before.with_(unit.range) if answer.status < 300 else before)


def held(here: Sender, dataset: str, source: str) -> RangeSet:
    """What it says that it has of a strand; nothing of a source that could not be."""
    found = here.ranges(f"?epoch=0&dataset={dataset}&source={quote(source)}").body.get("strands", ())
    return RangeSet.of(Range(*each) for strand in found for each in strand["ranges"])
