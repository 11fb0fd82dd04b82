"""What is stored and what leaves the process stays as it was (golden files), and a home that earlier code has
made still opens.

`STRANDLINE_GOLDEN=write` writes the files anew: only for a change of the format that the changelog names. The
archive of the home stays, because it is there to show that what an earlier version wrote still opens.
"""

import json
import os
import tarfile
from pathlib import Path
from typing import Any, Final

import pytest

from strandline.config.config import FILE_NAME, load_config
from strandline.lake.spark.conf import catalog_conf
from strandline.node.node import Node
from tests.golden.mask import Mask, differences
from tests.golden.story import Clock, Story, hold_still, tell
from tests.spark_sessions import ConnectServer, lake_session

FILES: Final = Path(__file__).parent / "files"
HOME: Final = FILES / "home.tar.gz"
IS_WRITING: Final = os.environ.get("STRANDLINE_GOLDEN") == "write"
# Every event that the code writes into the control streams.
EVENTS: Final = {
    "backfill": "began ended scheduled",
    "dataset": "declared",
    "flush": "amended committed landed loading planned raised released",
    "maintain": "abandoned begun compacted left staged swept",
    "policy": "set",
    "quarantine": "dropped quarantined retried",
    "retention": "intended pruned",
    "sink": "bound delivered evicted failed forgotten held intended lettered moved opened passed resumed "
    "settled started",
    "strand": "flushed held landed lost raised released removed reserved spooled",
    "sweep": "confirmed",
}
# Every kind of key that the code keeps, but for `chore`, which only a daemon writes.
KEYS: Final = {
    *("$snapshot", "archived", "backfilled", "fence", "floor", "imported", "keeping", "lease", "loaded"),
    *(
        "origin",
        "received",
        "request",
        "retention",
        "scratch",
        "segment",
        "sweep",
        "table",
        "token",
        "walked",
    ),
}


def check(name: str, made: Any) -> None:
    """`made` is what the golden file holds."""
    path = FILES / name
    text = made if isinstance(made, str) else json.dumps(made, indent=1, ensure_ascii=False) + "\n"
    if IS_WRITING:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")
    golden = path.read_text("utf-8")
    if not isinstance(made, str):
        golden, made = json.loads(golden), json.loads(text)
    assert not (found := differences(golden, made)), "\n".join([f"{name} has changed:", *found[:50]])


def test_what_is_stored_and_sent_stays_as_it_was(
    tmp_path: Path, connect_server: ConnectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tell(tmp_path, connect_server, monkeypatch, HOME if IS_WRITING and not HOME.exists() else None)

    stores = [made[name] for name in ("events.json", "kept.json", "restored.json", "receiver.json")]
    events: dict[str, set[str]] = {}
    for store in stores:
        for stream, held in store["streams"].items():
            events.setdefault(stream.partition("/")[0], set()).update(event["type"] for event in held)
    assert {kind: " ".join(sorted(types)) for kind, types in sorted(events.items())} == EVENTS
    keys = [*(key for store in stores for key in store["keys"]), *made["archived.json"]]
    keys += [key for crash in made["crashed.json"].values() for key in crash]
    assert {key.partition("/")[0] for key in keys} >= KEYS
    for name, content in made.items():
        check(name, content)


def test_a_home_that_earlier_code_has_made_opens(
    tmp_path: Path, connect_server: ConnectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tarfile.open(HOME) as archive:
        archive.extractall(tmp_path, filter="data")
    home, clock = tmp_path / "node", Clock()
    clock.us += 120_000_000
    hold_still(clock, monkeypatch)
    story = Story(home, Mask({"home": home, "tmp": tmp_path}), clock)
    story.run("maintain", "--relocate")
    conf = catalog_conf(load_config(home / FILE_NAME).lake_settings())
    with lake_session(connect_server, conf) as session:
        monkeypatch.setattr(Node, "spark", session)
        story.run("status")
        story.run("read", "logs")
        story.run("read", "all_types")
        story.run("append", "logs", "--source", "web-1", stdin='{"key": "next", "n": 1}\n')
        story.run("flush", "logs")
        story.run("sync", "archive")
        story.run("prove", "archive")
        story.run("sink", "history", "centre")
        story.run("persist", "verify", "--store", str(home / "strandline.db"))
    check("old_home.json", story.commands)
