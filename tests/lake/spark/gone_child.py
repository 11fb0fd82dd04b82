"""A node whose Spark is killed under it; run as `python -m tests.lake.spark.gone_child <act> <home>` in the
root of the checkout, it tells what its verbs say."""

import json
import os
import select
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import strandline
from strandline.errors import StrandlineError, UnavailableError
from strandline.node.node import Node
from tests.processes import children_of


def tell(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def told(act: Callable[[], Any]) -> None:
    try:
        tell(result=act())
    except StrandlineError as error:
        tell(kind=error.kind, hint=error.hint, is_retryable=isinstance(error, UnavailableError))


def kill_java() -> None:
    """The Java that this process started, as the operating system's killer would."""
    below = children_of(os.getpid())
    javas = [pid for pid, name in below.items() if name == "java"]
    assert len(javas) == 1, below
    end = os.pidfd_open(javas[0])
    os.kill(javas[0], signal.SIGKILL)
    select.select([end], [], [])
    os.close(end)


def classic(home: Path) -> None:
    settings = 'version = 1\n[spark]\nmaster = "local[1]"\nconf = { "spark.driver.memory" = "1g" }\n'
    (home / "strandline.toml").write_text(settings)
    with strandline.open(home) as node:
        first = node.spark

        def dies(rows: Any) -> Any:
            kill_java()
            return rows

        node.settle("logs", dies)
        node.append("logs", [{"n": 1}], source="a")
        told(lambda: _flush(node, 2))  # dies in the middle of it
        node.settle("logs", None)
        told(lambda: node.flush("logs").rows)
        told(lambda: [row["n"] for row, _ in node.scan("logs", source="a").rows()])
        kill_java()
        told(lambda: node.sql("SELECT sum(n) FROM logs").collect()[0][0])
        told(lambda: node.spark is first)


def _flush(node: Node, n: int) -> int:
    node.append("logs", [{"n": n}], source="a")
    return node.flush("logs").rows


def connect(home: Path) -> None:
    """The server is killed, and started anew, by the test, at a line on stdin."""
    with strandline.open(home) as node:
        told(lambda: _flush(node, 1))
        sys.stdin.readline()
        told(lambda: _flush(node, 2))
        told(lambda: node.read("logs", refresh="never").count())
        sys.stdin.readline()
        told(lambda: node.flush("logs").rows)
        told(lambda: sorted(row["n"] for row in node.read("logs").collect()))


if __name__ == "__main__":
    {"classic": classic, "connect": connect}[sys.argv[1]](Path(sys.argv[2]))
