"""examples/access_list.py: grants as events, decided on what was seen, and asked about any time."""

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from examples.access_list import Refused, can, current, grant, keep, main, revoke, stream_of, who_could
from strandline.persist import AtomicBackend, Event, read, snapshot_load
from tests.conftest import open_backend


@pytest.fixture(params=["memory", "sqlite"])
def b(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AtomicBackend]:
    with closing(open_backend(request.param, tmp_path)) as opened:
        grant(opened, "plan", "ann", "ann", "own", 100)
        grant(opened, "plan", "ann", "bob", "own", 110)
        grant(opened, "plan", "bob", "cyd", "read", 120)
        yield opened


def test_the_list_is_the_fold_of_its_grants_and_revocations(b: AtomicBackend) -> None:  # P-PRJ-1
    revoke(b, "plan", "bob", "ann", 130)

    assert current(b, "plan").value == {"bob": "own", "cyd": "read"}
    assert (can(b, "plan", "bob", "write"), can(b, "plan", "cyd", "write")) == (True, False)
    assert not can(b, "plan", "ann", "read")
    assert not can(b, "another", "bob", "read")


def test_who_could_at_a_time_is_answered_from_the_events_of_then(b: AtomicBackend) -> None:  # P-QRY-3
    revoke(b, "plan", "bob", "ann", 130)

    assert who_could(b, "plan", "read", 99) == []
    assert who_could(b, "plan", "read", 110) == ["ann", "bob"]
    assert who_could(b, "plan", "read", 129) == ["ann", "bob", "cyd"]
    assert who_could(b, "plan", "write", 130) == ["bob"]


def test_a_change_that_the_rules_forbid_stores_nothing(b: AtomicBackend) -> None:
    outcomes = [
        grant(b, "plan", "cyd", "cyd", "own", 140),
        revoke(b, "plan", "dan", "ann", 141),
        grant(b, "another", "ann", "ann", "read", 142),
    ]

    assert outcomes == [
        Refused("cyd does not own the document"),
        Refused("dan does not own the document"),
        Refused("somebody must own the document"),
    ]
    assert len(read(b, stream_of("plan"))) == 3
    assert read(b, stream_of("another")) == []


def test_two_owners_who_revoke_each_other_at_once_leave_one(b: AtomicBackend) -> None:  # P-CON-6
    for turn in range(20):
        document = f"plan-{turn}"
        grant(b, document, "ann", "ann", "own", 1)
        grant(b, document, "ann", "bob", "own", 2)
        start, outcomes = threading.Barrier(2), list[Event | Refused]()

        def leave(by: str, who: str, document: str = document, start: threading.Barrier = start) -> None:
            start.wait(10)
            outcomes.append(revoke(b, document, by, who, 3))  # noqa: B023  # joined before the next turn

        threads = [threading.Thread(target=leave, args=pair) for pair in (("ann", "bob"), ("bob", "ann"))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)

        assert sorted(type(each).__name__ for each in outcomes) == ["Event", "Refused"]
        assert list(current(b, document).value.values()) == ["own"]


def test_a_snapshot_keeps_the_list_and_every_answer_about_before(b: AtomicBackend) -> None:  # P-SNP-6
    kept = keep(b, "plan")
    revoke(b, "plan", "ann", "cyd", 130)

    assert snapshot_load(b, stream_of("plan"), {}) == kept
    assert kept.seq == 3
    assert current(b, "plan").value == {"ann": "own", "bob": "own"}
    assert who_could(b, "plan", "read", 125) == ["ann", "bob", "cyd"]


def test_the_story_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(str(tmp_path / "access.db"))

    assert capsys.readouterr().out.splitlines() == [
        "now: {'bob': 'own', 'cyd': 'read'}",
        "could read at 125: ['ann', 'bob', 'cyd']",
        "ann grants dan: Refused(why='ann does not own the document')",
        "bob leaves: Refused(why='somebody must own the document')",
        "kept at seq 4",
    ]
