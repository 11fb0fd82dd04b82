"""Every suite, in the order of scoreboards: the twenty of the baseline, then ours, then the levels."""

from typing import Final

from strandline.conformance.case import Suite
from strandline.conformance.suites.backend import BACKEND
from strandline.conformance.suites.batch import BATCH
from strandline.conformance.suites.blob import BLOB
from strandline.conformance.suites.cas import CAS
from strandline.conformance.suites.catalog import CATALOG
from strandline.conformance.suites.commit import COMMIT
from strandline.conformance.suites.compaction import COMPACTION
from strandline.conformance.suites.concurrency import CONCURRENCY
from strandline.conformance.suites.consumer import CONSUMER
from strandline.conformance.suites.crash import CRASH
from strandline.conformance.suites.durable import DURABLE
from strandline.conformance.suites.erasure import ERASURE
from strandline.conformance.suites.event import EVENT
from strandline.conformance.suites.example_acl import EXAMPLE_ACL
from strandline.conformance.suites.fail_closed import FAIL_CLOSED
from strandline.conformance.suites.global_order import GLOBAL
from strandline.conformance.suites.histories import RANDOM
from strandline.conformance.suites.idempotency import IDEMPOTENCY
from strandline.conformance.suites.integrity import INTEGRITY
from strandline.conformance.suites.kv import KV
from strandline.conformance.suites.log import LOG
from strandline.conformance.suites.names import NAMES
from strandline.conformance.suites.processes import PROCESSES
from strandline.conformance.suites.project import PROJECT
from strandline.conformance.suites.query import QUERY
from strandline.conformance.suites.recovery import RECOVERY
from strandline.conformance.suites.snapshot import SNAPSHOT
from strandline.conformance.suites.subscribe import SUBSCRIBE
from strandline.conformance.suites.threads import THREADS
from strandline.conformance.suites.upcast import UPCAST
from strandline.conformance.suites.upkeep import UPKEEP
from strandline.conformance.suites.value import VALUE
from strandline.conformance.suites.view import VIEW

BASELINE: Final[tuple[Suite, ...]] = (
    EVENT,
    LOG,
    KV,
    PROJECT,
    SUBSCRIBE,
    CONCURRENCY,
    SNAPSHOT,
    COMPACTION,
    DURABLE,
    BLOB,
    VIEW,
    CAS,
    CATALOG,
    QUERY,
    BATCH,
    UPCAST,
    IDEMPOTENCY,
    GLOBAL,
    EXAMPLE_ACL,
    RECOVERY,
)
ALL: Final[tuple[Suite, ...]] = (
    *BASELINE,
    VALUE,
    NAMES,
    BACKEND,
    COMMIT,
    CONSUMER,
    ERASURE,
    INTEGRITY,
    UPKEEP,
    FAIL_CLOSED,
    THREADS,
    PROCESSES,
    CRASH,
    RANDOM,
)
