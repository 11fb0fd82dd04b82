"""Named places where a test may kill this very process, to see what a crash there leaves.

`STRANDLINE_FAILPOINT=name` kills it with SIGKILL when it comes by `name`, `name:3` when it does so for the
third time. Unset, as ever but in crash tests, a place costs one comparison.
"""

import os
import signal

_name, _, _nth = os.environ.get("STRANDLINE_FAILPOINT", "").partition(":")
_left = int(_nth or 1)


def reach(name: str) -> None:
    if name == _name:
        _come_by()


def _come_by() -> None:
    global _left  # noqa: PLW0603  # the one count of a process that is about to die
    _left -= 1
    if _left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
