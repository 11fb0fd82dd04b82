"""What the tests of the Postgres backend share: other processes, and what a store holds and answers."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from strandline.errors import StrandlineError
from strandline.persist.backend import AtomicBackend
from strandline.persist.backends.postgres import PostgresBackend

CHILD = Path(__file__).with_name("child.py")
Opened = Callable[..., PostgresBackend]
Sql = Callable[..., list[Any]]


def start(act: str, url: str, schema: str, *args: object) -> subprocess.Popen[str]:
    command = [sys.executable, str(CHILD), act, url, schema, *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def finish(children: list[subprocess.Popen[str]]) -> list[str]:
    said = [child.communicate(timeout=120)[0] for child in children]
    assert [child.returncode for child in children] == [0] * len(children)
    return said


def contents(store: Any) -> list[Any]:
    """Everything but the lineage, as other backends give it."""
    return [record for record in store.dump() if record.kind != "meta"]


def outcome_of(store: AtomicBackend, *commit: Any, **once: Any) -> Any:
    try:
        return store.commit(*commit, **once)
    except StrandlineError as error:
        return type(error)
