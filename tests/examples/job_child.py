"""The job of examples/read_by_token.py in a process that is killed between its result and its keeping."""

import json
import os
import signal
import sys

import strandline
from examples.read_by_token import counted, progress
from strandline.persist import open_store


def main(home: str, store: str) -> None:
    node = strandline.open(home)
    print(json.dumps(counted(node, progress(open_store(store)))["cents"]), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
