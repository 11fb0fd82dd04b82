"""The providers of the configuration: where history comes from, and when.

    [backfill.old-logs]
    type = "files"
    path = "archive"
    dataset = "logs"
    schedule = "0 3 * * *"

The name is that of the provider in marks and leases: rows that came in under it are known by it. Keys that
all kinds have are read here, and so are those of the kinds that ship; a kind that a package brings reads its
own. Without a table of its own a kind can be run on command, with its defaults.
"""

from collections.abc import Collection, Mapping
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, field
from msgspec.structs import asdict, fields

from strandline.base.schedule import Cron
from strandline.config.toml_file import (
    MIB,
    Faults,
    Keys,
    Scalar,
    Section,
    about,
    check_name,
    check_schedule,
    check_secrets,
    read_kind,
    read_struct,
    shown,
)
from strandline.errors import NotFoundError

QUIESCE_S: Final = 180

Text = Annotated[str, Meta(min_length=1)]
Size = Annotated[int, Meta(gt=0)]
Days = Annotated[float, Meta(ge=0, le=1e5)]


class BackfillTable(Section, frozen=True):
    """`[backfill.<provider>]`: what every provider has."""

    type: Annotated[
        Text | None,
        about(
            '"files", "spark", "claude-code", "codex", or one that a package brings',
            default="the name of the table",
            sample='"files"',
        ),
    ] = None
    enabled: Annotated[bool, about("whether it runs by its schedule and when all are run")] = True
    schedule: Annotated[
        str, about("when it runs by itself: cron with five fields, in UTC; empty is never")
    ] = ""
    on_start: Annotated[bool, about("whether it runs once when the node first starts: true or false")] = False
    window_days: Annotated[
        Days | None,
        about(
            "days that it looks back; 0 is any number", default="as long as retention keeps rows", sample="90"
        ),
    ] = None
    quiesce_s: Annotated[
        float, Meta(ge=0, le=1e9), about("what was changed within so many seconds is left for the next run")
    ] = QUIESCE_S


class FilesTable(Section, frozen=True):
    """What a provider of files has beside that."""

    path: Annotated[Text, about("a folder, or a bucket: s3://…, gs://…, az://…", sample='"archive"')]
    dataset: Annotated[Text, about("where the rows go", sample='"logs"')]
    source: Annotated[
        str, about("the source of all rows", default="as each row has it", sample='"archive"')
    ] = ""
    include: Annotated[tuple[Text, ...], about("which files, by name or by path below, with * and ?")] = (
        *(f"*.{kind}{packed}" for kind in ("jsonl", "ndjson", "csv") for packed in ("", ".gz", ".zst")),
        "*.parquet",
    )
    format: Annotated[
        str, about('"jsonl", "csv" or "parquet"', default="as names tell", sample='"jsonl"')
    ] = ""
    frame_bytes: Annotated[
        Size, about("a Parquet file from this size on goes through Spark, if it is in a folder")
    ] = 64 * MIB
    options: Annotated[
        dict[str, Scalar], about("of the bucket, as obstore takes them; secrets as env:NAME or file:PATH")
    ] = field(default_factory=dict)


class SparkTable(Section, frozen=True):
    """What a provider of anything that Spark reads has beside that."""

    format: Annotated[Text, about('what Spark reads: "jdbc", "parquet", "iceberg", …', sample='"jdbc"')]
    dataset: Annotated[Text, about("where the rows go", sample='"orders"')]
    source: Annotated[str, about("the source of all rows", default="as each row has it", sample='"shop"')] = (
        ""
    )
    load: Annotated[str, about("the path or table to read, where the format wants one", default="none")] = ""
    options: Annotated[
        dict[str, Scalar],
        about("goes to Spark's reader; secrets as env:NAME or file:PATH", sample='{url = "jdbc:…"}'),
    ] = field(default_factory=dict)
    select: Annotated[
        tuple[Text, ...], about("expressions in SQL that make the columns", default="all columns as they are")
    ] = ()
    time_column: Annotated[
        str,
        about("a timestamp or date by which the rows are cut into days", default="none: all are one item"),
    ] = ""


