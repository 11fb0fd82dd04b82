"""Processes that start in a moment: forked from one that has imported the cases and does nothing else.

Certification starts hundreds. What stands between us and them (the fork server of `multiprocessing`) has no
threads and no open store, so that a fork of it is as clean as a new interpreter.
"""

import multiprocessing
from multiprocessing.context import ForkServerContext
from typing import Final

# A driver that is not installed is passed over.
_IMPORTED: Final = [
    "strandline.conformance.suites",
    "strandline.conformance.shipped_fixtures",
    "strandline.persist.backends.postgres",
    "strandline.persist.backends.remote",
    "strandline.persist.backends.sqlite",
]


def nursery() -> ForkServerContext:
    """Its processes see the environment of the first one's start: hand them what may have changed."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTED)
    return context
