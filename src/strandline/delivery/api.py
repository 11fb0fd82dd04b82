"""All sinks of a node: what is configured of them, what they are owed, and every verb on them.

Spark is asked for by the first run that has rows to carry; all else needs the store alone.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from strandline.base.ranges import Range, RangeSet
from strandline.base.schedule import Cron
from strandline.config.config import Config
from strandline.config.sinks import SinkConfig, SinkNotConfigured
from strandline.delivery import dead_letters, operate_sink
from strandline.delivery.dead_letter_files import DeadLetter
from strandline.delivery.instance import check_destination
from strandline.delivery.owed import Terms, covered, mean_row_bytes
from strandline.delivery.policy import Rule
from strandline.delivery.result import SyncResult
from strandline.delivery.run import sync
from strandline.delivery.session import Sender
from strandline.errors import StrandlineError, UsageError
from strandline.lake.ports.deliver import Courier
from strandline.rows.dataset import Strand
from strandline.state.context import Site
from strandline.state.sink_progress import SinkProgress, SinkStop
from strandline.state.strand_state import StrandState

if TYPE_CHECKING:
    from strandline.flush.flush import FlushReport
    from strandline.sinks.sink import Sink


class SinkDisabled(UsageError):
    """A sink that is configured not to deliver."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"sink {name!r} is not enabled", hint=f"write `enabled = true` in [sinks.{name}], or leave it out"
        )
        self.name = name


@dataclass(frozen=True, slots=True)
class Owing:
    """What a run would send of a strand: `ranges`, of at most `rows` rows and about `bytes` bytes. `pending`
    rows would be flushed first."""

    strand: Strand
    ranges: tuple[Range, ...]
    rows: int
    bytes: int
    pending: int
    hold: SinkStop | None = None
    not_before: int = 0


@dataclass(frozen=True, slots=True)
class ReleaseResult:
    """The rows that were looked at once more, and the runs that delivered those that may leave."""

    released: tuple[operate_sink.ReleasedRows, ...]
    runs: tuple[SyncResult, ...]


@dataclass(frozen=True, slots=True)
class SyncReport:
    """What a sync on command did: datasets that were flushed first, then a run for each sink. An error stands
    where a report would."""

    flushes: "Mapping[str, FlushReport | StrandlineError]"
    runs: Mapping[str, SyncResult | StrandlineError]


