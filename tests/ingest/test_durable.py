"""What "durable" rests on: the order of writes, syncs and the commit (L-CTL-3, F-8), and where control state
is kept (L-CTL-1, L-SEQ-5)."""

import os
from pathlib import Path
from typing import Any

import pytest

from strandline.flush.flush import flush
from strandline.ingest.append import append
from strandline.ingest.load import load
from strandline.persist import open_store, read
from strandline.rows.dataset import Strand
from strandline.state.context import Site
from strandline.state.strand_entries import Reserved, entry_of
from strandline.storage import open_content
from tests.simulation import DATASET, World
from tests.sites import make_site


def test_an_append_syncs_its_segment_and_its_folder_before_the_store_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L-CTL-3, F-8: the file, then the folder that names it, then the commit."""
    did: list[str] = []
    b = open_store(str(tmp_path / "strandline.db"))
    site = make_site(b, open_content(tmp_path / "content"))
    append(site, "logs", [{"n": 1}], source="web-1")  # folders are there from now on

    sync, commit = os.fsync, b.commit

    def synced(fd: int) -> None:
        path = Path(f"/proc/self/fd/{fd}").readlink()
        did.append("sync folder" if path.is_dir() else "sync file")
        sync(fd)

    def committed(*args: Any, **options: Any) -> Any:
        did.append("commit")
        return commit(*args, **options)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(type(b), "commit", lambda _, *args, **options: committed(*args, **options))
    append(site, "logs", [{"n": 2}], source="web-1")

    assert did[0] == "sync file"
    assert did[: did.index("commit")][-1] == "sync folder"  # and those above it, where they are new
    b.close()


@pytest.fixture
def world() -> World:
    made = World(0)
    made.is_calm = True
    return made


@pytest.fixture
def site(world: World) -> Site:
    return world.site()


def test_a_reservation_names_its_load_its_number_its_id_and_its_fence(world: World, site: Site) -> None:
    """L-SEQ-5."""
    load(site, world.table, DATASET, [{"key": "a"}, {"key": "b"}], source="web-1", request_id="r")  # type: ignore[arg-type]
    entries = [entry_of(event) for event in read(site.b, Strand(DATASET, "web-1").ledger)]
    (reserved,) = [each for each in entries if isinstance(each, Reserved)]
    assert (reserved.lo, reserved.hi, reserved.number) == (0, 2, 1)
    assert reserved.load
    assert reserved.id.startswith(f"{DATASET}-1-")
    assert reserved.fence >= 1


def test_all_control_state_is_in_the_store(world: World, site: Site) -> None:
    """L-CTL-1: with the store and the content alone another process knows everything."""
    append(site, DATASET, [{"key": "a"}], source="web-1")
    flush(site, world.table, DATASET)
    append(site, DATASET, [{"key": "b"}], source="web-1")
    other = world.site().standing
    strand = Strand(DATASET, "web-1")
    assert other.strand_state(strand) == site.standing.strand_state(strand)
    assert other.numbers(DATASET) == site.standing.numbers(DATASET)
    assert {each.name.split("/")[0] for each in world.disk.scan()} == {"sha256"}  # segments, nothing else
