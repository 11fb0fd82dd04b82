"""Load: a DataFrame of any size lands in a table without going through segments.

Its input is fixed first: Spark writes it once into a scratch table, so that each row has a place. Then one
transaction reserves its numbers in the ledger of each source and takes a flush number; then it is staged,
published and recorded as a flush is. Until it is landed or released no reader passes its numbers.

    loaded/<dataset>/<request id>    {"load", "number"}: what a repeat of the request finds
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

from strandline.dataset import Dataset, Strand, merged
from strandline.errors import OutcomeUnknown, UnavailableError
from strandline.failpoint import reach
from strandline.lake.landing import BURNED, FixedInput, Found, LoadLanding, Published, Tables
from strandline.ledger.entry import Landed, Released, Reserved, append_of
from strandline.ledger.numbers import head_of
from strandline.persist import ABSENT, Conflict, Event, ExpectKey, ExpectSeq, Put
from strandline.persist.backend import Expectation, Write
from strandline.pipeline.land import look, publish, record
from strandline.pipeline.lease import Lease, LeaseLost, held
from strandline.pipeline.plan import CLOSING, LoadPlan, closing, flush_stream, loading, open_plan
from strandline.pipeline.registry import dataset_stream, declared
from strandline.pipeline.site import Site
from strandline.ranges import Range

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WAIT_S = 600


class LoadReleased(UnavailableError):
    """Another took this load for dead and gave it up. Its numbers are a gap, and none of its rows landed."""

    def __init__(self, dataset: str, load: str) -> None:
        super().__init__(
            f"load {load} of {dataset!r} was taken for dead and released; nothing landed", hint="run it again"
        )
        self.dataset, self.load = dataset, load


@dataclass(frozen=True, slots=True)
class LoadResult:
    """A load that landed, and the seqs that the rows of each source got."""

    dataset: str
    load: str
    number: int
    rows: int
    bytes: int = 0
    files: int = 0
    ranges: Mapping[str, Range] = field(default_factory=dict)
    duplicates: int = 0
    is_repeat: bool = False


class LoadTables(Tables, Protocol):
    """What a load asks beside: to fix its input."""

    def fix_input(
        self, df: "DataFrame", dataset: Dataset, load_id: str, *, source: str | None
    ) -> tuple[FixedInput, Dataset]: ...


def load(
    site: Site,
    tables: LoadTables,
    dataset: str,
    df: "DataFrame",
    *,
    source: str | None = None,
    request_id: str | None = None,
) -> LoadResult:
    """Land the rows of `df`. A repeat under the same `request_id` finishes what the first left, and adds
    nothing.

    A crash before the reservation leaves a scratch table and nothing else; after it, the next flush or load
    of the dataset finishes it.
    """
    if site.is_strict:
        site.known(dataset)
    while True:
        marker = site.b.kv_get(_request_key(dataset, request_id)) if request_id is not None else None
        if marker is not None and (first := _repeat(site, tables, dataset, marker)) is not None:
            return first
        result = _load_anew(site, tables, dataset, df, source, request_id, marker)
        if result is not None:
            return result


def _load_anew(
    site: Site,
    tables: LoadTables,
    dataset: str,
    df: "DataFrame",
    source: str | None,
    request_id: str | None,
    marker: Any,
) -> LoadResult | None:
    """None where another brought the same request meanwhile."""
    load_id = site.random_hex()
    with held(site.b, site.clock, f"load/{load_id}") as lease:
        reach("load.fix")
        schema = site.schema(dataset).dataset
        fixed, grown = tables.fix_input(df, schema, load_id, source=source)
        reach("load.fixed")
        if not sum(fixed.rows.values()):
            tables.drop_input(fixed)
            return LoadResult(dataset, load_id, 0, 0)
        with _alone(site, grown):
            plan = _reserve(site, dataset, grown, fixed, load_id, lease, request_id or load_id, marker)
            if plan is None:
                tables.drop_input(fixed)
                return None
            result = settle_load(site, tables, dataset, plan, lease, is_fresh=True)
            if result is None:
                raise LoadReleased(dataset, load_id)
            return result


def _alone(site: Site, dataset: Dataset) -> AbstractContextManager[object]:
    """Rows that a flush and a load bring at once could miss each other in their look for duplicates."""
    if not dataset.dedupe_on_flush:
        return nullcontext()
    return held(site.b, site.clock, f"flush/{dataset.name}", timeout_s=WAIT_S)


def _repeat(site: Site, tables: LoadTables, dataset: str, marker: Any) -> LoadResult | None:
    """What became of a request that was here before; None if its load was released, so that it may run
    anew."""
    number, event = marker["number"], site.standing.numbers(dataset).open.get(marker["number"])
    if event is not None:
        plan = open_plan(site.b, dataset, number, event)
        assert isinstance(plan, LoadPlan)
        with held(site.b, site.clock, f"load/{plan.load}", timeout_s=WAIT_S) as lease:
            if number in site.standing.numbers(dataset).open:
                settle_load(site, tables, dataset, plan, lease)
    closed = _closing_event(site, dataset, number, marker["event"])
    if closed.type == "released":
        return None
    data = closed.data
    ranges = {source: Range(lo, hi) for source, (lo, hi) in data["ranges"].items()}
    return LoadResult(
        dataset,
        data["load"],
        number,
        data["rows"],
        data["bytes"],
        data["files"],
        ranges,
        data["duplicates"],
        is_repeat=True,
    )


def _closing_event(site: Site, dataset: str, number: int, first: int) -> Event:
    stream = flush_stream(dataset)
    while page := list(site.b.read_range(stream, first, site.b.last_seq(stream), limit=8)):
        for event in page:
            if event.type in CLOSING and event.data["number"] == number:
                return event
        first = page[-1].seq + 1
    raise UnavailableError(
        f"load {number} of {dataset!r} is open and held by another",
        hint="repeat the load when that has ended",
    )


def _reserve(
    site: Site,
    dataset: str,
    grown: Dataset,
    fixed: FixedInput,
    load_id: str,
    lease: Lease,
    request: str,
    marker: Any,
) -> LoadPlan | None:
    """One transaction: the numbers of each source, the flush number, what the schema grew by, and the
    request's marker, which must be what it was when the load began: else another has brought it, and this
    is None."""
    key = _request_key(dataset, request)
    stream = flush_stream(dataset)
    while True:
        at, event = site.clock.now_us(), site.b.last_seq(stream)
        number = site.standing.numbers(dataset).last + 1
        schema = site.schema(dataset)
        # Another may have grown the schema since the input was fixed; SchemaBreaking if the two do not fit.
        wanted = merged(schema.dataset, grown) if schema.event else grown
        wanted = replace(wanted, version=schema.event + (wanted.version != schema.event))
        heads = {source: head_of(site.b, Strand(dataset, source)) for source in fixed.rows}
        ranges = {
            source: Range(heads[source].hi, heads[source].hi + rows) for source, rows in fixed.rows.items()
        }
        id_ = f"{dataset}-{number}-{site.random_hex()}"
        plan = LoadPlan(number, id_, lease.fence, load_id, max(wanted.version, 1), at, fixed, ranges)
        expected: list[Expectation] = [lease.guard, ExpectSeq(stream, event)]
        writes: list[Write] = [loading(dataset, plan)]
        if schema.event == 0 or wanted.version != schema.event:
            expected.append(ExpectSeq(dataset_stream(dataset), schema.event))
            writes.append(declared(replace(wanted, version=schema.event + 1), at))
        for source, each in ranges.items():
            ledger = Strand(dataset, source).ledger
            expected.append(ExpectSeq(ledger, heads[source].event))
            entry = Reserved(load_id, number, id_, lease.fence, each.lo, each.hi)
            writes += [append_of(ledger, every, at) for every in (*heads[source].opening, entry)]
        expected.append(ExpectKey(key, ABSENT if marker is None else marker))
        writes.append(Put(key, {"load": load_id, "number": number, "event": event + 1}))
        reach("load.reserve")
        try:
            outcome = site.b.commit(expected, writes)
        except OutcomeUnknown:
            continue  # where it was done after all, the marker is in the way of the next try
        reach("load.reserved")
        if not isinstance(outcome, Conflict):
            return plan
        if outcome.name == lease.guard.key:
            raise LeaseLost(lease.scope)
        if outcome.name == key:
            return _reserved(site, dataset, load_id, outcome.actual)


def _reserved(site: Site, dataset: str, load_id: str, marker: Any) -> LoadPlan | None:
    """This very load, whose first answer was lost; None if the request is another's by now."""
    if marker is ABSENT or marker["load"] != load_id:
        return None
    plan = open_plan(site.b, dataset, marker["number"], marker["event"])
    assert isinstance(plan, LoadPlan)
    return plan


