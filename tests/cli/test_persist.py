"""The commands over a store: what they print, how they end, and that nobody sees a stack trace."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from strandline.cli import cli
from strandline.cli.parse_values import parse_value
from strandline.errors import (
    EventCorrupt,
    LineageMismatch,
    OutcomeUnknown,
    StoreUnavailable,
    UnsupportedFormat,
)
from strandline.persist import (
    append,
    append_batch,
    consumer,
    events,
    gappend,
    kv_get,
    kv_put,
    last_seq,
    open_store,
    truncate_through,
)
from strandline.persist.backend import AtomicBackend
from strandline.persist.backends.sqlite.file import connect
from tests.server.hosts import HostProcess, free_port, wait_for_line


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def b(path: Path) -> Iterator[AtomicBackend]:
    opened = open_store(path)
    yield opened
    opened.close()


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STRANDLINE_STORE", raising=False)
    monkeypatch.delenv("STRANDLINE_TOKEN", raising=False)


def run(path: Path | str | None, *args: str, stdin: str | bytes = "", expect: int = 0) -> Result:
    store = [] if path is None else ["--store", str(path)]
    done = CliRunner().invoke(cli, ["persist", *args, *store], input=stdin)
    assert done.exit_code == expect, (done.exit_code, done.output, done.exception)
    assert "Traceback" not in done.output
    return done


def rows(done: Result) -> list[Any]:
    return [json.loads(line) for line in done.stdout.splitlines()]


# append


def test_append_stores_and_prints(path: Path) -> None:
    (first,) = rows(run(path, "append", "cart-1", "opened", '{"n":1}', "--at", "7", "--json"))
    second = run(path, "append", "cart-1", "closed", "-", "--at", '"noon"', stdin="[1.5, null]")
    (third,) = rows(run(path, "append", "cart-1", "left", "--json"))

    assert first == {"stream": "cart-1", "seq": 1, "type": "opened", "at": 7, "data": {"n": 1}}
    assert second.stdout == "       2  noon  closed  [1.5,null]\n"
    assert (third["data"], third["seq"]) == (None, 3)
    assert 1_600_000_000_000_000 < third["at"] < 10_000_000_000_000_000  # UTC microseconds
    assert second.stderr == ""


def test_a_big_integer_goes_in_and_out_unharmed(path: Path, b: AtomicBackend) -> None:  # P-VAL-2, P-VAL-6
    number = 123456789012345678901234567890
    printed = run(path, "append", "s", "t", f'{{"n": {number}}}', "--at", "1").stdout

    assert next(events(b, "s")).data == {"n": number}
    assert printed.endswith('{"n":{"$int":"18ee90ff6c373e0ee4e3f0ad2"}}\n')
    assert parse_value(printed.split(None, 3)[3]) == {"n": number}


def test_append_in_a_batch_is_all_or_none(path: Path, b: AtomicBackend) -> None:  # P-BAT
    lines = '{"type":"a","data":1}\n\n{"type":"b","data":{"x":[]},"at":"z"}\n'
    found = rows(run(path, "append", "s", "--batch", "--at", "5", "--globally", "--json", stdin=lines))
    assert [(event["seq"], event["type"], event["at"]) for event in found] == [(1, "a", 5), (2, "b", "z")]
    assert last_seq(b, "$global") == 2

    run(path, "append", "s", "--batch", stdin=lines + '{"type":"","data":1}', expect=2)
    done = run(path, "append", "s", "--batch", stdin=lines + '{"type":"c"}', expect=2)
    assert "line 4 is no event" in done.stderr
    assert last_seq(b, "s") == 2
    assert run(path, "append", "s", "--batch", stdin="").stdout == ""

    again = run(path, "read", "s", "--json").stdout
    run(path, "append", "copy", "--batch", stdin=again)
    assert [event.data for event in events(b, "copy")] == [1, {"x": []}]


def test_append_expect_shows_the_conflict(path: Path) -> None:  # P-CON-2
    run(path, "append", "s", "t", "1", "--expect", "0")

    done = run(path, "append", "s", "t", "2", "--expect", "0", "--json", expect=1)

    facts = {"expected": 0, "actual": 1, "reason": "STALE", "name": "s"}
    assert rows(done) == [{"conflict": facts}]
    assert done.stderr == "strandline persist append: conflict: STALE on 's': expected 0, found 1\n"
    assert run(path, "append", "s", "t", "2", "--expect", "0", expect=1).stdout == ""


def test_append_once_has_one_effect(path: Path, b: AtomicBackend) -> None:  # P-IDM-1, P-IDM-7
    first = run(path, "append", "s", "t", "1", "--once", "k", "--json").stdout
    assert run(path, "append", "s", "t", "1", "--once", "k", "--json").stdout == first
    done = run(path, "append", "s", "t", "2", "--once", "k", "--json", expect=1)
    assert rows(done)[0]["conflict"]["actual"] == json.loads(first)
    truncate_through(b, "s", 1)
    done = run(path, "append", "s", "t", "2", "--once", "k", "--json", expect=1)
    assert rows(done)[0]["conflict"]["actual"] == {"stream": "s", "seq": 1, "compacted": True}


# read, follow, streams


def test_read_chooses(path: Path, b: AtomicBackend) -> None:  # P-QRY
    append_batch(b, "s", [("even" if n % 2 == 0 else "odd", n, n) for n in range(1, 11)])

    def seqs(*options: str) -> list[int]:
        return [event["seq"] for event in rows(run(path, "read", "s", "--json", *options))]

    assert seqs() == [*range(1, 11)]
    assert seqs("--first", "3", "--last", "5") == [3, 4, 5]
    assert seqs("--type", "even", "--limit", "2") == [2, 4]
    assert seqs("--since", "9") == [9, 10]
    assert seqs("--until", "2") == [1, 2]
    assert seqs("--since", '"noon"') == []
    assert seqs("--limit", "0") == []
    assert run(path, "read", "s", "--last", "1").stdout == "       1  1  odd  1\n"
    assert run(path, "read", "unknown").stdout == ""


def test_read_global_names_what_is_gone(path: Path, b: AtomicBackend) -> None:  # P-GLB-9
    gappend(b, "x", "t", 1, 1)
    gappend(b, "y", "t", 2, 2)
    truncate_through(b, "x", 1)

    assert rows(run(path, "read", "--global", "--json")) == [
        {"position": 1, "stream": "x", "seq": 1, "compacted": True},
        {"position": 2, "stream": "y", "seq": 1, "type": "t", "at": 2, "data": 2},
    ]
    assert len(rows(run(path, "read", "--global", "--first", "2", "--last", "2", "--json"))) == 1
    assert len(run(path, "read", "--global", "--limit", "1").stdout.splitlines()) == 1


def test_names_that_a_terminal_would_act_on_are_quoted(path: Path, b: AtomicBackend) -> None:
    append(b, "s\x1b[2J", "t\x9b\n", 1, "x\x1b")

    assert "\x1b" not in run(path, "streams").stdout
    assert run(path, "read", "s\x1b[2J").stdout == "       1  1  't\\x9b\\n'  \"x\\u001b\"\n"


def test_streams(path: Path, b: AtomicBackend) -> None:  # P-CAT
    for name in ("b", "a", "ab"):
        gappend(b, name, "t", 1, 1)
    truncate_through(b, "ab", 1)

    assert rows(run(path, "streams", "--json", "--prefix", "a")) == [
        {"name": "a", "last_seq": 1, "truncated_through": 0},
        {"name": "ab", "last_seq": 1, "truncated_through": 1},
    ]
    assert [row["name"] for row in rows(run(path, "streams", "--all", "--json", "--limit", "2"))] == [
        "$global",
        "a",
    ]
    assert (
        run(path, "streams", "--limit", "1").stdout
        == "STREAM  LAST SEQ  TRUNCATED THROUGH\na              1                  0\n"
    )


def test_follow_as_a_consumer_acknowledges(path: Path, b: AtomicBackend) -> None:  # P-SUB-12
    append_batch(b, "s", [("t", n, n) for n in range(5)])

    assert [
        row["seq"] for row in rows(run(path, "follow", "s", "--consumer", "c", "--limit", "2", "--json"))
    ] == [1, 2]
    assert [
        row["seq"] for row in rows(run(path, "follow", "s", "--consumer", "c", "--limit", "3", "--json"))
    ] == [3, 4, 5]
    assert consumer(b, "c", "s").seq == 5
    again = run(path, "follow", "s", "--consumer", "c", "--from", "4", "--limit", "1", "--json")
    assert [row["seq"] for row in rows(again)] == [4]
    assert [
        row["seq"] for row in rows(run(path, "follow", "s", "--from", "5", "--limit", "1", "--json"))
    ] == [5]
    assert [row["seq"] for row in rows(run(path, "follow", "s", "--limit", "2", "--json"))] == [1, 2]


@pytest.mark.parametrize("options", [["--consumer", "c"], []])
def test_follow_prints_what_comes_until_ctrl_c(path: Path, b: AtomicBackend, options: list[str]) -> None:
    append(b, "s", "t", 1, "before")
    command = [
        sys.executable,
        "-m",
        "strandline",
        "persist",
        "follow",
        "s",
        "--json",
        "--store",
        str(path),
        *options,
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert json.loads(wait_for_line(process))["data"] == "before"

    append(b, "s", "t", 1, "after")

    assert json.loads(wait_for_line(process))["data"] == "after"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30) == ("", "")
    assert process.returncode == 0


# kv, consumers


def test_keys(path: Path, b: AtomicBackend) -> None:  # P-KV, P-CAS
    assert run(path, "kv", "put", "k", '{"b":1,"a":[]}').stdout == '{"a":[],"b":1}\n'
    assert rows(run(path, "kv", "put", "l", "-", "--json", stdin="null")) == [{"key": "l", "value": None}]
    assert run(path, "kv", "get", "k").stdout == '{"a":[],"b":1}\n'
    assert rows(run(path, "kv", "get", "l", "--json")) == [{"key": "l", "value": None}]
    assert "not_found: there is no key 'm'" in run(path, "kv", "get", "m", expect=1).stderr
    assert run(path, "kv", "list").stdout == 'KEY  VALUE\nk    {"a":[],"b":1}\nl    null\n'
    assert rows(run(path, "kv", "list", "--json", "--prefix", "l")) == [{"key": "l", "value": None}]

    done = run(path, "kv", "cas", "k", "2", "--expect", "1", "--json", expect=1)
    assert rows(done)[0]["conflict"] == {
        "expected": 1,
        "actual": {"a": [], "b": 1},
        "reason": "STALE",
        "name": "k",
    }
    assert rows(run(path, "kv", "cas", "new", "2", "--absent", "--json")) == [{"key": "new", "value": 2}]
    done = run(path, "kv", "cas", "new", "3", "--absent", "--json", expect=1)
    assert rows(done)[0]["conflict"]["expected"] == {"$absent": []}
    run(path, "kv", "cas", "new", "3", expect=2)
    run(path, "kv", "cas", "new", "3", "--absent", "--expect", "2", expect=2)

    assert run(path, "kv", "delete", "k", "--dry-run").stdout == "1 key would be deleted\n"
    assert "--yes" in run(path, "kv", "delete", "k", expect=2).stderr
    assert kv_get(b, "k") is not None
    assert rows(run(path, "kv", "delete", "k", "--yes", "--json")) == [
        {"key": "k", "deleted": 1, "dry_run": False}
    ]
    assert run(path, "kv", "delete", "k", "--yes").stdout == "0 key deleted\n"
    assert kv_get(b, "k") is None


def test_consumers(path: Path, b: AtomicBackend) -> None:
    append_batch(b, "s", [("t", 1, 1)] * 3)
    consumer(b, "c", "s", start=1)

    assert run(path, "consumers").stdout == "CONSUMER  STREAM  SEQ  LAG\nc         s         1    2\n"
    assert rows(run(path, "consumers", "list", "--json")) == [
        {"name": "c", "stream": "s", "seq": 1, "lag": 2}
    ]
    assert run(path, "consumers", "drop", "c", "--dry-run").stdout == "1 consumer would be dropped\n"
    run(path, "consumers", "drop", "c", expect=2)
    run(path, "consumers", "drop", "c", "--yes")
    assert "there is no consumer 'c'" in run(path, "consumers", "drop", "c", "--yes", expect=1).stderr
    assert rows(run(path, "consumers", "--json")) == []


# Upkeep


def test_stats(path: Path, b: AtomicBackend) -> None:  # P-OPS-5
    append(b, "s", "t", 1, 1)
    consumer(b, "c", "s")

    found = rows(run(path, "stats", "--json"))[0]

    assert {"backend", "lineage", "format", "streams", "events", "bytes", "longest_tails"} <= found.keys()
    assert (found["streams"], found["events"], found["consumers"][0]["lag"]) == (1, 1, 1)
    assert "longest tails" in run(path, "stats").stdout


def test_verify_finds_damage_and_sets_it_aside(path: Path, b: AtomicBackend) -> None:  # P-INT-3
    assert run(path, "verify").stderr == "0 damaged, 0 set aside before\n"
    append_batch(b, "s", [("t", 1, n) for n in range(3)])
    b.close()
    _damage(path)

    done = run(path, "verify", expect=1)
    assert "1 damaged, 0 set aside before\n" in done.stderr
    found = rows(run(path, "verify", "--json", expect=1))[0]
    assert [(each["what"], each["name"], each["seq"]) for each in found["damage"]] == [("event", "s", 2)]
    done = run(path, "verify", "--quarantine", "--dry-run", expect=1)
    assert "1 would be set aside" in done.stderr
    run(path, "verify", "--quarantine", expect=2)
    done = run(path, "verify", "--quarantine", "--yes", "--json", expect=1)
    assert rows(done)[0]["set_aside"] == 1
    found = rows(run(path, "verify", "--json"))[0]
    assert (found["damage"], found["quarantined"][0]["seq"]) == ([], 2)


def _damage(path: Path) -> None:
    """Change one event, the checksum of its page made anew, so that only the row's own does not match."""
    connection = connect(path, synchronous="FULL", busy_timeout_s=30)
    connection.execute("UPDATE events SET data = '9' WHERE data = '1'")
    connection.close()


