"""What tables are fed with: rows as a log has them, with a message of 200 characters."""

import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

LEVELS: Final = ("debug", "info", "info", "info", "warn", "error")
MESSAGE: Final = 200
_WORDS: Final = """
    request accepted from upstream after retry connection reset by peer while reading body cache miss for
    key user session expired order placed payment declined shard moved leader elected queue drained slow
    query timeout exceeded disk nearly full certificate renewed worker restarted index rebuilt batch done
"""
_BEGAN: Final = datetime(2026, 1, 1, tzinfo=UTC)


def _texts() -> list[str]:
    """What messages repeat, as those of real logs do."""
    chance = random.Random(7)
    return [" ".join(chance.choices(_WORDS.split(), k=40)) for _ in range(1_009)]


TEXTS: Final = _texts()
FRESH: Final = f"{random.Random(7).getrandbits(8_000_000):x}"  # what they do not: ids, addresses, amounts


def rows(count: int, first: int = 0) -> list[dict[str, Any]]:
    return [
        {
            "ts": (_BEGAN + timedelta(milliseconds=number)).isoformat(timespec="microseconds"),
            "level": LEVELS[number % len(LEVELS)],
            "message": f"{number:012} {_fresh(number)} {TEXTS[number % len(TEXTS)]}"[:MESSAGE],
            "n": number,
        }
        for number in range(first, first + count)
    ]


def _fresh(number: int) -> str:
    first = number * 7_919 % (len(FRESH) - 64)
    return FRESH[first : first + 48]


def arrow_rows(count: int, first: int = 0) -> pa.Table:
    return pa.Table.from_pylist(rows(count, first))


def write_jsonl(path: Path, count: int) -> None:
    with path.open("w", encoding="utf-8") as file:
        for first in range(0, count, 10_000):
            file.writelines(f"{json.dumps(row)}\n" for row in rows(min(10_000, count - first), first))
