"""What the tests of a pipeline that crashes share: a node with a lake of its own, children that die or stop
at named steps, and the promises that must hold whatever happened (design.md, section 9, 1 to 3).

All lakes are served by the one Connect server of the run: a session may bring the settings of its catalog.
So a child needs no Java, and dies in a moment.
"""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import pytest

from strandline.base.ranges import Range
from strandline.config.lake_settings import LakeSettings
from strandline.lake.metadata.iceberg import TableMissing
from strandline.lake.spark.conf import catalog_conf
from strandline.lake.spark.connect import CONNECT_MODE
from strandline.lake.spark.session import end_idle_sessions
from strandline.node.node import Node, open_node
from strandline.persist import read
from strandline.read.visible import visible
from strandline.rows.dataset import Strand
from tests.crash.pipeline_child import Ahead, frame, pairs
from tests.spark_sessions import ConnectServer, lake_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DATASET: Final = "logs"
SOURCES: Final = ("web-1", "web-2", "a/b")
MAX_ROWS: Final = 8  # of one flush: plans are cut inside segments
LEASE_S: Final = 100  # longer than a lease lasts
WAIT_S: Final = 240
CHILD: Final = Path(__file__).with_name("pipeline_child.py")


# Children


class Child:
    """One process on a node. It dies, stops, or ends when it is told nothing more."""

    def __init__(self, home: Path, *, is_warm: bool) -> None:
        self.home = home
        self._log = (home / f"child-{time.monotonic_ns()}.log").open("w+b")
        self._process = subprocess.Popen(
            [sys.executable, str(CHILD), str(home), *(["warm"] if is_warm else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={key: value for key, value in os.environ.items() if key != CONNECT_MODE},
        )
        self._said = b""
        self._is_warm = not is_warm

    def await_warm(self) -> Self:
        """Until its Spark is there."""
        if not self._is_warm:
            assert "warm" in (self._line() or {}), self._complaint()
            self._is_warm = True
        return self

    def begin(self, *, failpoint: str = "", ahead_s: float = 0) -> Self:
        self.await_warm()._tell({"failpoint": failpoint, "ahead_s": ahead_s})
        assert "ready" in (self._line() or {}), self._complaint()
        return self

    def tell(self, act: str, **arguments: Any) -> None:
        self._tell([act, arguments])

    def do(self, act: str, **arguments: Any) -> list[Any]:
        """What the act did, up to its end or to the child's."""
        self.tell(act, **arguments)
        return self.listen()

    def listen(self) -> list[Any]:
        """What it says up to the end of an act, or to its own."""
        did: list[Any] = []
        while (line := self._line()) is not None and "done" not in line:
            did.append(line)
        return did

    def was_killed(self) -> bool:
        """Whether it died of SIGKILL, rather than of an error or not at all."""
        code = self._process.wait(WAIT_S)
        assert code in (0, -signal.SIGKILL), self._complaint()
        return code == -signal.SIGKILL

    def await_stop(self) -> None:
        """Until it has stopped itself."""
        until = time.monotonic() + WAIT_S
        while True:
            found = os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT | os.WNOHANG)
            if found is not None:
                assert found.si_code == os.CLD_STOPPED, self._complaint()
                return
            assert time.monotonic() < until, "it does not stop"
            time.sleep(0.01)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(WAIT_S)

    def hang_up(self) -> None:
        """There is nothing more to do."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def end(self) -> None:
        """Let it end by itself."""
        self.hang_up()
        assert self._process.wait(WAIT_S) == 0, self._complaint()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout, self._log):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()

    def _tell(self, what: Any) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it is dead, which shows when it says nothing
            self._process.stdin.write(json.dumps(what).encode() + b"\n")
            self._process.stdin.flush()

    def _line(self) -> Any:
        """The next thing it says, None at its end."""
        assert self._process.stdout is not None
        until = time.monotonic() + WAIT_S
        while b"\n" not in self._said:
            left_s = max(until - time.monotonic(), 0)
            assert select.select([self._process.stdout], [], [], left_s)[0], f"silence: {self._complaint()}"
            more = os.read(self._process.stdout.fileno(), 65536)
            if not more:
                return None
            self._said += more
        line, _, self._said = self._said.partition(b"\n")
        return json.loads(line)

    def _complaint(self) -> str:
        self._process.kill()
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-3000:]


def lake_of(home: Path) -> LakeSettings:
    return LakeSettings(str(home / "warehouse"), uri=str(home / "catalog.db"))


def session_conf(lake: LakeSettings) -> dict[str, str]:
    """What a session says to have that lake; and few tasks, for few rows."""
    return {**catalog_conf(lake), "spark.sql.shuffle.partitions": "2"}


class Nursery:
    """Homes, each with a child that is warm: while one test runs, the child of the next gets ready."""

    def __init__(self, server: ConnectServer, folder: Path) -> None:
        self._server, self._folder = server, folder
        self._spare: Child | None = None
        self._homes = 0

    def home(
        self,
        *,
        store: Mapping[str, str] | None = None,
        max_rows: int = MAX_ROWS,
        is_classic: bool = False,
        lake: LakeSettings | None = None,
    ) -> Path:
        """A folder with a configuration, and a lake in it, or `lake`; `is_classic` has Spark run in the
        process."""
        self._homes += 1
        home = self._folder / f"home-{self._homes}"
        home.mkdir()
        spark = {"remote": self._server.remote} if not is_classic else {"master": "local[2]"}
        conf = {"spark.driver.memory": "1g"} if is_classic else session_conf(lake or lake_of(home))
        tables: dict[str, dict[str, Any]] = {
            "store": dict(store or {}),
            "lake": {"catalog": lake.catalog, "warehouse": lake.warehouse} if lake else {},
            "lake.conf": dict(lake.conf) if lake else {},
            "flush": {"max_rows": max_rows},
            "spark": spark,
            "spark.conf": conf,
        }
        lines = ["version = 1"]
        for name, table in tables.items():
            lines += [f"[{name}]", *(f"{json.dumps(key)} = {json.dumps(table[key])}" for key in table)]
        (home / "strandline.toml").write_text("\n".join(lines))
        return home

    def child(self, home: Path) -> Child:
        """A child that starts Spark now."""
        return Child(home, is_warm=True)

    def take(self) -> Child:
        """The child that is ready, with its home."""
        # The first two who open a new catalog at once may be in each other's way.
        ready = (self._spare or self.child(self.home())).await_warm()
        self._spare = self.child(self.home())
        return ready

    def close(self) -> None:
        if self._spare is not None:
            self._spare.__exit__(None, None, None)


@pytest.fixture(scope="session")
def nursery(connect_server: ConnectServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    with closing(Nursery(connect_server, tmp_path_factory.mktemp("nodes"))) as made:
        yield made


# The promises


@dataclass(slots=True)
class Request:
    """Rows that were handed in; with `ranges` once that was acknowledged."""

    id: str
    kind: str  # append or load
    rows: list[dict[str, Any]]
    ranges: Mapping[str, Range] | None = None


@dataclass(slots=True)
class Follower:
    """A reader that goes on from its token, of one source or of all."""

    keys: list[str] = field(default_factory=list)
    token: str | None = None
    visible: int = 0


class Oracle:
    """What was handed in and acknowledged, and readers that follow. It looks at the table, and at nothing
    that the pipeline says of it."""

    def __init__(self) -> None:
        self.requests: dict[str, Request] = {}
        self.followers: dict[str | None, Follower] = {"web-2": Follower(), None: Follower()}

    def request(self, kind: str, rows: Mapping[str, int], **more: Any) -> Request:
        """A request for so many new rows of each source, those of different sources in turn."""
        id_ = f"{kind}-{len(self.requests) + 1}"
        made = [
            {"key": f"{id_}/{source}/{i}", "source": source, "n": i, **more}
            for i in range(max(rows.values()))
            for source, count in rows.items()
            if i < count
        ]
        self.requests[id_] = Request(id_, kind, made)
        return self.requests[id_]

    def acknowledge(self, did: Mapping[str, Any]) -> None:
        """Whoever hands a request in again gets the same numbers."""
        request = self.requests[did["request"]]
        ranges = {source: Range(lo, hi) for source, (lo, hi) in did["ranges"].items()}
        assert request.ranges in (None, ranges), f"{request.id} was acknowledged with other numbers before"
        request.ranges = ranges

    def follow(self, node: Node, *, max_rows: int = 1_000, pages: int | None = None) -> None:
        """Every reader goes on to the end, or by so many pages."""
        for source, follower in self.followers.items():
            at = visible(node.site, DATASET, source)
            assert at >= follower.visible, (
                f"V of {source} went back from {follower.visible} to {at}"
            )  # L-SEQ-7
            follower.visible = at
            scan = node.scan(DATASET, source=source, since=follower.token, max_rows=max_rows, refresh="never")
            self._read(follower, scan, pages)

    def _read(self, follower: Follower, scan: Any, pages: int | None) -> None:
        kept: list[
            str
        ] = []  # of a flush that a page ended in: a token over all sources stands between flushes
        for number, page in enumerate(scan, 1):
            kept += [row["key"] for row in page.rows]
            if page.token is not None:
                follower.keys += kept
                follower.token, kept = page.token, []
            if number == pages:
                return
        follower.keys += kept
        follower.token = scan.end

    def rows(self, node: Node) -> list[dict[str, Any]]:
        """The whole table, seqs and flush numbers with it."""
        dataset = node.site.known(DATASET).dataset
        try:
            return list(node.reader.rows(dataset, internal=True).toArrow().to_pylist())
        except TableMissing:
            return []

    def check(self, node: Node, *, is_settled: bool = True) -> list[dict[str, Any]]:
        """Every promise; `is_settled` where all has been flushed. The table's rows come back."""
        rows = self.rows(node)
        self._check_once(rows)
        self._check_requests(rows, is_settled=is_settled)
        for source in SOURCES:
            self._check_visible(node, source, rows)
        self.follow(node)
        self._check_followers(rows, is_settled=is_settled)
        if is_settled:
            self._check_records(node, rows)
        return rows

    def _check_once(self, rows: Sequence[Mapping[str, Any]]) -> None:
        places = Counter((row["source"], row["_sl_seq"]) for row in rows)
        assert [place for place, count in places.items() if count > 1] == [], "a seq names two rows"
        keys = Counter(row["key"] for row in rows)
        assert [key for key, count in keys.items() if count > 1] == [], "a row is there twice"
        handed = {row["key"]: row for request in self.requests.values() for row in request.rows}
        for row in rows:
            own = {name: value for name, value in row.items() if value is not None and name[:4] != "_sl_"}
            assert own == handed[row["key"]], "a row is not what was handed in"

    def _check_requests(self, rows: Sequence[Mapping[str, Any]], *, is_settled: bool) -> None:
        seqs = {row["key"]: row["_sl_seq"] for row in rows}
        for request in self.requests.values():
            there = [row["key"] in seqs for row in request.rows]
            if is_settled:
                assert len(set(there)) == 1, f"{request.id} is there in part"
                assert request.ranges is None or all(there), f"{request.id} was acknowledged and is lost"
            for source, range_ in (request.ranges or {}).items():
                found = [seqs.get(row["key"]) for row in request.rows if row["source"] == source]
                wanted = [*range(range_.lo + 1, range_.hi + 1)]
                assert len(found) == len(wanted), f"{request.id}: {range_} is not as many as were handed in"
                if request.kind == "load":  # a DataFrame has no order
                    found = sorted(found, key=lambda seq: seq or 0)
                if is_settled or None not in found:
                    assert found == wanted, f"{request.id}: the rows have other numbers than it was told"

    def _check_visible(self, node: Node, source: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Every seq up to V has its row, or is of a load that was released."""
        through = visible(node.site, DATASET, source)
        there = {row["_sl_seq"] for row in rows if row["source"] == source}
        gaps = {
            seq
            for event in read(node.site.b, Strand(DATASET, source).ledger)
            if event.type == "released"
            for seq in range(event.data["lo"] + 1, event.data["hi"] + 1)
        }
        assert not there & gaps, f"rows of {source} have numbers of a load that was released"
        assert {*range(1, through + 1)} <= there | gaps, f"{source} has holes up to V = {through}"

    def _check_followers(self, rows: Sequence[Mapping[str, Any]], *, is_settled: bool) -> None:
        for source, follower in self.followers.items():
            seen = [row for row in rows if source is None or row["source"] == source]
            if source is None:
                seen.sort(key=lambda row: (row["_sl_flush"], row["source"], row["_sl_seq"]))
            else:
                seen.sort(key=lambda row: row["_sl_seq"])
            place = "_sl_flush" if source is None else "_sl_seq"
            wanted = [row["key"] for row in seen if row[place] <= follower.visible]
            assert follower.keys == wanted, f"the reader of {source or 'all sources'} missed or repeated rows"
            assert not is_settled or len(wanted) == len(seen), f"rows of {source} are there and not visible"

    def _check_records(self, node: Node, rows: Sequence[Mapping[str, Any]]) -> None:
        """Nothing is open or pending, and what was recorded counts the rows of the table (L-FLUSH-12)."""
        standing = node.site.standing
        assert standing.pending(DATASET) == {}
        assert standing.numbers(DATASET).open == {}
        recorded = {
            event.data["number"]: event.data["rows"]
            for event in read(node.site.b, f"flush/{DATASET}")
            if event.type in ("committed", "landed")
        }
        found = Counter(row["_sl_flush"] for row in rows)
        assert recorded == found, "the recorded counts are not those of the table"


# Together


class Case:
    """A node that processes crash on, one after another, and what was promised to those who used it."""

    def __init__(
        self, nursery: Nursery, home: Path, session: "SparkSession", warm: Child | None = None
    ) -> None:
        self.nursery, self.home, self.session = nursery, home, session
        self.oracle = Oracle()
        self.ahead_s = 0.0
        self._warm = warm

    @contextmanager
    def node(self, *, is_later: bool = True) -> Iterator[Node]:
        """The node in this process, at a time when the leases of those before have ended."""
        self.ahead_s += LEASE_S if is_later else 0
        with open_node(self.home, clock=Ahead(self.ahead_s)) as node:
            node._session = self.session
            try:
                yield node
            finally:
                end_idle_sessions(self.session)

    @contextmanager
    def child(self, failpoint: str = "", *, is_later: bool = True) -> Iterator[Child]:
        """A process of its own, as much later."""
        child, self._warm = self._warm or self.nursery.child(self.home), None
        with self._begun(child, failpoint, is_later=is_later):
            yield child

    @contextmanager
    def producer(self, failpoint: str = "", *, is_later: bool = True) -> Iterator[Child]:
        """A process that only appends: no Spark is started for it, or not before it is needed."""
        with self._begun(Child(self.home, is_warm=False), failpoint, is_later=is_later) as child:
            yield child

    def _begun(self, child: Child, failpoint: str, *, is_later: bool) -> Child:
        self.ahead_s += LEASE_S if is_later else 0
        return child.begin(failpoint=failpoint, ahead_s=self.ahead_s)

    def hand_in(self, by: Node | Child, request: Request) -> bool:
        """Whether it was acknowledged."""
        if isinstance(by, Node):
            did = [self._hand_in(by, request)]
        else:
            did = by.do(request.kind, dataset=DATASET, request=request.id, rows=request.rows)
        for each in did:
            assert "error" not in each, each
            self.oracle.acknowledge(each)
        return bool(did)

    def _hand_in(self, node: Node, request: Request) -> dict[str, Any]:
        ranges = (
            node.append(DATASET, request.rows, request_id=request.id).ranges
            if request.kind == "append"
            else node.load(DATASET, frame(node, request.rows), request_id=request.id).ranges
        )
        return {"request": request.id, "ranges": pairs(ranges)}

    def recover(self, node: Node) -> list[dict[str, Any]]:
        """What whoever comes after a crash does: hand everything in again, and flush. Then all holds."""
        for request in self.oracle.requests.values():
            self.hand_in(node, request)
        node.flush(DATASET)
        return self.oracle.check(node)


@pytest.fixture
def case(nursery: Nursery, connect_server: ConnectServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Case]:
    """A case whose first child is warm."""
    monkeypatch.setenv(CONNECT_MODE, "1")
    warm = nursery.take()
    with warm, lake_session(connect_server, session_conf(lake_of(warm.home))) as session:
        yield Case(nursery, warm.home, session, warm)


@pytest.fixture
def classic_case(
    nursery: Nursery, connect_server: ConnectServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Case]:
    """A case whose children run Spark in their own process, with a Java beside it."""
    monkeypatch.setenv(CONNECT_MODE, "1")
    home = nursery.home(is_classic=True)
    with lake_session(connect_server, session_conf(lake_of(home))) as session:
        yield Case(nursery, home, session)
