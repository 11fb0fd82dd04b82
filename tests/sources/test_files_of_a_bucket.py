"""Files of rows below a prefix of a bucket, of a real S3 server (L-BF-1, L-BF-10)."""

import gzip
import io
import os
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strandline.storage.objects import open_objects
from tests.backfill.rig import numbers, open_here
from tests.storage.places import BUCKET, s3_endpoint, s3_options

__all__ = ["s3_endpoint"]

CONFIG = """
[datasets.kept]
columns = {{ n = "bigint" }}
[backfill.bucket]
type = "files"
path = "{place}"
dataset = "kept"
source = "old"
frame_bytes = 1
quiesce_s = 0
[backfill.bucket.options]
endpoint = "{endpoint}"
region = "{region}"
access_key_id = "env:KEY_OF_THE_BUCKET"
secret_access_key = "env:SECRET_OF_THE_BUCKET"
"""


@pytest.mark.usefixtures("spark")
def test_files_of_every_kind_below_a_prefix_of_a_bucket_come_in(
    s3_endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L-BF-1, L-BF-10: what lies beside the prefix does not, and what is known stays out."""
    options = s3_options(s3_endpoint)
    for name, key in (("KEY", "access_key_id"), ("SECRET", "secret_access_key")):
        monkeypatch.setenv(f"{name}_OF_THE_BUCKET", options.get(key) or os.environ[f"AWS_{key.upper()}"])
    prefix = uuid4().hex
    bucket = open_objects(f"s3://{BUCKET}/{prefix}", **options)
    bucket.create("old/a.jsonl", b'{"n": 1}\n{"n": 2}\n')
    bucket.create("old/deep/b.csv.gz", gzip.compress(b"n\n3\n"))
    bucket.create("old/deep/c.parquet", parquet(4, 5))
    bucket.create("old/notes.txt", b"not rows")
    bucket.create("older/d.jsonl", b'{"n": 99}\n')
    place = f"s3://{BUCKET}/{prefix}/old"
    config = CONFIG.format(place=place, endpoint=options["endpoint"], region=options["region"])

    with open_here(tmp_path / "node", config) as node:
        result = node.backfills.run("bucket")
        bucket.replace("old/a.jsonl", b'{"n": 1}\n{"n": 2}\n{"n": 6}\n')
        grown = node.backfills.run("bucket")

        assert (result.status, result.tally.items, result.tally.written) == ("done", 3, 5)
        assert (grown.tally.written, grown.tally.chunk_known) == (1, 5)
        assert numbers(node, "kept") == [1, 2, 3, 4, 5, 6]


def parquet(*values: int) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"n": list(values)}), file)
    return file.getvalue()
