"""`strandline up`: one process that takes rows in, lands them, delivers them and keeps house.

    lease `up`      a second daemon is refused, and told who the first is
    HTTP            producers and other nodes, by [server]; health, readiness, metrics
    the loop        flushes, sinks, chores, backfills (loop.py)
    Spark           one, warm; commands here use it too (shared_spark.py), and have it run their queries
                    (query_server.py)

SIGTERM and SIGINT end it within seconds; what is under way then is taken up by the next one. It ends by
itself, with an error, where its store has to be opened again: after a sync that failed. SIGHUP reads the
configuration again.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import msgspec

from strandline.config.config import FILE_NAME, Config, load_config
from strandline.daemon.loop import TICK_S, Loop, News
from strandline.daemon.metrics_page import metrics_page
from strandline.daemon.presence import announce, last_daemon_of
from strandline.daemon.query_server import QueryServer, forget
from strandline.daemon.shared_spark import shared
from strandline.daemon.systemd import ALIVE, READY, STOPPING, notify, reloading
from strandline.errors import HeldError, StrandlineError
from strandline.node.node import Node
from strandline.observe.process_counts import Live
from strandline.persist.backend import why_spent
from strandline.state.lease import LeaseHeld, held

SCOPE: Final = "up"
# What a process has opened stays open: another store, lake, Spark or address needs another process.
_FIXED: Final = ("node", "store", "content", "lake", "spark", "server", "observe")


class AlreadyUp(HeldError):
    """Another daemon runs this node."""

    def __init__(self, who: str) -> None:
        super().__init__(
            f"a daemon runs this node already: {who}",
            hint="one is enough: it does everything; end that one first to run it here",
        )
        self.who = who


class Daemon:
    """A node, and the thread in which its loop ticks. Use it as `with running(…)`."""

    def __init__(self, config: Config, tell: Callable[[News], None]) -> None:
        self._file = config  # as the file said: without what the daemon adds
        served, self.remote = shared(config)
        self.node = Node(served, tell=lambda text: tell(News("spark", text, {})))
        self._tell = tell
        self.live = Live()
        self.loop = Loop(self.node, tell, self.live)
        self._stop, self._reload = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._tick, name="loop", daemon=True)

    def start(self) -> None:
        self._thread.start()
        threading.Thread(target=self._warm, name="warm", daemon=True).start()

    def ask_reload(self) -> None:
        """May be called in a signal handler."""
        self._reload.set()

    def stop(self) -> list[str]:
        """What is still under way."""
        self._stop.set()
        self._thread.join(TICK_S)
        return self.loop.stop()

    def _warm(self) -> None:
        """Have Spark started before the first who needs it."""
        try:
            _ = self.node.spark
            self._tell(News("spark", "Spark is ready", {}))
        except StrandlineError as error:
            self._tell(News("spark", "", {}, error=f"{error.kind}: {error.message}"))

    def _tick(self) -> None:
        while not self._stop.is_set():
            if self._reload.is_set():
                self._reload.clear()
                self.reload()
            self.loop.tick()
            notify(ALIVE)
            self._stop.wait(TICK_S)

    def reload(self) -> None:
        """Take over what the file says now, or say why not; then all stays as it is."""
        notify(reloading())
        try:
            config = load_config(self._file.home / FILE_NAME)
            changed = [name for name in _FIXED if getattr(config, name) != getattr(self._file, name)]
            if changed:
                tables = ", ".join(f"[{name}]" for name in changed)
                self._tell(News("reload", "", {}, error=f"{tables} changed: that needs a restart"))
                return
            self._file = config
            node = self.node
            node.reconfigure(msgspec.structs.replace(config, spark=node.config.spark))
            self.loop.reload()
            self._tell(News("reload", "", {"sinks": len(config.sinks)}))
        except StrandlineError as error:
            self._tell(News("reload", "", {}, error=f"{error.kind}: {error.message}"))
        finally:
            notify(READY)


@contextmanager
def running(config: Config, tell: Callable[[News], None]) -> Iterator[Daemon]:
    """A daemon inside the block; AlreadyUp if another runs. At the end it stops, and lets go."""
    daemon = Daemon(config, tell)
    node = daemon.node
    try:
        with _only_one(node):
            daemon.start()
            try:
                yield daemon
            finally:
                notify(STOPPING)
                for name in daemon.stop():
                    tell(News("stop", name, {}, error="still under way; the next daemon goes on with it"))
    finally:
        node.close()


@contextmanager
def _only_one(node: Node) -> Iterator[None]:
    try:
        with held(node.site.b, node.site.clock, SCOPE):
            yield
    except LeaseHeld as error:
        if error.scope != SCOPE:
            raise
        raise AlreadyUp(error.who) from error


def serve(config: Config, daemon: Daemon, *, listen: str | None, when_ready: Callable[[str], None]) -> None:
    """Serve HTTP until a signal ends it."""
    from strandline.server.bearer_tokens import Gate
    from strandline.server.receiver import Receiver
    from strandline.server.serve import address, serve_until_signal, url_of
    from strandline.server.serve import listen as listen_on

    host, port = address(listen or config.server.listen)
    tls = config.server_tls()
    node = daemon.node
    gate = Gate(node.site.b, config.server_tokens())
    metrics = metrics_page(lambda: node.config, node.site, daemon.live)
    app = Receiver(node.site, gate, config.server, dataset_of=config.dataset_of_signal, metrics=metrics)
    try:
        listening = listen_on(host, port)
    except BaseException:
        app.close()
        raise
    url = url_of(listening, scheme="https" if tls else "http")
    if (last := last_daemon_of(config.home)) is not None:  # killed: the lease says that it does not run
        forget(last.desk)
    query_server = QueryServer(node)
    path = announce(config.home, url, daemon.remote, query_server.path)
    before = signal.signal(signal.SIGHUP, partial(_hang_up, daemon))
    try:
        serve_until_signal(
            app,
            listening,
            lambda: _ready(when_ready, url),
            tls=tls,
            why_spent=lambda: why_spent(node.site.b),
        )
    finally:
        signal.signal(signal.SIGHUP, before)
        path.unlink(missing_ok=True)
        query_server.close()


def _hang_up(daemon: Daemon, _number: int, _frame: Any) -> None:
    daemon.ask_reload()


def _ready(when_ready: Callable[[str], None], url: str) -> None:
    when_ready(url)
    notify(READY)
