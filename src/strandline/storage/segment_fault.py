"""Whether a segment is valid, for all who ask."""

from strandline.persist import BlobRef
from strandline.storage.content import ContentStore
from strandline.storage.segment import SegmentUnreadable
from strandline.storage.segment_reader import open_segment


def segment_fault(content: ContentStore, ref: BlobRef, rows: int) -> str | None:
    """Why a segment is not valid, None if it is. Nothing but this, and what it calls, decides it.

    `rows` is how many rows the ledgers name in it. A segment that is not there is a fault, MISSING. Storage
    that does not answer is no verdict: UnavailableError.
    """
    try:
        with open_segment(content, ref) as opened:
            return opened.fault(rows)
    except SegmentUnreadable as error:
        return error.reason
