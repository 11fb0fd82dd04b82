"""Where a node's daemon is found: `run/daemon.json` in its home, for its owner alone.

    {"version", "pid", "place", "url", "remote", "desk"}

`remote` is its Spark as a Connect server on this machine, with a token in it; `desk` the socket where it runs
queries (query_server.py). The file is no authority: which daemon runs is told by the lease `up`, and one that
was killed leaves the file, of which its `place` tells.
"""

import json
import os
from dataclasses import asdict, dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from strandline.base.process_identity import is_gone, place_of_this_process

_FILE: Final = Path("run") / "daemon.json"


@dataclass(frozen=True, slots=True)
class Presence:
    """A daemon that runs. `remote` is None where its Spark is not one that others can use."""

    version: str
    pid: int
    place: str
    url: str
    remote: str | None
    desk: str


def announce(home: Path, url: str, remote: str | None, desk: Path) -> Path:
    """Say that this process is the daemon; the file, which is to be removed at the end."""
    path = home / _FILE
    path.parent.mkdir(mode=0o700, exist_ok=True)
    presence = Presence(version("strandline"), os.getpid(), place_of_this_process(), url, remote, str(desk))
    made = path.with_suffix(".new")
    made.unlink(missing_ok=True)
    handle = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump(asdict(presence), file)
    made.replace(path)
    return path


def daemon_of(home: Path) -> Presence | None:
    """The daemon that runs in this home on this machine, None if there is none or nobody can tell."""
    presence = last_daemon_of(home)
    return presence if presence is not None and presence.place and not is_gone(presence.place) else None


def last_daemon_of(home: Path) -> Presence | None:
    """The one that runs, or that was killed."""
    try:
        found: Any = json.loads((home / _FILE).read_bytes())
        return Presence(**found)
    except (OSError, ValueError, TypeError):
        return None


def shared_spark(home: Path) -> str | None:
    """The Spark of a daemon that commands of this home may use; None where they start their own."""
    presence = _alike(home)
    return None if presence is None or find_spec("grpc") is None else presence.remote


def desk_of(home: Path) -> str | None:
    """Where a daemon runs the queries of commands of this home; None where there is none."""
    presence = _alike(home)
    return None if presence is None else presence.desk


def _alike(home: Path) -> Presence | None:
    """A daemon of this very version."""
    presence = daemon_of(home)
    return presence if presence is not None and presence.version == version("strandline") else None
