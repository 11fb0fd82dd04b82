"""A run of mutants in small: what a fault in the code does, and that the working tree stays as it is."""

import json
import subprocess
import sys
from hashlib import sha256

import pytest

from tests.mutation.runner import PACKAGE, ROOT

RUN = """
import json
from tests.mutation import runner
from tests.mutation.mutants import mutants_of

runner.LIBRARIES = ()
text = (runner.PACKAGE / "flush/publish.py").read_text(encoding="utf-8")
made = {mutant.id: mutant for mutant in mutants_of("flush/publish.py", text)}
wanted = [
    made["flush/publish.py publish dropped: lease.renew() -> pass"],
    made["flush/publish.py (top) off by 1: 5 -> (5 + 1)"],
    next(mutant for mutant in made.values() if mutant.function == "NotPublished.__init__"),
]
found = runner.tried(wanted, runner.first_run(["tests/flush/test_publish.py"], 1), 1)
print(json.dumps([list(found[each]) for each in wanted]))
"""


def digest() -> str:
    return sha256(b"".join(path.read_bytes() for path in sorted(PACKAGE.rglob("*.py")))).hexdigest()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_mutant_is_caught_by_a_test_that_fails_or_survives_or_is_not_run_and_no_source_changes() -> None:
    before = digest()

    done = subprocess.run([sys.executable, "-c", RUN], cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr[-3000:]
    caught, survived, not_run = json.loads(done.stdout.splitlines()[-1])
    test = "tests/flush/test_publish.py::test_a_holder_that_was_overtaken_publishes_nothing_that_it_staged"
    assert caught == ["caught", test]
    assert survived == ["survived", ""]
    assert not_run == ["not run", ""]
    assert digest() == before
