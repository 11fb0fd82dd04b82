"""The library `dlt` as a contender, in a process with an environment of its own: run it by its path.

    dlt_loader.py FOLDER

For each line `KIND FILE` that it reads it loads the JSON lines of FILE into an Iceberg table below FOLDER and
prints the seconds that took and the processor seconds, as JSON. KIND `dicts` reads the file by dlt's own
`read_jsonl`, `arrow` by pyarrow, which dlt hands through. Nothing is synced to the disk.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["RUNTIME__DLTHUB_TELEMETRY"] = "false"

import dlt
import pyarrow as pa
import pyarrow.json
from dlt.sources.filesystem import filesystem, read_jsonl


def main(folder: str) -> None:
    place = Path(folder).absolute()
    pipelines = {
        kind: dlt.pipeline(
            f"bench_{kind}",
            pipelines_dir=str(place / "pipelines"),
            destination=dlt.destinations.filesystem(bucket_url=(place / "tables").as_uri()),
            dataset_name=f"bench_{kind}",
        )
        for kind in ("dicts", "arrow")
    }
    print(json.dumps({"version": dlt.__version__}), flush=True)
    for line in sys.stdin:
        kind, _, file = line.strip().partition(" ")
        began, used = time.perf_counter(), sum(os.times()[:4])
        pipelines[kind].run(
            resource(kind, Path(file)), table_name="logs", write_disposition="append", table_format="iceberg"
        )
        took = {"s": time.perf_counter() - began, "cpu_s": sum(os.times()[:4]) - used}
        rows = pipelines[kind].last_trace.last_normalize_info.row_counts["logs"]
        print(json.dumps({**took, "rows": rows}), flush=True)


def resource(kind: str, file: Path) -> Any:
    if kind == "arrow":
        return dlt.resource(arrow_tables(file), name="logs")
    files = filesystem(bucket_url=file.parent.as_uri(), file_glob=file.name)
    return (files | read_jsonl(chunksize=10_000)).with_name("logs")


def arrow_tables(file: Path) -> Iterator[pa.Table]:
    yield pa.json.read_json(file)


if __name__ == "__main__":
    main(sys.argv[1])
