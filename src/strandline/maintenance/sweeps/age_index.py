"""Ages as places in the global order: how far it had come so long ago.

    keeping/marks    [[at, position], …]    who keeps house notes now and then how far the order is

So what is "recorded for a day" is told by one clock, that of the housekeeper, and by nothing that the writers
of events say. A mark is there before anything is that old: the first day of a store removes nothing.
"""

from collections.abc import Iterable
from itertools import pairwise
from typing import Any, Final, NamedTuple

from strandline.persist import ABSENT, ExpectKey, Put, global_pos
from strandline.state.context import Site
from strandline.state.strand_entries import ControlUnreadable

_KEY: Final = "keeping/marks"
_NEXT_US: Final = 60_000_000  # two marks are at least so far apart
_OLDEST_US: Final = 60 * 86_400_000_000  # nobody asks for an older one, if there is one that old
_SHARE: Final = 16  # the older a mark is, the farther from the next one it may be: by this share of its age


class AgeMark(NamedTuple):
    at: int
    position: int


def note(site: Site) -> None:
    """Note how far the order is now. Where another does so at the same time one of the two is enough."""
    kept = site.b.kv_get(_KEY)
    marks, now = _marks(kept), site.clock.now_us()
    if marks and 0 <= now - marks[-1].at < _NEXT_US:
        return
    grown = thinned([*marks, AgeMark(now, global_pos(site.b))], now)
    site.b.commit([ExpectKey(_KEY, ABSENT if kept is None else kept)], [Put(_KEY, [list(m) for m in grown])])


def reached(site: Site, age_s: float) -> int:
    """A position that the order had reached at least `age_s` ago; 0 where none is known to be that old."""
    if age_s <= 0:
        return global_pos(site.b)
    limit = site.clock.now_us() - int(age_s * 1_000_000)
    return max((each.position for each in _marks(site.b.kv_get(_KEY)) if each.at <= limit), default=0)


def thinned(marks: Iterable[AgeMark], now: int) -> list[AgeMark]:
    """Those that are needed to tell any age to within a share of it. One from the future is of a clock that
    was wrong."""
    kept: list[AgeMark] = []
    ordered = sorted((each for each in marks if each.at <= now), key=lambda each: each.position)
    for each, following in pairwise([*ordered, None]):
        assert each is not None
        is_near = kept and following and following.at - kept[-1].at < (now - kept[-1].at) // _SHARE
        is_past = following and following.at <= now - _OLDEST_US
        if not is_near and not is_past:
            kept.append(each)
    return kept


def _marks(kept: Any) -> list[AgeMark]:
    try:
        marks = [AgeMark(*each) for each in kept or ()]
    except TypeError as error:
        raise ControlUnreadable(_KEY, None, str(error)) from error
    if wrong := [each for each in marks if not all(type(value) is int for value in each)]:
        raise ControlUnreadable(_KEY, None, f"{wrong[0]!r:.80} is no mark")
    return marks
