"""How fast each token may send."""

import math
import threading

from strandline.base.clock import Clock
from strandline.errors import UnavailableError


class RateExceeded(UnavailableError):
    """A token has sent more than its share; `wait_s` later it has not."""

    def __init__(self, bytes_per_s: int, wait_s: float) -> None:
        super().__init__(
            f"this token may send {bytes_per_s:,} bytes a second, and has sent more",
            hint="wait as long as Retry-After says; [server] rate_bytes_per_s raises the limit",
        )
        self.wait_s = math.ceil(wait_s)


class Rate:
    """A bucket for each token, that holds what one may send in a second and is filled at that rate. A body is
    let in while the bucket is not empty, and then paid for, so that one above the rate gets in too."""

    def __init__(self, bytes_per_s: int, clock: Clock) -> None:
        self._bytes_per_s, self._clock = bytes_per_s, clock
        self._left: dict[str, tuple[float, int]] = {}  # by token, and when that was
        self._lock = threading.Lock()

    def admit(self, token: str) -> None:
        """RateExceeded if the bucket is empty."""
        if not self._bytes_per_s:
            return
        with self._lock:
            left = self._now_left(token)
        if left <= 0:
            raise RateExceeded(self._bytes_per_s, (1 - left) / self._bytes_per_s)

    def spend(self, token: str, size: int) -> None:
        if not self._bytes_per_s:
            return
        with self._lock:
            self._left[token] = self._now_left(token) - size, self._clock.now_us()

    def _now_left(self, token: str) -> float:
        left, at = self._left.get(token, (float(self._bytes_per_s), 0))
        passed_s = max(self._clock.now_us() - at, 0) / 1e6
        return min(left + passed_s * self._bytes_per_s, float(self._bytes_per_s))
