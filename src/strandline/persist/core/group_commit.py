"""Group commit: the callers of one process share a transaction, each decided in turn as if alone."""

import threading
import time
from _thread import start_new_thread
from collections.abc import Callable, Sequence

from strandline.errors import OutcomeUnknown
from strandline.persist.backend import Once, Outcome
from strandline.persist.core.prepare import Prepared
from strandline.persist.value import MAX_COMMIT_BYTES


class _Ticket:
    """One caller's place in a group; its lock is held until there is an answer, or its turn to lead."""

    __slots__ = ("answered", "error", "outcome", "prepared", "turn")

    def __init__(self, prepared: Prepared) -> None:
        self.prepared = prepared
        self.outcome: Outcome | None = None
        self.error: BaseException | None = None
        self.answered = False
        self.turn = threading.Lock()
        self.turn.acquire()


def _outcome(ticket: _Ticket) -> Outcome | BaseException:
    if ticket.error is not None:
        return ticket.error
    if ticket.outcome is not None:
        return ticket.outcome
    # What interrupted the leader (a signal) is the leader's alone; the others only have no answer.
    return OutcomeUnknown("the commit was interrupted", once=ticket.prepared.once)


def _own_error(error: Exception, once: Once | None) -> Exception:
    """What one caller of a failed group raises: an unknown outcome names its own key."""
    return OutcomeUnknown(error.message, once=once) if isinstance(error, OutcomeUnknown) else error


class GroupCommit:
    """Folds the commits of many threads into one transaction; a lone caller pays nothing for it.

    The first caller leads: it runs what waits, then hands the lead to the next. While it waits for the disk
    the others gather, so groups grow by themselves under load. Who leads after a crowd was answered lets it
    gather as long as it grows from look to look: else the first who comes back has a sync alone, and every
    other group is of one. `run` gets the group and gives one outcome, or one exception, for each, after its
    transaction is durable; what it raises itself fails the whole group.

    A signal may raise anywhere here, in clean-up too: at the start of a function, after a call, at a loop's
    next turn, in a wait for a lock. So what must not be done by half has none of these inside; a clean-up can
    be done again from any such place; and if one is interrupted, a thread does it, as no thread but the main
    one gets signals. Else the lead would be nobody's, and every later commit would wait for it for ever.
    """

    def __init__(
        self, run: Callable[[list[Prepared]], Sequence[Outcome | BaseException]], *, most: int = 500
    ) -> None:
        self._run = run
        self._most = most
        self._gate = threading.Lock()
        self._waiting: list[_Ticket] = []
        self._leader: object | None = None  # who runs the store: a ticket, or one who came alone
        self._served: list[_Ticket] = []  # the leader's group, until it is answered
        self._crowd = 0  # how many were in the last group

    @property
    def is_busy(self) -> bool:
        """Whether anyone is being served, or waits."""
        return self._leader is not None

    def submit(self, prepared: Prepared) -> Outcome:
        (outcome,) = self._alone(prepared) or self.submit_each([prepared])
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def _alone(self, prepared: Prepared) -> Sequence[Outcome | BaseException] | None:
        """The short way of who finds nobody there, nor a crowd that is about to come back; else None."""
        if self._leader is not None or self._crowd > 1:
            return None
        alone = object()
        try:
            with self._gate:
                if self._leader is not None:
                    return None
                self._leader = alone
            return self._run([prepared])
        except OutcomeUnknown as error:
            raise _own_error(error, prepared.once) from error
        finally:
            try:
                self._hand_on(alone)
            except BaseException:
                try:
                    start_new_thread(self._hand_on, (alone,))
                except RuntimeError:  # there can be no more threads
                    self._hand_on(alone)
                raise

    def submit_each(self, prepareds: Sequence[Prepared]) -> list[Outcome | BaseException]:
        """The same for many by one caller; what one of them would raise stands in its place."""
        tickets = [_Ticket(prepared) for prepared in prepareds]
        try:
            with self._gate:
                self._waiting += tickets
                leads = self._leader is None
                if leads:
                    self._leader = tickets[0]
            for ticket in tickets:
                if not leads:
                    ticket.turn.acquire()
                leads = False
                if not ticket.answered:
                    self._gather()
                    self._lead(ticket)
        except BaseException:  # a signal, here or anywhere above
            try:
                self._leave(tickets)
            except BaseException:
                try:
                    start_new_thread(self._leave, (tickets,))
                except RuntimeError:  # there can be no more threads
                    self._leave(tickets)
                raise
            raise
        return [_outcome(ticket) for ticket in tickets]

    def _gather(self) -> None:
        seen = 0
        while seen < len(self._waiting) < self._crowd:
            seen = len(self._waiting)
            time.sleep(0)  # Python's turn goes to those who are about to come

    def _lead(self, leader: _Ticket) -> None:
        with self._gate:
            self._take()
        group = self._served
        try:
            outcomes = self._run([ticket.prepared for ticket in group])
            for ticket, outcome in zip(group, outcomes, strict=True):
                if isinstance(outcome, Exception):
                    ticket.error = _own_error(outcome, ticket.prepared.once)
                elif isinstance(outcome, BaseException):
                    ticket.error = outcome
                else:
                    ticket.outcome = outcome
        except Exception as error:  # noqa: BLE001  # each caller raises it
            for ticket in group:
                ticket.error = _own_error(error, ticket.prepared.once)
        self._hand_on(leader)

    def _hand_on(self, leader: object) -> None:
        """If `leader` has the lead, its group is answered and the lead goes to whoever waits longest."""
        with self._gate:
            if self._leader is not leader:
                return
            if self._served:
                for ticket in self._served:
                    if not ticket.answered:
                        ticket.answered = True
                        ticket.turn.release()
                self._served = []
            if self._waiting:
                head = self._leader = self._waiting[0]
                head.turn.release()  # unanswered, so it leads
            else:
                self._leader = None

    def _leave(self, tickets: Sequence[_Ticket]) -> None:
        """A caller that gives up takes its commits along, as far as they wait, and hands on the lead if it
        has it."""
        leaving = set(tickets)
        with self._gate:
            self._waiting = [ticket for ticket in self._waiting if ticket not in leaving]
        for ticket in tickets:
            self._hand_on(ticket)

    def _take(self) -> None:
        """The next group: at most `most` commits and, the first aside, at most one commit's limit in
        bytes."""
        size = taken = 0
        for ticket in self._waiting[: self._most]:
            size += ticket.prepared.size
            if taken and size > MAX_COMMIT_BYTES:
                break
            taken += 1
        self._served, self._waiting = self._waiting[:taken], self._waiting[taken:]
        self._crowd = taken
