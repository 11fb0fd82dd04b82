"""The sinks of the configuration: which rows go where, and when.

    [sinks.centre]
    type = "forward"
    url = "https://centre.example"
    token = "env:CENTRE_TOKEN"
    include = ["logs", "web-*"]

Keys that all kinds have are read here, and so are those of the kinds that ship; a kind that a package brings
reads its own. A sink is made when it is asked for, and its secrets are looked up then.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta, field
from msgspec.structs import asdict, fields

from strandline.base.schedule import Cron
from strandline.base.secret import is_reference
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
    is_secret_name,
    read_kind,
    read_struct,
    shown,
)
from strandline.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from strandline.sinks.sink import Sink

MAX_INTENT_ROWS: Final[Mapping[str, int]] = {"blob": 1_000_000}
DEFAULT_INTENT_ROWS: Final = 200_000

_WILD: Final = frozenset("*?[")

Text = Annotated[str, Meta(min_length=1)]
Size = Annotated[int, Meta(gt=0)]
Count = Annotated[int, Meta(gt=0)]
Seconds = Annotated[float, Meta(gt=0, le=1e9)]
Pattern = Annotated[str, Meta(min_length=1, pattern=r"^[A-Za-z0-9_.*?\[\]!-]{1,256}$")]


class SinkTable(Section, frozen=True):
    """`[sinks.<instance>]`: what every sink has."""

    type: Annotated[Text, about('"forward", "blob", or one that a package brings', sample='"forward"')]
    schedule: Annotated[Text, about("when it delivers: cron with five fields, in UTC")] = "* * * * *"
    enabled: Annotated[bool, about("whether it delivers at all: true or false")] = True
    include: Annotated[tuple[Pattern, ...], about("datasets that it takes, by name or with * and ?")] = ("*",)
    exclude: Annotated[tuple[Pattern, ...], about("datasets that it leaves out, of those")] = ()
    start: Annotated[
        Literal["all", "now"], about('"all" rows that there are, or those from "now" on, when it is new')
    ] = "all"
    max_intent_rows: Annotated[
        Count | None,
        about(
            "rows of a source that are under way at once, at most",
            default=f"`{DEFAULT_INTENT_ROWS}`; blob: `{MAX_INTENT_ROWS['blob']}`",
            sample=str(DEFAULT_INTENT_ROWS),
        ),
    ] = None
    max_lag_s: Annotated[Seconds, about("how late it may be before the node counts as degraded")] = 3600


class ForwardTable(Section, frozen=True):
    """What a forward sink has beside that."""

    url: Annotated[Text, about("where the other node listens", sample='"https://centre.example"')]
    token: Annotated[
        Text | None,
        about("what it lets us in by, as env:NAME or file:PATH", default="none", sample='"env:CENTRE_TOKEN"'),
    ] = None
    compression: Annotated[
        Literal["none", "gzip", "zstd"], about('how requests are packed: "none", "gzip" or "zstd"')
    ] = "none"
    max_unit_rows: Annotated[Count, about("rows of one request, at most")] = 5_000
    max_unit_bytes: Annotated[Size, about("bytes of one request, at most, if it has more than one row")] = (
        4 * MIB
    )
    max_body_bytes: Annotated[Size, about("a row above this cannot be sent")] = 64 * MIB
    inline_wait_s: Annotated[Seconds, about("how long a run waits for the other node's sake, at most")] = 300
    poison_attempts: Annotated[Count, about("how often rows are sent that the other node refuses")] = 3
    on_poison: Annotated[
        Literal["dead_letter", "hold"],
        about('such rows then: set aside ("dead_letter"), or waited for ("hold")'),
    ] = "dead_letter"
    failed_attempts: Annotated[
        Count,
        about("how often rows are sent that something else refuses, such as a proxy; then they are held"),
    ] = 20
    parallel: Annotated[Count, about("sources that are sent at once, at most")] = 4
    include_row_id: Annotated[bool, about("send each row's id with it: true or false")] = False


class BlobTable(Section, frozen=True):
    """What a blob sink has beside that."""

    destination: Annotated[
        Literal["local", "s3", "gcs", "azure"],
        about('"local", "s3" (or what speaks like it), "gcs" or "azure"', sample='"local"'),
    ]
    dir: Annotated[str, about("the folder, if local", default="none", sample='"archive"')] = ""
    bucket: Annotated[
        str, about("the bucket, or the container of Azure", default="none", sample='"archive"')
    ] = ""
    prefix: Annotated[str, about("what names of objects begin with")] = ""
    region: Annotated[str, about("the bucket's region", default="as its service has it")] = ""
    profile: Annotated[str, about("the profile of AWS that gives the credentials", default="none")] = ""
    endpoint: Annotated[str, about("the URL of a service of one's own", default="the public one")] = ""
    path_style: Annotated[bool, about("buckets stand in the path of a URL, not in its host")] = True
    storage_class: Annotated[str, about("the storage class of new objects", default="the bucket's")] = ""
    sse: Annotated[
        str, about('encryption by S3: "AES256", "aws:kms", "aws:kms:<key>"', default="the bucket's")
    ] = ""
    credentials: Annotated[
        dict[str, Scalar],
        about(
            "what lets us in, as obstore names it; secrets as env:NAME or file:PATH",
            default="those of the environment",
            sample="{}",
        ),
    ] = field(default_factory=dict)
    encoder: Annotated[
        Literal["parquet", "jsonl", "jsonl.gz"], about('what objects are: "parquet", "jsonl" or "jsonl.gz"')
    ] = "parquet"
    codec: Annotated[Literal["snappy", "zstd"], about('how Parquet is packed: "snappy" or "zstd"')] = "snappy"
    max_object_rows: Annotated[Count, about("rows of one object, at most")] = 1_000_000
    max_object_bytes: Annotated[Size, about("bytes of one object, about, at most")] = 128 * MIB
    min_object_bytes: Annotated[int, Meta(ge=0), about("rows wait until they make so large an object")] = 0
    max_delay_s: Annotated[
        float, Meta(ge=0, le=1e9), about("but not longer than this; it goes with min_object_bytes")
    ] = 0


KINDS: Final[Mapping[str, type[Section]]] = {"forward": ForwardTable, "blob": BlobTable}


def is_selected(dataset: str, include: Iterable[str], exclude: Iterable[str]) -> bool:
    """Whether a dataset is among those included, and not excluded: names, or patterns with * and ?."""
    is_in = any(fnmatchcase(dataset, pattern) for pattern in include)
    return is_in and not any(fnmatchcase(dataset, pattern) for pattern in exclude)


class SinkConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One configured sink. `keys` are those of its kind; secrets are in it by name only."""

    instance: str
    type: str
    schedule: str
    enabled: bool
    include: tuple[str, ...]
    exclude: tuple[str, ...]
    start: Literal["all", "now"]
    max_intent_rows: int
    max_lag_s: float
    keys: Mapping[str, Any]

    @property
    def cron(self) -> Cron:
        return Cron.parse(self.schedule)

    def takes(self, dataset: str) -> bool:
        """Whether the configuration sends a dataset there."""
        return is_selected(dataset, self.include, self.exclude)

    def made(self, home: Path) -> "Sink":
        """The sink itself, its secrets looked up now."""
        from strandline.sinks.registry import SinkOptions, make_sink

        return make_sink(self.type, SinkOptions(self.instance, self.keys, home))


