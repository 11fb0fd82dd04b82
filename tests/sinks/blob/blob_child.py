"""Delivers units of a pickled sink in a process of its own, which a test kills or stops at a named step.

python -m tests.sinks.blob.blob_child <file with the pickled sink> <encoder> <last seq>
"""

import pickle
import sys
from pathlib import Path

from strandline.sinks.sink import Limits
from tests.sinks.shipping import part, ship


def main(file: str, encoder: str, last: str) -> None:
    sink = pickle.loads(Path(file).read_bytes())
    told = ship(sink, part("web", 0, int(last), Limits(10, encoder=encoder)), range(1, int(last) + 1))
    sys.stdout.write(" ".join(each.outcome.status for each in told))


if __name__ == "__main__":
    main(*sys.argv[1:])
