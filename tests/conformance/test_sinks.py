"""Every sink that ships, and the one of examples/, passes the suite; sinks with a bug do not."""

import io
import json
import sqlite3
import threading
import tomllib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strandline.base.secret import Secret
from strandline.conformance.check import CaseFailed
from strandline.conformance.sinks import CASES, NODE, UNIT_ROWS, SinkCase, SinkUnderTest
from strandline.errors import UsageError
from strandline.sinks.blob.blob_sink import BlobSink
from strandline.sinks.blob.object_names import folder_of
from strandline.sinks.forward.forward_sink import ForwardSink
from strandline.sinks.registry import GROUP, SinkOptions, make_sink, sink_types
from strandline.sinks.sink import Delivery, Holdings, Limits, Outcome, Shipment, Sink, Status, Stored, Unit
from strandline.storage.objects import Objects, open_objects
from tests.server.receivers import receiving
from tests.sites import spooled_rows
from tests.storage.places import BUCKET, s3_endpoint, s3_options

__all__ = ["s3_endpoint"]

EXAMPLE = Path(__file__).parents[2] / "examples" / "sink"

Rows = list[dict[str, Any]]
BY_ID = {case.id.removeprefix("sink/"): case for case in CASES}


# Sinks that pass


@contextmanager
def forward(tmp_path: Path) -> Iterator[SinkUnderTest]:
    with receiving(tmp_path, is_strict=False) as here:

        def stored(dataset: str, source: str) -> Rows:
            return [row for _, row in spooled_rows(here.site, dataset, f"{NODE}/{source}")]

        token = Secret("env:TOKEN", Path(), here.token)
        sink = ForwardSink(url=here.url, token=token, max_unit_rows=UNIT_ROWS)
        yield SinkUnderTest(sink, stored, secrets=(here.token,))


def blob(sink: BlobSink, objects: Objects, **more: Any) -> SinkUnderTest:
    def stored(dataset: str, source: str) -> Rows:
        names = sorted(each.name for each in objects.scan(folder_of(dataset, source, 0)))
        tables = [pq.read_table(io.BytesIO(objects.read(name)), partitioning=None) for name in names]
        return [row for table in tables for row in table.to_pylist()]

    return SinkUnderTest(sink, stored, **more)


@contextmanager
def local(tmp_path: Path) -> Iterator[SinkUnderTest]:
    sink = BlobSink("local", dir=str(tmp_path / "out"), max_object_rows=UNIT_ROWS)
    yield blob(sink, open_objects(sink.dir))


@contextmanager
def s3(endpoint: str) -> Iterator[SinkUnderTest]:
    options = s3_options(endpoint)
    prefix = uuid4().hex
    keys = {key: value for key, value in options.items() if key not in ("endpoint", "region")}
    sink = BlobSink(
        "s3",
        bucket=BUCKET,
        prefix=prefix,
        region=options["region"],
        endpoint=options["endpoint"],
        credentials=keys | {"token": "hunter2"} if keys else {},
        max_object_rows=UNIT_ROWS,
    )
    objects = open_objects(f"s3://{BUCKET}/{prefix}", **options)
    yield blob(sink, objects, secrets=("hunter2",))


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package of examples/sink, as an installer would leave it."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    [(name, value)] = project["entry-points"][GROUP].items()
    facts = tmp_path / "site" / "strandline_sqlite_sink-0.1.0.dist-info"
    facts.mkdir(parents=True)
    facts.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0.1.0\n")
    facts.joinpath("entry_points.txt").write_text(f"[{GROUP}]\n{name} = {value}\n")
    monkeypatch.syspath_prepend(facts.parent)
    monkeypatch.syspath_prepend(EXAMPLE)


