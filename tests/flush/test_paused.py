"""Why sweeps are paused is control state: what cannot be read stops them."""

from pathlib import Path
from typing import Any

import pytest

from strandline.flush.reconcile import SWEEP_PAUSED, paused
from strandline.persist import kv_put, mem_backend
from strandline.state.strand_entries import ControlUnreadable
from tests.sites import make_site


@pytest.mark.parametrize("value", [7, True, ["a reason"], {"reason": "a"}])
def test_a_reason_for_a_pause_that_cannot_be_read_is_not_taken_for_none(tmp_path: Path, value: Any) -> None:
    """L-CTL-4."""
    site = make_site(mem_backend(), tmp_path / "content")
    assert paused(site) is None
    kv_put(site.b, SWEEP_PAUSED, value)

    with pytest.raises(ControlUnreadable, match="is no reason"):
        paused(site)