def test_erase_and_redact(path: Path, b: AtomicBackend) -> None:  # P-ERA-1, P-ERA-2
    append_batch(b, "s", [("t", 1, {"name": "x", "l": [1, 2]})] * 2)

    done = run(path, "redact", "s", "1", '["l",0]', "--reason", "r", "--dry-run")
    assert done.stdout.endswith("1 value would be redacted\n")
    run(path, "redact", "s", "1", '["l",0]', "--reason", "r", expect=2)
    run(path, "redact", "s", "1", '["nope"]', "--reason", "r", "--yes", expect=2)
    run(path, "redact", "s", "9", '["l"]', "--reason", "r", "--yes", expect=1)
    run(path, "redact", "s", "1", '"l"', "--reason", "r", "--yes", expect=2)
    assert rows(run(path, "redact", "s", "1", '["l",0]', "--reason", "r", "--yes", "--json")) == [
        {"stream": "s", "seq": 1, "path": ["l", 0], "redacted": 1, "snapshots": [], "dry_run": False}
    ]
    assert next(events(b, "s")).data == {"name": "x", "l": [None, 2]}

    assert run(path, "erase", "s", "--reason", "r", "--dry-run").stdout == "2 events would be erased\n"
    run(path, "erase", "s", "--reason", "r", expect=2)
    run(path, "erase", "s", "--yes", expect=2)
    assert rows(run(path, "erase", "s", "--reason", "r", "--yes", "--json")) == [
        {"stream": "s", "erased": 2, "dry_run": False}
    ]
    assert list(events(b, "s")) == []
    run(path, "erase", "unknown", "--reason", "r", "--yes", expect=1)


