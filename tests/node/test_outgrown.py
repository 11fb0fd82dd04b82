"""A node that has outgrown one machine: store and catalog in Postgres, segments and tables in a bucket.

The bucket is moto's S3 server, a fake that is as strict as S3 about create-only puts.
"""

import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.storage.places import BUCKET

SETTINGS = """version = 1
[store]
url = "postgresql://{user}@{place}/postgres"
password = "env:STORE_PASSWORD"
[content]
url = "s3://{bucket}/content"
conf = {{ endpoint = "{endpoint}", region = "us-east-1" }}
[lake]
warehouse = "s3://{bucket}/warehouse"
[lake.conf]
"s3.endpoint" = "{endpoint}"
"s3.path-style-access" = "true"
"client.region" = "us-east-1"
[spark]
master = "local[2]"
conf = {{ "spark.driver.memory" = "1g" }}
"""
WORK = """
import strandline

with strandline.open("node") as node:
    for start in (0, 60_000):
        rows = [{"n": n, "source": f"s{n % 2}"} for n in range(start, start + 60_000)]
        node.append("far", rows, request_id=str(start))
    report = node.flush("far")
    node.load("far", node.spark.range(1000).selectExpr("id AS n"), source="loaded")
    assert node.append("far", rows, request_id=str(start)).is_repeat
    node.flush("far")
    found = node.sql("SELECT source, count(*), count(DISTINCT n) FROM far GROUP BY source ORDER BY source")
    print([tuple(row) for row in found.collect()], report.flushes[0].files)
    print(sum(len(page.rows) for page in node.scan("far", source="s1", max_rows=50_000)))
    print(node.explain("far", source="loaded").files_opened)
"""


@pytest.mark.slow  # fetches jars of 67 MB where they are not cached
def test_a_node_in_postgres_and_a_bucket_lands_each_row_once(
    tcp_postgres: str, s3_endpoint: str, tmp_path: Path
) -> None:
    """Its flush is larger than what the driver reads itself, so that tasks read segments from the bucket."""
    url = urlsplit(tcp_postgres)
    (tmp_path / "node").mkdir()
    (tmp_path / "node" / "strandline.toml").write_text(
        SETTINGS.format(
            user=url.username, place=f"{url.hostname}:{url.port}", bucket=BUCKET, endpoint=s3_endpoint
        )
    )
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}

    ended = subprocess.run(
        [sys.executable, "-c", WORK],
        cwd=tmp_path,
        env={**os.environ, **keys, "STORE_PASSWORD": unquote(url.password or "")},
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[0].startswith(
        "[('loaded', 1000, 1000), ('s0', 60000, 60000), ('s1', 60000, 60000)]"
    )
    assert ended.stdout.splitlines()[1:] == ["60000", "1"]
