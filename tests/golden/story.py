"""One story of a node, told through commands and HTTP, in which each thing that is stored or sent occurs.

`tell` runs it on real Spark, with a clock that stands still between steps, and returns all that came out of
it: the output of each command, each event and key of the store, what went over HTTP, and what is in files.
"""

import base64
import json
import os
import re
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import urllib3
from click.testing import CliRunner

from strandline.base import clock, failpoint
from strandline.cli import cli
from strandline.config.config import FILE_NAME, load_config
from strandline.daemon.metrics_page import metrics_page
from strandline.lake.metadata.iceberg import load_metadata
from strandline.lake.spark.conf import catalog_conf
from strandline.lake.spark.connect import CONNECT_MODE
from strandline.node.node import Node
from strandline.observe.process_counts import Live
from strandline.persist import (
    append,
    append_once,
    kv_cas,
    kv_put,
    mem_backend,
    open_store,
    read,
    stream_names,
)
from strandline.persist.value import encode
from strandline.server.bearer_tokens import Gate
from strandline.server.event_store.host import persist_app
from strandline.server.event_store.open_stores import one_store
from strandline.server.receiver import Receiver
from strandline.server.serve import listen, server_config, url_of
from strandline.state.context import open_site
from tests.golden.mask import Mask
from tests.server.receivers import PromptServer
from tests.spark_sessions import ConnectServer, lake_session

START_US: Final = 1_700_000_000_000_000
DAY_US: Final = 86_400_000_000
LONG: Final = 400
ORIGINS: Final = {"node": "0123456789abcdef" * 2, "centre": "fedcba9876543210" * 2}
CENTRE: Final = """version = 1
[node]
name = "centre"
[observe]
metrics = true
[datasets.logs]
[datasets.odd]
columns = { n = "bigint" }
"""
SETTINGS: Final = """version = 1
[node]
name = "laptop"
[datasets.logs]
columns = { key = "string", n = "bigint" }
identity = { key = "key" }
dedupe_on_flush = false
[datasets.all_types]
columns = { t = "timestamp", d = "date", m = "decimal(9,2)", b = "binary", f = "double", r = "float", \
j = "json", i = "bigint", k = "int", o = "boolean", s = "string" }
[datasets.odd]
columns = { n = "string" }
[datasets.shared]
source_buckets = 2
[compaction]
file_count = 2
min_snapshots = 1
max_snapshot_age_h = 0
[retention]
default_days = 30
max_hold_days = 40
on_hold_limit = "evict"
[sinks.archive]
type = "blob"
destination = "local"
dir = "archive"
encoder = "jsonl"
max_object_rows = 2
include = ["logs"]
[sinks.parquet]
type = "blob"
destination = "local"
dir = "parquet"
include = ["all_types"]
[sinks.centre]
type = "forward"
url = "<centre>"
token = "file:centre.token"
poison_attempts = 1
parallel = 1
include = ["logs", "odd"]
[sinks.strict]
type = "forward"
url = "<centre>"
token = "file:centre.token"
poison_attempts = 1
parallel = 1
on_poison = "hold"
include = ["odd"]
[sinks.fresh]
type = "blob"
destination = "local"
dir = "fresh"
start = "now"
include = ["logs"]
[sinks.dead]
type = "forward"
url = "http://127.0.0.1:9"
token = "file:centre.token"
include = ["logs"]
[backfill.old]
type = "files"
path = "old"
dataset = "logs"
source = "web-9"
window_days = 0
schedule = "0 3 * * *"
"""
TYPED: Final = {
    "t": "2026-01-02T03:04:05.000006Z",
    "d": "2026-01-02",
    "m": "1.50",
    "b": "AAE=",
    "f": "NaN",
    "r": 0.5,
    "j": {"k": [1, None]},
    "i": 2**53 + 1,
    "k": 7,
    "o": True,
    "s": 'comma, "quote", \u00e4\u2028',
}


