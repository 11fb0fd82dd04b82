"""When a provider is due: by its schedule, and once when the node first starts (L-BF-13, L-CFG-2)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strandline.backfill.result import BackfillCounts, BackfillResult, Failure
from strandline.backfill.run_history import Due, backfill_stream, began, due, ended, last_ended
from strandline.config.config import ConfigError, load_config
from strandline.config.sources import ProviderConfig
from strandline.persist import open_store, read
from strandline.sources.provider import Window
from strandline.state.context import Site
from strandline.state.lease import LeaseLost, held, take_lease
from tests.sites import StillClock, make_site

HOUR_US = 3_600_000_000


@pytest.fixture
def clock() -> StillClock:
    return StillClock()


@pytest.fixture
def site(clock: StillClock, tmp_path: Path) -> Iterator[Site]:
    b = open_store("memory:")
    yield make_site(b, tmp_path / "content", clock=clock)
    b.close()


def providers(**options: Any) -> dict[str, ProviderConfig]:
    return {"old": ProviderConfig(instance="old", type="files", **options)}


def ran(site: Site, why: Any = "schedule") -> None:
    with held(site.b, site.clock, "backfill/old") as lease:
        began(site, lease, "old", "r1", why, Window())
        ended(site, lease, "old", "r1", BackfillResult("old", BackfillCounts(written=3)))


def test_a_schedule_counts_from_the_first_look_and_then_from_the_last_run(
    site: Site, clock: StillClock
) -> None:
    hourly = providers(schedule="0 * * * *")

    assert due(site, hourly, clock.us) == []
    clock.us += HOUR_US
    assert due(site, hourly, clock.us) == [Due("old", "schedule")]
    assert due(site, hourly, clock.us) == [Due("old", "schedule")]  # asking starts nothing
    ran(site)
    assert due(site, hourly, clock.us) == []
    clock.us += 5 * HOUR_US
    assert due(site, hourly, clock.us) == [Due("old", "schedule")]  # however many were missed


def test_what_is_tied_to_the_first_start_is_due_once_for_good(site: Site, clock: StillClock) -> None:
    at_start = providers(on_start=True)

    assert due(site, at_start, clock.us) == [Due("old", "start")]
    ran(site, "start")
    assert due(site, at_start, clock.us) == []
    clock.us += 1000 * HOUR_US
    assert due(site, at_start, clock.us) == []


def test_a_first_run_that_was_killed_is_begun_again_until_one_ends(site: Site, clock: StillClock) -> None:
    """L-BF-13: not while it is under way, nor at once after it broke off."""
    at_start = providers(on_start=True)
    with held(site.b, clock, "backfill/old") as lease:
        began(site, lease, "old", "r1", "start", Window())
        clock.us += 2 * HOUR_US
        lease.renew()
        assert due(site, at_start, clock.us) == []

    assert due(site, at_start, clock.us) == [Due("old", "start")]
    with held(site.b, clock, "backfill/old") as lease:
        began(site, lease, "old", "r2", "start", Window())
    assert due(site, at_start, clock.us) == []
    clock.us += HOUR_US
    assert due(site, at_start, clock.us) == [Due("old", "start")]
    ran(site, "start")
    clock.us += HOUR_US
    assert due(site, at_start, clock.us) == []


def test_what_is_not_enabled_or_has_neither_is_never_due(site: Site, clock: StillClock) -> None:
    assert due(site, providers(), clock.us) == []
    assert due(site, providers(on_start=True, enabled=False), clock.us) == []
    assert read(site.b, backfill_stream("old")) == []


def test_the_last_run_is_told_with_its_counts(site: Site) -> None:  # L-BF-12
    ran(site)

    event = last_ended(site.b, "old")

    assert event is not None
    assert (event.data["status"], event.data["written"]) == ("done", 3)


def test_a_run_whose_lease_was_taken_over_records_nothing(site: Site, clock: StillClock) -> None:  # L-CTL-5
    stale = take_lease(site.b, clock, "backfill/old")
    clock.us += 2 * HOUR_US
    take_lease(site.b, clock, "backfill/old")

    with pytest.raises(LeaseLost):
        began(site, stale, "old", "r1", "command", Window())
    assert read(site.b, backfill_stream("old")) == []


@pytest.mark.parametrize(
    ("error", "failures", "status"),
    [
        (None, [], "done"),
        (None, [Failure("x", "failed", "no")], "partial"),
        (Failure("", "failed", "no"), [], "failed"),
    ],
)
def test_the_status_of_a_run_says_whether_something_failed(
    error: Failure | None, failures: list[Failure], status: str
) -> None:  # L-BF-12
    result = BackfillResult("old", BackfillCounts(failures=failures), error=error)

    assert result.status == status
    assert result.facts()["failed"] == len(failures)


# Configuration


def fault_of(folder: Path, text: str) -> str:
    (folder / "strandline.toml").write_text(f"version = 1\n{text}")
    with pytest.raises(ConfigError) as caught:
        load_config(folder / "strandline.toml")
    return "\n".join(map(str, caught.value.problems))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('[backfill.x]\ntype = "pigeons"', "backfill.x.type: 'pigeons' is no kind of provider"),
        ('[backfill.files]\ndataset = "logs"', "path is missing"),
        ('[backfill.codex]\nschedule = "often"', "backfill.codex.schedule: 'often' is no schedule"),
        ("[backfill.codex]\nspeed = 3", "backfill.codex.speed: no such key"),
        ("[backfill.codex]\nquiesce_s = -1", "quiesce_s"),
        ("backfill = 5", "backfill: 5 is no table"),
        (
            '[backfill.s]\ntype = "spark"\nformat = "jdbc"\ndataset = "d"\noptions = {password = "x"}',
            "backfill.s.options.password: a secret stands in the file",
        ),
    ],
)
def test_a_fault_in_a_provider_is_named(tmp_path: Path, text: str, found: str) -> None:  # L-CFG-1, L-CFG-2
    assert found in fault_of(tmp_path, text)


def test_a_provider_is_configured_by_its_type_and_its_own_keys(tmp_path: Path) -> None:  # L-CFG-1
    (tmp_path / "strandline.toml").write_text(
        'version = 1\n[backfill.old]\ntype = "files"\npath = "a"\ndataset = "logs"\nwindow_days = 7\n'
        "[backfill.codex]\non_start = true\n"
    )

    found = load_config(tmp_path / "strandline.toml").backfill

    old, codex = found["old"], found["codex"]
    assert (old.type, old.enabled, old.window_days, old.quiesce_s) == ("files", True, 7, 180)
    assert (old.keys["path"], old.keys["source"], old.cron) == ("a", "", None)
    assert (codex.type, codex.on_start, codex.keys["dataset"]) == ("codex", True, "messages")
