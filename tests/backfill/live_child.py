"""A process that captures rows live: live_child.py <home> <dataset>. For each line `<first> <last>` it
appends the rows from the first to before the last, each by itself, and says when it has."""

import sys
from pathlib import Path

from strandline.config.config import FILE_NAME, load_config
from strandline.ingest.append import append
from strandline.state.context import open_site

HOME, DATASET = Path(sys.argv[1]), sys.argv[2]


def main() -> None:
    site = open_site(load_config(HOME / FILE_NAME))
    for line in sys.stdin:
        first, last = map(int, line.split())
        for n in range(first, last):
            append(site, DATASET, [{"id": f"k{n}", "n": n}], source="a")
        print("done", flush=True)
    site.b.close()


if __name__ == "__main__":
    main()
