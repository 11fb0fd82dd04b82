"""`strandline server run` as a process: killed at each step, ended in the middle of a unit, behind TLS."""

import http.client
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Self

import pytest
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from strandline import server
from strandline.cli import cli
from strandline.config.config import load_config
from strandline.rows.unit import INGEST, MIME, unit_headers
from strandline.state.context import open_site
from tests.server.hosts import wait_for_line
from tests.server.receivers import ndjson, unit_of
from tests.sites import spooled_rows

APPEND_STEP = "append.answer"
RECEIVE_STEPS = ("receive.judged", "receive.commit", "receive.committed", "receive.answer")
INNER_STEPS = (
    "append.judged",
    "append.segment",
    "append.segment_stored",
    "append.commit",
    "append.committed",
    "commit.prepared",
    "commit.before",
    "commit.after",
    "commit.acknowledged",
)


def strandline(home: Path, *words: str) -> str:
    done = CliRunner().invoke(cli, [*words, "--home", str(home)])
    assert done.exit_code == 0, done.stderr
    return done.stdout


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "strandline.toml").write_text("version = 1\n[datasets.logs]\n")
    return tmp_path


class ReceiverProcess:
    def __init__(self, home: Path, *, failpoint: str = "") -> None:
        command = [sys.executable, "-m", "strandline", "server", "run", "--listen", "127.0.0.1:0"]
        self.process = subprocess.Popen(
            [*command, "--home", str(home)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "STRANDLINE_FAILPOINT": failpoint},
        )
        line = wait_for_line(self.process)
        assert line.startswith("listening on "), f"{line}{self.process.communicate()}"
        self.url = line.removeprefix("listening on ").strip()

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.url.partition("://")[2].rpartition(":")
        return host, int(port)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def end(self) -> tuple[int, str]:
        self.process.send_signal(signal.SIGTERM)
        _, told = self.process.communicate(timeout=60)
        return self.process.returncode, told


def request_of(token: str, lo: int, rows: list[Any]) -> tuple[bytes, dict[str, str]]:
    body = ndjson(rows)
    unit = unit_of(body, lo, lo + len(rows), len(rows))
    return body, {**unit_headers(unit), "Authorization": f"Bearer {token}", "Content-Type": MIME}


def send(
    address: tuple[str, int], token: str, lo: int, rows: list[Any], **tls: Any
) -> tuple[int, Any] | None:
    """The answer; None where the other side died."""
    body, headers = request_of(token, lo, rows)
    kind = http.client.HTTPSConnection if tls else http.client.HTTPConnection
    connection = kind(*address, timeout=60, **tls)
    try:
        connection.request("POST", f"{INGEST}/logs", body, headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    except (OSError, http.client.HTTPException) as error:
        if isinstance(error, ssl.SSLError):
            raise
        return None
    finally:
        connection.close()


def check_killed_at(home: Path, steps: tuple[str, ...]) -> None:
    token = strandline(home, "server", "token", "new", "test").strip()
    units = {10 * n: [{"n": 10 * n + i} for i in range(3)] for n in range(len(steps))}
    for step, (lo, rows) in zip(steps, units.items(), strict=True):
        with ReceiverProcess(home, failpoint=step) as receiver:
            assert send(receiver.address, token, lo, rows) is None, f"nobody comes by {step}"
            assert receiver.process.wait(60) == -signal.SIGKILL

    with ReceiverProcess(home) as receiver:
        answers = [send(receiver.address, token, lo, rows) for lo, rows in units.items()]
        again = [send(receiver.address, token, lo, rows) for lo, rows in units.items()]
        code, told = receiver.end()

    assert (code, told) == (0, "")
    assert all(answer and answer[0] in (200, 202) for answer in answers)
    assert again == [(200, {"stored": 0, "duplicate": True})] * len(units)
    site = open_site(load_config(home / "strandline.toml"))
    try:
        found = Counter(row["n"] for _, row in spooled_rows(site, "logs", "laptop/web-1"))
    finally:
        site.b.close()
    assert found == Counter(row["n"] for rows in units.values() for row in rows)


def test_a_receiver_killed_at_any_of_its_steps_stores_each_row_once(home: Path) -> None:  # L-SRV-2, L-ACC-3
    check_killed_at(home, RECEIVE_STEPS)


@pytest.mark.slow
def test_a_receiver_killed_inside_its_append_stores_each_row_once(home: Path) -> None:  # L-SRV-2, L-ACC-3
    check_killed_at(home, INNER_STEPS)


def test_an_append_whose_answer_is_lost_with_the_process_is_stored_once(home: Path) -> None:
    """L-SPOOL-3, L-SPOOL-5, L-ACC-3: the producer sends it again under its key."""
    token = strandline(home, "server", "token", "new", "test").strip()
    headers = {
        "Authorization": f"Bearer {token}",
        "Content-Type": "application/json",
        "Idempotency-Key": "1",
    }

    def post(address: tuple[str, int]) -> tuple[int, bool] | None:
        connection = http.client.HTTPConnection(*address, timeout=60)
        try:
            connection.request("POST", "/v1/append/logs?source=api-1", b'[{"n":1}]', headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())["is_repeat"]
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    with ReceiverProcess(home, failpoint=APPEND_STEP) as receiver:
        assert post(receiver.address) is None
        assert receiver.process.wait(60) == -signal.SIGKILL
    with ReceiverProcess(home) as receiver:
        assert post(receiver.address) == (200, True)
        assert receiver.end() == (0, "")
    site = open_site(load_config(home / "strandline.toml"))
    try:
        assert [row for _, row in spooled_rows(site, "logs", "api-1")] == [{"n": 1}]
    finally:
        site.b.close()


def test_every_step_of_the_receiver_is_killed_at_here() -> None:  # L-ACC-3
    rooms = Path(server.__path__[0]).rglob("*.py")
    named = re.findall(r'\breach\("([^"]+)"\)', "\n".join(room.read_text() for room in rooms))

    assert sorted(named) == sorted([*RECEIVE_STEPS, APPEND_STEP])


def test_a_receiver_that_is_told_to_end_answers_what_is_under_way(home: Path) -> None:
    token = strandline(home, "server", "token", "new", "test").strip()
    body, headers = request_of(token, 0, [{"n": 1}])
    lines = [f"POST {INGEST}/logs HTTP/1.1", "Host: x", *(f"{name}: {headers[name]}" for name in headers)]
    head = "\r\n".join([*lines, f"Content-Length: {len(body)}"]).encode() + b"\r\n\r\n"
    with (
        ReceiverProcess(home) as receiver,
        socket.create_connection(receiver.address, timeout=30) as connection,
    ):
        connection.sendall(head + body[:3])
        other = socket.create_connection(receiver.address, timeout=30)
        other.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert other.recv(100).startswith(b"HTTP/1.1 200")  # so the head before it was read, too
        other.close()

        receiver.process.send_signal(signal.SIGTERM)
        with suppress(ConnectionError):
            connection.sendall(body[3:])
        answer = connection.recv(65536)

        _, told = receiver.process.communicate(timeout=60)
    assert answer.startswith(b"HTTP/1.1 202 ")
    assert (receiver.process.returncode, told) == (0, "")


def certificate(folder: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "receiver")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "key.pem").write_bytes(text)


