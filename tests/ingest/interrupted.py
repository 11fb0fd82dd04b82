"""A store in which something else happens between a look and the commit that rests on it."""

from collections.abc import Callable, Sequence
from typing import Any

from strandline.persist import AtomicBackend
from strandline.persist.backend import Write


class Interrupted:
    """Does `meanwhile` once, just before the first commit whose writes are meant."""

    def __init__(
        self,
        b: AtomicBackend,
        meanwhile: Callable[[], Any],
        *,
        before: Callable[[Sequence[Write]], bool] = lambda _: True,
    ) -> None:
        self._b, self._before = b, before
        self._meanwhile: Callable[[], Any] | None = meanwhile

    def __getattr__(self, name: str) -> Any:
        return getattr(self._b, name)

    def commit(self, *args: Any, **options: Any) -> Any:
        if self._meanwhile is not None and self._before(args[1]):
            meanwhile, self._meanwhile = self._meanwhile, None
            meanwhile()
        return self._b.commit(*args, **options)
