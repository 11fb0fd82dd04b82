"""What a run works with while it holds the lease of its instance, and its one way to write."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from strandline.delivery.owed import Terms
from strandline.delivery.policy import Rule
from strandline.delivery.result import SyncResult
from strandline.lake.ports.deliver import Courier
from strandline.persist import Conflict
from strandline.persist.backend import Expectation, Write
from strandline.rows.dataset import Strand
from strandline.sinks.sink import Sink
from strandline.state.context import Site
from strandline.state.lease import Lease, LeaseLost
from strandline.state.sink_progress import Instance, SinkProgress, sink_stream


@dataclass(frozen=True, slots=True)
class Sender:
    """What a node says of itself to its sinks, and which rows it keeps to itself."""

    origin: str
    node: str
    signal: Callable[[str], str]
    rules: tuple[Rule, ...] = ()


@dataclass(slots=True)
class DeliverySession:
    site: Site
    courier: Callable[[], Courier]
    sink: Sink
    terms: Terms
    sender: Sender
    lease: Lease
    result: SyncResult

    def stream(self, strand: Strand) -> str:
        return sink_stream(self.terms.name, strand.dataset, strand.source)

    def line(self, strand: Strand) -> SinkProgress:
        return self.site.standing.lines().line(self.terms.name, strand)

    def instance(self) -> Instance:
        return self.site.standing.lines().instance(self.terms.name)

    def commit(self, expected: Sequence[Expectation], writes: Sequence[Write]) -> Conflict | None:
        """Under the fence. A conflict is one with an operator; with another holder it is LeaseLost."""
        outcome = self.site.b.commit([self.lease.guard, *expected], list(writes))
        self.result.control_writes += 1
        if not isinstance(outcome, Conflict):
            return None
        if outcome.name == self.lease.guard.key:
            raise LeaseLost(self.lease.scope)
        return outcome