class Crash(BaseException):
    """The process would have been killed here."""


@dataclass
class Clock:
    """Time that passes only between steps, and if somebody sleeps."""

    us: int = START_US

    def sleep(self, seconds: float) -> None:
        self.us += ceil(seconds) * 1_000_000


@dataclass
class Recorder:
    """An application between a server and the real one: it writes down what passes."""

    app: Any
    passed: list[dict[str, Any]] = field(default_factory=list)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, status, headers, answer = bytearray(), 0, {}, bytearray()

        async def received() -> Any:
            message = await receive()
            body.extend(message.get("body", b""))
            return message

        async def sent(message: Any) -> None:
            nonlocal status, headers
            if message["type"] == "http.response.start":
                status, headers = message["status"], _headers(message["headers"])
            answer.extend(message.get("body", b""))
            await send(message)

        await self.app(scope, received, sent)
        query = scope["query_string"].decode()
        self.passed.append(
            {
                "request": f"{scope['method']} {scope['path']}" + (f"?{query}" if query else ""),
                "headers": _headers(scope["headers"]),
                "body": _text(bytes(body)),
                "status": status,
                "answer_headers": headers,
                "answer": _text(bytes(answer)),
            }
        )


def _headers(pairs: Any) -> dict[str, str]:
    found = {name.decode().lower(): value.decode() for name, value in pairs}
    for name in ("host", "accept", "accept-encoding", "connection", "user-agent", "date", "content-length"):
        found.pop(name, None)
    if "authorization" in found:
        found["authorization"] = "<token>"
    return found


def _text(raw: bytes) -> Any:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(raw).decode()}


@contextmanager
def serving(app: Any) -> Iterator[tuple[str, Recorder]]:
    recorder, listening = Recorder(app), listen("127.0.0.1", 0)
    server = PromptServer(server_config(recorder))  # type: ignore[arg-type]  # it stands in front of one
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield url_of(listening), recorder
    finally:
        app.stop()
        server.should_exit = True
        thread.join(30)
        app.close()
        listening.close()


@dataclass
class Story:
    """What came out, by the golden file that it belongs to."""

    home: Path
    mask: Mask
    clock: Clock
    commands: list[dict[str, Any]] = field(default_factory=list)

    def run(self, *args: str, stdin: str = "", expect: int = 0, home: Path | None = None) -> list[Any]:
        """Run a command with --json; its output is part of the story."""
        is_homeless = args[0] in ("persist", "init") or args[:2] == ("config", "schema")
        options = [] if is_homeless else ["--home", str(home or self.home)]
        done = CliRunner().invoke(cli, [*args, "--json", *options], input=stdin)
        assert done.exit_code == expect, (args, done.exit_code, done.output, done.exception)
        printed = [json.loads(line) for line in done.stdout.split("\n") if line.startswith(("{", "["))]
        self.commands.append(
            {
                "command": [self.mask.text(arg) for arg in args],
                "exit": done.exit_code,
                "output": self.mask.value(printed),
            }
        )
        return printed

    def append(self, dataset: str, *rows: dict[str, Any], options: tuple[str, ...] = ()) -> list[Any]:
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        return self.run("append", dataset, *options, stdin=lines)

    def later(self, us: int) -> None:
        self.clock.us += us


def keys(*names: str, since: int = 0) -> list[dict[str, Any]]:
    return [{"key": name, "n": at} for at, name in enumerate(names, since + 1)]


# The chapters


