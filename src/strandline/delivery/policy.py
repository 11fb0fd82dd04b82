"""Which rows stay here: predicates over the columns of datasets, for every sink alike.

    policy   stream; each event is a version: set {rules: [[datasets, where, missing], …]}

An intent names the version that it was made under, so a retry withholds the same rows. A rule that cannot be
understood holds the delivery: it fails closed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final, Literal

from strandline.persist import Append, AtomicBackend, Conflict, ExpectSeq
from strandline.state.strand_entries import ControlUnreadable

STREAM: Final = "policy"


@dataclass(frozen=True, slots=True)
class Rule:
    """Rows of `datasets` (names or globs) for which `where` holds stay; rows for which it cannot be told,
    since a column is null or not there, do as `missing` says."""

    datasets: tuple[str, ...]
    where: str
    missing: Literal["withhold", "export"] = "withhold"

    @property
    def sql(self) -> str:
        return f"coalesce(({self.where}), {'true' if self.missing == 'withhold' else 'false'})"


def current_version(b: AtomicBackend, rules: Sequence[Rule], at: int) -> int:
    """The version that these rules are; they are recorded as a new one if they are not the newest."""
    while True:
        last = b.last_seq(STREAM)
        if (rules_of(b, last) if last else ()) == tuple(rules):
            return last
        data = {"rules": [[list(each.datasets), each.where, each.missing] for each in rules]}
        if not isinstance(b.commit([ExpectSeq(STREAM, last)], [Append(STREAM, "set", at, data)]), Conflict):
            return last + 1


def rules_of(b: AtomicBackend, version: int) -> tuple[Rule, ...]:
    if version == 0:
        return ()
    event = b.event_at(STREAM, version)
    if event is None:
        raise ControlUnreadable(STREAM, version, "it is gone")
    try:
        return tuple(
            Rule(tuple(datasets), where, missing) for datasets, where, missing in event.data["rules"]
        )
    except (TypeError, ValueError, KeyError) as error:
        raise ControlUnreadable(STREAM, version, str(error)) from error


def withhold_sql(rules: Sequence[Rule], dataset: str) -> str | None:
    """What a row of a dataset must satisfy to stay; None if no rule is about it."""
    own = [each.sql for each in rules if any(fnmatchcase(dataset, glob) for glob in each.datasets)]
    return " OR ".join(own) or None
