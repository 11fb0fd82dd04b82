"""Whether the catalog of a node keeps what landing rests on. An unknown one is tried once.

    catalog/<identity>    {"catalog", "at", "table", "missing"}    what the probe of this catalog has found

`table` is the scratch table of a probe that has begun, so that the next probe can drop what a kill has left;
`missing` is null until the probe has ended. A catalog that lacked something is tried again after a while,
because its server may have been replaced.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from strandline.config.lake_settings import LakeSettings
from strandline.errors import HeldError
from strandline.lake.ports.probe import Probe
from strandline.persist import AtomicBackend, Conflict, Put
from strandline.state.context import Site
from strandline.state.flush_plan import readable, text, whole
from strandline.state.lease import Lease, LeaseLost, held

AGAIN_S: Final = 600
WAIT_S: Final = 120
_SUPPORTED: Final = (
    "jdbc on SQLite or Postgres, or a rest catalog that keeps them (docs/how-to/another-catalog.md)"
)


class CatalogUnfit(HeldError):
    """A catalog does not keep what landing rests on. No row is written into its tables."""

    def __init__(self, catalog: str, missing: Sequence[str]) -> None:
        super().__init__(
            f"the {catalog} catalog does not keep what a flush relies on. Missing: {'; '.join(missing)}",
            hint=f"name a supported catalog in [lake]: {_SUPPORTED}; rows that were appended land then",
        )
        self.catalog, self.missing = catalog, tuple(missing)


@dataclass(frozen=True, slots=True)
class ProbedCatalog:
    """What is known of a catalog; `missing` is None while a probe is under way, or after it was killed."""

    catalog: str
    at: int
    table: str
    missing: tuple[str, ...] | None

    def error(self) -> CatalogUnfit | None:
        return CatalogUnfit(self.catalog, self.missing) if self.missing else None


def is_proven(lake: LakeSettings) -> bool:
    """Whether this is Iceberg's own JDBC catalog, on which the whole suite runs."""
    return lake.catalog == "jdbc" and not lake.conf.keys() & {"type", "catalog-impl"}


def probed(b: AtomicBackend, lake: LakeSettings) -> ProbedCatalog | None:
    """What the store remembers of a catalog, None if nobody has tried it."""
    key = _key(lake)
    found: Any = b.kv_get(key)
    if found is None:
        return None
    with readable(key, None):
        missing = None if found["missing"] is None else tuple(map(str, found["missing"]))
        return ProbedCatalog(text(found, "catalog"), whole(found, "at"), text(found, "table"), missing)


def check_catalog(site: Site, lake: LakeSettings, probe: Probe) -> None:
    """Raise CatalogUnfit if the catalog lacks something. Nothing is asked of a catalog that is known."""
    if is_proven(lake):
        return
    known = probed(site.b, lake)
    if not _is_current(site, known):
        with held(site.b, site.clock, _key(lake), timeout_s=WAIT_S) as lease:
            known = probed(site.b, lake)  # another process may have tried it meanwhile
            if not _is_current(site, known):
                known = _probe(site, lake, probe, lease, known)
    error = known.error() if known is not None else None
    if error is not None:
        raise error


def _is_current(site: Site, known: ProbedCatalog | None) -> bool:
    if known is None or known.missing is None:
        return False
    return not known.missing or site.clock.now_us() - known.at < AGAIN_S * 1_000_000


def _probe(
    site: Site, lake: LakeSettings, probe: Probe, lease: Lease, known: ProbedCatalog | None
) -> ProbedCatalog:
    if known is not None and known.table:
        probe.drop(known.table)
    begun = ProbedCatalog(lake.catalog, site.clock.now_us(), f"probe_{site.random_hex()}", None)
    _keep(lake, lease, begun)  # a kill from here on leaves the name of the table
    missing = tuple(probe.missing(begun.table))
    done = ProbedCatalog(lake.catalog, site.clock.now_us(), "", missing)
    _keep(lake, lease, done)
    return done


def _keep(lake: LakeSettings, lease: Lease, found: ProbedCatalog) -> None:
    missing = None if found.missing is None else list(found.missing)
    value = {"catalog": found.catalog, "at": found.at, "table": found.table, "missing": missing}
    if isinstance(lease.b.commit([lease.guard], [Put(_key(lake), value)]), Conflict):
        raise LeaseLost(lease.scope)


def _key(lake: LakeSettings) -> str:
    """The catalog's identity as a digest, because a URI may hold a password."""
    kind = lake.conf.get("catalog-impl") or lake.conf.get("type") or lake.catalog
    place = "\n".join([kind, lake.conf.get("uri") or lake.uri, lake.conf.get("warehouse") or lake.warehouse])
    return f"catalog/{sha256(place.encode()).hexdigest()[:32]}"
