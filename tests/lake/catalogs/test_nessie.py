"""Nessie publishes a staged snapshot at once and shows one snapshot only, so a killed flush would land twice.

Its tables are in a bucket, although the warehouse of the node is a name.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from strandline.lake.metadata.iceberg import table_pointers
from strandline.lake.ports.probe import HISTORY, STAGED
from tests.lake.catalogs.servers import nessie_catalog

WORK_S = 500
WORK = """
import json
import strandline
from strandline.errors import StrandlineError

with strandline.open("node") as node:
    node.append("far", [{"n": n} for n in range(3)], source="a")
    rows = node.spark.range(3).selectExpr("id AS n")
    said = []
    for work in (lambda: node.flush("far"), lambda: node.load("far", rows)):
        try:
            work()
        except StrandlineError as error:
            said.append([error.kind, *getattr(error, "missing", [str(error)])])
    print(json.dumps(said))
"""


@pytest.mark.slow
def test_a_node_writes_no_row_into_nessie(
    s3_endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # L-FLUSH-14, L-CLI-1
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    with nessie_catalog(tmp_path, s3_endpoint) as lake:
        (tmp_path / "node").mkdir()
        conf = {key: value for key, value in lake.conf.items() if "access" not in key or "path" in key}
        settings = (f"{json.dumps(key)} = {json.dumps(value)}" for key, value in conf.items())
        (tmp_path / "node" / "strandline.toml").write_text(
            "\n".join(
                [
                    'version = 1\n[lake]\ncatalog = "rest"\nwarehouse = "rows"\n[lake.conf]',
                    *settings,
                    '[spark]\nmaster = "local[2]"\nconf = { "spark.driver.memory" = "1g" }',
                ]
            )
        )

        worked = run(tmp_path, "-c", WORK)
        looked = run(tmp_path, "-m", "strandline", "doctor", "--json", "--home", "node")

        assert worked.returncode == 0, worked.stderr[-3000:]
        refusals = json.loads(worked.stdout.splitlines()[-1])
        assert [kind for kind, *_ in refusals] == ["catalog_unfit", "catalog_unfit"], refusals
        assert all({STAGED, HISTORY} <= {*missing} for _, *missing in refusals), refusals
        findings = {each["what"]: each for each in map(json.loads, looked.stdout.splitlines())}
        assert findings["catalog's promises"]["level"] == "fault"
        assert STAGED in findings["catalog's promises"]["text"]
        assert looked.returncode == 1
        assert table_pointers(lake) == {}


def run(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=WORK_S,
        check=False,
    )
