"""Two receivers on one Postgres store, and senders that all send the same rows to both at once."""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from strandline.base.ranges import Range, RangeSet
from strandline.base.secret import Secret
from strandline.sinks.forward.forward_sink import ForwardSink
from strandline.sinks.sink import Limits, Outcome
from strandline.sinks.unit_runner import deliver
from tests.conftest import open_backend
from tests.server.receivers import ORIGIN, Sender, receiving
from tests.sinks.shipping import DATASET, SHIPMENT, batches, part
from tests.sites import spooled_rows

LAST = 120
WIDTHS = (7, 10, 13, 30, 40, 120)
TRIES = 50


@pytest.fixture
def receivers(tmp_path: Path) -> Iterator[list[Sender]]:
    """As two processes have them: each with its own connections, and what it remembers."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                receiving(tmp_path, b=open_backend("postgres", tmp_path), datasets=(DATASET,))
            )
            for _ in range(2)
        ]


def send_all(receiver: Sender, source: str, width: int) -> list[Outcome]:
    """Every row of a strand, again and again until the receiver has all of them; the last outcomes."""
    sink = ForwardSink(url=receiver.url, token=Secret("env:TOKEN", Path(), receiver.token))
    shipment = replace(SHIPMENT, origin=ORIGIN, node="laptop")
    asked = part(source, 0, LAST, Limits(width, 1024**2, "ndjson"))
    for _ in range(TRIES):
        rows = batches(source, range(1, LAST + 1))
        outcomes = [each.outcome for each in deliver(sink, shipment, {source: asked}, rows)]
        if all(each.status in ("stored", "known") for each in outcomes):
            return outcomes
        assert {each.kind for each in outcomes if each.status not in ("stored", "known")} <= {"busy", ""}
    pytest.fail(f"{source} in units of {width} is not through after {TRIES} tries: {outcomes}")


def test_rows_that_many_send_at_once_in_different_units_are_stored_once(receivers: list[Sender]) -> None:
    """L-SRV-2, L-SRV-3, L-SRV-5, L-SEQ-3: one stores, the others are told what is there."""
    sources = ("web/1", "web/2")
    asked = [(receivers[at % 2], source, width) for source in sources for at, width in enumerate(WIDTHS)]

    with ThreadPoolExecutor(len(asked)) as threads:
        told = list(threads.map(lambda each: send_all(*each), asked))

    assert all(RangeSet.of(Range(each.lo, each.hi) for each in one).covers(Range(0, LAST)) for one in told)
    for receiver in receivers:
        for source in sources:
            rows = spooled_rows(receiver.site, "logs", f"laptop/{source}")
            assert Counter(row["n"] for _, row in rows) == Counter(range(1, LAST + 1))
            assert [seq for seq, _ in rows] == [*range(1, LAST + 1)]
    held = receivers[0].ranges().body["strands"]
    assert {each["source"]: each["ranges"] for each in held} == {source: [[0, LAST]] for source in sources}
    assert sum(each.app.counts["rows_stored"] for each in receivers) == LAST * len(sources)
