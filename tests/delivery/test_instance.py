"""Which destination the name of a sink means: a folder of the node moves with it."""

from pathlib import Path

import pytest

from strandline.config.config import FILE_NAME, load_config
from strandline.delivery.instance import DestinationChanged, check_destination, record_instance
from strandline.delivery.owed import Terms
from strandline.sinks.sink import Sink
from strandline.state.context import Site
from strandline.state.sink_progress import event_of, instance_stream

TERMS = Terms("archive")


def sink_of(home: Path, folder: str) -> Sink:
    home.mkdir(exist_ok=True)
    sink = f'[sinks.archive]\ntype = "blob"\ndestination = "local"\ndir = "{folder}"\n'
    (home / FILE_NAME).write_text("version = 1\n" + sink)
    return load_config(home / FILE_NAME).sink("archive")


@pytest.mark.parametrize("folder", ["archive", "./out/archive", "out/../archive", "."])
def test_a_node_that_was_moved_delivers_to_the_same_folder(site: Site, tmp_path: Path, folder: str) -> None:
    """L-CTL-7: no id holds a path of the machine."""
    here = sink_of(tmp_path / "here", folder)
    record_instance(site, here, TERMS)

    there = sink_of(tmp_path / "there", folder)

    assert str(tmp_path) not in here.fingerprint
    check_destination(site, there, TERMS)
    with pytest.raises(DestinationChanged):
        check_destination(site, sink_of(tmp_path / "there", "other"), TERMS)


def test_a_folder_elsewhere_is_known_by_its_path(site: Site, tmp_path: Path) -> None:  # L-WM-5
    record_instance(site, sink_of(tmp_path / "here", str(tmp_path / "shared")), TERMS)

    check_destination(site, sink_of(tmp_path / "there", str(tmp_path / "shared")), TERMS)
    for folder in ("shared", "../here/shared"):
        with pytest.raises(DestinationChanged):
            check_destination(site, sink_of(tmp_path / "there", folder), TERMS)


def test_one_that_was_recorded_by_its_whole_path_is_known_by_it(site: Site, tmp_path: Path) -> None:
    """L-WM-5: as stores of before have it."""
    place = f"local:{tmp_path / 'here' / 'archive'}"
    site.b.commit([], [event_of(instance_stream("archive"), "opened", 1, fingerprint=place, start="all")])

    check_destination(site, sink_of(tmp_path / "here", "archive"), TERMS)
    with pytest.raises(DestinationChanged, match="is now configured for local:archive"):
        check_destination(site, sink_of(tmp_path / "there", "archive"), TERMS)
