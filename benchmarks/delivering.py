"""What questions of delivery share: a node with sinks, rows in it, a receiver beside it, bodies made ready.

The receiver is a process of its own, over a store of its own on the disk that is measured. Senders other than
ours only send: what they post was made before the clock runs.
"""

import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from http.client import HTTPConnection
from pathlib import Path
from secrets import token_hex
from typing import Final

import strandline
from benchmarks.bare_tables import SOURCE
from benchmarks.frame import NODE_SETTINGS
from benchmarks.log_rows import arrow_rows
from strandline.base.ranges import Range
from strandline.config.config import FILE_NAME
from strandline.node.node import Node
from strandline.rows.dataset import Dataset
from strandline.rows.unit import INGEST, MIME, UnitHead, unit_headers
from strandline.server.bearer_tokens import new_token
from strandline.sinks.forward.answers import ACKS
from strandline.sinks.ndjson import ndjson_lines

BATCH: Final = 10_000
_RECEIVER_SETTINGS: Final = """\
version = 1

[node]
strict_datasets = false
"""


@contextmanager
def with_sinks(node: Node, sinks: str) -> Iterator[Node]:
    """The node of the run, opened once more with these tables of sinks; its Spark is the same."""
    home = node.config.home
    (home / FILE_NAME).write_text(NODE_SETTINGS + sinks, encoding="utf-8")
    with strandline.open(home) as opened:
        yield opened


def land(node: Node, dataset: str, rows: int) -> None:
    """Rows of one source into the table, numbered from 0."""
    for first in range(0, rows, BATCH):
        node.append(dataset, arrow_rows(min(BATCH, rows - first), first), source=SOURCE)
    node.flush(dataset)


def rewound(node: Node, sink: str) -> None:
    """Have a sink owe everything once more, in a new epoch, as if nothing had been delivered yet."""
    node.deliveries.rewind(sink, reason="measured again", resend=True)


def delivered(node: Node, sink: str, rows: int) -> None:
    """One run of a sink, which delivers that many rows."""
    result = node.deliveries.sync(sink)
    assert (result.status, result.rows) == ("exported", rows), result


@dataclass(frozen=True, slots=True)
class Receiver:
    """Where one listens, what lets senders in, and the file that has it."""

    url: str
    token: str
    token_file: Path


@contextmanager
def receiving(home: Path) -> Iterator[Receiver]:
    """A receiver that lives as long as the block."""
    home.mkdir()
    (home / FILE_NAME).write_text(_RECEIVER_SETTINGS, encoding="utf-8")
    with strandline.open(home) as node:
        _, token = new_token(node.site.b, "benchmarks", at=node.site.clock.now_us())
    token_file = home / "token"
    token_file.write_text(token, encoding="utf-8")
    token_file.chmod(0o600)
    command = [sys.executable, "-m", "strandline", "server", "run", "--home", str(home)]
    with subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield Receiver(process.stdout.readline().split()[-1], token, token_file)
        finally:
            process.send_signal(signal.SIGTERM)


Request = tuple[Mapping[str, str], bytes]


def made_ready(dataset: Dataset, rows: int, size: int) -> list[tuple[UnitHead, bytes]]:
    """The rows of `land` as the bodies that our sink sends, `size` rows each."""
    types = {column.name: column.type for column in dataset.columns}
    made: list[tuple[UnitHead, bytes]] = []
    for lo in range(0, rows, size):
        (batch,) = arrow_rows(size, lo).combine_chunks().to_batches()
        body = ndjson_lines(dataset, batch, with_source=False, with_row_id=False)
        digest, origin = sha256(body).hexdigest(), "0" * 32
        unit = UnitHead(
            origin, 0, dataset.name, SOURCE, Range(lo, lo + size), size, digest, "bare", "bare", types
        )
        made.append((unit, body))
    return made


def addressed(units: list[tuple[UnitHead, bytes]], to: Receiver, *, source: str = SOURCE) -> list[Request]:
    """Headers and bodies as of a node that the receiver has not met, so that it stores all of them."""
    origin = token_hex(16)
    own = {"Authorization": f"Bearer {to.token}", "Content-Type": MIME}
    return [
        ({**own, **unit_headers(replace(unit, origin=origin, source=source))}, body) for unit, body in units
    ]


class Line:
    """One connection to a receiver, which is kept."""

    def __init__(self, to: Receiver) -> None:
        self._connection = HTTPConnection(to.url.removeprefix("http://"), timeout=60)
        self._connection.connect()

    def post_all(self, dataset: str, requests: Iterable[Request]) -> None:
        for each in requests:
            self.post(dataset, each)

    def post(self, dataset: str, request: Request) -> None:
        headers, body = request
        self._connection.request("POST", f"{INGEST}/{dataset}", body, dict(headers))
        answer = self._connection.getresponse()
        said = answer.read()
        assert answer.status in ACKS, (answer.status, said)

    def close(self) -> None:
        self._connection.close()
