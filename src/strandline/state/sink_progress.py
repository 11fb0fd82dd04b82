"""`sink/<instance>/<dataset>/<source>` as values, and folded: how far a sink has got on a strand.

    started    {mark, epoch}                       where delivery begins, if not at 0
    intended   {id, lo, hi, epoch, chain_hi, unit_rows, unit_bytes, encoder, schema, policy, ranges}
    delivered  {intent, units, known, void, withheld, is_repeat}   the line moves over what is done
    failed     {lo, hi, kind, text, attempts, not_before, is_pace, bad, refused}
    lettered   {intent, lo, hi, epoch, seqs, rows, schema, kind, http_status, answer, body, unit}   not taken
    settled    {letter, how, reason, units}        a dead letter that was sent after all, or dropped
    passed     {lo, hi, epoch, reason}             no row is owed of this range
    evicted    {run, lo, hi, rows}                 retention took so many rows of it that were not delivered
    held       {kind, text}                        nothing is sent until someone has changed something
    resumed    {reason}
    moved      {mark, epoch, reason, aborts}       an operator put the line elsewhere

A unit of `delivered` is [lo, hi, rows, bytes, digest, target]: its receipt. `known` is what the destination
said it has, `void` had no row, `withheld` stays here by policy. `ranges` of an intent are null, or those that
a release delivers: such an intent leaves the line where it is.

`sink/<instance>` is the instance itself:

    opened     {fingerprint, type}                 seen for the first time
    bound      {fingerprint, how, reason}          its destination changed; an operator says what that means
    held, resumed                                  as above, for all its strands
    forgotten  {reason, next_epoch}                it is owed nothing any more
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from strandline.base.ranges import Range, RangeSet, pairs_of, ranges_of
from strandline.persist import Append, Event
from strandline.rows.dataset import encode_source
from strandline.sinks.sink import Limits
from strandline.state.strand_entries import ControlUnreadable


class UnitReceipt(NamedTuple):
    """A unit that is done."""

    lo: int
    hi: int
    rows: int
    bytes: int
    digest: str
    target: str


class SinkStop(NamedTuple):
    kind: str
    text: str
    at: int


@dataclass(frozen=True, slots=True)
class Intent:
    """`(lo, hi]` of a strand, and all that decides how it is cut and encoded: fixed before a byte leaves."""

    id: str
    lo: int
    hi: int
    epoch: int
    chain_hi: int
    limits: Limits
    schema: int
    policy: int
    ranges: tuple[Range, ...] | None = None
    at: int = 0

    @property
    def asked(self) -> tuple[Range, ...]:
        return (Range(self.lo, self.hi),) if self.ranges is None else self.ranges


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why the last try did not get through, and when the next one may be made."""

    lo: int
    hi: int
    kind: str
    text: str
    attempts: int
    not_before: int
    at: int
    is_pace: bool = False  # the destination asked for a pause
    bad: Mapping[Range, int] = field(default_factory=dict)  # rows that were refused, and how often
    refused: int = 0  # tries that something on the way refused


@dataclass(frozen=True, slots=True)
class SinkProgress:
    """The strandline of one instance on one strand."""

    mark: int = 0
    chain_hi: int = 0  # the hi of the newest object
    epoch: int = 0
    last_epoch: int = 0  # the highest that was ever used
    intent: Intent | None = None
    done: RangeSet = field(default_factory=RangeSet)  # of the open intent
    newest: int = 0  # the hi up to which an object of the open intent may be there
    is_told: bool = False  # of the open intent: what the destination had before it is recorded
    withheld: RangeSet = field(default_factory=RangeSet)
    released: RangeSet = field(
        default_factory=RangeSet
    )  # withheld once, and sent since in epochs of their own
    letters: tuple[int, ...] = ()  # the events of dead letters that wait for a decision
    trouble: Trouble | None = None
    hold: SinkStop | None = None
    rows: int = 0
    bytes: int = 0
    high: int = 0  # how far the line ever got in this epoch: below it the destination may have rows
    event: int = 0  # the last of the stream
    at: int = 0  # of the last delivery
    evicted: int = 0  # rows that retention took before they were delivered, at most

    def left(self) -> list[Range]:
        """What of the open intent is not done."""
        if self.intent is None:
            return []
        return [hole for each in self.intent.asked for hole in self.done.holes(each)]


@dataclass(frozen=True, slots=True)
class Instance:
    """What is recorded of a sink as a whole."""

    fingerprint: str = ""
    hold: SinkStop | None = None
    epoch: int = 0  # in which its strands begin
    event: int = 0
    is_open: bool = False


