"""How much more do 64 threads store than one by hand, the longer the disk takes to sync?"""

import subprocess
import sys

from benchmarks.frame import Bench, Case, Contender, main
from benchmarks.how_do_threads_share import THREADS

QUESTION = "How much is a shared sync worth?"
ADDED_MS = (0, 0.25, 0.5, 1, 2, 5)
NOTE = (
    "The disk of this machine, whose every sync is made longer by so many ms of sleep, in a process of its"
    " own; it goes through Python for that, also where nothing is added. One thread waits for each sync, 64"
    " threads share one: the longer it takes, the more it is worth to share."
)


def ask(bench: Bench) -> None:
    folder = bench.folder / "shared-sync"
    folder.mkdir()
    command = [sys.executable, "-m", "benchmarks.slow_disk", str(folder), str(bench.scaled(20))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:

        def appends(who: str) -> Contender:
            def run() -> dict[str, float]:
                return {_sync(added_ms): asked(f"{who} {added_ms}\n") for added_ms in ADDED_MS}

            return run

        def asked(line: str) -> float:
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write(line)
            child.stdin.flush()
            said = child.stdout.readline()
            assert said, f"the other process has ended with {child.wait()}"
            return float(said)

        raw = "raw table, 1 thread"
        contenders = {f"ours full, {THREADS} threads": appends("ours"), raw: appends("raw")}
        bench.run(Case("SQLite: acknowledged single appends", "appends/s", contenders, [raw], note=NOTE))


def _sync(added_ms: float) -> str:
    return f"sync {added_ms:g} ms longer" if added_ms else "sync as it is"


if __name__ == "__main__":
    main({QUESTION: ask})
