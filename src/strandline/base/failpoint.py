"""Named places where a test may kill or stop this very process, to see what a crash or a pause there leaves.

`STRANDLINE_FAILPOINT=name` kills it with SIGKILL when it comes by `name`, `name:3` when it does so for the
third time; `stop:name` stops it with SIGSTOP, and whoever did that sends SIGCONT. Several, with commas
between them, count each for itself. Unset, as ever but in crash tests, a place costs one look into an empty
mapping.
"""

import os
import signal


def _read(text: str) -> dict[str, list[int]]:
    """By name: how often it will still be passed, and the signal that comes then."""
    points = {}
    for each in filter(None, text.split(",")):
        name, _, nth = each.removeprefix("stop:").partition(":")
        points[name] = [int(nth or 1), signal.SIGSTOP if each.startswith("stop:") else signal.SIGKILL]
    return points


_points = _read(os.environ.get("STRANDLINE_FAILPOINT", ""))


def reach(name: str) -> None:
    if name in _points:
        _come_by(_points[name])


def _come_by(point: list[int]) -> None:
    point[0] -= 1
    if point[0] == 0:
        os.kill(os.getpid(), point[1])