class SinkNotConfigured(NotFoundError):
    """The configuration has no sink of this name."""

    def __init__(self, name: str, known: Collection[str]) -> None:
        there = f"there are {', '.join(known)}" if known else "there is none"
        remedy = "name one of them, or write [sinks.<name>]" if known else "write [sinks.<name>]"
        super().__init__(f"no sink {name!r:.80} is configured; {there}", hint=f"{remedy} in strandline.toml")
        self.name, self.known = name, tuple(known)


class ReadSinks(NamedTuple):
    """The sinks of a file, and what is odd about them."""

    sinks: dict[str, SinkConfig]
    warnings: list[str]


def read_sinks(
    tables: object, *, home: Path, datasets: Collection[str], is_strict: bool, faults: Faults
) -> ReadSinks:
    """Every sink of the file, by name. `datasets` are those that are declared; where others may come
    (`is_strict` is false), one that is not is only odd."""
    if not isinstance(tables, dict):
        faults.add(("sinks",), f"{shown(tables)} is no table")
        return ReadSinks({}, [])
    read = [_read_sink(name, table, faults) for name, table in tables.items()]
    sinks = {sink.instance: sink for sink in read if sink is not None}
    warnings: list[str] = []
    for sink in sinks.values():
        for key, text in _strange_names(sink, datasets):
            if is_strict:
                faults.add(("sinks", sink.instance, key), text)
            else:
                warnings.append(f"sinks.{sink.instance}.{key}: {text}")
    return ReadSinks(sinks, warnings + _check_made(sinks, home, faults))


