"""Which processes a test has started, as Linux tells it, whatever else runs on the machine."""

from pathlib import Path


def children_of(parent: int) -> dict[int, str]:
    """The names of the processes that `parent` has started and that have not ended, by their ids."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text("utf-8", "replace")
        except OSError:  # it has just ended
            continue
        # `7 (a name (with blanks)) S 1 …`: the name ends at the last parenthesis.
        head, _, behind_name = text.rpartition(")")
        if int(behind_name.split()[1]) == parent:
            found[int(path.parent.name)] = head.partition("(")[2]
    return found
