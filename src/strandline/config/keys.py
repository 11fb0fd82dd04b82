"""What there is to configure: the tables of `strandline.toml`, their keys, their defaults."""

import socket
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal, NamedTuple

from msgspec import NODEFAULT, Meta, field
from msgspec.structs import FieldInfo, fields

from strandline.config.datasets import DatasetTable
from strandline.config.sinks import KINDS, Pattern, SinkTable
from strandline.config.sources import PROVIDER_KINDS, BackfillTable
from strandline.config.toml_file import (
    GIB,
    MIB,
    Scalar,
    Section,
    about,
    describe,
    metas,
    size_text,
    toml_text,
)

VERSION: Final = 1
DEFAULT_STORE: Final = "strandline.db"

Text = Annotated[str, Meta(min_length=1)]
Size = Annotated[int, Meta(gt=0)]
Count = Annotated[int, Meta(gt=0)]
Seconds = Annotated[float, Meta(gt=0, le=1e9)]
Minutes = Annotated[float, Meta(gt=0, le=1e6)]
Hours = Annotated[float, Meta(ge=0, le=1e6)]
Days = Annotated[float, Meta(ge=0, le=1e5)]
Conf = dict[str, Scalar]


class NodeSection(Section, frozen=True):
    """[node]: who this is."""

    name: Annotated[
        Text,
        Meta(max_length=128, pattern=r"^[^\x00-\x1f\x7f]+$"),
        about("the name that other nodes see", default="the host's name"),
    ] = field(default_factory=socket.gethostname)
    strict_datasets: Annotated[
        bool | None,
        about(
            "refuse rows of a dataset that is not declared: true or false",
            default="`false`; `true` under `strandline server run`",
            sample="false",
        ),
    ] = None


class StoreSection(Section, frozen=True):
    """[store]: the control store."""

    url: Annotated[Text, about("a SQLite file, or postgresql://user@host/database")] = DEFAULT_STORE
    password: Annotated[
        Text | None,
        about(
            "the password of Postgres, as env:NAME or file:PATH",
            default="none",
            sample='"env:STRANDLINE_STORE_PASSWORD"',
        ),
    ] = None
    fold_after_days: Annotated[
        Days, about("days after which closed history leaves the store for an archive beside the segments")
    ] = 30


class ContentSection(Section, frozen=True):
    """[content]: the content store, which holds segments."""

    url: Annotated[Text, about("a folder, or a bucket: s3://…, gs://…, az://…")] = "content"
    grace_h: Annotated[Hours, about("hours that bytes stay which nothing names any more")] = 24
    conf: Annotated[Conf, about("options of the bucket, as obstore takes them: endpoint, region, …")] = field(
        default_factory=dict
    )


class LakeSection(Section, frozen=True):
    """[lake]: the Iceberg tables."""

    catalog: Annotated[
        Literal["jdbc", "rest", "glue", "hive", "nessie"],
        about('"jdbc" (beside the store), "rest", "glue" or "hive"'),
    ] = "jdbc"
    warehouse: Annotated[Text, about("a folder, or s3://…; with a REST catalog what it calls it")] = (
        "warehouse"
    )
    format: Annotated[Literal[2, 3], about("the Iceberg format of new tables: 2 or 3")] = 2
    conf: Annotated[Conf, about("goes to Spark as spark.sql.catalog.strandline.<key>")] = field(
        default_factory=dict
    )


class SparkSection(Section, frozen=True):
    """[spark]: where jobs run."""

    master: Annotated[Text, about("Spark's master; Spark runs in this process or is submitted to it")] = (
        "local[*]"
    )
    remote: Annotated[
        Text | None,
        about(
            "a Connect server in its place: sc://host:port; with a token in it env:NAME or file:PATH",
            default="none",
            sample='"sc://spark.example:15002"',
        ),
    ] = None
    session_timezone: Annotated[Text, about("the time zone in which SQL shows times")] = "UTC"
    conf: Annotated[Conf, about("goes to Spark as it is")] = field(default_factory=dict)


class SpoolSection(Section, frozen=True):
    """[spool]: rows that are numbered and not landed yet."""

    flush_bytes: Annotated[Size, about("a flush is due at this many pending bytes")] = 128 * MIB
    max_age_s: Annotated[Seconds, about("a flush is due when the oldest pending row is this old")] = 120
    max_bytes: Annotated[Size, about("appends are refused at this many pending bytes")] = 4 * GIB
    max_row_bytes: Annotated[Size, about("a row above this is refused")] = 16 * MIB
    append_timeout_s: Annotated[Seconds, about("how long an append tries to get its numbers")] = 30
    linger_ms: Annotated[
        float, Meta(ge=0, le=1e6), about("how long the buffered writer waits for more rows")
    ] = 100
    group_rows: Annotated[Count, about("rows at which it waits no longer")] = 10_000
    group_bytes: Annotated[Size, about("bytes at which it waits no longer")] = 8 * MIB