def rows_in(story: Story, folder: Path) -> None:
    """Append, repeat, quarantine, refusal, flush, load, import, backfill."""
    story.append("logs", *keys("a", "b"), options=("--source", "web-1", "--request-id", "r1"))
    story.append("logs", *keys("a", "b"), options=("--source", "web-1", "--request-id", "r1"))
    story.append("logs", {**keys("c")[0], "source": "web-1"}, {**keys("a")[0], "source": "web-2"})
    story.append("logs", {"key": "q", "n": "none"}, options=("--on-bad", "quarantine", "--source", "web-1"))
    story.append("logs", {"key": "q", "n": "more"}, options=("--on-bad", "quarantine", "--source", "web-1"))
    story.append("logs", {"key": "z", "n": 1, "grown": 0.5}, options=("--source", "web-2"))
    story.append("all_types", TYPED, options=("--source", "types"))
    story.append("odd", {"n": "1"}, {"n": "many"}, options=("--source", "odd"))
    story.run("append", "logs", stdin='{"key": "x", "n": "bad"}\n', expect=2)
    story.run("spool", "list")
    story.run("spool", "quarantine", "list")
    story.run("flush")
    story.later(60_000_000)
    many = folder / "many.jsonl"
    many.write_text("".join(json.dumps(row) + "\n" for row in keys("l", "m")))
    story.run("load", "logs", str(many), "--format", "json", "--source", "web-3", "--request-id", "load-1")
    legacy = folder / "legacy"
    legacy.mkdir()
    pq.write_table(pa.table({"key": ["i"], "n": [9]}), legacy / "part-0.parquet")
    os.utime(legacy / "part-0.parquet", (0, 0))
    story.run("import", "logs", str(legacy), "--source", "web-4")
    old = story.home / "old"
    old.mkdir()
    (old / "0.jsonl").write_text('{"key": "a", "n": 1}\n{"key": "o", "n": 2}\n')
    os.utime(old / "0.jsonl", (0, 0))  # it has rested
    story.run("backfill", "plan", "old")
    with Node(load_config(story.home / FILE_NAME)) as node:
        node.backfills.due()  # as the daemon asks: it notes the schedule
    story.run("backfill", "run", "old")
    story.run("backfill", "list")
    story.run("flush", "logs")


def reads(story: Story) -> str:
    (*_, end) = story.run("read", "logs", "--source", "web-1")
    story.run("read", "all_types")
    story.run("read", "logs", "--limit", "3")
    story.run("read", "logs", "--explain")
    story.run("sql", "SELECT source, count(*) AS rows FROM logs GROUP BY source ORDER BY source")
    return str(end["end"]["token"])


def rows_onward(story: Story) -> None:
    """Deliver, refuse, retry, move lines, withhold, rebind, forget."""
    story.run("sync", "--dry-run")
    story.run("sync", "archive")
    story.run("sync", "parquet")
    story.run("sync", "centre", expect=1)  # it sets rows aside
    story.run("sync", "dead", expect=1)
    story.run("sync", "fresh")
    story.run("sync", "strict", expect=3)
    story.run("sync", "strict", expect=3)
    story.run("sink", "list")
    letters = [each["letter"] for each in story.run("dlq", "list", "centre")]
    story.run("dlq", "show", letters[0])
    story.run("dlq", "retry", letters[0], expect=1)
    story.run("dlq", "drop", letters[0], "--yes")
    story.run("sink", "verify", "centre")
    story.run("sink", "verify", "archive")
    story.later(60_000_000)
    story.append("logs", *keys("d", "secret"), options=("--source", "web-1"))
    with (story.home / FILE_NAME).open("a") as file:
        file.write('[policy]\nwithhold = [{ datasets = ["logs"], where = "key = \'secret\'" }]\n')
    story.run("sync", "centre")
    story.run("sink", "rewind", "archive", "logs", "--source", "web-2", "--to", "1", "--yes")
    story.run("sync", "archive")
    _edit(story.home / FILE_NAME, "key = 'secret'", "key = 'other'")
    story.run("sink", "release", "centre", "--yes")
    story.run("sink", "skip", "dead", "logs", "--source", "web-2", "--yes", "--abort-intent")
    _edit(story.home / FILE_NAME, 'dir = "parquet"', 'dir = "elsewhere"')
    story.append("all_types", TYPED, options=("--source", "types"))
    story.run("sync", "parquet", expect=3)
    story.run("sink", "bind", "parquet", "--reset", "--yes")
    story.run("sync", "parquet")
    story.run("sink", "history", "centre", "logs", "--source", "web-1")


