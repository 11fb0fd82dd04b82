"""An unknown catalog is tried once, by a model of the probe; the real one is in tests/lake/catalogs."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from strandline.config.lake_settings import LakeSettings
from strandline.errors import UnavailableError
from strandline.flush.catalog_check import AGAIN_S, CatalogUnfit, check_catalog, probed
from strandline.lake.ports.probe import HISTORY, STAGED
from strandline.persist import kv_items, kv_put
from strandline.state.context import Site
from strandline.state.lease import TTL_S
from strandline.state.strand_entries import ControlUnreadable
from tests.simulation import calm_world

REST = LakeSettings("rows", "rest", conf={"uri": "https://me:secret@catalog.example"})


@dataclass
class Catalog:
    """A catalog that lacks something, or does not answer."""

    lacks: Sequence[str] = ()
    fault: BaseException | None = None
    made: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)

    def missing(self, table: str) -> Sequence[str]:
        self.made.append(table)
        if self.fault is not None:
            raise self.fault
        return self.lacks

    def drop(self, table: str) -> None:
        self.dropped.append(table)


@pytest.fixture
def site() -> Site:
    return calm_world().site()


def test_a_catalog_that_keeps_everything_is_tried_once(site: Site) -> None:  # L-FLUSH-14
    catalog = Catalog()

    check_catalog(site, REST, catalog)
    check_catalog(site, REST, catalog)

    assert len(catalog.made) == 1


def test_a_catalog_that_lacks_something_is_refused_by_its_name(site: Site) -> None:  # L-FLUSH-14
    with pytest.raises(CatalogUnfit, match=f"{STAGED}; {HISTORY}") as refused:
        check_catalog(site, REST, Catalog([STAGED, HISTORY]))

    assert refused.value.missing == (STAGED, HISTORY)
    assert "jdbc on SQLite or Postgres" in str(refused.value.hint)


def test_a_refused_catalog_is_tried_again_after_a_while(site: Site) -> None:  # L-FLUSH-14
    with pytest.raises(CatalogUnfit):
        check_catalog(site, REST, Catalog([STAGED]))
    mended = Catalog()

    with pytest.raises(CatalogUnfit):
        check_catalog(site, REST, mended)
    site.clock.sleep(AGAIN_S)
    check_catalog(site, REST, mended)

    assert len(mended.made) == 1


def test_a_catalog_that_does_not_answer_is_neither_refused_nor_taken(site: Site) -> None:  # L-FLUSH-14
    catalog = Catalog(fault=UnavailableError("no answer"))

    for _ in range(2):
        with pytest.raises(UnavailableError):
            check_catalog(site, REST, catalog)

    assert len(catalog.made) == 2


def test_the_scratch_table_of_a_probe_that_was_killed_is_dropped_by_the_next(
    site: Site,
) -> None:  # L-FLUSH-14
    killed = Catalog(fault=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        check_catalog(site, REST, killed)
    site.clock.sleep(TTL_S)
    catalog = Catalog()

    check_catalog(site, REST, catalog)

    assert catalog.dropped == killed.made
    assert catalog.made != killed.made


@pytest.mark.parametrize(
    "other",
    [
        replace(REST, warehouse="others"),
        replace(REST, conf={"uri": "https://other.example"}),
        LakeSettings("rows", "hive", conf=REST.conf),
        LakeSettings("rows", "jdbc", conf={"catalog-impl": "org.example.Catalog"}),
    ],
)
def test_another_catalog_is_tried_by_itself(site: Site, other: LakeSettings) -> None:  # L-FLUSH-14
    check_catalog(site, REST, Catalog())
    catalog = Catalog([STAGED])

    with pytest.raises(CatalogUnfit):
        check_catalog(site, other, catalog)
    check_catalog(site, REST, catalog)

    assert len(catalog.made) == 1


def test_the_catalogs_that_every_test_runs_on_are_not_tried(site: Site) -> None:  # L-FLUSH-14
    catalog = Catalog([STAGED])

    check_catalog(site, LakeSettings("/rows", uri="/catalog.db"), catalog)
    check_catalog(site, LakeSettings("/rows", uri="postgresql://db/lake"), catalog)

    assert catalog.made == []
    assert probed(site.b, LakeSettings("/rows", uri="/catalog.db")) is None


def test_what_is_remembered_holds_no_address(site: Site) -> None:
    check_catalog(site, REST, Catalog())

    ((key, value),) = kv_items(site.b, prefix="catalog/")
    assert "secret" not in f"{key} {value}"


def test_an_unreadable_memory_is_not_taken_for_a_tried_catalog(site: Site) -> None:  # L-CTL-4
    check_catalog(site, REST, Catalog())
    ((key, _),) = kv_items(site.b, prefix="catalog/")
    kv_put(site.b, key, {"missing": []})

    with pytest.raises(ControlUnreadable):
        check_catalog(site, REST, Catalog())