def sink_stream(instance: str, dataset: str, source: str) -> str:
    return f"sink/{instance}/{dataset}/{encode_source(source)}"


def instance_stream(instance: str) -> str:
    return f"sink/{instance}"


# Folding


def with_event(line: SinkProgress, event: Event) -> SinkProgress:
    """The line after an event of its stream; ControlUnreadable where that cannot be understood."""
    try:
        after = _after(line, event, event.data)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise ControlUnreadable(event.stream, event.seq, str(error)) from error
    return replace(after, event=event.seq)


def _after(line: SinkProgress, event: Event, data: Any) -> SinkProgress:
    match event.type:
        case "started":
            return replace(line, mark=data["mark"], chain_hi=data["mark"])
        case "intended":
            intent = intent_of(data, int(event.at))
            last = max(line.last_epoch, intent.epoch)
            return replace(line, intent=intent, done=RangeSet(), newest=0, is_told=False, last_epoch=last)
        case "delivered":
            return _delivered(line, data, int(event.at))
        case "failed":
            return replace(line, trouble=trouble_of({**data, "at": int(event.at)}))
        case "lettered":
            letters = (*line.letters, event.seq)
            return _done(line, [Range(data["lo"], data["hi"])], letters=letters, trouble=None)
        case "settled":
            units = [UnitReceipt(*each) for each in data["units"]]
            return replace(
                line,
                letters=tuple(each for each in line.letters if each != data["letter"]),
                rows=line.rows + sum(unit.rows for unit in units),
                bytes=line.bytes + sum(unit.bytes for unit in units),
            )
        case "passed":
            return replace(line, mark=max(line.mark, data["hi"]), at=int(event.at))
        case "evicted":
            return replace(line, evicted=line.evicted + data["rows"])
        case "held":
            return replace(line, hold=SinkStop(data["kind"], data["text"], int(event.at)))
        case "resumed":
            return replace(line, hold=None, trouble=None)
        case "moved":
            return _moved(line, data)
    raise ControlUnreadable(event.stream, event.seq, f"its type is {event.type!r:.80}")


def _delivered(line: SinkProgress, data: Any, at: int) -> SinkProgress:
    if line.intent is None or line.intent.id != data["intent"]:
        raise ValueError(f"intent {data['intent']!r:.80} is not open")
    units = [UnitReceipt(*each) for each in data["units"]]
    void, withheld = ranges_of(data["void"]), ranges_of(data["withheld"])
    known, carried = ranges_of(data["known"]), [*(Range(unit.lo, unit.hi) for unit in units), *void]
    done = [*carried, *known]
    kept = line.withheld
    # A destination knows a range by its bounds: what was withheld of one that it had before stays so.
    for each in done if line.is_told or line.intent.ranges is not None else carried:
        kept = _less(kept, each)
    for each in withheld:
        kept = kept.with_(each)
    # An earlier try may have written what this one finds empty: its name must not be used again.
    maybe = [each.hi for each in done] if data["is_repeat"] else [unit.hi for unit in units]
    newest = max([line.newest, *maybe])
    released = line.released
    if line.intent.ranges is not None:
        released = RangeSet.of(
            [*released.ranges, *(each for part in line.withheld.ranges for each in kept.holes(part))]
        )
    return _done(
        line,
        done,
        withheld=kept,
        released=released,
        is_told=True,
        newest=newest,
        trouble=None,
        rows=line.rows + sum(unit.rows for unit in units),
        bytes=line.bytes + sum(unit.bytes for unit in units),
        at=at,
    )


def _done(line: SinkProgress, ranges: Iterable[Range], **changes: Any) -> SinkProgress:
    """The line with those changes moves over the contiguous prefix of what is done; a whole intent is
    closed."""
    intent = line.intent
    if intent is None:
        raise ValueError("no intent is open")
    done = line.done
    for each in ranges:
        done = done.with_(each)
    is_release = intent.ranges is not None
    mark = line.mark if is_release else max(line.mark, done.through(intent.lo))
    changes |= {"mark": mark, "high": max(line.high, mark), "done": done}
    if all(done.covers(each) for each in intent.asked):
        newest = changes.get("newest", line.newest)
        changes |= {"intent": None, "done": RangeSet(), "newest": 0, "is_told": False}
        changes["chain_hi"] = line.chain_hi if is_release or not newest else newest
    return replace(line, **changes)


