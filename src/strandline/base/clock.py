"""Time, passed in wherever it is needed, so that a test can hold it still."""

import time
from typing import Protocol


class Clock(Protocol):
    def now_us(self) -> int:
        """UTC, in microseconds since 1970."""

    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's own."""

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
