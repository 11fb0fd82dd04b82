"""Which files become one, decided by pure functions from a listing, V, and what is recorded.

A bin that V has passed is full: its files are rewritten once, and then left alone. One that still fills has
levels. A file is of the level of its size (`tier_bytes`), and one that was made of a level is of the next,
however small it is: so a row is rewritten once a level, and once more when its bin is full.

    level 0   a flush's file, under 1 MiB            32 in a row become one of level 1
    level 1   under 32 MiB, or made of level 0       32 in a row become one of level 2
    level 2   the rest                               waits until the bin is full
    FULL      made of a full bin                     stays

Only files that follow each other are merged, those of lower levels between them too.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import groupby, pairwise
from typing import Final

from strandline.config.keys import CompactionSection
from strandline.lake.ports.rewrite import Bin, DataFile
from strandline.state.compaction_events import FAILED, BinLeftAlone

FULL: Final = 1_000  # a level above all tiers
RETRY_US: Final = 24 * 3_600_000_000
MOST_RANGES: Final = 200  # of one rewrite
_MOST_BYTES: Final = 1 << 29  # of one rewrite, unless a single bin has more
_WRITER: Final = "1"  # another writer may do better with the same files


@dataclass(frozen=True, slots=True)
class Work:
    """A stretch of a bin that is due. `signature` is of all files of the bin, `level` of what it becomes;
    `is_whole` where it is all of them."""

    bin: Bin
    lo: int
    hi: int
    level: int
    files: int
    rows: int
    bytes: int
    spared: int  # so many files fewer, at most
    signature: str
    is_whole: bool


@dataclass(frozen=True, slots=True)
class CompactionRules:
    """What decides beside the files. `is_shared` where a bin has many sources."""

    settings: CompactionSection
    is_full: Callable[[Bin], bool]
    is_collapse: bool = False
    is_shared: bool = False
    force: bool = False


@dataclass(frozen=True, slots=True)
class Known:
    """What is recorded: the level of what each commit made, and the bins that are left alone."""

    made: Mapping[int, int]
    left: Mapping[tuple[str | int, int], BinLeftAlone]
    now: int = 0


def choose(files: Iterable[DataFile], rules: CompactionRules, known: Known) -> list[Work]:
    """What is due, neediest first."""
    key = lambda file: (str(file.bin.place), file.bin.first)  # noqa: E731  # the order of bins does not matter
    works = [
        work
        for _, group in groupby(sorted(files, key=key), key)
        for work in _of_bin(sorted(group, key=lambda file: (file.lo, file.hi)), rules, known)
    ]
    return sorted(works, key=lambda work: (-work.spared, work.bytes, str(work.bin.place), work.bin.first))


def batches(works: Sequence[Work]) -> Iterator[list[Work]]:
    """Those of one rewrite each: of one level, since its commit is what tells the level of its files, and one
    of a bin, since a rewrite makes one of all that it takes of a bin."""
    left = list(works)
    while left:
        batch: list[Work] = []
        rest: list[Work] = []
        bins: set[Bin] = set()
        size = 0
        for work in left:
            is_fit = size + work.bytes <= _MOST_BYTES and len(batch) < MOST_RANGES and work.bin not in bins
            if not batch or (work.level == batch[0].level and is_fit):
                batch.append(work)
                bins.add(work.bin)
                size += work.bytes
            else:
                rest.append(work)
        yield batch
        left = rest


def signature(files: Iterable[DataFile]) -> str:
    """The same for the same files, whoever lists them."""
    told = sorted((file.snapshot, file.lo, file.hi, file.rows, file.bytes) for file in files)
    return sha256(f"{_WRITER} {told}".encode()).hexdigest()[:16]


def _of_bin(files: list[DataFile], rules: CompactionRules, known: Known) -> Iterator[Work]:
    bin_, is_full = files[0].bin, rules.is_full(files[0].bin)
    found = signature(files)
    if not rules.force and _is_left(known.left.get((bin_.place, bin_.first)), found, known.now):
        return
    if rules.force or (is_full and not (rules.is_shared and _has_full(files, known))):
        level = FULL if is_full else len(rules.settings.tier_bytes)
        if _is_worth(files, rules, known):
            yield _work(files, level, found, rules, is_whole=True)
        return
    for level in reversed(range(len(rules.settings.tier_bytes))):
        due = list(_runs(files, level, rules.settings, known))
        if due:
            yield from (_work(run, level + 1, found, rules) for run in due)
            return


def _is_left(left: BinLeftAlone | None, found: str, now: int) -> bool:
    if left is None or left.signature != found:
        return False
    return not left.reason.startswith(FAILED) or now < left.at + RETRY_US


def _has_full(files: Iterable[DataFile], known: Known) -> bool:
    return any(known.made.get(file.snapshot) == FULL for file in files)


def _is_worth(files: Sequence[DataFile], rules: CompactionRules, known: Known) -> bool:
    """Whether rewriting a whole bin makes fewer files, or files that do not overlap, or may find repeats."""
    if rules.force:
        return len(files) > 1 or rules.is_collapse
    if all(known.made.get(file.snapshot) == FULL for file in files):
        return False
    is_apart = all(one.hi <= two.lo for one, two in pairwise(files))
    return rules.is_collapse or not is_apart or len(files) > _least(files, rules.settings)


def _least(files: Iterable[DataFile], settings: CompactionSection) -> int:
    return max(-(-sum(file.bytes for file in files) // settings.target_file_bytes), 1)


def _level(file: DataFile, settings: CompactionSection, known: Known) -> int:
    by_size = sum(file.bytes >= size for size in settings.tier_bytes)
    return max(by_size, known.made.get(file.snapshot, 0))


def _runs(
    files: Sequence[DataFile], level: int, settings: CompactionSection, known: Known
) -> Iterator[list[DataFile]]:
    """Files of a level that follow each other, enough of them; of lower levels what lies between."""
    for is_low, group in groupby(_clumps(files), lambda clump: _top(clump, settings, known) <= level):
        if not is_low:
            continue
        clumps = list(group)
        here = [place for place, each in enumerate(clumps) if _top(each, settings, known) == level]
        if not here:
            continue
        run = [file for clump in clumps[here[0] : here[-1] + 1] for file in clump]
        if sum(_level(file, settings, known) == level for file in run) >= settings.file_count:
            yield run


def _top(clump: Iterable[DataFile], settings: CompactionSection, known: Known) -> int:
    return max(_level(file, settings, known) for file in clump)


def _clumps(files: Iterable[DataFile]) -> Iterator[list[DataFile]]:
    """Files that overlap are one: a stretch names them all or none."""
    clump: list[DataFile] = []
    end = 0
    for file in files:
        if clump and file.lo >= end:
            yield clump
            clump = []
        clump.append(file)
        end = max(end, file.hi) if len(clump) > 1 else file.hi
    if clump:
        yield clump


def _work(
    files: Sequence[DataFile], level: int, found: str, rules: CompactionRules, *, is_whole: bool = False
) -> Work:
    return Work(
        files[0].bin,
        min(file.lo for file in files),
        max(file.hi for file in files),
        level,
        len(files),
        sum(file.rows for file in files),
        sum(file.bytes for file in files),
        len(files) - _least(files, rules.settings),
        found,
        is_whole,
    )