class FlushSection(Section, frozen=True):
    """[flush]: what one flush takes at most."""

    max_rows: Annotated[Count, about("rows of one flush, at most")] = 1_000_000
    max_bytes: Annotated[Size, about("bytes of segments of one flush, at most")] = 512 * MIB


class RetentionTable(Section, frozen=True):
    """How long the rows of one dataset stay."""

    days: Annotated[Days | None, about("days that a row stays; 0 is for ever", default="default_days")] = None
    max_rows: Annotated[int, Meta(ge=0), about("rows that stay, at most; 0 is any number")] = 0
    max_bytes: Annotated[int, Meta(ge=0), about("bytes of its table, at most; 0 is any number")] = 0


class RetentionSection(Section, frozen=True):
    """[retention]: how long rows stay."""

    interval_min: Annotated[Minutes, about("minutes between two runs")] = 60
    default_days: Annotated[Days, about("days that a row stays, by its own time; 0 is for ever")] = 90
    datasets: Annotated[
        dict[Text, Any],  # of RetentionTable, once the file is read
        about("what holds for one dataset: name = {days, max_rows, max_bytes}"),
    ] = field(default_factory=dict)
    min_residence_h: Annotated[
        Hours, about("hours that a row stays after it was taken in, however old it is by its own time")
    ] = 24
    wait_for_sinks: Annotated[
        Literal["all", "none"] | tuple[Text, ...],
        about('a row stays until these have it: "all", "none", or names of sinks'),
    ] = "all"
    max_hold_days: Annotated[Days, about("days that a row waits for sinks, at most; 0 is any number")] = 0
    max_hold_bytes: Annotated[
        int, Meta(ge=0), about("bytes of rows that wait for sinks, at most; 0 is any number")
    ] = 0
    on_hold_limit: Annotated[
        Literal["keep", "evict"], about('what becomes of rows that wait for longer: "keep" or "evict"')
    ] = "keep"


class CompactionSection(Section, frozen=True):
    """[compaction]: small files become large ones, and how much history a table keeps."""

    interval_min: Annotated[Minutes, about("minutes between two walks over the tables")] = 60
    file_count: Annotated[Annotated[int, Meta(ge=2)], about("files of a tier at which they are merged")] = 32
    tier_bytes: Annotated[
        tuple[Size, ...], Meta(min_length=1), about("the size below which a file is of a tier, for each tier")
    ] = (MIB, 32 * MIB)
    target_file_bytes: Annotated[Size, about("about how large a file becomes")] = 128 * MIB
    max_tick_s: Annotated[Seconds, about("seconds of one walk; what is left waits for the next")] = 30
    min_snapshots: Annotated[Count, about("snapshots of a table that stay, at least")] = 10
    max_snapshot_age_h: Annotated[Hours, about("hours that a snapshot stays, at least")] = 24
    max_snapshots: Annotated[Count, about("snapshots of a table, at most; goes before both of them")] = 250


class Withhold(Section, frozen=True):
    """A rule of [policy]: rows of `datasets` for which `where` holds do not leave; those for which it cannot
    be told, since a column is null or not there, do as `missing` says."""

    datasets: Annotated[tuple[Pattern, ...], Meta(min_length=1)]
    where: Text
    missing: Literal["withhold", "export"] = "withhold"


class PolicySection(Section, frozen=True):
    """[policy]: which rows no sink gets."""

    withhold: Annotated[
        tuple[Withhold, ...],
        about(
            "rows that stay here: {datasets, where, missing}, where a predicate in SQL over their columns; "
            'where it is null rows stay too, unless missing = "export"'
        ),
    ] = ()