def test_backup_and_restore(path: Path, b: AtomicBackend, tmp_path: Path) -> None:  # P-OPS-2
    gappend(b, "s", "t", 1, {"n": 1})
    kv_put(b, "k", 1)

    done = run(path, "backup", str(tmp_path / "copy.db"), "--json")

    assert rows(done) == [{"streams": 2, "events": 1, "keys": 1, "pointers": 1}]
    assert "is there already" in run(path, "backup", str(tmp_path / "copy.db"), expect=2).stderr
    target = tmp_path / "restored.db"
    assert "events    1" in run(target, "restore", str(tmp_path / "copy.db")).stdout
    assert rows(run(target, "read", "s", "--json"))[0]["data"] == {"n": 1}
    assert "not empty" in run(target, "restore", str(tmp_path / "copy.db"), expect=2).stderr
    run(tmp_path / "other.db", "restore", str(tmp_path / "none.db"), expect=1)
    assert not (tmp_path / "other.db").exists()


# How it ends


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["read", ""], "usage: stream is empty"),
        (["read"], "usage: STREAM is missing"),
        (["read", "s", "--global"], "usage: --global takes"),
        (["read", "s", "--limit", "-1"], "usage: limit is -1"),
        (["read", "s", "--limit", "x"], "usage: Invalid value for '--limit'"),
        (["read", "s", "--since", "noon"], "usage: --since is no JSON"),
        (["read", "s", "--since", "[]"], "usage: --since is '[]'"),
        (["read", "s", "--until", "1e999"], "usage: --until"),
        (["read", "s", "--frob"], "usage: No such option"),
        (["read", "s" * 2000], "usage: stream"),
        (["streams", "--limit", "-1"], "usage: limit is -1"),
        (["follow"], "usage: STREAM is missing"),
        (["follow", "s", "--global"], "usage: both"),
        (["follow", "s", "--limit", "-2"], "usage: limit is -2"),
        (["append", "s"], "usage: TYPE is missing"),
        (["append", "", "t"], "usage: stream is empty"),
        (["append", "s", ""], "usage: type is empty"),
        (["append", "$s", "t"], "reserved_name: stream '$s' is reserved"),
        (["append", "s", "t", "{"], "usage: the data is no JSON"),
        (["append", "s", "t", "NaN"], "usage: the data is no JSON"),
        (["append", "s", "t", "1e999"], "usage: the data cannot be stored"),
        (["append", "s", "t", '"\\ud800"'], "usage: the data cannot be stored"),
        (["append", "s", "t", '{"$what":1}'], "usage: the data cannot be stored"),
        (["append", "s", "t", "[" * 101 + "]" * 101], "not_storable: "),
        (["append", "s", "t", "[" * 100_000], "usage: the data is no JSON"),
        (["append", "s", "t", "1", "--at", "true"], "usage: --at is 'true'"),
        (["append", "s", "t", "1", "--at", "99999999999999999999"], "usage: --at is"),
        (["append", "s", "t", "1", "--once", ""], "usage: idempotency key is empty"),
        (["append", "s", "t", "1", "--expect", "-1"], "usage: an expected seq is -1"),
        (["append", "s", "t", "1", "--batch"], "usage: --batch reads"),
        (["kv", "get", ""], "usage: key is empty"),
        (["kv", "put", "$k", "1"], "reserved_name: key '$k' is reserved"),
        (["kv", "put", "k", "nonsense"], "usage: the value is no JSON"),
        (["kv", "delete", "$k", "--yes"], "reserved_name: "),
        (["kv", "frob"], "usage: No such command 'frob'"),
        (["kv", "list", "--limit", "-1"], "usage: limit is -1"),
        (["consumers", "drop", "", "--yes"], "usage: consumer is empty"),
        (["erase", "$erased", "--reason", "r", "--yes"], "reserved_name: "),
        (["erase", "s", "--reason", "", "--yes"], "usage: reason is empty"),
        (["redact", "s", "0", "[]", "--reason", "r", "--yes"], "usage: seq is 0"),
        (["serve", "--host", "0.0.0.0"], "usage: address 0.0.0.0 is open"),
        (["serve", "--port", "70000"], "usage: Invalid value for '--port'"),
        (["stats", "--schema", "x"], "usage: --schema is for"),
        (["stats", "--token-file", "x"], "usage: --token-file is for"),
    ],
)
def test_wrong_use_is_told_in_two_lines_and_ends_with_2(
    path: Path, b: AtomicBackend, args: list[str], said: str
) -> None:
    done = run(path, *args, expect=2)

    assert done.stdout == ""
    first, *rest = done.stderr.splitlines()
    assert first.startswith("strandline persist ")
    assert said in first
    assert [line[:6] for line in rest] == ["hint: "]
    assert (b.streams(), b.kv_keys()) == ([], [])