def test_a_receiver_with_a_certificate_speaks_tls_alone(home: Path) -> None:
    certificate(home)
    with (home / "strandline.toml").open("a") as file:
        file.write('[server]\ntls_certificate = "cert.pem"\ntls_key_file = "key.pem"\n')
    token = strandline(home, "server", "token", "new", "test").strip()

    with ReceiverProcess(home) as receiver:
        trusted = ssl.create_default_context(cafile=str(home / "cert.pem"))
        assert receiver.url.startswith("https://")
        assert send(receiver.address, token, 0, [{"n": 1}], context=trusted) == (
            202,
            {"stored": 1, "duplicate": False},
        )
        with pytest.raises(ssl.SSLError):
            send(receiver.address, token, 1, [{"n": 2}], context=ssl.create_default_context())
        assert send(receiver.address, token, 1, [{"n": 2}]) is None


@pytest.mark.parametrize(
    ("toml", "words", "told"),
    [
        ('tls_certificate = "no.pem"\ntls_key_file = "no.pem"', (), "certificate"),
        ("", ("--listen", "nonsense"), "no address"),
        ("", ("--listen", "127.0.0.1:99999"), "no address"),
        ('tokens = ["env:NO_SUCH_TOKEN_HERE"]', (), "NO_SUCH_TOKEN_HERE"),
    ],
)
def test_what_is_wrong_with_a_receiver_is_told_before_it_listens(
    home: Path, toml: str, words: tuple[str, ...], told: str
) -> None:  # L-CLI-2
    with (home / "strandline.toml").open("a") as file:
        file.write(f"[server]\nlisten = '127.0.0.1:0'\n{toml}\n")
    command = [sys.executable, "-m", "strandline", "server", "run", "--home", str(home), *words]

    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)

    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert "hint: " in done.stderr


def test_tokens_are_made_listed_and_revoked_by_command(home: Path) -> None:  # L-CLI-1, L-CLI-3
    plain = strandline(home, "server", "token", "new", "laptop").strip()
    scoped = json.loads(
        strandline(
            home, "server", "token", "new", "site", "--dataset", "logs", "--origin", "a" * 32, "--json"
        )
    )

    listed = [json.loads(line) for line in strandline(home, "server", "token", "list", "--json").splitlines()]
    assert {each["name"]: each["datasets"] for each in listed} == {"laptop": None, "site": ["logs"]}
    assert scoped["origins"] == ["a" * 32]
    assert plain not in strandline(home, "server", "token")
    first = plain.split("_")[1]
    assert "would be" in strandline(home, "server", "token", "revoke", first, "--dry-run")
    assert "is revoked" in strandline(home, "server", "token", "revoke", first, "--yes")
    listed = [json.loads(line) for line in strandline(home, "server", "token", "list", "--json").splitlines()]
    assert {each["name"] for each in listed if each["revoked_at"] is not None} == {"laptop"}
