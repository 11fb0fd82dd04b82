"""The buffered writer: single rows, grouped, each acknowledged when its group is durable and numbered."""

import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Literal, Self

from strandline.errors import UnavailableError, UsageError
from strandline.ingest.append import Receipt, append
from strandline.rows.dataset import SchemaBreaking, SourceInvalid
from strandline.rows.validate import BadRows, source_of
from strandline.state.context import Site

GROUPS_WAITING: Final = 8
OnFull = Literal["block", "refuse"]


class BufferFull(UnavailableError):
    """The writer takes rows faster than they become durable."""

    def __init__(self, rows: int) -> None:
        super().__init__(
            f"{rows:,} rows wait to become durable, and the writer takes no more",
            hint="slow down, or open the writer with on_full='block'",
        )
        self.rows = rows


class NotAcknowledged(UnavailableError):
    """Rows that were handed to a writer and are not known to be durable."""

    def __init__(self, rows: int, cause: str) -> None:
        super().__init__(
            f"{rows:,} rows were not acknowledged: {cause}",
            hint="each row's acknowledgement says why; hand in again those whose outcome is not unknown",
        )
        self.rows = rows


@dataclass(frozen=True, slots=True)
class Ack:
    """Where a row is: durable, under this seq of this source."""

    source: str
    seq: int


@dataclass(slots=True)
class _Waiting:
    row: Mapping[str, Any]
    size: int
    ack: "Future[Ack]"


