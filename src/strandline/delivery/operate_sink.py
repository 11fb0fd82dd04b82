"""What an operator does to a sink by hand. Each act takes the lease of its instance, is one transaction, and
is recorded with its reason.

An act that moves a line is refused while an intent is open: what the intent has delivered is not known yet.
To give it up (`abort_intent`) is safe where the destination can be asked, or where what it may have is never
sent again under its old names. A new epoch sends rows again on purpose.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

from strandline.base.ranges import Range, RangeSet
from strandline.delivery.dead_letter_files import letters_of
from strandline.delivery.instance import record_instance
from strandline.delivery.owed import Terms, covered, mean_row_bytes
from strandline.delivery.policy import Rule, current_version, rules_of, withhold_sql
from strandline.errors import HeldError, NotFoundError, UsageError
from strandline.persist import Append, Conflict, ExpectSeq
from strandline.persist.backend import Expectation, Write
from strandline.rows.dataset import Strand
from strandline.sinks.sink import Sink
from strandline.state.context import Site
from strandline.state.lease import Lease, LeaseLost, held
from strandline.state.sink_progress import (
    Intent,
    SinkProgress,
    event_of,
    instance_stream,
    intended,
    sink_stream,
)
from strandline.state.sink_progress_fold import UNREADABLE

WAIT_S: Final = 5.0  # for a run of the sink to end
MOST_RANGES: Final = 500  # of one release; more are a second one

T = TypeVar("T")


class IntentOpen(HeldError):
    """Rows are under way, and what has become of them is not known."""

    def __init__(self, instance: str, strand: Strand, intent: Intent, hint: str) -> None:
        super().__init__(
            f"sink {instance!r} has rows {intent.lo + 1}-{intent.hi} of {strand.dataset}/{strand.source} "
            "under way",
            hint=hint,
        )
        self.instance, self.dataset, self.source = instance, strand.dataset, strand.source
        self.lo, self.hi = intent.lo, intent.hi


class NothingThere(NotFoundError):
    """An act on something that a sink does not have."""


@dataclass(frozen=True, slots=True)
class Moved:
    """A line that an operator put elsewhere."""

    strand: Strand
    was: int
    mark: int
    epoch: int
    dropped_letters: int = 0


@dataclass(frozen=True, slots=True)
class ReleasedRows:
    """The rows of a strand that may leave now, and the epoch in which they do."""

    strand: Strand
    ranges: tuple[Range, ...]
    epoch: int


# Moving lines


def rewind(
    site: Site,
    sink: Sink,
    terms: Terms,
    *,
    strands: Iterable[Strand] | None = None,
    to: int = 0,
    reason: str,
    abort_intent: bool = False,
    resend: bool = False,
) -> list[Moved]:
    """Put lines back to the seq `to`. What follows is sent once more where the destination lacks it; all of
    it, in a new epoch, with `resend`, or where the destination cannot be asked. Dead letters behind `to` are
    dropped: their rows are sent again."""
    is_new = resend or not sink.asks_first

    def decide() -> tuple[list[Moved], _Change]:
        change, moved = _Change(), []
        for strand, line in _lines(site, terms.name, strands).items():
            if line.mark < to:
                _refuse_if_named(
                    strands, f"the line of {_named(strand)} is at {line.mark}, before {to}", "skip"
                )
                continue
            if line.mark == to and line.intent is None and line.hold is None and not resend:
                continue
            # All that the intent may have delivered is sent again, or can be asked for.
            may_abort = (is_new and _begins(line) >= to) or _is_plain(site, strand, line)
            _check_intent(terms.name, strand, line, abort_intent, may_abort=may_abort)
            epoch = site.standing.lines().last_epoch(strand) + 1 if is_new else line.epoch
            gone = _letters_behind(site, terms.name, strand, line, to, is_new=is_new)
            moved.append(Moved(strand, line.mark, to, epoch, len(gone)))
            change.move(site, terms.name, strand, line, moved[-1], reason)
            change.drop_letters(site, terms.name, strand, gone, f"rewound to {to}: {reason}")
        return moved, change

    return _under_lease(site, terms.name, decide)


def skip(
    site: Site,
    sink: Sink,
    terms: Terms,
    *,
    strands: Iterable[Strand] | None = None,
    to: int | None = None,
    reason: str,
    abort_intent: bool = False,
) -> list[Moved]:
    """Put lines forward to the seq `to`, or to all that is visible now: rows between are not delivered."""
    record_instance(site, sink, terms)

    def decide() -> tuple[list[Moved], _Change]:
        change, moved = _Change(), []
        strand_states = dict(covered(site, terms))
        for strand in _chosen(strands, strand_states):
            if strand not in strand_states:
                raise NothingThere(f"sink {terms.name!r} takes no {_named(strand)}", hint="see its include")
            visible = strand_states[strand].visible_through
            line = site.standing.lines().line(terms.name, strand)
            mark = visible if to is None else min(to, visible) if strands is None else to
            if mark > visible:
                raise UsageError(
                    f"{_named(strand)} is visible up to {visible}, and {mark} is behind that",
                    hint="rows that are not there yet cannot be skipped",
                )
            if mark <= line.mark:
                _refuse_if_named(strands, f"the line of {_named(strand)} is at {line.mark} already", "rewind")
                continue
            _check_readable(terms.name, strand, line)
            may_abort = _is_plain(site, strand, line)
            _check_intent(terms.name, strand, line, abort_intent, may_abort=may_abort)
            _check_reach(terms.name, strand, line, mark, sink)
            moved.append(Moved(strand, line.mark, mark, line.epoch))
            change.move(site, terms.name, strand, line, moved[-1], reason)
        return moved, change

    return _under_lease(site, terms.name, decide)


def forget(site: Site, name: str, *, reason: str, abort_intent: bool = False) -> int:
    """Owe an instance nothing any more; how many lines that were. Where its name is configured again, or
    still, it is a new one, which delivers from its start on in an epoch of its own."""

    def decide() -> tuple[int, _Change]:
        lines = site.standing.lines()
        instance, owns = lines.instance(name), lines.of(name)
        if not instance.is_open:
            raise NothingThere(f"nothing was ever delivered by a sink {name!r:.80}", hint="it owes nothing")
        for strand, line in owns.items():
            _check_intent(name, strand, line, abort_intent, may_abort=True)
        next_epoch = 1 + max([instance.epoch, *(lines.last_epoch(strand) for strand in owns)])
        change = _Change()
        change.expect(instance_stream(name), instance.event)
        for strand, line in owns.items():
            change.expect(sink_stream(name, strand.dataset, strand.source), line.event)
        change.write(
            event_of(
                instance_stream(name), "forgotten", site.clock.now_us(), reason=reason, next_epoch=next_epoch
            )
        )
        return len(owns), change

    return _under_lease(site, name, decide)


def bind(
    site: Site,
    sink: Sink,
    terms: Terms,
    how: Literal["keep", "reset"],
    *,
    reason: str,
    abort_intent: bool = False,
) -> list[Moved]:
    """Say what it means that the destination of a name has changed. `keep`: what follows the lines goes to
    the new one, open intents too. `reset`: everything does, from the start on, in a new epoch."""

    def decide() -> tuple[list[Moved], _Change]:
        lines = site.standing.lines()
        instance = lines.instance(terms.name)
        if not instance.is_open:
            raise NothingThere(
                f"nothing was ever delivered by sink {terms.name!r}", hint="its first run binds it by itself"
            )
        change, moved = _Change(), []
        change.expect(instance_stream(terms.name), instance.event)
        change.write(
            event_of(
                instance_stream(terms.name),
                "bound",
                site.clock.now_us(),
                fingerprint=sink.fingerprint,
                how=how,
                reason=reason,
            )
        )
        for strand, line in (lines.of(terms.name) if how == "reset" else {}).items():
            _check_intent(terms.name, strand, line, abort_intent, may_abort=True)
            gone = _letters_behind(site, terms.name, strand, line, 0, is_new=True)
            moved.append(Moved(strand, line.mark, 0, lines.last_epoch(strand) + 1, len(gone)))
            change.move(site, terms.name, strand, line, moved[-1], reason)
            change.drop_letters(site, terms.name, strand, gone, f"another destination: {reason}")
        return moved, change

    return _under_lease(site, terms.name, decide)


# Rows that a policy withheld


def release(
    site: Site,
    sink: Sink,
    terms: Terms,
    rules: Sequence[Rule],
    *,
    strands: Iterable[Strand] | None = None,
    after: Mapping[Strand, int] | None = None,
) -> list[ReleasedRows]:
    """Make intents of the rows that were withheld, those above `after`, each in a new epoch; the next run
    delivers them, as far as the policy of now lets them go. Lines stay where they are."""
    since = after or {}

    def decide() -> tuple[list[ReleasedRows], _Change]:
        change, released = _Change(), []
        at = site.clock.now_us()
        policy = current_version(site.b, rules, at)
        taken = dict(covered(site, terms))
        for strand, line in _lines(site, terms.name, strands).items():
            ranges = _releasable(line, since.get(strand, 0), terms.max_intent_rows)
            if not ranges or strand not in taken:
                continue
            _check_readable(terms.name, strand, line)
            if line.intent is not None:
                hint = f"`strandline sync {terms.name}` finishes that; then release"
                raise IntentOpen(terms.name, strand, line.intent, hint)
            epoch = site.standing.lines().last_epoch(strand) + 1
            lo, hi = ranges[0].lo, ranges[-1].hi
            limits = sink.limits(mean_row_bytes(site.b, strand.dataset))
            schema = site.known(strand.dataset).dataset.version
            intent = Intent(site.random_hex(), lo, hi, epoch, lo, limits, schema, policy, ranges, at)
            stream = sink_stream(terms.name, strand.dataset, strand.source)
            change.expect(stream, line.event)
            change.write(intended(stream, intent))
            released.append(ReleasedRows(strand, ranges, epoch))
        return released, change

    return _under_lease(site, terms.name, decide)


def _releasable(line: SinkProgress, after: int, most_rows: int) -> tuple[Range, ...]:
    """What is withheld at or below the line; above it the next run decides anew. Not more than one intent
    takes."""
    if line.mark <= after:
        return ()
    found = line.withheld.within(Range(after, line.mark))[:MOST_RANGES]
    end = found[0].lo + most_rows if found else 0
    return tuple(RangeSet(tuple(found)).within(Range(found[0].lo, end))) if found else ()


# One transaction


class _Change:
    """What an act expects and writes."""

    def __init__(self) -> None:
        self.expected: list[Expectation] = []
        self.writes: list[Write] = []

    def expect(self, stream: str, event: int) -> None:
        self.expected.append(ExpectSeq(stream, event))

    def write(self, event: Append) -> None:
        self.writes.append(event)

    def move(
        self, site: Site, name: str, strand: Strand, line: SinkProgress, moved: Moved, reason: str
    ) -> None:
        stream = sink_stream(name, strand.dataset, strand.source)
        data: dict[str, Any] = {"mark": moved.mark, "epoch": moved.epoch, "reason": reason}
        self.expect(stream, line.event)
        self.write(event_of(stream, "moved", site.clock.now_us(), **data, aborts=line.intent is not None))

    def drop_letters(
        self, site: Site, name: str, strand: Strand, letters: Iterable[int], reason: str
    ) -> None:
        stream, at = sink_stream(name, strand.dataset, strand.source), site.clock.now_us()
        for letter in letters:
            self.write(event_of(stream, "settled", at, letter=letter, how="dropped", reason=reason, units=[]))


def _under_lease(site: Site, name: str, decide: Callable[[], tuple[T, _Change]]) -> T:
    """Decide and write. Whoever records an instance for the first time takes no lease: then decide again."""
    with held(site.b, site.clock, f"sink/{name}", timeout_s=WAIT_S) as lease:
        while True:
            result, change = decide()
            if not change.writes or _is_written(site, lease, change):
                return result


def _is_written(site: Site, lease: Lease, change: _Change) -> bool:
    outcome = site.b.commit([lease.guard, *change.expected], change.writes)
    if isinstance(outcome, Conflict) and outcome.name == lease.guard.key:
        raise LeaseLost(lease.scope)
    return not isinstance(outcome, Conflict)


# What must hold


def _lines(site: Site, name: str, strands: Iterable[Strand] | None) -> dict[Strand, SinkProgress]:
    """The lines that are meant: those that are named, which must be there, or all."""
    there = site.standing.lines().of(name)
    chosen = _chosen(strands, there)
    for strand in chosen:
        if strand not in there:
            raise NothingThere(
                f"sink {name!r} has delivered nothing of {_named(strand)}",
                hint="`strandline sink list` shows all",
            )
    return {strand: there[strand] for strand in chosen}


def _chosen(strands: Iterable[Strand] | None, there: Iterable[Strand]) -> list[Strand]:
    return sorted(there if strands is None else set(strands))


def _refuse_if_named(strands: Iterable[Strand] | None, found: str, instead: str) -> None:
    """Of all strands those are moved that can be; one that was named must be."""
    if strands is not None:
        raise UsageError(found, hint=f"`strandline sink {instead}` goes the other way")


def _check_intent(name: str, strand: Strand, line: SinkProgress, abort: bool, *, may_abort: bool) -> None:
    if line.intent is None or (abort and may_abort):
        return
    hint = f"`strandline sync {name}` finishes them"
    if may_abort:
        hint += "; --abort-intent gives up knowing which of them have arrived"
    raise IntentOpen(name, strand, line.intent, hint)


def _check_readable(name: str, strand: Strand, line: SinkProgress) -> None:
    if line.hold is not None and line.hold.kind == UNREADABLE:
        raise UsageError(
            f"the records of sink {name!r} on {_named(strand)} are damaged: {line.hold.text}",
            hint="rewind it: that says anew where it is",
        )


def _check_reach(name: str, strand: Strand, line: SinkProgress, mark: int, sink: Sink) -> None:
    """Where a destination cannot be asked, rows that an intent may have delivered are not sent again."""
    if line.intent is not None and not sink.asks_first and mark < line.intent.hi:
        hint = f"skip to {line.intent.hi} or further, or rewind: that begins a new chain"
        raise IntentOpen(name, strand, line.intent, hint)


def _begins(line: SinkProgress) -> int:
    """Where the open intent does. One that releases withheld rows lies behind its line."""
    return line.mark if line.intent is None else line.intent.lo


def _is_plain(site: Site, strand: Strand, line: SinkProgress) -> bool:
    """Whether the open intent can be given up within its epoch: of one that releases withheld rows,
    withholds some, or sends some that were withheld before, nobody could tell afterwards which have left."""
    intent = line.intent
    if intent is None:
        return True
    if intent.ranges is not None or line.withheld.within(Range(intent.lo, intent.hi)):
        return False
    return withhold_sql(rules_of(site.b, intent.policy), strand.dataset) is None


def _letters_behind(
    site: Site, name: str, strand: Strand, line: SinkProgress, to: int, *, is_new: bool
) -> list[int]:
    """The dead letters whose rows a rewind sends again."""
    found = list(letters_of(site.b, name, strand, line))
    cut = [each for each in found if each.lo < to < each.hi]
    if cut and is_new:
        raise UsageError(
            f"{to} lies inside the dead letter {cut[0].id}",
            hint=f"rewind to {cut[0].lo} or {cut[0].hi}, or retry or drop it first",
        )
    return [each.event for each in found if each.lo >= to]


def _named(strand: Strand) -> str:
    return f"{strand.dataset}/{strand.source}"