@pytest.mark.parametrize(
    ("store", "said", "code"),
    [
        (None, "usage: no store is named", 2),
        ("redis://x", "usage: store 'redis://x' has the unknown scheme 'redis'", 2),
        ("sqlite://x", "usage: store 'sqlite://x' names no file", 2),
        ("none/at/all.db", "not_found: ", 1),
        ("http://user:pw@127.0.0.1:1", "usage: ", 2),
        ("http://127.0.0.1:{port}", "store_unavailable: ", 1),
    ],
)
@pytest.mark.parametrize("command", [["read", "s"], ["stats"], ["kv", "list"], ["consumers"], ["verify"]])
def test_a_store_that_cannot_be_opened(
    store: str | None, said: str, code: int, command: list[str]
) -> None:  # P-API-4
    done = run(store and store.replace("{port}", str(free_port())), *command, expect=code)

    assert said in done.stderr
    assert "pw" not in done.stderr


def test_reading_makes_no_store_and_writing_does(path: Path) -> None:  # P-API-4
    for command in (["read", "s"], ["streams"], ["stats"], ["verify"], ["kv", "get", "k"], ["follow", "s"],
                    ["kv", "delete", "k", "--yes"], ["erase", "s", "--reason", "r", "--yes"],
                    ["backup", str(path) + ".copy"]):  # fmt: skip
        run(path, *command, expect=1)
        assert not path.exists()

    run(path, "append", "s", "t")
    assert path.exists()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OutcomeUnknown("lost", once=("s", "k")), 3),
        (LineageMismatch("c", cursor="a", store="b"), 3),
        (StoreUnavailable("down", hint="later"), 1),
        (EventCorrupt("s", 3, "torn"), 1),
        (UnsupportedFormat("format 9 is newer"), 1),
        (PermissionError("no"), 1),
        (RuntimeError("a bug"), 1),
    ],
)
def test_exit_codes(monkeypatch: pytest.MonkeyPatch, path: Path, error: Exception, code: int) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr("strandline.cli.store_options.open_store", fail)

    done = run(path, "append", "s", "t", expect=code)
    assert getattr(error, "kind", "failed") in done.stderr

    shown = CliRunner().invoke(cli, ["persist", "append", "s", "t", "--store", str(path), "--debug"])
    assert shown.exception is error  # as itself, with its stack trace


