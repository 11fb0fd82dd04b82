"""Tidying a store: its segments, blobs that nothing names, markers and fences, and history that is closed.

One process does it at a time. Each part goes on where it was left, and one that fails stops no other.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from strandline.errors import StrandlineError
from strandline.maintenance.sweeps.age_index import note
from strandline.maintenance.sweeps.archive_history import AGE_S, Folded, fold
from strandline.maintenance.sweeps.expired_keys import Forgotten, sweep_markers
from strandline.maintenance.sweeps.landed_segments import SCOPE, Swept, sweep_segments
from strandline.maintenance.sweeps.orphan_blobs import Strayed, sweep_strays
from strandline.state.context import Site
from strandline.state.lease import LeaseHeld, LeaseLost, held

T = TypeVar("T")


@dataclass(slots=True)
class Tidied:
    """What went; `is_held` where another tidies right now, and then nothing was done."""

    segments: Swept = field(default_factory=Swept)
    strays: Strayed = field(default_factory=Strayed)
    markers: Forgotten = field(default_factory=Forgotten)
    folded: Folded = field(default_factory=Folded)
    is_held: bool = False
    errors: list[StrandlineError] = field(default_factory=list)

    def tried(self, part: Callable[[], T], otherwise: T) -> T:
        """What a part has done; what went wrong with it is told at the end."""
        try:
            return part()
        except LeaseLost:
            raise
        except StrandlineError as error:
            self.errors.append(error)
            return otherwise


def tidy(site: Site, *, grace_s: float, fold_age_s: float = AGE_S) -> Tidied:
    """Do all of it once. LeaseLost if another has taken over, who goes on with it."""
    done = Tidied()
    try:
        with held(site.b, site.clock, SCOPE) as lease:
            done.tried(lambda: note(site), None)
            done.segments = done.tried(lambda: sweep_segments(site, lease, grace_s=grace_s), done.segments)
            done.strays = done.tried(lambda: sweep_strays(site, lease, grace_s=grace_s), done.strays)
            done.markers = done.tried(lambda: sweep_markers(site, lease), done.markers)
            done.folded = done.tried(lambda: fold(site, lease, age_s=fold_age_s), done.folded)
    except LeaseHeld:
        done.is_held = True
    return done