def damage(story: Story) -> None:
    """A segment that cannot be read holds its strand, until its rows are given up."""
    (receipt,) = story.append("logs", *keys("gone"), options=("--source", "web-5"))
    _spoil(story, receipt["segment"])
    story.append("logs", *keys("well"), options=("--source", "web-6"))
    story.run("flush", "logs", expect=3)
    story.run("status", expect=0)
    story.run("spool", "check", expect=1)
    story.run("spool", "lost", receipt["segment"], "--yes")


def crashes(story: Story, folder: Path, crash_at: Callable[[str], None]) -> None:
    """Two flushes and two loads are cut short; a later flush brings them to their ends."""

    def killed(point: str, *command: str) -> None:
        crash_at(point)
        with pytest.raises(Crash):
            CliRunner().invoke(cli, [*command, "--home", str(story.home)], catch_exceptions=False)

    story.append("logs", *keys("late"), options=("--source", "web-6"))
    killed("land.staged", "flush", "logs")
    story.run("flush", "logs")
    (receipt,) = story.append("logs", *keys("early"), options=("--source", "web-6"))
    story.append("logs", *keys("other"), options=("--source", "web-5"))
    killed("flush.planned", "flush", "logs")
    _spoil(story, receipt["segment"])
    story.run("flush", "logs", expect=3)
    story.run("spool", "lost", receipt["segment"], "--yes")
    more = folder / "more.jsonl"
    more.write_text("".join(json.dumps(row) + "\n" for row in keys("u", "v")))
    for source, point in (("web-7", "land.staged"), ("web-8", "load.reserved")):
        killed(point, "load", "logs", str(more), "--format", "json", "--source", source)
        if point == "load.reserved":
            with Node(load_config(story.home / FILE_NAME)) as node:
                (number,) = node.site.standing.numbers("logs").open
                (event,) = [e for e in read(node.site.b, "flush/logs") if e.data.get("number") == number]
                node.tables.drop_input(str(event.data["load"]))
        story.run("flush", "logs")
    story.run("sync", "archive")  # it passes the numbers of the load that was released


def keeping(story: Story, crash_at: Callable[[str], None]) -> None:
    """Compaction, retention, eviction, purge, snapshots, sweeps."""
    story.run("maintain", "logs", "--dry-run")
    crash_at("compaction.begun")
    with pytest.raises(Crash):
        CliRunner().invoke(cli, ["maintain", "logs", "--home", str(story.home)], catch_exceptions=False)
    story.run("maintain", "logs", "--force")
    story.run("purge", "logs", "--where", "key = 'b'", "--yes")
    (entry, other) = story.run("spool", "quarantine", "list", "logs")
    story.run("spool", "quarantine", "show", "logs", str(entry["entry"]))
    story.run("spool", "quarantine", "drop", "logs", str(entry["entry"]), "--yes")
    story.run("spool", "quarantine", "retry", "logs", str(other["entry"]), expect=1)
    story.run("prove", "archive")
    story.run("status")
    story.later(31 * DAY_US)
    story.append("logs", *keys("new"), options=("--source", "web-1"))
    story.run("flush", "logs")
    story.run("retention", "run", "--dry-run")
    story.run("retention", "run", "logs")
    story.later(41 * DAY_US)
    story.run("retention", "run", "logs")
    story.run("maintain")
    story.later(2 * DAY_US)
    story.run("maintain")
    _edit(story.home / FILE_NAME, "[sinks.dead]", "[sinks.alive]")
    story.run("sink", "forget", "dead", "--yes", "--abort-intent")


