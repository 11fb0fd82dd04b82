"""Group commit: the callers of one process share a transaction, each decided in turn as if alone."""

import threading
import time
from collections.abc import Callable, Sequence

from strandline.errors import OutcomeUnknown
from strandline.persist.backend import Once, Outcome
from strandline.persist.prepare import Prepared
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
    assert ticket.outcome is not None
    return ticket.outcome


def _own_error(error: BaseException, once: Once | None, *, leads: bool) -> BaseException:
    """What one caller of a failed group raises: an unknown outcome names its own key.

    What interrupts the leader (a signal) is the leader's alone; the others only know that they have no
    answer.
    """
    if isinstance(error, OutcomeUnknown):
        return OutcomeUnknown(error.message, once=once)
    if isinstance(error, Exception) or leads:
        return error
    return OutcomeUnknown("the commit was interrupted", once=once)


class GroupCommit:
    """Folds the commits of many threads into one transaction; a lone caller pays nothing for it.

    The first caller leads: it runs what waits, then hands the lead to the next. While it waits for the disk
    the others gather, so groups grow by themselves under load. Who leads after a crowd was answered lets it
    gather as long as it grows from look to look: else the first who comes back has a sync alone, and every
    other group is of one. `run` gets the group and gives one outcome, or one exception, for each, after its
    transaction is durable; what it raises itself fails the whole group.
    """

    def __init__(
        self, run: Callable[[list[Prepared]], Sequence[Outcome | BaseException]], *, most: int = 500
    ) -> None:
        self._run = run
        self._most = most
        self._gate = threading.Lock()
        self._waiting: list[_Ticket] = []
        self._leader: object | None = None  # who runs the store: a ticket, or one who came alone
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
            raise _own_error(error, prepared.once, leads=True) from error
        finally:
            with self._gate:
                self._hand_on(alone)

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
            for ticket in tickets:
                self._leave(ticket)
            raise
        return [_outcome(ticket) for ticket in tickets]

    def _gather(self) -> None:
        seen = 0
        while seen < len(self._waiting) < self._crowd:
            seen = len(self._waiting)
            time.sleep(0)  # Python's turn goes to those who are about to come

    def _lead(self, leader: _Ticket) -> None:
        group: list[_Ticket] = []
        try:
            with self._gate:
                group = self._take()
            outcomes = self._run([ticket.prepared for ticket in group])
            for ticket, outcome in zip(group, outcomes, strict=True):
                if isinstance(outcome, BaseException):
                    ticket.error = outcome
                else:
                    ticket.outcome = outcome
        except BaseException as error:  # noqa: BLE001  # each caller raises it
            for ticket in group:
                ticket.outcome = None
                ticket.error = _own_error(error, ticket.prepared.once, leads=ticket is leader)
        finally:
            with self._gate:
                for ticket in group:
                    ticket.answered = True
                    ticket.turn.release()
                self._hand_on(leader)

    def _hand_on(self, leader: object) -> None:
        """The lead goes from `leader`, if it has it, to whoever waits longest. Called under the gate."""
        if self._leader is leader:
            self._leader = None
            if self._waiting:
                self._leader = self._waiting[0]
                self._waiting[0].turn.release()  # unanswered, so it leads

    def _leave(self, ticket: _Ticket) -> None:
        """A caller that gives up its wait takes its commit along, and hands on the lead if it has it."""
        with self._gate:
            if ticket in self._waiting:
                self._waiting.remove(ticket)
            self._hand_on(ticket)

    def _take(self) -> list[_Ticket]:
        """The next group: at most `most` commits and, the first aside, at most one commit's limit in
        bytes."""
        size = taken = 0
        for ticket in self._waiting[: self._most]:
            size += ticket.prepared.size
            if taken and size > MAX_COMMIT_BYTES:
                break
            taken += 1
        group, self._waiting = self._waiting[:taken], self._waiting[taken:]
        self._crowd = taken
        return group