@contextmanager
def example(tmp_path: Path) -> Iterator[SinkUnderTest]:
    assert "sqlite" in sink_types()
    sink = make_sink("sqlite", SinkOptions("copy", {"file": "copy.db", "unit_rows": UNIT_ROWS}, tmp_path))

    def stored(dataset: str, source: str) -> Rows:
        with closing(sqlite3.connect(tmp_path / "copy.db")) as db:
            found = db.execute(
                "SELECT row FROM rows WHERE dataset = ? AND source = ? ORDER BY seq", (dataset, source)
            )
            return [json.loads(row) for (row,) in found]

    yield SinkUnderTest(sink, stored)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("kind", ["forward", "local", "s3", "example"])
def test_a_sink_passes_every_case(
    case: SinkCase, kind: str, tmp_path: Path, request: pytest.FixtureRequest, installed: None
) -> None:
    """F-36, L-ACC-2: those that ship, and a package of someone else's by its entry point."""
    makes: dict[str, Callable[[], Any]] = {
        "forward": lambda: forward(tmp_path),
        "local": lambda: local(tmp_path),
        "s3": lambda: s3(request.getfixturevalue("s3_endpoint")),
        "example": lambda: example(tmp_path),
    }
    with makes[kind]() as under_test:
        case(under_test)


def test_the_example_says_what_is_wrong_with_its_keys(installed: None, tmp_path: Path) -> None:  # L-CFG-2
    with pytest.raises(UsageError, match="a sqlite sink has a file"):
        make_sink("sqlite", SinkOptions("copy", {"flie": "copy.db"}, tmp_path))


# Sinks that do not