def test_a_store_of_a_newer_format_is_refused(path: Path, b: AtomicBackend) -> None:  # P-OPS-3
    append(b, "s", "t", 1, 1)
    b.close()
    connection = connect(path, synchronous="FULL", busy_timeout_s=30)
    connection.pragma("user_version", 99)
    connection.close()

    assert "unsupported_format: " in run(path, "read", "s", expect=1).stderr


def test_the_environment_names_the_store(
    path: Path, b: AtomicBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(b, "s", "t", 1, 1)
    monkeypatch.setenv("STRANDLINE_STORE", f"sqlite:///{path}")

    assert len(rows(run(None, "read", "s", "--json"))) == 1


def test_help_is_quick_and_needs_no_driver() -> None:
    code = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from strandline.cli import cli\n"
        "done = CliRunner().invoke(cli, ['--help'])\n"
        "assert 'persist' in done.stdout and done.exit_code == 0, done\n"
        "heavy = {'psycopg', 'starlette', 'uvicorn', 'urllib3', 'apsw', 'rich', 'strandline.persist'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    "group", [[], ["persist"], ["persist", "kv"], ["persist", "consumers"], ["conformance"]]
)
def test_every_command_has_help(group: list[str]) -> None:
    listed = CliRunner().invoke(cli, [*group, "--help"])
    assert listed.exit_code == 0
    names = [
        line.split()[0] for line in listed.stdout.partition("Commands:\n")[2].splitlines() if line.strip()
    ]
    assert names
    for name in names:
        done = CliRunner().invoke(cli, [*group, name, "--help"])
        assert (done.exit_code, done.stdout[:6]) == (0, "Usage:")