class BufferedWriter:
    """Rows of one dataset. Threads may share it. Use it as a context manager, or close it.

    A group goes out when its first row has waited `linger_ms`, or with `group_rows` rows or `group_bytes`
    bytes. A row that cannot be stored fails alone; where a whole group fails, each of its rows does.
    """

    def __init__(
        self,
        site: Site,
        dataset: str,
        *,
        source: str | None = None,
        linger_ms: float | None = None,
        group_rows: int | None = None,
        group_bytes: int | None = None,
        on_full: OnFull = "block",
    ) -> None:
        if on_full not in ("block", "refuse"):
            raise UsageError(f"on_full is {on_full!r:.80}", hint="'block' or 'refuse'")
        self._site, self._dataset, self._source = site, dataset, source
        self._linger_s = (site.spool.linger_ms if linger_ms is None else linger_ms) / 1000
        self._group_rows = group_rows or site.spool.group_rows
        self._group_bytes = group_bytes or site.spool.group_bytes
        self._on_full = on_full
        self._changed = threading.Condition()
        self._waiting: list[_Waiting] = []
        self._bytes = 0
        self._in_flight = 0
        self._failed = 0
        self._waited_s = 0.0
        self._failure: BaseException | None = None
        self._first_at = 0.0
        self._is_flushing = self._is_closed = False
        self._thread = threading.Thread(target=self._run, name=f"writer {dataset}", daemon=True)
        self._thread.start()

    def write(self, row: Mapping[str, Any]) -> "Future[Ack]":
        """Hand a row in. Its result comes when it is durable; waits or refuses while too many wait
        already."""
        size = _size(row)
        waiting = _Waiting(dict(row), size, Future())  # a copy: the caller may fill its own anew
        with self._changed:
            self._wait_for_room()
            if self._is_closed:
                raise UsageError("the writer is closed", hint="open another: node.writer(…)")
            if not self._waiting:
                self._first_at = time.monotonic()
            self._waiting.append(waiting)
            self._bytes += waiting.size
            if len(self._waiting) == 1 or self._is_ready():
                self._changed.notify_all()
        return waiting.ack

    @property
    def backpressure_wait_s(self) -> float:
        """How long `write` has waited, all threads added up, since too many rows waited already."""
        with self._changed:
            return self._waited_s

    def flush(self, *, timeout_s: float | None = None) -> None:
        """Return when every row handed in so far is durable; NotAcknowledged if one since the last flush is
        not."""
        with self._changed:
            self._is_flushing = True
            self._changed.notify_all()
            is_done = self._changed.wait_for(lambda: not self._waiting and not self._in_flight, timeout_s)
            self._is_flushing = False
            left = len(self._waiting) + self._in_flight
            failed, failure = self._failed, self._failure
            self._failed, self._failure = 0, None
        if not is_done:
            raise NotAcknowledged(left, f"they are not durable after {timeout_s} s")
        if failed:
            raise NotAcknowledged(failed, str(failure)) from failure

    def close(self, *, timeout_s: float | None = None) -> None:
        """Drain, then end. Closing twice is fine."""
        if not self._thread.is_alive():
            return
        try:
            self.flush(timeout_s=timeout_s)
        finally:
            with self._changed:
                self._is_closed = True
                self._changed.notify_all()
            self._thread.join(timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # The thread

    def _run(self) -> None:
        while (group := self._next_group()) is not None:
            self._store(group)
            with self._changed:
                self._in_flight = 0
                self._changed.notify_all()

    def _next_group(self) -> list[_Waiting] | None:
        with self._changed:
            while not (self._waiting and (self._is_ready() or self._is_flushing or self._is_closed)):
                if self._is_closed:
                    return None
                left_s = self._first_at + self._linger_s - time.monotonic() if self._waiting else None
                if left_s is not None and left_s <= 0:
                    break
                self._changed.wait(left_s)
            count = self._group_size()
            group, self._waiting = self._waiting[:count], self._waiting[count:]
            self._bytes -= sum(each.size for each in group)
            for each in group:
                each.ack.set_running_or_notify_cancel()
            self._first_at = time.monotonic()
            self._in_flight = len(group)
            self._changed.notify_all()
            return group

    def _wait_for_room(self) -> None:
        """Of who writes, under the lock."""
        while self._is_full() and not self._is_closed:
            if self._on_full == "refuse":
                raise BufferFull(len(self._waiting))
            began = time.monotonic()
            self._changed.wait()
            self._waited_s += time.monotonic() - began

    def _group_size(self) -> int:
        bytes_ = 0
        for count, each in enumerate(self._waiting[: self._group_rows], 1):
            bytes_ += each.size
            if bytes_ >= self._group_bytes:
                return count
        return min(len(self._waiting), self._group_rows)

    def _is_ready(self) -> bool:
        return len(self._waiting) >= self._group_rows or self._bytes >= self._group_bytes

    def _is_full(self) -> bool:
        return (
            len(self._waiting) >= GROUPS_WAITING * self._group_rows
            or self._bytes >= GROUPS_WAITING * self._group_bytes
        )

    def _store(self, group: list[_Waiting]) -> None:
        request = uuid.uuid4().hex
        while group:
            try:
                receipt = append(
                    self._site,
                    self._dataset,
                    [each.row for each in group],
                    source=self._source,
                    request_id=request,
                )
            except (BadRows, SchemaBreaking, SourceInvalid) as error:
                # Nothing was written. The rows that cannot be stored fail, the others go on without them.
                bad = {refusal.row for refusal in error.refusals}
                self._fail([each for i, each in enumerate(group) if i in bad], error)
                group = [each for i, each in enumerate(group) if i not in bad]
                if not bad:
                    self._fail(group, error)
                    return
            except BaseException as error:  # noqa: BLE001  # each row hears of it, whatever it is
                self._fail(group, error)
                return
            else:
                self._acknowledge(group, receipt)
                return

    def _fail(self, group: Sequence[_Waiting], error: BaseException) -> None:
        with self._changed:
            self._failed += len(group)
            self._failure = error
        for each in group:
            if not each.ack.cancelled():
                each.ack.set_exception(error)

    def _acknowledge(self, group: Sequence[_Waiting], receipt: Receipt) -> None:
        dataset = self._site.schema(self._dataset).dataset
        next_seq = {source: range_.lo + 1 for source, range_ in receipt.ranges.items()}
        for each in group:
            source = source_of(dataset, each.row, self._source)
            if not each.ack.cancelled():  # the row is stored all the same
                each.ack.set_result(Ack(source, next_seq[source]))
            next_seq[source] += 1


def _size(row: Mapping[str, Any]) -> int:
    if not isinstance(row, Mapping):
        raise UsageError(f"a row is {type(row).__name__}", hint="a mapping of column to value")
    return sum(len(value) if isinstance(value, (str, bytes)) else 8 for value in row.values()) + 8 * len(row)
