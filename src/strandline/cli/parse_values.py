"""Values that come in as text: JSON, read as the store writes it."""

import json
import sys
import time
from typing import Any, Final, NoReturn

from strandline.errors import UsageError
from strandline.persist.event import Scalar, Storable
from strandline.persist.value import MAX_COMMIT_BYTES, MAX_SEQ, check_at, decode

_LONGEST: Final = 2 * MAX_COMMIT_BYTES  # escapes may make text longer than what is stored


def now_us() -> int:
    """UTC microseconds since 1970, with which the command line stamps what has no `at`."""
    return time.time_ns() // 1000


def parse_value(text: str, what: str = "the data") -> Storable:
    """JSON in which {"$int": …} and its like mean what the store means; integers may have any size."""
    tree = _parse(text, what)
    try:
        return decode(json.dumps(_with_big_ints(tree), ensure_ascii=False, allow_nan=False).encode())
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{what} cannot be stored: {error}", hint="see the encoding of values") from error


def parse_at(text: str, what: str) -> Scalar:
    value = _parse(text, what)
    try:
        return check_at(value)
    except UsageError as error:
        raise UsageError(f"{what} is {text!r:.80}: {error.message}", hint=error.hint) from error


def read_stdin() -> str:
    text = sys.stdin.buffer.read(_LONGEST + 1)
    if len(text) > _LONGEST:
        raise UsageError(f"stdin has over {_LONGEST:,} bytes", hint="split it into several")
    return text.decode()


def _parse(text: str, what: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{what} is no JSON: {error}",
            hint="""quote text twice, such as '"text"', and objects once: '{"n": 1}'""",
        ) from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _with_big_ints(tree: Any) -> Any:
    """The quick decoder makes floats of integers over 64 bits: they go through it as hexadecimal."""
    if isinstance(tree, dict):
        return {key: _with_big_ints(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_with_big_ints(value) for value in tree]
    if isinstance(tree, int) and not -MAX_SEQ - 1 <= tree <= MAX_SEQ:
        return {"$int": format(tree, "x")}
    return tree