class ServerSection(Section, frozen=True):
    """[server]: rows from other nodes, taken in over HTTP."""

    listen: Annotated[
        Text,
        Meta(pattern=r"^(\[[0-9A-Fa-f:.]+\]|[^:\[\]\s]+):[0-9]{1,5}$"),
        about("the address to listen on, host:port or [IPv6]:port; port 0 is a free one"),
    ] = "127.0.0.1:8080"
    tokens: Annotated[
        tuple[Text, ...],
        about(
            "tokens that may send anything, each as env:NAME or file:PATH, beside those of "
            "`strandline server token`"
        ),
    ] = ()
    keep_source: Annotated[
        bool, about("keep sources as they come: true or false; else they follow the sender's name and a /")
    ] = False
    max_body_bytes: Annotated[Size, about("a unit above this is refused, also once decompressed")] = 64 * MIB
    rate_bytes_per_s: Annotated[
        int, Meta(ge=0), about("bytes a second that each token may send, on average; 0 is any number")
    ] = 0
    tls_certificate: Annotated[
        Text | None,
        about(
            "the file of the certificate, and those that vouch for it, in PEM",
            default="none: plain HTTP",
            sample='"server.crt"',
        ),
    ] = None
    tls_key_file: Annotated[
        Text | None,
        about("the file of the certificate's private key, in PEM", default="none", sample='"server.key"'),
    ] = None


class ObserveSection(Section, frozen=True):
    """[observe]: what others may watch."""

    metrics: Annotated[
        bool,
        about(
            "serve GET /metrics for Prometheus: true or false; to this machine, and with a token that may "
            "send anything"
        ),
    ] = False
    traces: Annotated[
        Text | None,
        about(
            "the collector that gets OpenTelemetry traces, by OTLP over HTTP",
            default="none",
            sample='"http://localhost:4318"',
        ),
    ] = None


SECTIONS: Final[Mapping[str, type[Section]]] = {
    "node": NodeSection,
    "store": StoreSection,
    "content": ContentSection,
    "lake": LakeSection,
    "spark": SparkSection,
    "spool": SpoolSection,
    "flush": FlushSection,
    "retention": RetentionSection,
    "compaction": CompactionSection,
    "policy": PolicySection,
    "server": ServerSection,
    "observe": ObserveSection,
}


# How a table of a name of one's own begins in the file of a new node.
_SAMPLES: Final = {
    "datasets.<name>": ["", "#[datasets.orders]"],
    "sinks.<name>": ["", "#[sinks.centre]"],
    "sinks.<forward>": [],
    "sinks.<blob>": ["", "#[sinks.archive]", '#type = "blob"'],
    "backfill.<name>": ["", "#[backfill.archive]"],
    "backfill.<files>": [],
    "backfill.<spark>": ["", "#[backfill.shop]", '#type = "spark"'],
    "backfill.<claude-code>": ["", "#[backfill.claude-code]"],
    "backfill.<codex>": ["", "#[backfill.codex]"],
}


class KeyDoc(NamedTuple):
    """A key, its default, and what it is about."""

    section: str
    key: str
    default: str  # in TOML, or in words where it has none
    about: str
    line: str  # as it would stand in the file


def keys() -> Iterator[KeyDoc]:
    """Every key there is, in the order of the file."""
    sinks = {f"sinks.<{name}>": kind for name, kind in KINDS.items()}
    kinds: dict[str, type[Section]] = {
        **SECTIONS,
        "datasets.<name>": DatasetTable,
        "sinks.<name>": SinkTable,
        **sinks,
        "backfill.<name>": BackfillTable,
        **{f"backfill.<{name}>": kind for name, kind in PROVIDER_KINDS.items()},
    }
    for section, kind in kinds.items():
        for info in fields(kind):
            extra = next(meta.extra for meta in metas(info) if meta.extra)
            text = _default_text(info)
            default = extra["default"] or (f"`{text}`" if text else "needed")
            yield KeyDoc(
                section, info.name, default, describe(info), f"{info.name} = {extra['sample'] or text}"
            )


def _default_text(info: FieldInfo) -> str:
    """In TOML; empty where there is none."""
    if info.required:
        return ""
    value = info.default_factory() if info.default is NODEFAULT else info.default
    if info.name.endswith("_bytes"):
        value = tuple(map(size_text, value)) if isinstance(value, tuple) else size_text(value)
    return toml_text(value)


def default_text() -> str:
    """The file that `strandline init` writes."""
    lines = [
        "# The configuration of a Strandline node. Each key below is commented out, with its default, or",
        "# with a sample where its default is told in words;",
        '# relative paths start at this folder; secrets are named: "env:NAME" or "file:PATH".',
        f"version = {VERSION}",
    ]
    section = ""
    for doc in keys():
        if doc.section != section:
            section = doc.section
            lines += _SAMPLES.get(section, ["", f"[{section}]"])
        words = doc.default if doc.default == "needed" else f"default: {doc.default}"
        more = "" if doc.line.endswith(f"= {doc.default[1:-1]}") else f" ({words})"
        lines.append(f"#{doc.line}  # {doc.about}{more}")
    return "\n".join(lines) + "\n"
