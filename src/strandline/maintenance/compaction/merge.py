"""One rewrite of files, from what is decided to its end, and what a crash leaves of it.

    begun ──▶ a branch ──▶ rewritten, compared ──▶ staged ──▶ main fast-forwarded ──▶ compacted ──▶ no branch

After a crash whoever holds the lease next looks whether the head of the open run is part of the table: then
it is recorded, else its branch goes and it is abandoned. A late fast-forward of a dead holder finds no
branch.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from strandline.base.failpoint import reach
from strandline.config.keys import CompactionSection
from strandline.errors import StrandlineError, UnavailableError
from strandline.lake.ports.rewrite import Bin, DataFile, Listing, Repeats, Rewriter, Stretch, within
from strandline.maintenance.compaction.files_to_merge import Work
from strandline.persist import Conflict, ExpectSeq
from strandline.persist.backend import Write
from strandline.rows.dataset import Dataset, Strand
from strandline.state.compaction_events import FAILED, Rewriting, maintain_event, maintain_stream
from strandline.state.context import Site
from strandline.state.lease import Lease, LeaseLost
from strandline.state.strand_entries import ControlUnreadable, Removed, append_of

BRANCH: Final = "compact-"


@dataclass(frozen=True, slots=True)
class LandedRewrite:
    """One rewrite that landed."""

    level: int
    bins: int
    files_in: int
    files_out: int
    rows: int
    bytes_in: int
    bytes_out: int
    duplicates: int = 0
    is_resumed: bool = False


@dataclass(frozen=True, slots=True)
class CompactionJob:
    """A dataset whose files are looked at, under its lease."""

    site: Site
    rewriter: Rewriter
    settings: CompactionSection
    dataset: Dataset
    lease: Lease

    @property
    def name(self) -> str:
        return self.dataset.name

    def recorded(self) -> Rewriting:
        return self.site.standing.rewrites().of(self.name)


def places(dataset: Dataset) -> Callable[[str], str | int]:
    """The place of the bins of a source."""
    if not dataset.source_buckets:
        return lambda source: source
    from pyiceberg.transforms import BucketTransform
    from pyiceberg.types import StringType

    bucket: Any = BucketTransform(dataset.source_buckets).transform(StringType())
    return lambda source: int(bucket(source))


def merge(job: CompactionJob, works: Sequence[Work]) -> tuple[LandedRewrite | None, dict[Bin, str]]:
    """Rewrite a batch; what landed, and the bins that could not be read."""
    listing = job.rewriter.files(job.dataset)
    base = listing.snapshot
    if base is None:
        return None, {}
    asked = {work.bin: _stretch(job, work) for work in works}
    repeats = job.rewriter.repeats(job.dataset, base, list(asked.values())) if job.dataset.collapse else []
    hit = _hit(job, repeats)
    whole = [work for work in works if work.files == 1 and work.bin not in hit]
    leave(job, whole, dict.fromkeys((work.bin for work in whole), "no repeats in its one file"))
    todo = [work for work in works if work not in whole]
    if not todo:
        return None, {}
    run = job.site.random_hex()[:16]
    level = works[0].level
    begun: dict[str, Any] = {"run": run, "branch": f"{BRANCH}{run}", "base": base, "level": level}
    _record(job, [maintain_event(job.name, "begun", job.site.clock.now_us(), begun)])
    reach("compaction.begun")
    try:
        staged, bad = _stage(job, run, listing, todo, asked, repeats)
    except StrandlineError as error:
        _abandon(job, begun, str(error))
        raise
    if staged is None:
        _abandon(job, begun, "nothing could be rewritten")
        leave(job, todo, bad)
        return None, bad
    _record(job, [maintain_event(job.name, "staged", job.site.clock.now_us(), staged)])
    reach("compaction.staged")
    job.lease.renew()
    try:
        job.rewriter.land(job.name, begun["branch"], base)
    except StrandlineError as error:
        if not _is_landed(job, staged) and not _has_landed(job, begun, staged, str(error)):
            raise
    reach("compaction.landed")
    done = _finish(job, begun, staged)
    leave(job, [work for work in todo if work.bin in bad], bad)
    return done, bad


def _stretch(job: CompactionJob, work: Work) -> Stretch:
    """A bin that is rewritten whole is compared with all that went before it; a tier with itself."""
    return Stretch(work.bin, work.lo, work.hi, _visible(job, work.bin), 0 if work.is_whole else work.lo)


def _visible(job: CompactionJob, bin_: Bin) -> int:
    """In the order of the bin: V, or where sources share it the visible flush."""
    if job.dataset.source_buckets:
        return job.site.standing.numbers(job.name).visible
    return job.site.standing.strand_state(Strand(job.name, str(bin_.place))).visible_through


def _hit(job: CompactionJob, repeats: Sequence[Repeats]) -> set[Bin]:
    place_of = places(job.dataset)
    return {Bin(place_of(each.source), each.first) for each in repeats}


def _stage(
    job: CompactionJob,
    run: str,
    listing: Listing,
    works: Sequence[Work],
    asked: Mapping[Bin, Stretch],
    repeats: Sequence[Repeats],
) -> tuple[dict[str, Any] | None, dict[Bin, str]]:
    """On the branch: rewritten, and compared. What `compacted` will say, and which bins stayed as they
    were."""
    branch, base = f"{BRANCH}{run}", listing.snapshot
    assert base is not None  # there are files
    stretches = [asked[work.bin] for work in works]
    job.rewriter.branch(job.name, branch, base)
    reach("compaction.branched")
    if repeats:
        job.rewriter.remove_repeats(job.dataset, branch, base, stretches)
    job.rewriter.rewrite(job.dataset, branch, stretches, target_bytes=job.settings.target_file_bytes)
    reach("compaction.rewritten")
    head = job.rewriter.branches(job.name).get(branch)
    if head is None:
        raise LeaseLost(job.lease.scope)  # whoever took over has given this run up
    after = job.rewriter.files(job.dataset, snapshot=head)
    old, new = within(listing.files, stretches), within(after.files, stretches)
    bad = {
        work.bin: f"{FAILED}: its files could not be rewritten"
        for work in works
        if any(file.snapshot != head for file in new.get(work.bin, ()))
    }
    done = [work for work in works if work.bin not in bad]
    if repeats and bad:  # repeats may have gone from a bin that then stayed: take it apart from the others
        raise UnavailableError(
            f"some files of dataset {job.name!r} could not be rewritten",
            hint="they are tried each on their own",
        )
    if not done:
        return None, bad
    fine = [asked[work.bin] for work in done]
    job.rewriter.check(job.dataset, base, head, fine, has_repeats=bool(repeats))
    reach("compaction.checked")
    parts = [[*work.bin, len(old.get(work.bin, ())), len(new.get(work.bin, ()))] for work in done]
    live = {file.snapshot for file in after.files}
    files_in, files_out = _sums(old, done), _sums(new, done)
    staged = {
        "run": run,
        "level": works[0].level,
        "snapshot": head,
        "parts": parts,
        "rows": files_out["rows"],
        "duplicates": sum(each.rows for each in repeats),
        "files_in": files_in["files"],
        "files_out": files_out["files"],
        "bytes_in": files_in["bytes"],
        "bytes_out": files_out["bytes"],
        "gone": [each for each in job.recorded().made if each not in live],
        "repeats": [list(each) for each in repeats],
    }
    return staged, bad


def _sums(files: Mapping[Bin, Sequence[DataFile]], works: Sequence[Work]) -> Counter[str]:
    found: Counter[str] = Counter()
    for work in works:
        for file in files.get(work.bin, ()):
            found.update(files=1, rows=file.rows, bytes=file.bytes)
    return found


# Ends


def _finish(
    job: CompactionJob, begun: Mapping[str, Any], staged: Mapping[str, Any], *, is_resumed: bool = False
) -> LandedRewrite:
    """It is part of the table: say so, in one transaction with the ledgers that lost repeats; then the branch
    goes. A crash in between leaves the branch, which the next walk drops."""
    at = job.site.clock.now_us()
    lost: dict[str, list[Repeats]] = {}
    for each in staged["repeats"]:
        lost.setdefault(each[0], []).append(Repeats(*each))
    removed = [
        append_of(
            Strand(job.name, source).ledger,
            Removed(
                staged["run"],
                "compaction",
                min(each.lo for each in some),
                max(each.hi for each in some),
                sum(each.rows for each in some),
                0,
            ),
            at,
        )
        for source, some in lost.items()
    ]
    data = {key: value for key, value in staged.items() if key != "repeats"}
    _record(job, [maintain_event(job.name, "compacted", at, data), *removed])
    reach("compaction.recorded")
    job.rewriter.drop(job.name, begun["branch"])
    reach("compaction.dropped")
    return LandedRewrite(
        data["level"],
        len(data["parts"]),
        data["files_in"],
        data["files_out"],
        data["rows"],
        data["bytes_in"],
        data["bytes_out"],
        data["duplicates"],
        is_resumed,
    )


def _is_landed(job: CompactionJob, staged: Mapping[str, Any]) -> bool:
    return staged["snapshot"] in job.rewriter.ancestry(job.name)


def _has_landed(job: CompactionJob, begun: Mapping[str, Any], staged: Mapping[str, Any], reason: str) -> bool:
    """Whether it did after all. Without its branch it cannot any more: so that goes first."""
    _drop(job, begun["branch"])
    reach("compaction.barred")
    if _is_landed(job, staged):
        return True
    _abandon(job, begun, reason)
    return False


def _abandon(job: CompactionJob, begun: Mapping[str, Any], reason: str) -> None:
    """It did not land: the branch goes with its snapshots, and the files that only they name. Should that
    fail the run stays open, and the next walk does this again."""
    _drop(job, begun["branch"])
    reach("compaction.abandon")
    data = {"run": begun["run"], "reason": reason[:500]}
    _record(job, [maintain_event(job.name, "abandoned", job.site.clock.now_us(), data)])


def _drop(job: CompactionJob, branch: str) -> None:
    """The branch, and what it alone has. A crash in between leaves snapshots without a name, which expiry
    takes when they are old."""
    head = job.rewriter.branches(job.name).get(branch)
    if head is None:
        return
    own = job.rewriter.ancestry(job.name, head)
    job.rewriter.drop(job.name, branch)
    reach("compaction.unnamed")
    kept = set(job.rewriter.ancestry(job.name))  # only now: until then it might have landed
    if doomed := [each for each in own if each not in kept]:
        job.rewriter.expire(job.name, doomed)


def drop_dead(job: CompactionJob) -> None:
    """Branches of runs that have ended: under the lease there is no other."""
    for branch in job.rewriter.branches(job.name):
        if branch.startswith(BRANCH):
            _drop(job, branch)


def settle_open(job: CompactionJob) -> tuple[LandedRewrite, ...]:
    """Bring a run that was cut short to its end."""
    recorded = job.recorded()
    if not recorded.begun:
        return ()
    begun = _data_at(job, recorded.begun)
    staged = _data_at(job, recorded.staged) if recorded.staged else None
    reason = "it was cut short"
    if staged is None:
        _abandon(job, begun, reason)
    elif _is_landed(job, staged) or _has_landed(job, begun, staged, reason):
        return (_finish(job, begun, staged, is_resumed=True),)
    return ()


def _data_at(job: CompactionJob, seq: int) -> Any:
    event = job.site.b.event_at(maintain_stream(job.name), seq)
    if event is None:
        raise ControlUnreadable(maintain_stream(job.name), seq, "it is gone")
    return event.data


def leave(job: CompactionJob, works: Sequence[Work], reasons: Mapping[Bin, str]) -> None:
    """These bins stay as they are until their files change."""
    if works:
        parts = [[*work.bin, work.signature, reasons[work.bin][:300]] for work in works]
        _record(job, [maintain_event(job.name, "left", job.site.clock.now_us(), {"parts": parts})])


def _record(job: CompactionJob, writes: list[Write]) -> None:
    """Under the lease, on the stream as it was read."""
    event = job.recorded().event
    outcome = job.site.b.commit([job.lease.guard, ExpectSeq(maintain_stream(job.name), event)], writes)
    if isinstance(outcome, Conflict):
        raise LeaseLost(job.lease.scope)