class Deliveries:
    """Safe for threads. `courier` is called when rows are to be carried, by one thread at a time."""

    def __init__(self, config: Config, site: Site, courier: Callable[[], Courier]) -> None:
        self._config, self._site, self._make = config, site, courier
        self._lock = threading.Lock()
        self._tried: set[str] = set()  # sinks that had a run by this configuration
        self.rules = tuple(Rule(each.datasets, each.where, each.missing) for each in config.policy.withhold)

    # What is configured

    def names(self) -> list[str]:
        """Those that deliver."""
        return sorted(name for name, each in self._config.sinks.items() if each.enabled)

    def terms(self, name: str) -> Terms:
        found = self._configured(name)
        return Terms(found.instance, found.include, found.exclude, found.start, found.max_intent_rows)

    def cron(self, name: str) -> Cron:
        return self._configured(name).cron

    def sink(self, name: str) -> "Sink":
        """With its secrets, looked up now."""
        return self._config.sink(name)

    @property
    def sender(self) -> Sender:
        name = self._config.node.name
        return Sender(self._site.origin, name, lambda each: self._config.settings_of(each).signal, self.rules)

    def _configured(self, name: str) -> SinkConfig:
        if name not in self._config.sinks:
            raise SinkNotConfigured(name, self._config.sinks)
        return self._config.sinks[name]

    def _courier(self) -> Courier:
        with self._lock:
            return self._make()

    # Runs

    def sync(
        self,
        name: str,
        *,
        is_command: bool = True,
        tell: Callable[[SyncResult], None] | None = None,
        stop: threading.Event | None = None,
    ) -> SyncResult:
        """One run of one sink, over what is visible. See strandline.delivery.run.

        What holds a sink as a whole may lie in its configuration, or in the environment: the first run by a
        configuration that was read tries it again. A daemon reads it when it starts, and when it reloads.
        """
        if not self._configured(name).enabled:
            raise SinkDisabled(name)
        result = sync(
            self._site,
            self._courier,
            self.sink(name),
            self.terms(name),
            self.sender,
            is_command=is_command,
            is_reconfigured=name not in self._tried,
            tell=tell,
            stop=stop,
        )
        if result.strands:  # else nothing was tried
            self._tried.add(name)
        return result

    def sync_all(
        self,
        names: Sequence[str] | None = None,
        *,
        tell: Callable[[SyncResult], None] | None = None,
        stop: threading.Event | None = None,
    ) -> dict[str, SyncResult | StrandlineError]:
        """Each in a thread of its own: one whose destination is slow or dead delays no other, and its error
        is its result."""
        chosen, ends = self.names() if names is None else list(names), stop or threading.Event()

        def one(name: str) -> SyncResult | StrandlineError:
            try:
                return self.sync(name, tell=tell, stop=ends)
            except StrandlineError as error:
                return error

        with ThreadPoolExecutor(max(len(chosen), 1), thread_name_prefix="sync") as threads:
            runs = {name: threads.submit(one, name) for name in chosen}
            try:
                return {name: run.result() for name, run in runs.items()}
            except BaseException:  # by a signal, most likely: runs end with the job that they are in
                ends.set()
                raise

    def owing(self, name: str) -> list[Owing]:
        """What a run would send, strand by strand, from the store alone."""
        terms, lines = self.terms(name), self._site.standing.lines()
        whole = lines.instance(name).hold
        found = [
            _owing(
                strand,
                lines.line(name, strand),
                strand_state,
                mean_row_bytes(self._site.b, strand.dataset),
                whole,
            )
            for strand, strand_state in covered(self._site, terms)
        ]
        return sorted((each for each in found if each.ranges or each.pending), key=lambda each: each.strand)

    # By hand

    def strands(self, name: str, dataset: str | None, source: str | None) -> list[Strand] | None:
        """Those that are meant by a dataset, and a source of it; None if all are."""
        if dataset is None:
            if source is not None:
                raise UsageError("a source without its dataset", hint="name the dataset too")
            return None
        if source is not None:
            return [Strand(dataset, source)]
        there = {strand for strand, _ in covered(self._site, self.terms(name))}
        there |= set(self._site.standing.lines().of(name))
        return sorted(each for each in there if each.dataset == dataset)

    def rewind(
        self,
        name: str,
        *,
        strands: Iterable[Strand] | None = None,
        to: int = 0,
        reason: str,
        abort_intent: bool = False,
        resend: bool = False,
    ) -> list[operate_sink.Moved]:
        return operate_sink.rewind(
            self._site,
            self.sink(name),
            self.terms(name),
            strands=strands,
            to=to,
            reason=reason,
            abort_intent=abort_intent,
            resend=resend,
        )

    def skip(
        self,
        name: str,
        *,
        strands: Iterable[Strand] | None = None,
        to: int | None = None,
        reason: str,
        abort_intent: bool = False,
    ) -> list[operate_sink.Moved]:
        return operate_sink.skip(
            self._site,
            self.sink(name),
            self.terms(name),
            strands=strands,
            to=to,
            reason=reason,
            abort_intent=abort_intent,
        )

    def forget(self, name: str, *, reason: str, abort_intent: bool = False) -> int:
        return operate_sink.forget(self._site, name, reason=reason, abort_intent=abort_intent)

    def bind(
        self, name: str, how: Literal["keep", "reset"], *, reason: str, abort_intent: bool = False
    ) -> list[operate_sink.Moved]:
        return operate_sink.bind(
            self._site, self.sink(name), self.terms(name), how, reason=reason, abort_intent=abort_intent
        )

    def withheld(self, name: str, strands: Iterable[Strand] | None = None) -> Mapping[Strand, RangeSet]:
        """The rows at or below the lines that a policy withheld: those that a release looks at."""
        wanted = None if strands is None else set(strands)
        return {
            strand: RangeSet(tuple(line.withheld.within(Range(0, line.mark))))
            for strand, line in sorted(self._site.standing.lines().of(name).items())
            if line.withheld.ranges and (wanted is None or strand in wanted)
        }

    def release(
        self,
        name: str,
        *,
        strands: Iterable[Strand] | None = None,
        tell: Callable[[SyncResult], None] | None = None,
    ) -> ReleaseResult:
        """Deliver the rows that a policy withheld and the policy of now does not, each once."""
        sink, terms, chosen = self.sink(name), self.terms(name), None if strands is None else list(strands)
        if self._site.standing.lines().instance(name).is_open:
            check_destination(self._site, sink, terms)
        released: list[operate_sink.ReleasedRows] = []
        runs: list[SyncResult] = []
        after: dict[Strand, int] = {}
        while more := operate_sink.release(self._site, sink, terms, self.rules, strands=chosen, after=after):
            released += more
            after |= {each.strand: each.ranges[-1].hi for each in more}
            runs.append(self.sync(name, tell=tell))
            lines = self._site.standing.lines()
            if any(lines.line(name, each.strand).intent is not None for each in more):
                break  # it stays under way, and the next run goes on with it
        return ReleaseResult(tuple(released), tuple(runs))

    # Dead letters

    def letters(self, name: str | None = None) -> list[DeadLetter]:
        return dead_letters.waiting(self._site, name)

    def letter(self, id_: str) -> DeadLetter:
        return dead_letters.letter_named(self._site, id_)

    def letter_body(self, id_: str) -> bytes:
        return dead_letters.body_of(self._site, self.letter(id_))

    def retry_letter(self, id_: str) -> dead_letters.Retried:
        name, _, _ = id_.partition("/")
        return dead_letters.retry(self._site, self.sink(name), self.terms(name), self.sender, id_)

    def drop_letter(self, id_: str, *, reason: str) -> DeadLetter:
        return dead_letters.drop(self._site, id_, reason=reason)


def _owing(
    strand: Strand, line: SinkProgress, strand_state: StrandState, mean: float, whole: SinkStop | None
) -> Owing:
    left = line.left()
    since = max([line.mark, *(each.hi for each in left)])
    if line.intent is not None and line.intent.ranges is None:
        since = max(since, line.intent.hi)
    since = max(since, strand_state.bare)
    behind = strand_state.empty.holes(Range(since, max(since, strand_state.visible_through)))
    ranges = tuple(RangeSet.of([*left, *behind]).ranges)
    rows = sum(map(len, ranges))
    hold, trouble = line.hold or whole, line.trouble
    not_before = 0 if trouble is None else trouble.not_before
    return Owing(strand, ranges, rows, int(rows * mean), strand_state.pending_rows, hold, not_before)
