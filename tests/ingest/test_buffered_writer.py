"""The buffered writer (L-SPOOL-15)."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from strandline.errors import StoreUnavailable, UsageError
from strandline.ingest.append import append
from strandline.ingest.buffered_writer import GROUPS_WAITING, BufferedWriter, BufferFull, NotAcknowledged
from strandline.persist import mem_backend
from strandline.state.context import Site
from tests.sites import make_site, spooled_rows

FOREVER_MS = 1_000_000.0


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return make_site(mem_backend(), tmp_path / "content")


def test_each_row_is_acknowledged_with_its_number_when_its_group_is_durable(site: Site) -> None:
    with BufferedWriter(site, "logs", source="a", linger_ms=0) as writer:
        acks = [writer.write({"n": n}) for n in range(50)]
        assert [ack.result(10).seq for ack in acks] == list(range(1, 51))

    assert [row["n"] for _, row in spooled_rows(site, "logs", "a")] == list(range(50))


def test_rows_that_come_together_are_one_segment(site: Site) -> None:
    writer = BufferedWriter(site, "logs", source="a", linger_ms=FOREVER_MS)
    acks = [writer.write({"n": n}) for n in range(100)]
    assert not acks[0].done()

    writer.flush(timeout_s=10)

    assert len(site.b.read("strand/logs/a")) == 1
    assert acks[99].result(0).seq == 100
    writer.close()


@pytest.mark.parametrize("limits", [{"group_rows": 10}, {"group_bytes": 200}])
def test_a_full_group_does_not_wait(site: Site, limits: dict[str, Any]) -> None:
    with BufferedWriter(site, "logs", source="a", linger_ms=FOREVER_MS, **limits) as writer:
        acks = [writer.write({"n": n}) for n in range(20)]
        assert acks[0].result(10).seq == 1


def test_rows_of_several_sources_get_the_numbers_of_their_strands(site: Site) -> None:
    append(site, "logs", [{"n": 0}], source="a")
    with BufferedWriter(site, "logs", linger_ms=FOREVER_MS) as writer:
        acks = [writer.write({"source": source, "n": 1}) for source in ("a", "b", "a")]

    assert [(ack.result(0).source, ack.result(0).seq) for ack in acks] == [("a", 2), ("b", 1), ("a", 3)]


def test_a_row_that_cannot_be_stored_fails_alone(site: Site) -> None:
    append(site, "logs", [{"n": 1}], source="a")
    writer = BufferedWriter(site, "logs", source="a", linger_ms=FOREVER_MS)
    good, bad, also = (writer.write({"n": n}) for n in (2, "three", 4))

    with pytest.raises(NotAcknowledged) as caught:
        writer.flush(timeout_s=10)

    assert caught.value.rows == 1
    assert (good.result(0).seq, also.result(0).seq) == (2, 3)
    with pytest.raises(UsageError, match="three"):
        bad.result(0)
    writer.close()


def test_a_group_that_fails_fails_each_of_its_rows(site: Site) -> None:
    class Down:
        def __getattr__(self, name: str) -> Any:
            return getattr(site.b, name)

        def commit(self, *args: Any, **options: Any) -> Any:
            raise StoreUnavailable("down")

    writer = BufferedWriter(make_site(Down(), site.content), "logs", source="a", linger_ms=0)
    acks = [writer.write({"n": n}) for n in range(3)]

    with pytest.raises(NotAcknowledged) as caught:
        writer.close(timeout_s=10)

    assert caught.value.rows == 3
    for ack in acks:
        with pytest.raises(StoreUnavailable):
            ack.result(0)


def slow_site(site: Site) -> tuple[Site, threading.Event, threading.Event]:
    """The same over a store whose commits wait: it tells that one does, and is told to go on."""
    blocked, go = threading.Event(), threading.Event()

    class Slow:
        def __getattr__(self, name: str) -> Any:
            return getattr(site.b, name)

        def commit(self, *args: Any, **options: Any) -> Any:
            blocked.set()
            assert go.wait(10)
            return site.b.commit(*args, **options)

    return make_site(Slow(), site.content), blocked, go


def test_a_writer_that_is_full_refuses_or_waits(site: Site) -> None:
    slow, blocked, go = slow_site(site)
    writer = BufferedWriter(slow, "logs", source="a", group_rows=1, on_full="refuse")
    acks = [writer.write({"n": 0})]
    assert blocked.wait(10)
    acks += [writer.write({"n": n + 1}) for n in range(GROUPS_WAITING)]

    with pytest.raises(BufferFull):
        writer.write({"n": 99})

    go.set()
    writer.close(timeout_s=10)
    assert [ack.result(0).seq for ack in acks] == list(range(1, GROUPS_WAITING + 2))


def test_how_long_a_full_writer_has_made_its_callers_wait_is_told(site: Site) -> None:
    """L-OBS-4: `backpressure_wait_s`, at the producer."""
    slow, blocked, go = slow_site(site)
    with BufferedWriter(slow, "logs", source="a", group_rows=1) as writer:
        writer.write({"n": 0})
        assert blocked.wait(10)
        for n in range(GROUPS_WAITING):
            writer.write({"n": n + 1})
        before = writer.backpressure_wait_s
        threading.Timer(0.05, go.set).start()
        began = time.monotonic()
        writer.write({"n": 99})
        took_s = time.monotonic() - began

    assert before == 0
    assert 0 < writer.backpressure_wait_s <= took_s


def test_close_drains_and_a_closed_writer_takes_nothing(site: Site) -> None:
    writer = BufferedWriter(site, "logs", source="a", linger_ms=FOREVER_MS)
    ack = writer.write({"n": 1})

    writer.close()
    writer.close()

    assert ack.result(0).seq == 1
    with pytest.raises(UsageError, match="closed"):
        writer.write({"n": 2})


def test_threads_share_a_writer(site: Site) -> None:
    with BufferedWriter(site, "logs", source="a", linger_ms=1) as writer:
        threads = [
            threading.Thread(target=lambda who=who: [writer.write({"who": who, "i": i}) for i in range(200)])
            for who in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    rows = [row for _, row in spooled_rows(site, "logs", "a")]
    assert len(rows) == 800
    for who in range(4):
        assert [row["i"] for row in rows if row["who"] == who] == list(range(200))


def test_a_row_that_is_no_mapping_is_refused_at_once(site: Site) -> None:
    with BufferedWriter(site, "logs", source="a") as writer, pytest.raises(UsageError):
        writer.write(["n"])  # type: ignore[arg-type]


def test_a_caller_that_fills_one_mapping_again_and_again_loses_nothing(site: Site) -> None:
    row: dict[str, Any] = {}
    with BufferedWriter(site, "logs", source="a", linger_ms=FOREVER_MS) as writer:
        for n in range(3):
            row["n"] = n
            writer.write(row)

    assert [row["n"] for _, row in spooled_rows(site, "logs", "a")] == [0, 1, 2]


def test_a_cancelled_acknowledgement_harms_no_other_row(site: Site) -> None:
    with BufferedWriter(site, "logs", source="a", linger_ms=FOREVER_MS) as writer:
        cancelled, other = writer.write({"n": 1}), writer.write({"n": 2})
        assert cancelled.cancel()

    assert other.result(0).seq == 2
    assert len(spooled_rows(site, "logs", "a")) == 2


def test_a_row_of_a_source_that_could_never_land_fails_alone(site: Site) -> None:
    writer = BufferedWriter(site, "logs", linger_ms=FOREVER_MS)
    good, bad = writer.write({"n": 1, "source": "a"}), writer.write({"n": 2, "source": "x" * 1_000})

    with pytest.raises(NotAcknowledged):
        writer.close(timeout_s=10)

    assert good.result(0).seq == 1
    assert bad.exception(0) is not None
