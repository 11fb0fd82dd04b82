"""The host over real HTTP: who may ask, what is refused before it is read, and how it ends."""

import http.client
import json
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from strandline.errors import (
    CorruptionError,
    EventCorrupt,
    HistoryGap,
    LineageMismatch,
    NotFoundError,
    NotStorable,
    OutcomeUnknown,
    ReservedName,
    SequenceError,
    StoreUnavailable,
    UnsupportedFormat,
    UsageError,
)
from strandline.persist import append, last_seq, mem_backend, open_store, read
from strandline.persist.backends.memory import MemoryBackend
from strandline.persist.backends.remote import RemoteBackend
from strandline.persist.wire import MAX_BODY_BYTES
from strandline.server.event_store.host import persist_app
from strandline.server.event_store.open_stores import Stores, one_store
from strandline.server.serve import is_loopback, listen, url_of
from tests.server.hosts import HostProcess
from tests.server.receivers import PromptServer


@contextmanager
def hosted(stores: Stores, token: str | None = None) -> Iterator[str]:
    """The application in this process, so that a test can look into its stores."""
    import uvicorn

    app, listening = persist_app(stores, token=token), listen("127.0.0.1", 0)
    server = PromptServer(uvicorn.Config(app, log_config=None, lifespan="off", ws="none", access_log=False))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield url_of(listening)
    finally:
        app.stop()
        server.should_exit = True
        thread.join(30)
        app.close()
        listening.close()


def ask(url: str, body: bytes | str, method: str = "POST", path: str = "/v1/persist", **headers: str) -> Any:
    """(status, answer, headers)"""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
    try:
        connection.request(method, path, body, {k.replace("_", "-"): v for k, v in headers.items()})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or b"null"), answer.headers
    finally:
        connection.close()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with HostProcess("memory:", token="secret") as host:
        yield host.url


AUTHORIZED = {"Authorization": "Bearer secret"}


def test_a_request_and_its_answer(url: str) -> None:  # P-DUR-16
    status, answer, headers = ask(url, '{"args":["s"],"op":"persist/last-seq"}', **AUTHORIZED)

    assert (status, answer, headers["Content-Type"]) == (200, {"result": 0}, "application/json")


@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Bearer ", "Bearer wrong", "bearer secret", "secret", "Bearer sécret"],
)
def test_without_the_token_nothing_is_told(url: str, authorization: str | None) -> None:
    headers = {} if authorization is None else {"Authorization": authorization}

    for body in ('{"args":["s"],"op":"persist/last-seq"}', "nonsense"):
        status, answer, found = ask(url, body, **headers)
        assert (status, answer["error"], found["WWW-Authenticate"]) == (401, "usage", "Bearer")


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        ("nonsense", 400, "usage"),
        ("", 400, "usage"),
        ('{"op":"persist/frob","args":[]}', 404, "unknown_op"),
        ('{"op":"persist/read","args":[7]}', 400, "usage"),
        ('{"op":"persist/kv-put","args":["k",{"$absent":[]}]}', 400, "not_storable"),
        ('{"op":"persist/append","args":["s",{"$event":["s",5,"t",1,1]}]}', 409, "sequence"),
        ('{"op":"persist/commit","args":[[],[["redact","s",1,[]]],null]}', 404, "not_found"),
    ],
)
def test_what_is_wrong_has_a_status_and_a_kind(url: str, body: str, status: int, kind: str) -> None:
    found, answer, _ = ask(url, body, **AUTHORIZED)

    assert (found, answer["error"]) == (status, kind)
    assert answer["message"]
    assert "Traceback" not in json.dumps(answer)


def test_other_places_and_methods(url: str) -> None:
    assert ask(url, "", "GET")[0] == 405
    assert ask(url, "", "PUT")[0] == 405
    status, answer, _ = ask(url, "", "POST", "/v2/persist")
    assert (status, answer["error"]) == (404, "not_found")
    assert ask(url, "", "GET", "/healthz")[:2] == (200, {"status": "ok"})


def test_a_body_that_is_too_long_is_refused_before_it_is_read(url: str) -> None:  # P-DUR-16
    address = ("127.0.0.1", int(url.rpartition(":")[2]))
    head = "POST /v1/persist HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\n"
    with socket.create_connection(address, timeout=30) as connection:
        connection.sendall(f"{head}Content-Length: {MAX_BODY_BYTES + 1}\r\n\r\n{{".encode())
        assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")
    with socket.create_connection(address, timeout=60) as connection:
        connection.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
        with pytest.raises(OSError):  # noqa: PT011  # reset or broken pipe: it stopped reading
            connection.sendall(chunk * 300)


def test_a_client_that_leaves_in_the_middle_harms_nobody(url: str) -> None:
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=30) as connection:
        connection.sendall(
            b"POST /v1/persist HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\n"
            b"Content-Length: 99\r\n\r\n{"
        )

    assert ask(url, '{"args":["s"],"op":"persist/last-seq"}', **AUTHORIZED)[0] == 200


