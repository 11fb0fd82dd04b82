"""The two demos check themselves, and say what they found."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
ENDS_S = 600


def told(script: str, folder: Path) -> str:
    """What it printed; what it leaves behind is in `folder`."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / script],
        env={**os.environ, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=ENDS_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_demo_of_the_store_loses_and_doubles_nothing(tmp_path: Path) -> None:  # P-REC-9
    assert "Same answer, nothing lost, nothing doubled." in told("store.py", tmp_path)


@pytest.mark.slow
@pytest.mark.xdist_group("spark")
def test_the_demo_of_the_pipeline_loses_and_doubles_nothing(tmp_path: Path) -> None:  # invariants 2 and 4
    assert "Nothing lost, nothing doubled." in told("demo.py", tmp_path)
