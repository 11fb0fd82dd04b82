"""The look at processes that tests use: names of any kind do not confuse it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import children_of


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="this system does not tell it")
@pytest.mark.parametrize("name", ["plain", "a b c", "a) S 1 (b", "(", "ä ö"])
def test_a_child_of_any_name_is_found_and_no_grandchild_or_stranger(tmp_path: Path, name: str) -> None:
    named = tmp_path / name
    named.symlink_to(sys.executable)
    before = children_of(os.getpid())

    with subprocess.Popen([named, "-S", "-c", "input()"], stdin=subprocess.PIPE) as child:
        after = children_of(os.getpid())
        child.kill()

    assert {pid: after[pid] for pid in after.keys() - before.keys()} == {child.pid: name}
