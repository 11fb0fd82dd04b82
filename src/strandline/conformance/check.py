"""How a case says what it wanted and what it found. Plain asserts say nothing outside pytest."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from types import TracebackType
from typing import Any, Generic, TypeVar

Error = TypeVar("Error", bound=BaseException)

_LONGEST = 2_000


class CaseFailed(Exception):
    """A case found something else than it wanted; both are kept as text, so that it crosses processes."""

    def __init__(self, expected: str, actual: str, note: str = "") -> None:
        super().__init__(expected, actual, note)
        self.expected, self.actual, self.note = expected, actual, note

    def __str__(self) -> str:
        where = f" ({self.note})" if self.note else ""
        return f"expected {self.expected}, got {self.actual}{where}"


def equal(actual: object, expected: object, note: str = "") -> None:
    """Structurally the same: lists, tuples and iterators are one, but `1`, `1.0` and `True` are three."""
    actual, expected = _as_lists(actual), _as_lists(expected)
    if _shape(actual) != _shape(expected):
        raise CaseFailed(shown(expected), shown(actual), note)


def different(actual: object, other: object, note: str = "") -> None:
    actual, other = _as_lists(actual), _as_lists(other)
    if _shape(actual) == _shape(other):
        raise CaseFailed(f"anything but {shown(other)}", shown(actual), note)


def truthy(actual: object, wanted: str) -> None:
    """`wanted` says in words what should hold."""
    if not actual:
        raise CaseFailed(wanted, shown(actual))


def at_most(actual: float, bound: float, note: str = "") -> None:
    if actual > bound:
        raise CaseFailed(f"at most {bound}", str(actual), note)


class CaughtError(Generic[Error]):
    """What `raises` caught, once its block is over."""

    error: Error


class raises(Generic[Error]):  # noqa: N801  # reads as a verb: `with raises(HistoryGap) as caught:`
    """The block must raise one of `kinds`; `caught.error` is it."""

    def __init__(self, *kinds: type[Error]) -> None:
        self._kinds = kinds
        self._caught: CaughtError[Error] = CaughtError()

    def __enter__(self) -> CaughtError[Error]:
        return self._caught

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        wanted = " or ".join(kind.__name__ for kind in self._kinds)
        if error is None:
            raise CaseFailed(wanted, "no error")
        if isinstance(error, CaseFailed | KeyboardInterrupt | SystemExit):
            return False
        if not isinstance(error, self._kinds):
            raise CaseFailed(wanted, shown(error)) from error
        self._caught.error = error
        return True


def call(function: Callable[..., object], *args: Any, **kwargs: Any) -> Callable[[], object]:
    """A call for later, for tables of calls that must all be refused."""
    return lambda: function(*args, **kwargs)


def each_raises(kind: type[BaseException], calls: Mapping[str, Callable[[], object]]) -> None:
    """Every call must raise; the first that does not is named."""
    for name, each in calls.items():
        try:
            result = each()
        except kind:
            continue
        except Exception as error:
            raise CaseFailed(kind.__name__, shown(error), name) from error
        raise CaseFailed(kind.__name__, f"no error but {shown(result)}", name)


def shown(value: object) -> str:
    """A value as a person reads it, cut where it grows too long."""
    if isinstance(value, BaseException):
        value = f"{type(value).__name__}: {value}"
    text = value if isinstance(value, str) and not value.startswith("'") else repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text):,} characters)"


def _as_lists(value: object) -> object:
    """Tuples and iterators as lists, at any depth; iterators are read, so this happens once."""
    if isinstance(value, list | tuple | Iterator):
        return [_as_lists(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _as_lists(item) for key, item in value.items()}
    return value


def _shape(value: object) -> object:
    """What two equal values have in common, types included."""
    if isinstance(value, list | tuple | Iterator):
        return ["list", *map(_shape, value)]
    if isinstance(value, Mapping):
        return {"mapping": {(type(key).__name__, key): _shape(item) for key, item in value.items()}}
    if isinstance(value, Enum):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        compared = [field.name for field in fields(value) if field.compare]
        return [type(value).__name__, *(_shape(getattr(value, name)) for name in compared)]
    return type(value).__name__, repr(value) if isinstance(value, float) else value