def restore(story: Story, folder: Path) -> None:
    """The store is put back from a backup that is older than the tables."""
    store = story.home / "strandline.db"
    story.run("persist", "backup", str(folder / "backup"), "--store", str(store))
    story.append("logs", *keys("after"), options=("--source", "web-1"))
    story.append("shared", *keys("after"), options=("--source", "web-1"))
    story.run("flush")
    for path in story.home.glob("strandline.db*"):
        path.unlink()
    story.run("persist", "restore", str(folder / "backup"), "--store", str(store))
    story.append("logs", *keys("again"), options=("--source", "web-1"))
    story.run("maintain", "--confirm-restore", "--yes")
    story.run("status")


def archived(story: Story) -> None:
    """A long history that is closed goes to the archive."""
    with Node(load_config(story.home / FILE_NAME)) as node:
        for n in range(LONG):
            node.append("busy", [{"n": n}], source="web-1", request_id=f"b{n}")
    story.run("flush", "busy")
    for days in (2, 2, 40):
        story.run("maintain")
        story.later(days * DAY_US)
    story.run("maintain")


def _is_folded(key: str) -> bool:
    return key.startswith(("archived/", "$snapshot"))


def tokens(story: Story, centre: Path) -> str:
    (made,) = story.run("server", "token", "new", "laptop", "--dataset", "logs", home=centre)
    story.run("server", "token", "revoke", made["id"], "--yes", home=centre)
    story.run("server", "token", "list", home=centre)
    (made,) = story.run("server", "token", "new", "laptop", home=centre)
    return str(made["token"])


def store_verbs(story: Story, folder: Path) -> None:
    """The event store by itself, from the command line."""
    at = ("--store", str(folder / "events.db"))
    story.run("persist", "append", "cart-1", "opened", '{"by": "ann"}', "--at", "1", "--once", "k1", *at)
    story.run("persist", "append", "cart-1", "opened", '{"by": "ann"}', "--at", "1", "--once", "k1", *at)
    story.run("persist", "append", "cart-1", "paid", "1.5", "--at", "2", "--expect", "7", *at, expect=1)
    story.run("persist", "append", "cart-1", "paid", "1.5", "--at", "2", "--globally", *at)
    for verb in ("read cart-1", "streams", "stats", "verify", "kv list", "consumers list"):
        story.run("persist", *verb.split(), *at)
    story.run("persist", "kv", "put", "colour", '"red"', *at)
    story.run("persist", "kv", "get", "colour", *at)
    story.run("persist", "kv", "cas", "colour", '"blue"', "--expect", '"green"', *at, expect=1)
    story.run("persist", "kv", "delete", "colour", "--yes", *at)
    story.run("persist", "redact", "cart-1", "1", '["by"]', "--reason", "asked", "--yes", *at)
    story.run("persist", "erase", "cart-1", "--reason", "asked", "--yes", *at)


def store_over_http() -> list[dict[str, Any]]:
    """What a client of the event store and its host say to each other."""
    with serving(persist_app(one_store(mem_backend))) as (url, recorder):
        b = open_store(url)
        append(b, "cart-1", "opened", 1, {"by": "ann", "n": 2**60, "x": 0.5})
        append_once(b, "cart-1", "key-1", "paid", 2, [None, True, "ä"])
        append_once(b, "cart-1", "key-1", "paid", 2, [None, True, "ä"])
        kv_put(b, "colour", "red")
        kv_cas(b, "colour", "green", "blue")
        list(read(b, "cart-1"))
        b.truncated_through("cart-1")
        b.close()
        with urllib3.PoolManager() as client:
            client.request("POST", f"{url}/v1/persist", body=b'{"op":"persist/none","args":[]}')
            client.request("POST", f"{url}/v1/persist", body=b"[]")
            client.request("GET", f"{url}/healthz")
            client.request("GET", f"{url}/nowhere")
    return recorder.passed


