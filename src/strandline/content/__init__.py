"""The content store: large bytes by digest, durable before a reference exists, swept when none is left."""

from strandline.content.store import ContentStore, open_content
from strandline.content.sweep import SweepReport, live_cids, sweep

__all__ = ["ContentStore", "SweepReport", "live_cids", "open_content", "sweep"]
