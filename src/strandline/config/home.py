"""Homes: the folder of a node is the one that holds its `strandline.toml`."""

import os
from pathlib import Path
from secrets import token_hex
from typing import Final

from strandline.config.keys import DEFAULT_STORE, default_text
from strandline.errors import NotFoundError, UnavailableError, UsageError

FILE_NAME: Final = "strandline.toml"
HOME_VARIABLE: Final = "STRANDLINE_HOME"


class HomeNotFound(NotFoundError):
    """No node lives where one was looked for."""

    def __init__(self, found: str, home: Path) -> None:
        hint = f"`strandline init` makes a node; --home or {HOME_VARIABLE} names the folder of another"
        if (home / DEFAULT_STORE).is_file():
            hint = f"a node is there: `strandline init {home}` writes its {FILE_NAME}, and keeps all it has"
        super().__init__(found, hint=hint)
        self.home = str(home)


class HomeExists(UsageError):
    """A node lives here already."""


def find_home(explicit: str | None) -> Path:
    """The folder of the node: the one that is named, else that of the environment, else this one or the
    nearest above it that holds a strandline.toml."""
    if named := explicit or os.environ.get(HOME_VARIABLE):
        home = Path(named).absolute()
        if (home / FILE_NAME).is_file():
            return home
        by = "--home" if explicit else HOME_VARIABLE
        raise HomeNotFound(f"{by} names {home}, which holds no {FILE_NAME}", home)
    here = Path.cwd()
    for home in (here, *here.parents):
        if (home / FILE_NAME).is_file():
            return home
    raise HomeNotFound(f"neither {here} nor a folder above it holds a {FILE_NAME}", here)


def write_default(home: Path) -> Path:
    """A file that says every key and its default, and changes none. Create-only.

    A kill leaves at most a `.strandline.toml.<random>`, which nothing reads.
    """
    path, staged = home / FILE_NAME, home / f".{FILE_NAME}.{token_hex(8)}"
    try:
        home.mkdir(parents=True, exist_ok=True)
        with staged.open("x", encoding="utf-8") as file:
            file.write(default_text())
            file.flush()
            os.fsync(file.fileno())
        _publish(staged, path)
    except OSError as error:
        raise UnavailableError(f"cannot write {path}: {error}", hint="name a folder that is yours") from error
    return path


def _publish(staged: Path, path: Path) -> None:
    try:
        os.link(staged, path)
    except FileExistsError as error:
        raise HomeExists(f"{path} is there already", hint="edit it, or choose another folder") from error
    finally:
        staged.unlink()
