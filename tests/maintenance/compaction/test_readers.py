"""Those who read while files are rewritten: scans go on, sinks with an open intent deliver each row once."""

import json
from pathlib import Path

from strandline.lake.jobs.expire_snapshots import expire
from strandline.lake.jobs.scan import LakeReader
from strandline.read.read import Scan
from strandline.read.visible import age, bounds
from strandline.rows.dataset import Strand
from strandline.sinks.blob.blob_sink import BlobSink
from strandline.state.sink_progress import event_of, sink_stream
from tests.maintenance.compacting import FORCE, compact, keyed, put
from tests.maintenance.house import House


def test_a_scan_goes_on_across_a_compaction_and_the_expiry_of_what_it_read(house: House) -> None:
    """L-CMP-6, L-READ-7: its next page comes from other files, and no row comes twice."""
    for _ in range(3):
        house.land(6)
    site, reader = house.site, LakeReader(house.spark, house.lake)
    asked = bounds(site, site.origin, house.dataset, "web-1", None, None)
    schema = site.known(house.dataset).dataset
    scan = Scan(site, lambda: reader, site.origin, schema, asked, max_rows=5, age=age(site, house.dataset))
    pages = iter(scan)
    seen = [row["n"] for row in next(pages).rows]

    compact(house)
    old = house.sql("SELECT snapshot_id FROM {table}.snapshots ORDER BY committed_at LIMIT 3")
    expire(house.spark, house.dataset, [row[0] for row in old])
    seen += [row["n"] for page in pages for row in page.rows]

    assert seen == list(range(1, 19))


def test_an_open_intent_keeps_its_units_while_repeats_go_from_them(house: House, tmp_path: Path) -> None:
    """L-CMP-9, L-WM-11, L-CMP-3: a unit shrinks by the repeat, under the name that it had."""
    keyed(house)
    put(house, 1, 2, 3, 4)
    put(house, 5, 2, 6, 1)
    archive = BlobSink("local", dir=str(tmp_path / "archive"), encoder="jsonl", max_object_rows=4)
    folder = tmp_path / "archive" / house.dataset / "source=web-1"
    folder.mkdir(parents=True)
    blocked = folder / f"{4:020}-{8:020}.jsonl"
    blocked.write_text("something else\n")
    house.site.compared_at["centre", Strand(house.dataset, "web-1")] = house.clock.now_us()  # it came since
    assert house.sync(archive).status == "partial"
    assert house.line().intent is not None

    compact(house, FORCE)
    blocked.unlink()
    stream = sink_stream("centre", house.dataset, "web-1")
    house.site.b.commit([], [event_of(stream, "resumed", 1, reason="the file is gone")])
    result = house.sync(archive, is_command=True)

    assert result.status == "exported"
    assert house.line().mark == 8
    objects = {path.name: path.read_text().splitlines() for path in folder.glob("*.jsonl")}
    ids = {name: [json.loads(line)["id"] for line in lines] for name, lines in objects.items()}
    assert ids == {f"{0:020}-{4:020}.jsonl": [1, 2, 3, 4], f"{4:020}-{8:020}.jsonl": [5, 6]}
