"""Load: a DataFrame of any size lands in a table without going through segments.

Its input is fixed first: Spark writes it once into a scratch table, so that each row has a place. Then one
transaction reserves its numbers in the ledger of each source and takes a flush number; then it is staged,
published and recorded as a flush is. Until it is landed or released no reader passes its numbers.

    loaded/<dataset>/<request id>    {"load", "number", "event", "rows", "columns"}: what a repeat of the
                                     request finds, and what its rows are compared by
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias
from urllib.parse import quote

import msgspec

from strandline.base.failpoint import reach
from strandline.base.ranges import Range
from strandline.errors import OutcomeUnknown, UnavailableError, UsageError
from strandline.flush.recover import LandingJob, LoadResult, settle_load, settle_open
from strandline.flush.scratch_tables import announce_scratch, drop_scratch, sweep_scratch
from strandline.ingest.append import Busy, ExpectationUnmet, RequestIdReused
from strandline.lake.ports.stage import Settle, Tables
from strandline.persist import ABSENT, Conflict, Event, ExpectKey, ExpectSeq, Put
from strandline.persist.backend import Expectation, Write
from strandline.rows.dataset import Dataset, Strand, merged
from strandline.state.archive import past_events
from strandline.state.context import Site
from strandline.state.dataset_versions import dataset_stream, declared
from strandline.state.flush_plan import (
    CLOSING,
    LoadPlan,
    flush_stream,
    loading,
    number_of,
    open_plan,
    readable,
    source_ranges,
    text,
    whole,
)
from strandline.state.landing import FixedInput
from strandline.state.lease import Lease, LeaseLost, held
from strandline.state.next_number import head_of
from strandline.state.strand_entries import ControlUnreadable, Reserved, append_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["MAX_SOURCES", "WAIT_S", "LoadReleased", "LoadResult", "LoadTables", "load", "settled_load"]

WAIT_S: Final = 600


class Guarded(NamedTuple):
    """What a reservation expects, and up to which flush somebody has looked for its rows; see LoadLanding."""

    expected: Sequence[Expectation]
    looked: int = 0


Guard: TypeAlias = Callable[[FixedInput], Guarded]  # asked anew before each try to reserve
MAX_SOURCES: Final = 100_000  # one transaction reserves the numbers of each, and one event names them
_FIRST_WAIT_S: Final = 0.002
_LONGEST_WAIT_S: Final = 0.25


class LoadReleased(UnavailableError):
    """Another took this load for dead and gave it up. Its numbers are a gap, and none of its rows landed."""

    def __init__(self, dataset: str, load: str) -> None:
        super().__init__(
            f"load {load} of {dataset!r} was taken for dead and released; nothing landed", hint="run it again"
        )
        self.dataset, self.load = dataset, load


class TooManySources(UsageError):
    """A load brings rows of more sources than one transaction can number."""

    def __init__(self, dataset: str, found: int) -> None:
        super().__init__(
            f"a load into {dataset!r} has rows of {found:,} sources, at most {MAX_SOURCES:,} fit in one",
            hint="split it by source, or give the rows one source with `source`",
        )
        self.dataset, self.found = dataset, found


class LoadTables(Tables, Protocol):
    """What a load asks beside: to fix its input, and to know it again."""

    def fix_input(
        self, df: "DataFrame", dataset: Dataset, load_id: str, *, source: str | None
    ) -> tuple[FixedInput, Dataset]: ...

    def columns_of(self, df: "DataFrame") -> Mapping[str, str]: ...

    def count_of(self, df: "DataFrame") -> int: ...


class _Marker(msgspec.Struct, frozen=True):
    load: str
    number: int
    event: int
    rows: int
    columns: str


@dataclass(frozen=True, slots=True)
class _Request:
    """What a caller wants loaded, and what goes into the same transaction. `marker` is what was there when
    the load began."""

    id: str
    key: str
    marker: Any
    source: str | None
    columns: str
    expected: Sequence[Expectation] | Guard
    also: Sequence[Write]


def load(
    site: Site,
    tables: LoadTables,
    dataset: str,
    df: "DataFrame",
    *,
    source: str | None = None,
    request_id: str | None = None,
    settle: Settle | None = None,
    expected: Sequence[Expectation] | Guard = (),
    also: Sequence[Write] = (),
) -> LoadResult:
    """Land the rows of `df`. A repeat under the same `request_id` finishes what the first left, and adds
    nothing; with other columns, another `source` or another number of rows it is RequestIdReused. (Other
    values in as many rows go unnoticed: comparing them would cost as much as loading them.)

    A crash before the reservation leaves a scratch table, which the next flush or load of the dataset drops;
    after it, they finish the load. `settle` is the hook of a flush that has to be finished first. `also` is
    written with the reservation, if what is `expected` holds; else ExpectationUnmet. A guard in its place
    sees the fixed input, and gives what to expect anew each time that it did not hold; it raises to give up.
    """
    if site.is_strict:
        site.known(dataset)
    job = LandingJob(site, tables, dataset, settle)
    columns = _columns(tables, df, source)
    id_ = request_id if request_id is not None else site.random_hex()
    key = _request_key(dataset, id_)
    while True:
        marker = site.b.kv_get(key)
        if marker is not None:
            known = _marker(key, marker)
            if (first := _repeat(job, known)) is not None:
                if known.columns != columns or known.rows != tables.count_of(df):
                    raise RequestIdReused(dataset, id_)
                return first
        result = _load_anew(job, tables, df, _Request(id_, key, marker, source, columns, expected, also))
        if result is not None:
            return result


def settled_load(
    site: Site, tables: Tables, dataset: str, request_id: str, *, settle: Settle | None = None
) -> LoadResult | None:
    """What became of a request: its result once it has landed, which this sees to; None where it never came
    to its reservation, or was released."""
    key = _request_key(dataset, request_id)
    marker = site.b.kv_get(key)
    return (
        None if marker is None else _repeat(LandingJob(site, tables, dataset, settle), _marker(key, marker))
    )


def has_landed(site: Site, dataset: str, request_id: str) -> bool | None:
    """The same by the store alone, which cannot finish it: None where it is open."""
    key = _request_key(dataset, request_id)
    value = site.b.kv_get(key)
    if value is None:
        return False
    marker = _marker(key, value)
    if marker.number in site.standing.numbers(dataset).open:
        return None
    return _closing_event(site, dataset, marker.number, marker.event).type != "released"


def _columns(tables: LoadTables, df: "DataFrame", source: str | None) -> str:
    """A digest of what is known of a DataFrame before it is computed."""
    return sha256(msgspec.json.encode([source, sorted(tables.columns_of(df).items())])).hexdigest()


def _load_anew(job: LandingJob, tables: LoadTables, df: "DataFrame", request: _Request) -> LoadResult | None:
    """None where another brought the same request meanwhile."""
    site, dataset, load_id = job.site, job.dataset, job.site.random_hex()
    sweep_scratch(site, tables, dataset)
    with held(site.b, site.clock, f"load/{load_id}") as lease:
        announce_scratch(site, dataset, load_id, lease)
        plan: LoadPlan | None = None
        outcome: LoadResult | None = None
        try:
            fixed, grown = _fix(job, tables, df, load_id, request.source)
            if not fixed.rows:
                outcome = LoadResult(dataset, load_id, 0, 0)
            else:
                with _alone(job, grown) as alone:
                    plan = _Reservation(job, request, grown, fixed, load_id, lease, alone).make()
                    if plan is not None:
                        return _landed(settle_load(job, plan, lease, is_fresh=True), dataset, load_id)
        except OutcomeUnknown:
            raise  # it may be reserved, and then its input is needed; if it is not, a sweep finds the table
        except BaseException as error:
            if plan is None:
                _drop_after(error, job, load_id, lease)
            raise
        drop_scratch(site, tables, dataset, load_id, lease)
        return outcome


def _fix(
    job: LandingJob, tables: LoadTables, df: "DataFrame", load_id: str, source: str | None
) -> tuple[FixedInput, Dataset]:
    reach("load.fix")
    fixed, grown = tables.fix_input(df, job.site.schema(job.dataset).dataset, load_id, source=source)
    reach("load.fixed")
    if len(fixed.rows) > MAX_SOURCES:
        raise TooManySources(job.dataset, len(fixed.rows))
    return fixed, grown


def _landed(result: LoadResult | None, dataset: str, load_id: str) -> LoadResult:
    if result is None:
        raise LoadReleased(dataset, load_id)
    return result


def _drop_after(error: BaseException, job: LandingJob, load_id: str, lease: Lease) -> None:
    """The first error is the one to raise; a table that cannot be dropped now is dropped by a sweep."""
    try:
        drop_scratch(job.site, job.tables, job.dataset, load_id, lease)
    except Exception as second:  # noqa: BLE001  # told with the first
        error.add_note(f"its scratch table is left to the next flush or load: {second}")


@contextmanager
def _alone(job: LandingJob, dataset: Dataset) -> Iterator[Lease | None]:
    """Rows that a flush and a load bring at once could miss each other in their look for duplicates: in a
    dataset that leaves those out, nothing else is open or opened inside the block."""
    if not dataset.dedupe_on_flush:
        yield None
        return
    site = job.site
    with held(site.b, site.clock, f"flush/{dataset.name}", timeout_s=WAIT_S) as lease:
        for _ in settle_open(job, lease, timeout_s=WAIT_S):
            pass
        yield lease


# The reservation


@dataclass(frozen=True, slots=True)
class _Reservation:
    """One transaction: the numbers of each source, the flush number, what the schema grew by, and the
    request's marker, which must be what it was when the load began."""

    job: LandingJob
    request: _Request
    grown: Dataset
    fixed: FixedInput
    load: str
    lease: Lease
    alone: Lease | None

    def make(self) -> LoadPlan | None:
        """The plan; None where another brought the request, or the dataset got other rules: begin again.

        Busy, or OutcomeUnknown where the store's answers are lost, after the time that an append has.
        """
        site, began, wait_s, is_unknown = self.job.site, self.job.site.clock.now_us(), 0.0, False
        while True:
            schema = self._schema()
            if schema is None:
                return None
            plan, expected, writes = self._decide(*schema)
            reach("load.reserve")
            conflict: Conflict | None = None
            failure: UnavailableError | None = None
            try:
                outcome = site.b.commit(expected, writes)
                conflict = outcome if isinstance(outcome, Conflict) else None
            except UnavailableError as error:
                if not is_unknown and not isinstance(error, OutcomeUnknown):
                    raise  # nothing was written
                is_unknown, failure = True, error
            reach("load.reserved")
            if conflict is None and failure is None:
                return plan
            if conflict is not None:
                # Any conflict settles the tries before it: their marker is there, or what they expected is
                # gone for good.
                is_unknown = False
                if conflict.name == self.request.key:
                    return self._ours(conflict.actual)
                self._raise_lost(conflict)
            waited_s = (site.clock.now_us() - began) / 1e6
            if waited_s > site.spool.append_timeout_s:
                self._give_up(conflict, failure, waited_s)
            site.clock.sleep(wait_s)
            wait_s = min(max(wait_s, _FIRST_WAIT_S) * 2, _LONGEST_WAIT_S)

    def _schema(self) -> tuple[Dataset, int] | None:
        """What the dataset becomes, and its newest event. Another may have grown it since the input was
        fixed; SchemaBreaking if the two do not fit, None if it needs the flush lease by now."""
        schema = self.job.site.schema(self.job.dataset)
        wanted = merged(schema.dataset, self.grown) if schema.event else self.grown
        if wanted.dedupe_on_flush and self.alone is None:
            return None
        return replace(wanted, version=schema.event + (wanted.version != schema.event)), schema.event

    def _decide(self, wanted: Dataset, newest: int) -> tuple[LoadPlan, list[Expectation], list[Write]]:
        site, dataset, rows = self.job.site, self.job.dataset, self.fixed.rows
        stream, at = flush_stream(dataset), self.job.site.clock.now_us()
        event = site.b.last_seq(stream)
        number = site.standing.numbers(dataset).last + 1
        heads = {source: head_of(site.b, Strand(dataset, source)) for source in rows}
        ranges = {source: Range(head.hi, head.hi + rows[source]) for source, head in heads.items()}
        id_ = f"{dataset}-{number}-{site.random_hex()}"
        fence = self.lease.fence
        guarded = self._guarded()
        version = max(wanted.version, 1)
        plan = LoadPlan(number, id_, fence, self.load, version, at, self.fixed, ranges, guarded.looked)
        # The marker comes first: the conflict that tells of a lost answer is told before any other.
        had = self.request.marker
        expected: list[Expectation] = [ExpectKey(self.request.key, ABSENT if had is None else had)]
        expected += [self.lease.guard, *([self.alone.guard] if self.alone else []), *guarded.expected]
        expected.append(ExpectSeq(stream, event))
        marker = _Marker(self.load, number, event + 1, sum(rows.values()), self.request.columns)
        writes: list[Write] = [*self.request.also, loading(dataset, plan)]
        writes.append(Put(self.request.key, msgspec.structs.asdict(marker)))
        if newest == 0 or wanted.version != newest:
            expected.append(ExpectSeq(dataset_stream(dataset), newest))
            writes.append(declared(replace(wanted, version=newest + 1), at))
        for source, each in ranges.items():
            ledger = Strand(dataset, source).ledger
            expected.append(ExpectSeq(ledger, heads[source].event))
            entry = Reserved(self.load, number, id_, fence, each.lo, each.hi)
            writes += [append_of(ledger, every, at) for every in (*heads[source].opening, entry)]
        return plan, expected, writes

    def _raise_lost(self, conflict: Conflict) -> None:
        for lease in (self.lease, self.alone):
            if lease is not None and conflict.name == lease.guard.key:
                raise LeaseLost(lease.scope)
        if callable(self.request.expected):
            return  # it is asked again
        names = {each.key if isinstance(each, ExpectKey) else each.stream for each in self.request.expected}
        if conflict.name in names:
            raise ExpectationUnmet(conflict)

    def _guarded(self) -> Guarded:
        given = self.request.expected
        return given(self.fixed) if callable(given) else Guarded(given)

    def _give_up(self, conflict: Conflict | None, failure: UnavailableError | None, waited_s: float) -> None:
        if conflict is not None:
            raise Busy(conflict.name, waited_s)
        dataset, id_ = self.job.dataset, self.request.id
        raise OutcomeUnknown(
            f"the answer to a load into {dataset!r} was lost; repeat it with request_id={id_!r}",
            once=(f"loaded/{dataset}", id_),
        ) from failure

    def _ours(self, marker: Any) -> LoadPlan | None:
        """This very load, whose first answer was lost; None if the request is another's by now."""
        found = None if marker is ABSENT else _marker(self.request.key, marker)
        if found is None or found.load != self.load:
            return None
        return _load_plan(self.job, found.number, found.event)


