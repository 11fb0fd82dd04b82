"""A page of the docs as a reader uses it: its files are written, its Python and its commands run in order."""

import re
import shlex
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
# What a reader has and a test has not: an installer, the bucket of a cloud, a service manager.
NOT_HERE: Final = ("pip ", "aws ", "sudo ", "df ")
SERVES: Final = ("strandline up", "strandline server run")
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_START: Final = r"""
set -euo pipefail
SERVED=
serve() {
    "$@" > served.txt 2>&1 &
    SERVED=$!
    for _ in $(seq 1200); do
        if grep -q listening served.txt; then return; fi
        kill -0 $SERVED
        sleep 0.1
    done
    cat served.txt >&2
    return 1
}
trap 'if [ -n "$SERVED" ]; then kill $SERVED; wait $SERVED || true; fi' EXIT
"""


class Block(NamedTuple):
    """A fenced block: its language and its text."""

    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    return [Block(*found) for found in _BLOCK.findall(page.read_text(encoding="utf-8"))]


def commands(block: Block) -> Iterator[str]:
    """What is typed after each `$ `, without the comment behind it; a backslash at its end goes on."""
    if block.language == "console":
        for line in re.sub(r"\\\n", " ", block.text).splitlines():
            if line.startswith("$ "):
                yield re.sub(r"\s{2,}#.*$", "", line.removeprefix("$ "))


def python(page: Path) -> str:
    return "\n".join(block.text for block in blocks(page) if block.language == "python")


def script(page: Path, settings: str, *, left_out: tuple[str, ...] = NOT_HERE) -> str:
    """All blocks in order, for bash, without commands that are `left_out`. A block of TOML whose first line
    names a file is that file, and `settings` come at its end; Python blocks in a row are one program."""
    lines = [_START, f"PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH"]
    for language, group in groupby(blocks(page), key=lambda block: block.language):
        each = list(group)
        if language == "python":
            lines.append(_here("python - ", "\n".join(block.text for block in each)))
        for block in each:
            if language == "toml" and (named := re.match(r"# (\S+\.toml)\n", block.text)):
                lines.append(
                    _here(f"mkdir -p {Path(named[1]).parent}; cat > {named[1]}", block.text + settings)
                )
            lines += [_line(command) for command in commands(block) if not command.startswith(left_out)]
    return "\n".join(lines)


def _here(command: str, text: str) -> str:
    return f"{command} << 'END-OF-BLOCK'\n{text}\nEND-OF-BLOCK"


def _line(command: str) -> str:
    if command.startswith(SERVES):
        listen = "" if "--listen" in command or "server run" in command else " --listen 127.0.0.1:0"
        return f"serve {command}{listen}"
    return command
