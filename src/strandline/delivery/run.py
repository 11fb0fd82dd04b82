"""One run of one sink: everything that was visible when it began is delivered, or it says why not.

1. Nothing owed: no lease, no job, no write. 2. Under the lease `sink/<instance>` each strand gets an intent,
durable before a byte leaves. 3. One job for the strands of a dataset. 4. One transaction records what became
of their units, and each line moves over what is done. A crash loses knowledge, not rows: the open intent is
taken up again, and the destination tells what it has.

A task never waits. Where a destination asks for a pause, the run waits here, and then sends what is left as
a new job.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Final

from strandline.delivery.delivery_round import MOST_STRANDS, Rounds
from strandline.delivery.instance import check_destination, is_recorded, record_instance
from strandline.delivery.owed import Owed, Terms, due, owed
from strandline.delivery.result import StrandResult, SyncResult
from strandline.delivery.session import DeliverySession, Sender
from strandline.lake.ports.deliver import Courier
from strandline.observe.span import span
from strandline.persist import ExpectSeq
from strandline.persist.backend import Expectation, Write
from strandline.rows.dataset import Strand
from strandline.sinks.sink import Sink
from strandline.state.context import Site
from strandline.state.lease import held
from strandline.state.sink_progress import event_of, instance_stream
from strandline.state.sink_progress_fold import UNREADABLE

SHORT_WAIT_S: Final = 5.0  # after an error a run waits this long, not longer; the next one comes back to it
_SLICE_S: Final = 0.5


def sync(
    site: Site,
    courier: Callable[[], Courier],
    sink: Sink,
    terms: Terms,
    sender: Sender,
    *,
    is_command: bool = False,
    is_reconfigured: bool = False,
    tell: Callable[[SyncResult], None] | None = None,
    stop: threading.Event | None = None,
) -> SyncResult:
    """Deliver what is owed now. LeaseHeld if another run of the instance is under way.

    On command holds and our own back-off do not count, a pause that a destination asked for does. In the
    first run after a configuration was read (`is_reconfigured`) a hold of the whole instance does not count.
    """
    result = SyncResult(terms.name)
    if not is_recorded(site, terms):
        record_instance(site, sink, terms)
        result.control_writes += 1
    if not due(site, sink, terms, is_command=is_command):
        return result
    check_destination(site, sink, terms)
    with (
        span("sync", sink=terms.name) as told,
        held(site.b, site.clock, f"sink/{terms.name}") as lease,
    ):
        result.control_writes += 2
        session = DeliverySession(site, courier, sink, terms, sender, lease, result)
        run = _Run(session, stop or threading.Event())
        run.go(is_command=is_command, is_reconfigured=is_reconfigured, tell=tell)
        told.set(**result.facts())
    site.standing.keep_if_due()
    return result


class _Run:
    """What one holder of the lease does."""

    def __init__(self, session: DeliverySession, stop: threading.Event) -> None:
        self._session, self._stop = session, stop
        self._site, self._terms = session.site, session.terms
        self._began = session.site.clock.now_us()
        self._until: dict[Strand, int] = {}
        self._waited: dict[Strand, float] = {}

    def go(
        self, *, is_command: bool, is_reconfigured: bool, tell: Callable[[SyncResult], None] | None
    ) -> None:
        found = due(self._site, self._session.sink, self._terms, is_command=is_command)
        self._until = {each.strand: each.until for each in found}
        self._session.result.strands = len(found)
        if is_command:
            self._resume(found, "sync on command")
        elif is_reconfigured:
            self._resume([], "the configuration was read anew")
        self._rounds = Rounds(self._session, self._until)
        while not self._stop.is_set():
            if ready := self._ready():
                for strand in self._rounds.run(_alike(ready)):
                    self._waited.pop(strand, None)
                if tell is not None:
                    tell(self._session.result)
            elif not self._wait():
                break
        self._session.result.troubles = self._troubles()

    # Which strands

    def _open(self) -> list[Owed]:
        """What is left of what was visible at the start."""
        return [
            each
            for each in owed(self._site, self._terms)
            if each.strand in self._until
            and each.strand not in self._rounds.not_taken
            and (each.line.intent is not None or each.line.mark < self._until[each.strand])
        ]

    def _ready(self) -> list[Owed]:
        now = self._site.clock.now_us()
        if self._session.instance().hold is not None:
            return []
        return [
            each
            for each in self._open()
            if each.line.hold is None and (each.line.trouble is None or each.line.trouble.not_before <= now)
        ]

    def _troubles(self) -> list[StrandResult]:
        """Why a strand is not delivered in full."""
        found = list(self._rounds.not_taken.values())
        whole = self._session.instance().hold
        for each in self._open():
            dataset, source, trouble = each.strand.dataset, each.strand.source, each.line.trouble
            if (hold := each.line.hold or whole) is not None:
                is_held = hold is not whole or hold.at < self._began  # else it failed in this run, as a whole
                found.append(StrandResult(dataset, source, hold.kind, hold.text, is_held=is_held))
            elif trouble is not None:
                found.append(StrandResult(dataset, source, trouble.kind, trouble.text, trouble.not_before))
            else:
                found.append(StrandResult(dataset, source, "stopped", "the run was stopped"))
        return found

    # Waiting

    def _wait(self) -> bool:
        """Wait for the strand whose turn comes first, if that is worth it; False where nothing is."""
        if self._session.instance().hold is not None:
            return False
        now, patience = self._site.clock.now_us(), self._session.sink.patience
        waits = []
        for each in self._open():
            trouble = each.line.trouble
            if each.line.hold is not None or trouble is None:
                continue
            wait_s = max((trouble.not_before - now) / 1e6, 0.0)
            most = patience.inline_wait_s if trouble.is_pace else SHORT_WAIT_S
            if wait_s <= most and self._waited.get(each.strand, 0.0) + wait_s <= patience.inline_wait_s:
                waits.append((wait_s, each.strand))
        if not waits:
            return False
        wait_s, strand = min(waits)
        self._waited[strand] = self._waited.get(strand, 0.0) + wait_s
        self._pause(now + int(wait_s * 1e6))
        return True

    def _pause(self, until: int) -> None:
        while (left := until - self._site.clock.now_us()) > 0 and not self._stop.is_set():
            self._site.clock.sleep(min(left / 1e6, _SLICE_S))

    def _resume(self, found: Sequence[Owed], reason: str) -> None:
        """The instance and these strands are tried again if they are held, and our own back-off is over."""
        at, session = self._site.clock.now_us(), self._session
        writes: list[Write] = []
        expected: list[Expectation] = []
        instance = session.instance()
        if instance.hold is not None and instance.hold.kind != UNREADABLE:
            stream = instance_stream(self._terms.name)
            expected.append(ExpectSeq(stream, instance.event))
            writes.append(event_of(stream, "resumed", at, reason=reason))
        for each in (each for each in found if _is_resumable(each, at)):
            stream = session.stream(each.strand)
            expected.append(ExpectSeq(stream, each.line.event))
            writes.append(event_of(stream, "resumed", at, reason=reason))
        if writes:
            session.commit(expected, writes)


def _is_resumable(each: Owed, now: int) -> bool:
    hold, trouble = each.line.hold, each.line.trouble
    if hold is not None:
        return hold.kind != UNREADABLE
    return trouble is not None and not trouble.is_pace and trouble.not_before > now


def _alike(ready: Sequence[Owed]) -> list[Owed]:
    """Those that can go in one job with the first."""
    first = ready[0]

    def fixed(each: Owed) -> tuple[int, int] | None:
        return None if each.line.intent is None else (each.line.intent.schema, each.line.intent.policy)

    return [
        each for each in ready if each.strand.dataset == first.strand.dataset and fixed(each) == fixed(first)
    ][:MOST_STRANDS]