@dataclass
class Shelf:
    """A destination in this process."""

    rows: dict[str, Rows] = field(default_factory=dict)
    known: dict[str, list[Any]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


SHELVES: dict[str, Shelf] = {}


@dataclass(frozen=True)
class ShelfSink(Sink):
    """Knows units by their range, with one bug or none."""

    place: str
    bug: str = ""

    def __repr__(self) -> str:
        return f"ShelfSink(password={'hunter2' if self.bug == 'shows its secret' else '...'})"

    @property
    def asks_first(self) -> bool:
        return True

    @property
    def fingerprint(self) -> str:
        return str(id(self)) if self.bug == "is another when pickled" else "shelf"

    def limits(self, mean_row_bytes: float) -> Limits:
        shrinks = self.bug == "has no room for large rows" and mean_row_bytes > 100
        return Limits(0 if shrinks else UNIT_ROWS)

    @contextmanager
    def opened(self) -> Iterator[Delivery]:
        yield self

    def deliver(self, unit: Unit, rows: Iterator[pa.RecordBatch]) -> Iterator[Outcome]:
        shelf, source = SHELVES[self.place], self._source(unit.source)
        kept = shelf.rows.setdefault(source, [])
        if self.bug == "stores rows as they come":
            count = 0
            for row in (row for batch in rows for row in self._rows(unit, batch)):
                kept.append(row)
                count += 1
            yield Outcome(unit.lo, unit.hi, "stored", rows=count)
            return
        new: Rows = []
        try:
            new += [row for batch in rows for row in self._rows(unit, batch)]
        except Exception:
            if self.bug != "swallows errors":
                raise
        if self.bug == "looks, then acts":
            is_known = self._key(unit, new) in shelf.known.get(source, [])
            threading.Event().wait(0.05)
            status: Status = "known" if is_known else self._store(shelf, unit, source, new)
        else:
            with shelf.lock:
                is_known = self._key(unit, new) in shelf.known.get(source, [])
                status = "known" if is_known else self._store(shelf, unit, source, new)
        if self.bug != "tells nothing":
            yield Outcome(unit.lo, unit.hi, status, rows=len(new))

    def _store(self, shelf: Shelf, unit: Unit, source: str, new: Rows) -> Status:
        shelf.known.setdefault(source, []).append(self._key(unit, new))
        shelf.rows[source] += new
        shelf.rows[source].sort(key=lambda row: int(row["n"]))
        return "stored"

    def _key(self, unit: Unit, new: Rows) -> Any:
        if self.bug == "knows no repeat":
            return object()
        if self.bug == "knows units by their body":
            return repr(new)
        return (unit.lo, unit.hi, 0 if self.bug == "takes epochs for one" else unit.epoch)

    def _source(self, source: str) -> str:
        return source.lower() if self.bug == "folds case" else source

    def _rows(self, unit: Unit, batch: pa.RecordBatch) -> Rows:
        if self.bug == "forgets new columns" and "colour" in batch.schema.names:
            batch = batch.drop_columns(["colour"])
        rows: Rows = batch.drop_columns(["_sl_seq"]).to_pylist()
        if self.bug == "makes every number a float":
            rows = [row | {"n": float(row["n"])} for row in rows]
        return [] if self.bug == "drops a row" and rows[0]["n"] > 10 else rows

    def holdings(self, shipment: Shipment, source: str, epoch: int) -> Holdings:
        if self.bug == "claims what it has not":
            return Holdings((Stored(0, 1_000),))
        known = SHELVES[self.place].known.get(self._source(source), [])
        ours = [each for each in known if isinstance(each, tuple) and each[2] == epoch]
        return Holdings(tuple(Stored(lo, hi) for lo, hi, _ in ours))


def shelf_under_test(bug: str = "") -> SinkUnderTest:
    place = uuid4().hex
    SHELVES[place] = shelf = Shelf()
    sink = ShelfSink(place, bug)
    return SinkUnderTest(
        sink, lambda _, source: shelf.rows.get(sink._source(source), []), secrets=("hunter2",)
    )


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_sink_without_a_bug_passes(case: SinkCase) -> None:
    """F-45: what fails below fails by its bug alone."""
    case(shelf_under_test())


@pytest.mark.parametrize(
    ("bug", "case"),
    [
        ("knows no repeat", "a-repeat-after-a-lost-answer-stores-nothing-twice"),
        ("knows no repeat", "a-repeat-after-a-kill-stores-nothing-twice"),
        ("knows no repeat", "rows-that-arrive-before-the-retry-wait-for-the-next-intent"),
        ("knows no repeat", "a-compaction-between-two-tries-changes-nothing"),
        ("knows units by their body", "rows-removed-after-they-were-sent-stay-there-once"),
        ("stores rows as they come", "rows-that-end-in-an-error-leave-no-part-that-counts"),
        ("swallows errors", "rows-that-end-in-an-error-leave-no-part-that-counts"),
        ("looks, then acts", "two-tasks-that-deliver-the-same-at-once-store-it-once"),
        ("tells nothing", "every-row-arrives-with-all-its-values-in-order"),
        ("folds case", "sources-that-look-alike-are-kept-apart"),
        ("forgets new columns", "a-new-column-arrives-with-the-rows-that-have-it"),
        ("makes every number a float", "every-row-arrives-with-all-its-values-in-order"),
        ("drops a row", "a-run-delivers-what-is-new-and-nothing-again"),
        ("takes epochs for one", "what-is-sent-again-in-a-new-epoch-is-no-repeat"),
        ("knows no repeat", "other-bounds-after-a-rewind-store-nothing-twice"),
        ("claims what it has not", "what-it-says-it-holds-is-what-is-there"),
        ("shows its secret", "it-shows-no-secret"),
        ("is another when pickled", "it-is-the-same-sink-after-pickling"),
        ("has no room for large rows", "the-limits-of-a-unit-are-kept"),
    ],
)
def test_a_sink_with_a_bug_fails_the_case_that_is_about_it(bug: str, case: str) -> None:
    """F-45, F-36: a suite that cannot fail proves nothing."""
    with pytest.raises(CaseFailed):
        BY_ID[case](shelf_under_test(bug))


def test_a_sink_that_is_configured_for_large_units_is_not_tested(tmp_path: Path) -> None:
    """In one unit no case about several would say anything."""
    with pytest.raises(UsageError, match=r"1,000,000 rows a unit"):
        SinkUnderTest(BlobSink("local", dir=str(tmp_path)), lambda *_: [])
