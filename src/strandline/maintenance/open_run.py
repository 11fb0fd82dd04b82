"""The rule that retention, purge and compaction share: one of them at a time removes rows of a table."""

from typing import Any, Final

from strandline.errors import HeldError
from strandline.persist import AtomicBackend
from strandline.state.context import Site
from strandline.state.flush_plan import readable
from strandline.state.retention_events import retention_stream
from strandline.state.strand_entries import ControlUnreadable

BY: Final = "retention"


_ENDED_BY: Final = {
    BY: "`strandline retention run`",
    "purge": "`strandline retention run`, or the same purge again",
    "compaction": "`strandline maintain`",
}


class OtherRunOpen(HeldError):
    """Something else that takes rows out of the table was cut short, and must be finished first."""

    def __init__(self, dataset: str, by: str) -> None:
        super().__init__(
            f"a {by} of dataset {dataset!r} was cut short and is not finished",
            hint=f"{_ENDED_BY.get(by, f'run the same {by} again')}: it goes on where it was",
        )
        self.dataset, self.by = dataset, by


def check_no_rewrite(site: Site, dataset: str) -> None:
    """Under the lease, before rows are counted. A rewrite that was cut short may still land, without the
    repeats that it found, which would be counted here and there."""
    if site.known(dataset).dataset.collapse and site.standing.rewrites().of(dataset).begun:
        raise OtherRunOpen(dataset, "compaction")


def opened_by(b: AtomicBackend, dataset: str, event: int) -> tuple[str, Any]:
    """What began the run that is open, and the data of its event."""
    stream = retention_stream(dataset)
    found = b.event_at(stream, event)
    if found is None:
        raise ControlUnreadable(stream, event, "it is gone, and its run is open")
    with readable(stream, event):
        data: Any = found.data
        return str(data["by"]), data