# Repeats


def _marker(key: str, value: Any) -> _Marker:
    with readable(key, None):
        return msgspec.convert(value, _Marker)


def _load_plan(job: LandingJob, number: int, event: int) -> LoadPlan:
    plan = open_plan(job.site.b, job.dataset, number, event)
    if not isinstance(plan, LoadPlan):
        raise ControlUnreadable(flush_stream(job.dataset), event, f"number {number} is no load")
    return plan


def _repeat(job: LandingJob, marker: _Marker) -> LoadResult | None:
    """What became of a request that was here before; None if its load was released, so that it may run
    anew."""
    site, number = job.site, marker.number
    event = site.standing.numbers(job.dataset).open.get(number)
    if event is not None and job.schema().dedupe_on_flush:
        with _alone(job, job.schema()):
            pass  # it is settled by now, with whatever else was open
    elif event is not None:
        plan = _load_plan(job, number, event)
        with held(site.b, site.clock, f"load/{plan.load}", timeout_s=WAIT_S) as lease:
            if number in site.standing.numbers(job.dataset).open:
                settle_load(job, plan, lease)
    closed = _closing_event(site, job.dataset, number, marker.event)
    return None if closed.type == "released" else _result_of(closed, job.dataset)


def _result_of(landed: Event, dataset: str) -> LoadResult:
    with readable(landed.stream, landed.seq):
        data = landed.data
        return LoadResult(
            dataset,
            text(data, "load"),
            whole(data, "number"),
            whole(data, "rows"),
            whole(data, "bytes"),
            whole(data, "files"),
            source_ranges(data["ranges"]),
            whole(data, "duplicates"),
            is_repeat=True,
        )


def _closing_event(site: Site, dataset: str, number: int, first: int) -> Event:
    for event in past_events(site, flush_stream(dataset), first):
        if event.type in CLOSING and number_of(event) == number:
            return event
    raise UnavailableError(
        f"load {number} of {dataset!r} is open and held by another",
        hint="repeat the load when that has ended",
    )


def _request_key(dataset: str, request_id: str) -> str:
    return f"loaded/{dataset}/{quote(request_id, safe='')}"