def _moved(line: SinkProgress, data: Any) -> SinkProgress:
    """An operator's word: the only way back. A new epoch is a chain of its own."""
    mark, epoch = data["mark"], data["epoch"]
    is_new = epoch != line.epoch
    # What an intent has delivered that is given up is not known: up to its end there may be rows and objects.
    reached = line.intent.hi if line.intent is not None and line.intent.epoch == line.epoch else 0
    withheld = line.withheld.within(Range(0, mark)) if is_new else line.withheld.ranges  # what is sent anew
    return replace(
        line,
        mark=mark,
        high=0 if is_new else max(line.high, mark, reached),
        epoch=epoch,
        last_epoch=max(line.last_epoch, epoch),
        chain_hi=mark if is_new else max(line.chain_hi, reached),
        intent=None,
        done=RangeSet(),
        newest=0,
        is_told=False,
        withheld=RangeSet(tuple(withheld)),
        released=RangeSet() if is_new else line.released,
        trouble=None,
        hold=None,
    )


def with_instance_event(instance: Instance, event: Event) -> Instance:
    data: Any = event.data
    try:
        match event.type:
            case "opened":
                after = replace(instance, fingerprint=data["fingerprint"], is_open=True, hold=None)
            case "bound":
                after = replace(instance, fingerprint=data["fingerprint"], hold=None)
            case "held":
                after = replace(instance, hold=SinkStop(data["kind"], data["text"], int(event.at)))
            case "resumed":
                after = replace(instance, hold=None)
            case "forgotten":
                after = Instance(epoch=data["next_epoch"])
            case _:
                raise ControlUnreadable(event.stream, event.seq, f"its type is {event.type!r:.80}")
    except (TypeError, ValueError, KeyError) as error:
        raise ControlUnreadable(event.stream, event.seq, str(error)) from error
    return replace(after, event=event.seq)


# As events


def event_of(stream: str, type_: str, at: int, /, **data: Any) -> Append:
    """A write to a sink's stream, which takes part in the global order."""
    return Append(stream, type_, at, data, globally=True)


def intended(stream: str, intent: Intent) -> Append:
    return event_of(stream, "intended", intent.at, **intent_data(intent))


def delivered(
    stream: str,
    intent: str,
    at: int,
    *,
    units: Iterable[UnitReceipt] = (),
    known: Iterable[Range] = (),
    void: Iterable[Range] = (),
    withheld: Iterable[Range] = (),
    is_repeat: bool = True,
) -> Append:
    return event_of(
        stream,
        "delivered",
        at,
        intent=intent,
        units=[list(each) for each in units],
        known=pairs_of(known),
        void=pairs_of(void),
        withheld=pairs_of(withheld),
        is_repeat=is_repeat,
    )


def failed(stream: str, trouble: Trouble) -> Append:
    return event_of(stream, "failed", trouble.at, **trouble_data(trouble))


def trouble_data(trouble: Trouble) -> dict[str, Any]:
    refused = {"refused": trouble.refused} if trouble.refused else {}
    return {
        **refused,
        "lo": trouble.lo,
        "hi": trouble.hi,
        "kind": trouble.kind,
        "text": trouble.text,
        "attempts": trouble.attempts,
        "not_before": trouble.not_before,
        "is_pace": trouble.is_pace,
        "bad": [[each.lo, each.hi, attempts] for each, attempts in trouble.bad.items()],
    }


def trouble_of(data: Mapping[str, Any]) -> Trouble:
    bad = {Range(lo, hi): attempts for lo, hi, attempts in data["bad"]}
    names = ("lo", "hi", "kind", "text", "attempts", "not_before", "at", "is_pace")
    return Trouble(**{name: data[name] for name in names}, bad=bad, refused=data.get("refused", 0))


def intent_data(intent: Intent) -> dict[str, Any]:
    return {
        "id": intent.id,
        "lo": intent.lo,
        "hi": intent.hi,
        "epoch": intent.epoch,
        "chain_hi": intent.chain_hi,
        "unit_rows": intent.limits.unit_rows,
        "unit_bytes": intent.limits.unit_bytes,
        "encoder": intent.limits.encoder,
        "schema": intent.schema,
        "policy": intent.policy,
        "ranges": None if intent.ranges is None else pairs_of(intent.ranges),
    }


def intent_of(data: Mapping[str, Any], at: int) -> Intent:
    return Intent(
        data["id"],
        data["lo"],
        data["hi"],
        data["epoch"],
        data["chain_hi"],
        Limits(data["unit_rows"], data["unit_bytes"], data["encoder"]),
        data["schema"],
        data["policy"],
        None if data["ranges"] is None else ranges_of(data["ranges"]),
        at,
    )


def _less(kept: RangeSet, gone: Range) -> RangeSet:
    """`kept` without `gone`."""
    if not kept.within(gone):
        return kept
    end = kept.ranges[-1].hi
    return RangeSet.of([*kept.within(Range(0, gone.lo)), *kept.within(Range(gone.hi, max(gone.hi, end)))])
