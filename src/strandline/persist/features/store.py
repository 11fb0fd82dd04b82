"""`Store(b)`: the same functions as methods, for those who like a dot. It adds nothing."""

import inspect
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Self

from strandline import persist
from strandline.persist.backend import Backend


class Store:
    """A backend with every function of `strandline.persist` that takes it first, as a method.

    `Store(b).append("cart-1", "opened", 1, {})` is `append(b, "cart-1", "opened", 1, {})`.
    """

    def __init__(self, b: Backend) -> None:
        self.backend = b

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(persist, name, None)
        if name not in persist.__all__ or not inspect.isfunction(function) or _first(function) != "b":
            raise AttributeError(
                f"Store has no {name!r}: strandline.persist has no function of that name over a backend"
            )
        return partial(function, self.backend)

    def __dir__(self) -> list[str]:
        return [
            *super().__dir__(),
            *(name for name in persist.__all__ if _first(getattr(persist, name)) == "b"),
        ]

    def close(self) -> None:
        if hasattr(self.backend, "close"):
            self.backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _first(function: Any) -> str | None:
    return next(iter(inspect.signature(function).parameters), None) if inspect.isfunction(function) else None
