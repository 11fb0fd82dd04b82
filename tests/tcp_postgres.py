"""A throw-away Postgres that Java can reach too."""

import socket
from collections.abc import Iterator

import psycopg
import pytest

from strandline.conformance.scratch_postgres import ScratchPostgres
from strandline.errors import StrandlineError
from tests.conftest import UNSYNCED, lacks


@pytest.fixture
def tcp_postgres() -> Iterator[str]:
    """The URL of a throw-away Postgres that listens on loopback and wants a password: Java's way in."""
    try:
        server = ScratchPostgres(settings=UNSYNCED)
    except StrandlineError as error:
        lacks(str(error))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    rules = server.folder / "hba"
    rules.write_text("local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n")
    rules.chmod(0o644)
    server.settings |= {"listen_addresses": "127.0.0.1", "port": str(port), "hba_file": str(rules)}
    with server:
        with psycopg.connect(f"{server.url}&port={port}") as connection:
            connection.execute("CREATE ROLE lake LOGIN PASSWORD 'p@ss'")
            connection.execute("GRANT ALL ON SCHEMA public TO lake")
            connection.execute("GRANT CREATE ON DATABASE postgres TO lake")
        yield f"postgresql://lake:p%40ss@127.0.0.1:{port}/postgres"