def producers(url: str, token: str) -> None:
    """Every kind of answer that a producer of rows gets."""
    rows, retry = [{"key": "p", "n": 1}], {"Idempotency-Key": "p1"}
    with urllib3.PoolManager() as client:

        def ask(method: str, path: str, *, auth: str = token, **content: Any) -> None:
            headers = {"Authorization": f"Bearer {auth}", **content.pop("headers", {})}
            client.request(method, url + path, headers=headers, **content)

        ask("POST", "/v1/append/logs?source=web-1", json=rows, headers=retry)
        ask("POST", "/v1/append/logs?source=web-1", json=rows, headers=retry)
        ask("POST", "/v1/append/logs", json=[{"key": "p", "n": "one"}])
        ask("POST", "/v1/append/logs?on_bad=quarantine", json=[{"key": "p", "n": "one"}])
        ask("POST", "/v1/append/logs", body=b"{", headers={"Content-Type": "application/json"})
        ask("POST", "/v1/append/logs", body=b"x", headers={"Content-Type": "text/plain"})
        ask("POST", "/v1/append/unknown", json=rows)
        ask("POST", "/v1/append/logs", json=rows, auth="none")
        ask("GET", "/v1/append/logs")
        ask("GET", f"/v1/ranges/{ORIGINS['node']}?dataset=logs&source=web-1")
        ask("GET", f"/v1/ranges/{ORIGINS['node']}")
        for page in ("/healthz", "/readyz", "/nowhere", "/metrics", "/openapi.json"):
            ask("GET", page)


# All of it