class Failing(MemoryBackend):
    """Its reads raise whatever they are told to."""

    error: Exception = RuntimeError("the inside of the host")

    def last_seq(self, stream: str) -> int:
        raise self.error


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UsageError("m", hint="h"), 400),
        (ReservedName("stream", "$s"), 400),
        (NotStorable("m"), 400),
        (NotFoundError("m"), 404),
        (SequenceError("s", seq=1, last_seq=3), 409),
        (HistoryGap("s", prior_seq=1, truncated_through=2), 409),
        (LineageMismatch("c", cursor="a", store="b"), 409),
        (StoreUnavailable("m"), 503),
        (EventCorrupt("s", 3, "torn"), 500),
        (CorruptionError("m"), 500),
        (UnsupportedFormat("m"), 500),
    ],
)
def test_errors_keep_their_class_and_facts(
    error: Exception, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Failing, "error", error)
    with hosted(one_store(Failing)) as url:
        assert ask(url, '{"args":["s"],"op":"persist/last-seq"}')[0] == status
        with closing(RemoteBackend(url, retries=0)) as b, pytest.raises(type(error)) as caught:
            b.last_seq("s")

    assert vars(caught.value) == vars(error)
    assert str(caught.value) == str(error)


def test_an_error_of_the_inside_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    with hosted(one_store(Failing)) as url:
        status, answer, _ = ask(url, '{"args":["s"],"op":"persist/last-seq"}')
        health, _, _ = ask(url, "", "GET", "/healthz")

    assert (status, health, answer["error"]) == (500, 500, "internal")
    assert "inside" not in json.dumps(answer)
    assert "the inside of the host" in caplog.text  # the log has it


def test_a_store_that_lost_its_footing_is_opened_anew() -> None:  # P-REC-10
    opened: list[Failing] = []

    def open_it() -> Failing:
        opened.append(Failing())
        opened[-1].error = OutcomeUnknown("the disk failed", once=None)
        return opened[-1]

    with hosted(one_store(open_it)) as url, closing(RemoteBackend(url, retries=0)) as b:
        for expected in (2, 3):
            with pytest.raises(StoreUnavailable):
                b.last_seq("s")
            b.kv_put("k", 1)
            assert len(opened) == expected


# Scratch stores


@pytest.fixture
def scratch_url(tmp_path: Path) -> Iterator[str]:
    with hosted(
        Stores(lambda name: open_store(tmp_path / f"{name}.db"), is_scratch=True, kept_open=2)
    ) as url:
        yield url


def test_each_scratch_name_has_a_store_of_its_own(scratch_url: str, tmp_path: Path) -> None:
    for round_ in (1, 2):
        for name in ("a", "b", "c", "d", "e"):  # more than are kept open
            with closing(RemoteBackend(scratch_url, scratch=name)) as b:
                assert append(b, "s", "t", 1, name).seq == round_
                assert {event.data for event in read(b, "s")} == {name}
    assert sorted(path.name for path in tmp_path.glob("*.db")) == ["a.db", "b.db", "c.db", "d.db", "e.db"]


@pytest.mark.parametrize("name", ["..", "a/b", "-a", "a.db", "x" * 41, "é", "%2e", "a\\b", "_x"])
def test_scratch_names_are_checked(scratch_url: str, tmp_path: Path, name: str) -> None:
    body = '{"args":["s"],"op":"persist/last-seq"}'

    status, answer, _ = ask(scratch_url, body, X_Strandline_Scratch=name)

    assert (status, answer["error"]) == (400, "usage")
    assert list(tmp_path.iterdir()) == []


def test_scratch_and_other_hosts_are_not_taken_for_each_other(scratch_url: str) -> None:
    with closing(RemoteBackend(scratch_url)) as b, pytest.raises(UsageError, match="scratch stores only"):
        append(b, "s", "t", 1, 1)
    refused = pytest.raises(UsageError, match="takes no")
    with hosted(one_store(mem_backend)) as url, closing(RemoteBackend(url, scratch="a")) as b, refused:
        append(b, "s", "t", 1, 1)


def test_many_scratch_stores_at_once_are_not_closed_under_their_users(scratch_url: str) -> None:
    def work(name: str) -> None:
        with closing(RemoteBackend(scratch_url, scratch=name)) as b:
            for n in range(1, 11):
                assert append(b, "s", "t", n, {}).seq == n

    threads = [threading.Thread(target=work, args=(f"n{n}",)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for n in range(12):
        with closing(RemoteBackend(scratch_url, scratch=f"n{n}")) as b:
            assert last_seq(b, "s") == 10


# Ending


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_soon_with_everything_answered(tmp_path: Path, number: int) -> None:  # P-DUR-15
    with HostProcess(tmp_path / "store.db") as host, closing(RemoteBackend(host.url, retries=0)) as b:
        append(b, "s", "t", 1, 1)
        waiting = threading.Thread(target=_ignoring(lambda: b.wait("s", 9, timeout_s=60)))
        waiting.start()
        time.sleep(0.3)  # until it waits at the host

        begun = time.monotonic()
        assert host.terminate(number) == 0
        assert time.monotonic() - begun < 20
        waiting.join(30)
        assert not waiting.is_alive()

        host.restart()
        assert last_seq(b, "s") == 1


def _ignoring(call: Callable[[], object]) -> Callable[[], None]:
    def run() -> None:
        with suppress(StoreUnavailable):
            call()

    return run


@pytest.mark.parametrize(
    ("host", "is_it"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True),
     ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("example.org", False), ("", False)],
)  # fmt: skip
def test_loopback(host: str, is_it: bool) -> None:
    assert is_loopback(host) is is_it
