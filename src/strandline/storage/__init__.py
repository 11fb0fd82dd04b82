"""The content store: large bytes by digest, durable before a reference exists, swept when none is left."""

from strandline.storage.blob_sweep import SweepReport, live_cids, sweep
from strandline.storage.content import ContentStore, open_content

__all__ = ["ContentStore", "SweepReport", "live_cids", "open_content", "sweep"]
