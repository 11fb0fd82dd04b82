"""The configuration of a node: `strandline.toml` in its home, as structs.

    version = 1

    [store]
    url = "postgresql://strandline@db.example/strandline"
    password = "env:STORE_PASSWORD"

    [spool]
    flush_bytes = "64MiB"

Every key has a default, so a home without a file is a node too. Relative paths start at the file's folder and
nothing that is stored holds one, so a home can be moved. Nothing is opened here; secrets are looked up when a
place that needs one is asked for.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import SplitResult, quote, urlsplit

import msgspec
from msgspec import field

from strandline.base.predicate import why_unsteady
from strandline.base.secret import is_reference
from strandline.config.datasets import (
    BUILT_IN_TABLES,
    DatasetSettings,
    Declared,
    built_in,
    read_datasets,
    with_declared,
)
from strandline.config.home import FILE_NAME, HomeExists, HomeNotFound, find_home, write_default
from strandline.config.keys import (
    SECTIONS,
    VERSION,
    CompactionSection,
    ContentSection,
    FlushSection,
    LakeSection,
    NodeSection,
    ObserveSection,
    PolicySection,
    RetentionSection,
    RetentionTable,
    ServerSection,
    SparkSection,
    SpoolSection,
    StoreSection,
)
from strandline.config.lake_settings import LakeSettings, SparkSettings
from strandline.config.sinks import SinkConfig, SinkNotConfigured, read_sinks
from strandline.config.sources import ProviderConfig, read_providers
from strandline.config.toml_file import (
    ConfigError,
    Faults,
    Problem,
    Scalar,
    is_secret_name,
    key_lines,
    look_up,
    no_such_key,
    parse_toml,
    read_struct,
    shown,
)
from strandline.rows.dataset import Dataset

if TYPE_CHECKING:
    from strandline.sinks.sink import Sink

__all__ = [
    "FILE_NAME",
    "Config",
    "ConfigError",
    "DatasetSettings",
    "HomeExists",
    "HomeNotFound",
    "SinkConfig",
    "SinkNotConfigured",
    "default_config",
    "find_home",
    "load_config",
    "with_declared",
    "write_default",
]

CATALOG_FILE: Final = "catalog.db"

_POSTGRES: Final = ("postgresql", "postgres")
_BUCKETS: Final = ("s3", "gs", "az")
_CONFS: Final = ("content", "lake", "spark")
_ORDERED: Final = (("spool", "flush_bytes", "max_bytes"), ("compaction", "min_snapshots", "max_snapshots"))


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """What a node is told. Secrets are in it by name only; places are absolute."""

    home: Path
    node: NodeSection = field(default_factory=NodeSection)
    store: StoreSection = field(default_factory=StoreSection)
    content: ContentSection = field(default_factory=ContentSection)
    lake: LakeSection = field(default_factory=LakeSection)
    spark: SparkSection = field(default_factory=SparkSection)
    spool: SpoolSection = field(default_factory=SpoolSection)
    flush: FlushSection = field(default_factory=FlushSection)
    retention: RetentionSection = field(default_factory=RetentionSection)
    compaction: CompactionSection = field(default_factory=CompactionSection)
    policy: PolicySection = field(default_factory=PolicySection)
    server: ServerSection = field(default_factory=ServerSection)
    observe: ObserveSection = field(default_factory=ObserveSection)
    sinks: Mapping[str, SinkConfig] = {}
    backfill: Mapping[str, ProviderConfig] = {}
    warnings: tuple[str, ...] = ()  # what is odd in the file and no fault
    datasets: Mapping[str, Dataset] = {}
    dataset_settings: Mapping[str, DatasetSettings] = {}
    own_remote: str | None = None  # the Spark of this node's daemon, in place of what [spark] says

    @property
    def store_url(self) -> str:
        """For open_store; it holds the password, so it is not for messages."""
        if self.store.password is None:
            return _place(self.store.url, self.home)
        parts = urlsplit(self.store.url)
        user, _, host = parts.netloc.rpartition("@")
        password = quote(self._secret("store.password", self.store.password), safe="")
        return parts._replace(netloc=f"{user}:{password}@{host}").geturl()

    @property
    def content_url(self) -> str:
        return _place(self.content.url, self.home)

    def content_options(self) -> dict[str, Scalar]:
        """For open_content, beside the URL; secrets among them."""
        return self._looked_up("content", self.content.conf)

    def lake_settings(self) -> LakeSettings:
        """A JDBC catalog is a SQLite file beside the store, or in the same Postgres."""
        is_jdbc, is_postgres = self.lake.catalog == "jdbc", _scheme(self.store.url) in _POSTGRES
        beside = self.store_url if is_postgres else str(Path(self.store_url).with_name(CATALOG_FILE))
        warehouse = self.lake.warehouse
        return LakeSettings(
            warehouse=warehouse if self.lake.catalog == "rest" else _place(warehouse, self.home),
            catalog=self.lake.catalog,
            uri=beside if is_jdbc else "",
            format=self.lake.format,
            conf=_texts(self._looked_up("lake", self.lake.conf)),
        )

    def spark_settings(self) -> SparkSettings:
        if self.own_remote is not None:
            timezone = self.spark.session_timezone
            return SparkSettings(remote=self.own_remote, session_timezone=timezone, is_own=True)
        remote = self.spark.remote
        return SparkSettings(
            master=self.spark.master,
            remote=self._secret("spark.remote", remote) if is_reference(remote) and remote else remote,
            session_timezone=self.spark.session_timezone,
            conf=_texts(self._looked_up("spark", self.spark.conf)),
            log=str(self.home / "logs" / "spark.log"),
        )

    def server_tokens(self) -> list[str]:
        return [self._secret("server.tokens", each) for each in self.server.tokens]

    def server_tls(self) -> tuple[str, str] | None:
        """The files of the certificate and of its key; None for plain HTTP."""
        certificate, key = self.server.tls_certificate, self.server.tls_key_file
        if certificate is None or key is None:
            return None
        return str(self.home / certificate), str(self.home / key)

    def dataset_of_signal(self, signal: str) -> str:
        """The dataset where rows go that come under a signal: the one that is configured to, else the one of
        that name."""
        named = [name for name, each in self.dataset_settings.items() if each.signal == signal]
        return named[0] if named and signal not in named else signal

    def sink(self, name: str) -> "Sink":
        """The sink of this name, with its secrets; SinkNotConfigured if there is none."""
        if name not in self.sinks:
            raise SinkNotConfigured(name, self.sinks)
        return self.sinks[name].made(self.home)

    def declared(self, dataset: str) -> Dataset | None:
        """The dataset as the file, or else what ships with Strandline, has it; None if neither knows it."""
        if dataset in self.datasets:
            return self.datasets[dataset]
        found = built_in(dataset)
        return found.dataset if found else None

    def settings_of(self, dataset: str) -> DatasetSettings:
        if dataset in self.dataset_settings:
            return self.dataset_settings[dataset]
        found = built_in(dataset)
        return found.settings if found else DatasetSettings(signal=dataset)

    def _secret(self, key: str, reference: str) -> str:
        return look_up(reference, key, file=str(self.home / FILE_NAME), folder=self.home)

    def _looked_up(self, section: str, conf: Mapping[str, Scalar]) -> dict[str, Scalar]:
        return {
            key: self._secret(f"{section}.conf.{key}", str(value)) if is_secret_name(key) else value
            for key, value in conf.items()
        }


def default_config(home: Path) -> Config:
    """A node without a file."""
    return Config(home=home.absolute())


def load_config(path: Path) -> Config:
    """The file at `path`, every fault of it in one ConfigError. Read-only."""
    text = _read(path)
    tables = parse_toml(str(path), text)
    _check_version(path, text, tables)
    faults = Faults(str(path), text)
    for name in tables.keys() - {"version", "datasets", "sinks", "backfill", *SECTIONS}:
        faults.add((name,), no_such_key(name, [*SECTIONS, "datasets", "sinks", "backfill"]))
    sections: dict[str, Any] = {
        name: read_struct(kind, tables.get(name, {}), (name,), faults) for name, kind in SECTIONS.items()
    }
    sections["retention"] = _with_retention_tables(sections["retention"], faults)
    datasets = read_datasets(tables.get("datasets", {}), faults)
    home = path.absolute().parent
    sinks, warnings = read_sinks(
        tables.get("sinks", {}),
        home=home,
        datasets=sorted({*datasets, *BUILT_IN_TABLES}),
        is_strict=bool(sections["node"].strict_datasets),
        faults=faults,
    )
    warnings += _check_retention(
        sections["retention"],
        {*datasets, *BUILT_IN_TABLES},
        sinks,
        is_strict=bool(sections["node"].strict_datasets),
        faults=faults,
    )
    sections["backfill"] = read_providers(tables.get("backfill", {}), faults)
    config = Config(home=home, sinks=sinks, warnings=tuple(warnings), **sections, **_apart(datasets))
    _check_places(config, faults)
    _check_spark(config, tables.get("spark"), faults)
    _check_secrets(config, faults)
    _check_server(config, faults)
    _check_observe(config, faults)
    _check_policy(config, faults)
    for section, low, high in _ORDERED:
        if (least := getattr(sections[section], low)) > (most := getattr(sections[section], high)):
            faults.add((section, low), f"{least:,} is above {high}, which is {most:,}")
    faults.raise_any()
    return config


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except FileNotFoundError as error:
        raise HomeNotFound(f"there is no {path}", path.parent) from error
    except (OSError, UnicodeError) as error:
        raise ConfigError(str(path), [Problem(None, "", f"it cannot be read: {error}")]) from error


def _check_version(path: Path, text: str, tables: Mapping[str, Any]) -> None:
    """Of another version nothing else is looked at: its keys may mean something else."""
    found = tables.get("version")
    if type(found) is int and found == VERSION:
        return
    problem = "is missing" if found is None else f"{shown(found)} is not known here"
    line = key_lines(text).get("version")
    hint = f"write `version = {VERSION}` as the first line, or use the Strandline that the file was made for"
    raise ConfigError(str(path), [Problem(line, "version", f"{problem}; wanted: {VERSION}")], hint=hint)


def _apart(datasets: Mapping[str, Declared]) -> dict[str, Any]:
    return {
        "datasets": {name: declared.dataset for name, declared in datasets.items()},
        "dataset_settings": {name: declared.settings for name, declared in datasets.items()},
    }


def _with_retention_tables(retention: RetentionSection, faults: Faults) -> RetentionSection:
    read = {
        name: read_struct(RetentionTable, table, ("retention", "datasets", name), faults)
        for name, table in retention.datasets.items()
    }
    return msgspec.structs.replace(retention, datasets=read)


# Checks


def _check_retention(
    retention: RetentionSection,
    datasets: set[str],
    sinks: Mapping[str, SinkConfig],
    *,
    is_strict: bool,
    faults: Faults,
) -> list[str]:
    """Names that mean nothing. Where datasets may come that nobody declared, one that is not is only odd."""
    warnings = []
    for name in retention.datasets.keys() - datasets:
        text = f"{shown(name)} is no dataset that is declared; there are {', '.join(sorted(datasets))}"
        if is_strict:
            faults.add(("retention", "datasets", name), text)
        else:
            warnings.append(f"retention.datasets.{name}: {text}")
    if not isinstance(retention.wait_for_sinks, str):
        for name in retention.wait_for_sinks:
            if name not in sinks:
                known = f"there are {', '.join(sorted(sinks))}" if sinks else "there is none"
                faults.add(("retention", "wait_for_sinks"), f"{shown(name)} is no sink; {known}")
    return sorted(warnings)


def _check_policy(config: Config, faults: Faults) -> None:
    """A retry must withhold what the first try did."""
    for rule in config.policy.withhold:
        if (why := why_unsteady(rule.where)) is not None:
            faults.add(
                ("policy", "withhold"),
                f"where = {rule.where!r:.200}: {why}, so that a retry may not withhold the same rows; write "
                "it over columns of the row alone (a column of such a name in backticks)",
            )


def _check_places(config: Config, faults: Faults) -> None:
    store, is_postgres = config.store, _scheme(config.store.url) in _POSTGRES
    _check_place(("store", "url"), store.url, _POSTGRES, 'password = "env:NAME" in [store]', faults)
    _check_place(("content", "url"), config.content.url, _BUCKETS, "conf in [content]", faults)
    _check_place(("lake", "warehouse"), config.lake.warehouse, None, "conf in [lake]", faults)
    if config.lake.catalog == "nessie":
        lacks = "Nessie publishes staged rows at once, so that a flush that is killed would land twice"
        faults.add(("lake", "catalog"), f"{lacks}; wanted: jdbc, or a rest catalog that keeps them apart")
    if store.password is not None and not is_postgres:
        faults.add(("store", "password"), "SQLite takes none; wanted: a url of Postgres with it")
    if not is_postgres and config.lake.catalog == "jdbc" and Path(store.url).name == CATALOG_FILE:
        faults.add(
            ("store", "url"), f"{CATALOG_FILE} is the file of the tables' catalog; wanted: another name"
        )
    if config.content.conf and _scheme(config.content.url) not in _BUCKETS:
        faults.add(("content", "conf"), "a folder takes no options; wanted: a bucket as url with them")


def _check_place(
    at: tuple[str, str], url: str, schemes: tuple[str, ...] | None, remedy: str, faults: Faults
) -> None:
    """The URL itself is not shown where it may hold a password."""
    parts, scheme = _split(url), _scheme(url)
    if parts is None:
        faults.add(at, "this is no URL")
    elif scheme and schemes is not None and scheme not in schemes:
        faults.add(at, f"{scheme}: is not known here; wanted: a path, or {':, '.join(schemes)}:")
    elif parts.password or "password=" in parts.query:
        faults.add(at, f"a password stands in it; wanted: none here, and {remedy}")
    elif url.startswith("~"):
        faults.add(at, f"{shown(url)}: '~' is not expanded; wanted: a path from {FILE_NAME} on, or from /")


def _check_spark(config: Config, table: object, faults: Faults) -> None:
    remote = config.spark.remote
    if remote is None:
        return
    if isinstance(table, dict) and "master" in table:
        faults.add(("spark", "remote"), "master is there too; wanted: one of the two")
    if is_reference(remote):
        return
    if not remote.startswith("sc://"):
        faults.add(("spark", "remote"), f"{shown(remote)} is no Connect server; wanted: sc://host:port")
    elif "token=" in remote:
        faults.add(
            ("spark", "remote"), "a token stands in it; wanted: env:NAME or file:PATH, which holds it all"
        )


def _check_secrets(config: Config, faults: Faults) -> None:
    wanted = "a secret stands in the file; wanted: env:NAME or file:PATH"
    if config.store.password is not None and not is_reference(config.store.password):
        faults.add(("store", "password"), wanted)
    for section in _CONFS:
        for key, value in getattr(config, section).conf.items():
            if is_secret_name(key) and not is_reference(value):
                faults.add((section, "conf", key), wanted)


def _check_server(config: Config, faults: Faults) -> None:
    server = config.server
    for each in server.tokens:
        if not is_reference(each):
            faults.add(("server", "tokens"), "a secret stands in the file; wanted: env:NAME or file:PATH")
    if (server.tls_certificate is None) != (server.tls_key_file is None):
        faults.add(("server",), "tls_certificate and tls_key_file go together; wanted: both or neither")
    if int(server.listen.rpartition(":")[2]) > 65535:
        faults.add(("server", "listen"), f"{shown(server.listen)}: there is no such port; wanted: 0 to 65535")


def _check_observe(config: Config, faults: Faults) -> None:
    """The URL itself is not shown where it may hold a password."""
    if config.observe.traces is None:
        return
    parts = _split(config.observe.traces)
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        faults.add(("observe", "traces"), "this is no URL of a collector; wanted: http://host:4318")
    elif parts.username or parts.password or parts.query:
        remedy = "what lets us in stands in OTEL_EXPORTER_OTLP_HEADERS"
        faults.add(("observe", "traces"), f"a user or a query stands in it; wanted: none here, {remedy}")


# Places


def _split(url: str) -> SplitResult | None:
    try:
        return urlsplit(url)
    except ValueError:
        return None


def _scheme(text: str) -> str:
    """Of a URL; a path has none."""
    scheme, separator, _ = text.partition(":")
    return scheme.lower() if separator and "/" not in scheme else ""


def _place(text: str, home: Path) -> str:
    """A URL as it is, a path from the root on."""
    if _scheme(text):
        return text
    path = home / text
    # Iceberg compares locations as text, and no '..' survives in those that it lists.
    return str(path.resolve() if ".." in path.parts else path)


def _texts(conf: Mapping[str, Scalar]) -> dict[str, str]:
    return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in conf.items()}
