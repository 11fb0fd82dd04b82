"""How long to wait before the next try."""

import random
from typing import Final

PACES_S: Final = (30, 60, 120, 300)  # where a destination asks for a pause and does not say how long
LONGEST_S: Final = 300
_JITTER: Final = 0.2


def pace_s(attempts: int) -> float:
    """The pause before the try after so many: 30, 60, 120, 300, 300, … seconds."""
    return PACES_S[min(attempts, len(PACES_S)) - 1]


def retry_s(attempts: int, *, jitter: float | None = None) -> float:
    """1, 2, 4 … 300 seconds, and up to a fifth of it more, so that many do not come at once."""
    base = min(2.0 ** min(attempts - 1, 10), LONGEST_S)
    return base * (1 + _JITTER * (random.random() if jitter is None else jitter))
