"""What a case works on: a node in memory with one dataset, and the sink under test with its destination."""

import base64
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import orjson

from strandline.config.keys import FlushSection, SpoolSection
from strandline.conformance.check import CaseFailed, equal, shown
from strandline.conformance.sinks.table import Fault, MemoryTables, TableCourier
from strandline.delivery.operate_sink import rewind
from strandline.delivery.owed import Terms
from strandline.delivery.policy import Rule
from strandline.delivery.result import SyncResult
from strandline.delivery.run import sync
from strandline.delivery.session import Sender
from strandline.errors import UsageError
from strandline.flush.flush import flush
from strandline.ingest.append import append
from strandline.persist import mem_backend
from strandline.rows.dataset import SOURCE, Column, Dataset
from strandline.sinks.sink import Shipment, Sink
from strandline.state.context import Site
from strandline.state.node_state import Standing
from strandline.storage import ContentStore
from strandline.storage.objects import MemoryObjects

UNIT_ROWS: Final = 5
NODE: Final = "edge"
INSTANCE: Final = "under-test"
WEB: Final = "web-1"
DATASET: Final = Dataset(
    "logs",
    (
        Column("n", "bigint", required=True),
        Column("text", "string"),
        Column("at", "timestamp"),
        Column("day", "date"),
        Column("price", "decimal(20,2)"),
        Column("raw", "binary"),
        Column("more", "json"),
        Column("rate", "double"),
        Column("share", "float"),
        Column("count", "int"),
        Column("is_new", "boolean"),
    ),
)

Row = dict[str, Any]

_START: Final = datetime(2026, 3, 1, 10, tzinfo=UTC)
_MOST_TRIES: Final = 10
_HOUR_US: Final = 3_600_000_000


@dataclass(frozen=True, slots=True)
class SinkUnderTest:
    """A sink, and a look at its destination, which is empty.

    The sink is configured for units of UNIT_ROWS rows. `stored(dataset, source)` gives the rows that are at
    the destination of one source at NODE, in the order in which it holds them (by range, where the sink does
    not deliver in order), each as its columns without `source`: as Python values, or as the sink writes them
    in JSON (see strandline.sinks.ndjson). `secrets` are the texts that nobody may see.
    """

    sink: Sink
    stored: Callable[[str, str], Sequence[Mapping[str, Any]]]
    secrets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        found = self.sink.limits(0).unit_rows
        if found != UNIT_ROWS:
            raise UsageError(
                f"the sink under test takes {found:,} rows a unit, and the cases count on {UNIT_ROWS}",
                hint=f"configure it so that limits(0).unit_rows is {UNIT_ROWS}",
            )


@dataclass(slots=True)
class _Clock:
    """Time that passes only when someone sleeps."""

    us: int = 1_700_000_000_000_000

    def now_us(self) -> int:
        return self.us

    def sleep(self, seconds: float) -> None:
        self.us += int(seconds * 1_000_000)


@dataclass
class Bench:
    """Lands rows and delivers them, and remembers what was landed."""

    under_test: SinkUnderTest
    rules: tuple[Rule, ...] = ()
    landed: dict[str, list[Row]] = field(default_factory=dict)  # by source; the row of seq i is at i - 1
    _next: int = 1

    def __post_init__(self) -> None:
        content, b = ContentStore(MemoryObjects()), mem_backend()
        self.clock = _Clock()
        self.site = Site(
            b, content, self.clock, Standing(b), SpoolSection(), FlushSection(), {"logs": DATASET}.get
        )
        self.tables = MemoryTables(content)
        self.courier = TableCourier(self.tables)

    @property
    def sink(self) -> Sink:
        return self.under_test.sink

    # What happens

    def land(self, count: int, source: str = WEB, **more: Any) -> None:
        """Rows whose `n` no other row has, from 1 on."""
        rows = [row_of(n) | more for n in range(self._next, self._next + count)]
        self._next += count
        append(self.site, DATASET.name, rows, source=source)
        flush(self.site, self.tables, DATASET.name)
        self.landed.setdefault(source, []).extend(rows)

    def round(self, *faults: Fault | None) -> SyncResult:
        """One job, whose units fare so, one after the other; then the run is stopped."""
        self.courier.faults = list(faults)
        stop = threading.Event()
        result = self._sync(stop=stop, tell=lambda _: stop.set())
        self.courier.faults = []
        return result

    def finish(self) -> SyncResult:
        """Run, and come back, until all is delivered."""
        for _ in range(_MOST_TRIES):
            result = self._sync(is_command=True)
            if result.status in ("exported", "idle"):
                return result
            self.clock.us += _HOUR_US
        raise CaseFailed("everything is delivered in the end", shown(result.troubles))

    def rewind(self, to: int, *, resend: bool) -> None:
        """As an operator does: what follows `to` is owed again."""
        rewind(self.site, self.sink, Terms(INSTANCE), to=to, resend=resend, reason="the suite asks for it")

    def _sync(self, **options: Any) -> SyncResult:
        sender = Sender(self.site.origin, NODE, lambda name: name, self.rules)
        terms = Terms(INSTANCE)
        try:
            return sync(self.site, lambda: self.courier, self.sink, terms, sender, **options)
        finally:
            if self.courier.broken:
                raise CaseFailed("outcomes that are true of their unit", "; ".join(self.courier.broken))

    # What is then

    def stored(self, source: str = WEB) -> list[int]:
        """The `n` of the rows at the destination."""
        return [row["n"] for row in self.under_test.stored(DATASET.name, source)]

    def expect(self, *, without: Sequence[int] = (), note: str = "") -> None:
        """Every row that was landed is there once, with all its values and in order, and no other is."""
        for source, rows in self.landed.items():
            wanted = [plain(row) for row in rows if row["n"] not in without]
            found = [plain(row) for row in self.under_test.stored(DATASET.name, source)]
            numbers = [row.get("n") for row in wanted]
            equal([row.get("n") for row in found], numbers, f"{source}: {note or 'n of each row'}")
            equal(found, wanted, source)

    def shipment(self) -> Shipment:
        return Shipment(INSTANCE, self.site.origin, NODE, DATASET, DATASET.name)


def row_of(n: int) -> Row:
    """A row that follows from its `n`; some values are null, some hard to keep."""
    row: Row = {
        "n": n,
        "text": f'row {n}, "quoted"\n\\ü€😀',
        "at": _START + timedelta(microseconds=n),
        "day": _START.date() + timedelta(days=n),
        "price": Decimal(n).scaleb(-2) + 10**15,
        "raw": bytes([0, n % 256, 255]),
        "more": {"seq": n, "list": [1, None, "x"]},
        "rate": n / 7,
        "share": n / 8,
        "count": -n,
        "is_new": n % 2 == 0,
    }
    if n % 3 == 0:
        row |= {"text": "", "rate": math.nan if n % 2 else -math.inf, "count": 2**31 - 1}
    if n % 4 == 0:
        row = {"n": n, "text": "all others are null"}
    return row


def plain(row: Mapping[str, Any]) -> Row:
    """A row as its JSON would be, whatever form its values have; without nulls and `source`."""
    types = {column.name: column.type for column in DATASET.columns}
    return {
        name: _plain(value, types.get(name))
        for name, value in sorted(row.items())
        if value is not None and name != SOURCE
    }


def _plain(value: Any, type_: str | None) -> Any:
    match value:
        case str() if type_ == "json":
            return orjson.loads(value)
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case datetime():
            return f"{value.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%f}Z"
        case date():
            return value.isoformat()
        case Decimal():
            return f"{value:f}"
        case bytes():
            return base64.b64encode(value).decode()
        case _:
            return value