def hold_still(still: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time is that of `still`, waits have no jitter, and `pyspark.sql.functions` are those of Connect."""
    monkeypatch.setattr(clock.SystemClock, "now_us", lambda _: still.us)
    monkeypatch.setattr(clock.SystemClock, "sleep", lambda _, seconds: still.sleep(seconds))
    monkeypatch.setattr("random.random", lambda: 0.5)
    monkeypatch.setattr("socket.gethostname", lambda: "host")
    monkeypatch.setenv(CONNECT_MODE, "1")


def tell(
    folder: Path, server: ConnectServer, monkeypatch: pytest.MonkeyPatch, home_file: Path | None = None
) -> dict[str, Any]:
    """Tell the story in `folder`, and return what each golden file should hold, by its name.

    The node's home, as it is in the middle of the story, goes into `home_file`.
    """
    still = Clock()
    made: dict[str, Any] = {}
    hold_still(still, monkeypatch)

    def crash_at(name: str) -> None:
        def crash(_: Any) -> None:
            failpoint._points.clear()
            made.setdefault("crashed.json", {})[name] = dump(story)["keys"]
            raise Crash(name)

        monkeypatch.setattr(failpoint, "_come_by", crash)
        failpoint._points[name] = [1, 9]

    home, centre = folder / "node", folder / "centre"
    story = Story(home, Mask({"tmp": folder, "home": home, "centre": centre}), still)
    for path in (home, centre):
        story.run("init", str(path))
        b = open_store(path / "strandline.db")
        kv_put(b, "origin", ORIGINS[path.name])  # tokens contain it
        b.close()
    made["strandline.toml"] = story.mask.text((home / FILE_NAME).read_text())
    (centre / FILE_NAME).write_text(CENTRE)
    token = tokens(story, centre)
    (home / "centre.token").write_text(token)
    config = load_config(centre / FILE_NAME)
    site = open_site(config)
    gate = Gate(site.b, config.server_tokens())
    metrics = metrics_page(lambda: config, site, Live())
    with serving(Receiver(site, gate, config.server, metrics=metrics)) as (url, recorder):
        (home / FILE_NAME).write_text(SETTINGS.replace("<centre>", url))
        conf = catalog_conf(load_config(home / FILE_NAME).lake_settings())
        with lake_session(server, conf) as session:
            monkeypatch.setattr(Node, "spark", session)
            rows_in(story, folder)
            token_text = reads(story)
            rows_onward(story)
            damage(story)
            crashes(story, folder, crash_at)
            if home_file is not None:
                with tarfile.open(home_file, "w:gz") as archive:
                    archive.add(home, "node")
            made["files.json"] = files_of(story)
            made["events.json"] = dump(story)
            keeping(story, crash_at)
            story.run("read", "logs", "--source", "web-1", "--since", token_text, "--on-pruned", "continue")
            made["kept.json"] = dump(story)
            restore(story, folder)
            made["restored.json"] = dump(story)
            archived(story)
            folded = dump(story)["keys"]
            made["archived.json"] = {key: value for key, value in folded.items() if _is_folded(key)}
        producers(url, token)
    site.b.close()
    made["receiver.json"] = story.mask.value(stored(centre / "strandline.db"))
    made["http.json"] = story.mask.value(recorder.passed)
    made["store_http.json"] = story.mask.value(store_over_http())
    store_verbs(story, folder)
    story.run("config", "show")
    story.run("config", "validate")
    story.run("config", "schema")
    made["commands.json"] = story.commands
    return made


def dump(story: Story) -> Any:
    """Each stream and each key of the node's store, as they are encoded."""
    return story.mask.value(stored(story.home / "strandline.db"))


def stored(store: Path) -> dict[str, Any]:
    b = open_store(store)
    try:
        streams = {
            name: [
                {"type": event.type, "at": event.at, "data": json.loads(encode(event.data))}
                for event in read(b, name)
            ]
            for name in stream_names(b)
        }
        keys: dict[str, Any] = {}
        while page := b.kv_scan("", after=max(keys, default=""), limit=1_000):
            keys |= {key: json.loads(encode(value)) for key, value in page}
        return {"streams": streams, "keys": keys}
    finally:
        b.close()


def files_of(story: Story) -> Any:
    """Return what files of a home hold besides rows: names, keys of Parquet, schemas, table properties."""
    lake = load_config(story.home / FILE_NAME).lake_settings()
    tables = {}
    for name in ("all_types", "logs"):
        metadata = load_metadata(lake, name)
        summaries = [each["summary"] for each in metadata["snapshots"]]
        tables[name] = {
            "schema": metadata["schemas"][-1],
            "spec": metadata["partition-specs"],
            "order": metadata["sort-orders"],
            "properties": metadata["properties"],
            "summary keys": sorted({key for each in summaries for key in each}),
        }
    folders = ("archive", "content", "letters", "parquet", "elsewhere", "fresh")
    paths = sorted(p for f in folders for p in (story.home / f).rglob("*") if p.is_file())
    parquet = []
    for path in paths:
        if path.read_bytes()[:4] == b"PAR1":
            schema = pq.read_schema(path)
            held = {key.decode(): value.decode() for key, value in (schema.metadata or {}).items()}
            held.pop("ARROW:schema", None)  # Arrow's own
            columns = {field.name: str(field.type) for field in schema}
            parquet.append({"path": _unfolded(path), "keys": held, "columns": columns})
    parquet.sort(key=story.mask.order)
    names = sorted(
        (re.sub(r"/[0-9a-f]{2}/", "/<two digits>/", str(path)) for path in paths), key=story.mask.order
    )
    for each in parquet:
        each["path"] = re.sub(r"/[0-9a-f]{2}/", "/<two digits>/", str(each["path"]))
    return story.mask.value({"tables": tables, "names": names, "parquet": parquet})


def _unfolded(path: Path) -> str:
    """The path without the digits of a digest that name its folder."""
    return re.sub(r"/[0-9a-f]{2}/", "/<two digits>/", str(path))


def _spoil(story: Story, segment: str) -> None:
    digest = segment.removeprefix("sha256-")
    (story.home / "content" / "sha256" / digest[:2] / digest).write_bytes(b"damaged")


def _edit(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert before in text, (before, text)
    path.write_text(text.replace(before, after))