class ClaudeCodeTable(Section, frozen=True):
    """What the provider of Claude Code transcripts has beside that."""

    path: Annotated[Text, about("the folder of projects")] = "~/.claude/projects"
    dataset: Annotated[Text, about("where the rows go")] = "messages"


class CodexTable(Section, frozen=True):
    """What the provider of Codex transcripts has beside that."""

    path: Annotated[Text, about("the folder of sessions")] = "~/.codex/sessions"
    dataset: Annotated[Text, about("where the rows go")] = "messages"


PROVIDER_KINDS: Final[Mapping[str, type[Section]]] = {
    "files": FilesTable,
    "spark": SparkTable,
    "claude-code": ClaudeCodeTable,
    "codex": CodexTable,
}


class ProviderConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One configured provider. `keys` are those of its kind; secrets are in it by name only."""

    instance: str
    type: str
    enabled: bool = True
    schedule: str = ""
    on_start: bool = False
    window_days: float | None = None
    quiesce_s: float = QUIESCE_S
    keys: Mapping[str, Any] = {}

    @property
    def cron(self) -> Cron | None:
        return Cron.parse(self.schedule) if self.schedule else None


class ProviderNotConfigured(NotFoundError):
    """The configuration has no provider of this name, and none can do without one."""

    def __init__(self, name: str, known: Collection[str]) -> None:
        there = f"there are {', '.join(known)}" if known else "there is none"
        super().__init__(
            f"no provider {name!r:.80} is configured; {there}",
            hint="name one of them, or write [backfill.<name>]",
        )
        self.name, self.known = name, tuple(known)


def read_providers(tables: object, faults: Faults) -> dict[str, ProviderConfig]:
    """Every provider of the file, by name."""
    if not isinstance(tables, dict):
        faults.add(("backfill",), f"{shown(tables)} is no table")
        return {}
    read = (_read_provider(name, table, faults) for name, table in tables.items())
    return {each.instance: each for each in read if each is not None}


def default_provider(type_: str) -> ProviderConfig | None:
    """A kind that ships and needs no key, as it is run without a table; None for others."""
    kind = PROVIDER_KINDS.get(type_)
    if kind is None or any(each.required for each in fields(kind)):
        return None
    return ProviderConfig(instance=type_, type=type_, enabled=False, keys=asdict(kind()))


def _read_provider(name: str, table: object, faults: Faults) -> ProviderConfig | None:
    at = ("backfill", name)
    if not isinstance(table, dict):
        faults.add(at, f"{shown(table)} is no table")
        return None
    check_name(name, at, faults)
    common = {each.name for each in fields(BackfillTable)}
    made = read_struct(BackfillTable, {key: table[key] for key in table if key in common}, at, faults)
    if made is None:
        return None
    if made.schedule:
        check_schedule(made.schedule, at, faults)
    type_ = made.type or name
    keys = _keys_of(type_, {key: table[key] for key in table if key not in common}, at, faults)
    return (
        None if keys is None else ProviderConfig(instance=name, keys=keys, **{**asdict(made), "type": type_})
    )


def _keys_of(type_: str, given: dict[str, Any], at: Keys, faults: Faults) -> dict[str, Any] | None:
    """The keys of a kind: with their defaults if it ships, as they stand there if a package brings it."""
    kind = PROVIDER_KINDS.get(type_)
    if kind is None:
        if type_ not in (known := _installed()):
            faults.add((*at, "type"), f"{shown(type_)} is no kind of provider; there are {', '.join(known)}")
            return None
        check_secrets(given, at, faults)
        return given
    made = read_kind(kind, BackfillTable, given, at, faults)
    if made is None:
        return None
    keys = asdict(made)
    check_secrets(keys.get("options", {}), (*at, "options"), faults)
    return keys


def _installed() -> list[str]:
    from importlib.metadata import entry_points

    return sorted({*PROVIDER_KINDS, *(point.name for point in entry_points(group="strandline.providers"))})
