"""Secrets by name: `env:NAME` is a variable of the environment, `file:PATH` a file that holds nothing
else."""

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from strandline.errors import UnavailableError

_REFERENCE: Final = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*|file:.+")


class SecretMissing(UnavailableError):
    """There is no secret where its reference points."""

    def __init__(self, reference: str, found: str) -> None:
        super().__init__(found, hint=f"put the secret where {reference} says")
        self.reference = reference


def is_reference(text: object) -> bool:
    return isinstance(text, str) and _REFERENCE.fullmatch(text) is not None


def look_up(reference: str, folder: Path) -> str:
    """What a reference stands for; a file's ends of line at its end are not part of it, and `folder` is where
    relative paths start. Raises SecretMissing."""
    kind, _, name = reference.partition(":")
    if kind == "env":
        secret, found = os.environ.get(name, ""), f"the environment has no {name}"
    else:
        try:
            secret, found = (folder / name).read_text("utf-8").rstrip("\r\n"), f"{folder / name} is empty"
        except (OSError, UnicodeError) as error:
            raise SecretMissing(reference, f"cannot read {folder / name}: {error}") from error
    if not secret:
        raise SecretMissing(reference, found)
    return secret


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret and where it came from, so that it can be read anew; printed, it shows that place alone."""

    reference: str
    folder: Path
    text: str = field(repr=False)

    @classmethod
    def read(cls, reference: str, folder: Path) -> "Secret":
        return cls(reference, folder, look_up(reference, folder))

    def renewed(self) -> "Secret":
        return Secret.read(self.reference, self.folder)