def settle_load(
    site: Site, tables: Tables, dataset: str, plan: LoadPlan, lease: Lease, *, is_fresh: bool = False
) -> LoadResult | None:
    """Bring an open load to its end: landed, or, where its input is gone, released; then None."""
    schema = site.known(dataset).dataset
    found = Found(None, ()) if is_fresh else look(tables, dataset, plan.id)
    # The empty commit of a burn that was cut short is staged too, and is no beginning.
    is_staged = any(each.version != BURNED for each in found.staged)
    is_begun = is_fresh or found.published is not None or is_staged
    if not is_begun and not tables.has_input(plan.input):
        tables.ensure(schema, has_landed=site.standing.numbers(dataset).has_landed)
        reach("load.burn")
        tables.burn(dataset, plan.id)
        reach("load.burned")
        found = look(tables, dataset, plan.id)

    def stage() -> None:
        tables.ensure(schema, has_landed=site.standing.numbers(dataset).has_landed)
        reach("load.ensured")
        landing: LoadLanding = plan.landing(schema)
        tables.stage(landing)

    published = publish(tables, dataset, plan, lease, stage, found=found)
    if published.version == BURNED:
        _release(site, dataset, plan, lease)
        return None
    result = _result(dataset, plan, published)
    at = site.clock.now_us()
    landed = closing(
        dataset,
        "landed",
        at,
        {
            "number": plan.number,
            "id": plan.id,
            "load": plan.load,
            "rows": result.rows,
            "bytes": result.bytes,
            "files": result.files,
            "duplicates": result.duplicates,
            "ranges": {source: [each.lo, each.hi] for source, each in plan.ranges.items()},
        },
    )
    entries = [
        append_of(Strand(dataset, source).ledger, Landed(plan.load, plan.number, each.lo, each.hi), at)
        for source, each in plan.ranges.items()
    ]
    record(site, dataset, plan.number, lease, [landed, *entries])
    reach("load.landed")
    tables.drop_input(plan.input)
    reach("load.dropped")
    return result


def _result(dataset: str, plan: LoadPlan, published: Published) -> LoadResult:
    reserved = sum(map(len, plan.ranges.values()))
    return LoadResult(
        dataset,
        plan.load,
        plan.number,
        published.rows,
        published.bytes,
        published.files,
        plan.ranges,
        duplicates=reserved - published.rows,
    )


def _release(site: Site, dataset: str, plan: LoadPlan, lease: Lease) -> None:
    """Give the numbers up. The id is burned by now: a late publish by the old holder is refused."""
    at = site.clock.now_us()
    released = closing(
        dataset,
        "released",
        at,
        {"number": plan.number, "id": plan.id, "load": plan.load, "reason": "its fixed input is gone"},
    )
    entries = [
        append_of(Strand(dataset, source).ledger, Released(plan.load, plan.number, each.lo, each.hi), at)
        for source, each in plan.ranges.items()
    ]
    record(site, dataset, plan.number, lease, [released, *entries])


def _request_key(dataset: str, request_id: str) -> str:
    return f"loaded/{dataset}/{quote(request_id, safe='')}"