def _read_sink(name: str, table: object, faults: Faults) -> SinkConfig | None:
    at = ("sinks", name)
    if not isinstance(table, dict):
        faults.add(at, f"{shown(table)} is no table")
        return None
    check_name(name, at, faults)
    common = {each.name for each in fields(SinkTable)}
    made = read_struct(SinkTable, {key: table[key] for key in table if key in common}, at, faults)
    if made is None:
        return None
    check_schedule(made.schedule, at, faults)
    given = {key: table[key] for key in table if key not in common}
    keys = _keys_of(made.type, given, at, faults)
    if keys is None:
        return None
    rows = made.max_intent_rows or MAX_INTENT_ROWS.get(made.type, DEFAULT_INTENT_ROWS)
    return SinkConfig(instance=name, keys=keys, **{**asdict(made), "max_intent_rows": rows})


def _keys_of(type_: str, given: dict[str, Any], at: Keys, faults: Faults) -> dict[str, Any] | None:
    """The keys of a kind: with their defaults if it ships, as they stand there if a package brings it."""
    kind = KINDS.get(type_)
    if kind is None:
        from strandline.sinks.registry import sink_types

        if type_ not in (known := sink_types()):
            faults.add((*at, "type"), f"{shown(type_)} is no kind of sink; there are {', '.join(known)}")
            return None
        check_secrets(given, at, faults)
        return given
    made = read_kind(kind, SinkTable, given, at, faults)
    if made is None:
        return None
    keys = asdict(made)
    check_secrets(keys, at, faults)
    check_secrets(keys.get("credentials", {}), (*at, "credentials"), faults)
    if isinstance(made, ForwardTable) and made.max_unit_bytes > made.max_body_bytes:
        found = f"{made.max_unit_bytes:,} is above max_body_bytes, which is {made.max_body_bytes:,}"
        faults.add((*at, "max_unit_bytes"), found)
    if isinstance(made, BlobTable) and made.min_object_bytes and not made.max_delay_s:
        found = "rows wait for a larger object for max_delay_s at most, which is 0; wanted: how long they may"
        faults.add((*at, "min_object_bytes"), found)
    return keys


def _strange_names(sink: SinkConfig, datasets: Collection[str]) -> Iterator[tuple[str, str]]:
    for key, patterns in (("include", sink.include), ("exclude", sink.exclude)):
        for pattern in patterns:
            if not _WILD & {*pattern} and pattern not in datasets:
                yield key, f"{shown(pattern)} is no dataset that is declared; there are {', '.join(datasets)}"


def _check_made(sinks: Mapping[str, SinkConfig], home: Path, faults: Faults) -> list[str]:
    """What only the sink itself knows to be wrong, and what is odd about where rows go. Nothing is opened and
    no secret is looked up."""
    places: dict[str, list[str]] = {}
    warnings: list[str] = []
    for sink in sinks.values():
        if sink.type not in KINDS:
            continue
        try:
            made = msgspec.structs.replace(sink, keys=_without_secrets(sink.keys)).made(home)
        except UsageError as error:
            faults.add(("sinks", sink.instance), f"{error.message}; wanted: {error.hint}")
            continue
        places.setdefault(made.fingerprint, []).append(sink.instance)
        if sink.keys.get("token") and _is_open_wire(sink.keys["url"]):
            warnings.append(
                f"sinks.{sink.instance}.url: the token and all rows go there unencrypted, by http:"
            )
    for place, names in places.items():
        if len(names) > 1:
            warnings.append(f"sinks {' and '.join(names)} deliver to one destination, {place}")
    return warnings


def _without_secrets(keys: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in keys.items() if not (is_secret_name(key) or is_reference(value))}
    return {key: _without_secrets(value) if isinstance(value, dict) else value for key, value in kept.items()}


def _is_open_wire(url: str) -> bool:
    from strandline.sinks.forward.forward_sink import is_open_wire

    return is_open_wire(url)