def test_the_version_and_an_empty_command_line() -> None:
    assert CliRunner().invoke(cli, ["--version"]).stdout.startswith("strandline ")
    done = CliRunner().invoke(cli, [])
    assert (done.exit_code, "Commands:" in done.stderr) == (2, True)


def test_conformance_asks_for_one_of_two() -> None:
    for args in ([], ["--store", "memory:", "--fixture", "a:b"]):
        done = CliRunner().invoke(cli, ["conformance", "run", *args])
        assert (done.exit_code, "one of --store and --fixture" in done.stderr) == (2, True)


# Over HTTP


def test_commands_over_http(tmp_path: Path, path: Path) -> None:  # P-DUR-16
    token = tmp_path / "token"
    token.write_text("secret\n")
    with HostProcess(path, "--token-file", str(token)) as host:
        with_token = ["--token-file", str(token)]
        run(host.url, "append", "s", "t", '{"n":1}', *with_token)
        assert rows(run(host.url, "read", "s", "--json", *with_token))[0]["data"] == {"n": 1}
        assert rows(run(host.url, "stats", "--json", *with_token))[0]["events"] == 1
        assert run(host.url, "verify", *with_token).stderr == "0 damaged, 0 set aside before\n"
        assert (
            "beside the host" in run(host.url, "backup", str(tmp_path / "c.db"), *with_token, expect=2).stderr
        )
        assert "usage: the token is missing or wrong" in run(host.url, "read", "s", expect=2).stderr
        assert "token file" in run(host.url, "read", "s", "--token-file", "none", expect=2).stderr
        assert "secret" not in run(host.url, "read", "s", *with_token).output
        assert "is served already" in run(host.url, "serve", expect=2).stderr


def test_a_port_that_is_taken(path: Path) -> None:
    with HostProcess("memory:") as host:
        done = run(path, "serve", "--port", str(host.port), expect=1)
    assert "unavailable: cannot listen on 127.0.0.1" in done.stderr


def test_serve_tells_its_url_as_json() -> None:
    command = [
        sys.executable,
        "-m",
        "strandline",
        "persist",
        "serve",
        "--store",
        "memory:",
        "--port",
        "0",
        "--json",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    url = json.loads(wait_for_line(process))["listening"]
    assert url.startswith("http://127.0.0.1:")
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=30)[0] == ""
    assert process.returncode == 0


def test_a_reader_that_stops_reading_ends_it_quietly(path: Path, b: AtomicBackend) -> None:
    append_batch(b, "s", [("t", n, "x" * 200) for n in range(5000)])
    read_end, write_end = os.pipe()
    command = [sys.executable, "-m", "strandline", "persist", "read", "s", "--store", str(path)]
    process = subprocess.Popen(command, stdout=write_end, stderr=subprocess.PIPE, text=True)
    os.close(write_end)
    os.read(read_end, 10)
    os.close(read_end)

    assert process.communicate(timeout=30)[1] == ""
    assert process.returncode == 1
