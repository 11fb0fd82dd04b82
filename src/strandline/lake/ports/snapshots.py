"""A snapshot of a table, as the rooms above the lake see it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KnownSnapshot:
    """A snapshot as expiry sees it. `wap` is the id that it was staged or published under; `is_current`
    whether it is part of the table, now or as an ancestor; `is_named` whether it is that of another branch or
    of a tag, or hangs on one alone."""

    id: int
    at: int  # microseconds
    wap: str | None
    is_current: bool
    is_named: bool = False
