"""Builds the package as it is published, and uses it as who has just installed it would.

python tools/package_smoke.py [--without-spark]

    the wheel alone           the version, a store in SQLite by Python, a node; what a verb lacks is named
    the wheel with `lake`     a node, rows, a flush on real Spark, a query; then with `all` the query again
    the sdist                 makes the same wheel

What is installed comes from the package index that pip is configured for. It ends with 1 at the first thing
that is not as it should be.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
HOLDS = (
    "strandline/py.typed",
    "strandline/lake/spark/log4j2.properties",
    "strandline/persist/backends/schema/sqlite/0001_store.sql",
    "strandline/persist/backends/schema/postgres/0001_store.sql",
)
POINTS = ("[console_scripts]", "[strandline.sinks]", "[strandline.providers]", "[pytest11]")
STORE = """
from strandline.persist import append_once, open_store, read
b = open_store("events.db")
append_once(b, "cart-1", "key-1", "opened", 1, {"by": "ann"})
append_once(b, "cart-1", "key-1", "opened", 1, {"by": "ann"})
print([event.data for event in read(b, "cart-1")])
b.close()
"""
NEEDS_LAKE = ("append logs", "flush logs", "read logs", "sql x", "sync")
# Java 21 says aloud what Spark does inside; the code is what counts.
SETTINGS = '[spark.conf]\n"spark.driver.memory" = "512m"\n'


def main() -> int:
    shutil.rmtree(DIST, ignore_errors=True)
    wheel = build(ROOT, "--wheel", "--sdist")
    check_contents(wheel)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        check_sdist(wheel, scratch)
        check_bare(wheel, scratch)
        if "--without-spark" not in sys.argv:
            check_whole(wheel, scratch)
    print(f"{wheel.name} is as it should be")
    return 0


# What is built


def build(source: Path, *what: str) -> Path:
    run([sys.executable, "-m", "build", "--no-isolation", *what, "--outdir", DIST, source], ROOT)
    (wheel,) = DIST.glob("*.whl")
    return wheel


def check_contents(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        names = set(opened.namelist())
        (points,) = [name for name in names if name.endswith(".dist-info/entry_points.txt")]
        text = opened.read(points).decode()
    expect(set(HOLDS) <= names, f"the wheel lacks {sorted(set(HOLDS) - names)}")
    expect(all(each in text for each in POINTS), f"the wheel has these entry points alone:\n{text}")
    strays = [name for name in names if not name.startswith(("strandline/", "strandline-"))]
    expect(not strays, f"the wheel holds {strays}, which is not of the package")


def check_sdist(wheel: Path, scratch: Path) -> None:
    (sdist,) = DIST.glob("*.tar.gz")
    with tarfile.open(sdist) as opened:
        opened.extractall(scratch, filter="data")
    made = scratch / "again"
    source = scratch / sdist.name.removesuffix(".tar.gz")
    run([sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", made, source], scratch)
    (again,) = made.glob("*.whl")
    expect(_files(again) == _files(wheel), "the sdist makes another wheel")


def _files(wheel: Path) -> dict[str, int]:
    with zipfile.ZipFile(wheel) as opened:
        return {each.filename: each.CRC for each in opened.infolist()}


# What is installed


def check_bare(wheel: Path, scratch: Path) -> None:
    """Without an extra: the event store, and a node that says what it lacks."""
    bin_ = install(scratch / "bare", str(wheel))
    strandline = bin_ / "strandline"
    said = run([strandline, "--version"], scratch)
    expect(said.strip() == f"strandline {wheel.name.split('-')[1]}", f"--version says {said!r}")
    said = run([bin_ / "python", "-c", STORE], scratch)
    expect(said == "[{'by': 'ann'}]\n", f"the store says {said!r}")

    node = scratch / "node-bare"
    ended = ask([strandline, "init", node], scratch)
    wanted = 'pip install "strandline[lake]"'
    expect(ended.returncode == 0 and wanted in ended.stderr, f"init says {ended.stderr!r}")
    for verb in NEEDS_LAKE:
        ended = ask([strandline, *verb.split(), "--home", node], scratch)
        is_clear = "not_installed: this needs" in ended.stderr and f"hint: {wanted}" in ended.stderr
        expect(ended.returncode == 2 and is_clear, f"{verb!r} ends with {ended.returncode}: {ended.stderr!r}")
    run([strandline, "status", "--home", node], scratch)


def check_whole(wheel: Path, scratch: Path) -> None:
    """Rows into a table and out by SQL, on real Spark: with what the README says for it, then with all."""
    strandline = install(scratch / "whole", f"{wheel}[lake]") / "strandline"
    node, rows = scratch / "node", scratch / "rows.jsonl"
    rows.write_text('{"page": "/", "ms": 12}\n{"page": "/about", "ms": 31}\n')
    run([strandline, "init", node], scratch)
    with (node / "strandline.toml").open("a") as file:
        file.write(SETTINGS)
    run([strandline, "append", "visits", rows, "--source", "web-1", "--home", node], scratch)
    run([strandline, "flush", "visits", "--home", node], scratch)
    query = "SELECT page, ms FROM visits ORDER BY ms"
    for extra in ("lake", "all"):
        install(scratch / "whole", f"{wheel}[{extra}]")
        said = run([strandline, "sql", query, "--format", "csv", "--home", node], scratch)
        expect(said.split() == ["page,ms", "/,12", "/about,31"], f"with {extra} the query says {said!r}")


def install(folder: Path, what: str) -> Path:
    """An environment with `what` in it, and what was there before; the folder of its commands."""
    print(f"installing {Path(what).name} into an environment of its own", flush=True)
    venv.create(folder, with_pip=True)
    bin_ = folder / "bin"
    run([bin_ / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", what], folder)
    return bin_


def ask(command: list[str | Path], folder: Path) -> "subprocess.CompletedProcess[str]":
    """As a user outside the checkout would."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "STRANDLINE"))}
    return subprocess.run(
        [*map(str, command)],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def run(command: list[str | Path], folder: Path) -> str:
    ended = ask(command, folder)
    shown = " ".join(map(str, command))
    expect(ended.returncode == 0, f"{shown} ends with {ended.returncode}:\n{ended.stdout}{ended.stderr}")
    return ended.stdout


def expect(is_so: bool, text: str) -> None:
    if not is_so:
        sys.exit(f"tools/package_smoke.py: {text}")


if __name__ == "__main__":
    sys.exit(main())
