"""Whether all that a node needs is there, thing by thing, each with what to do where it is not.

Nothing is started and nothing is written: Java is looked for, jars are looked at, places are opened and
listed, destinations are asked whether they answer.
"""

import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import urlsplit

from strandline.config.config import Config
from strandline.errors import StrandlineError, UnavailableError
from strandline.flush.catalog_check import is_proven, probed
from strandline.lake.ports.probe import PROMISES
from strandline.state.context import Site, open_site

if TYPE_CHECKING:
    from strandline.sinks.blob.blob_sink import BlobSink

Level = Literal["ok", "warning", "fault"]

LITTLE_BYTES: Final = 1024**3
NO_BYTES: Final = 64 * 1024**2
AHEAD_S: Final = 5.0
REACH_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at, how it is, and what to do about it."""

    what: str
    level: Level
    text: str
    remedy: str = ""


def examine(config: Config) -> Iterator[Finding]:
    """One thing after another, as it is found."""
    yield _python()
    yield from _found("Spark", _pyspark)
    if config.spark.remote is None:
        yield from _found("Java", _java)
        yield from _found("jars", lambda: _jars(config))
    else:
        yield from _found("Spark Connect", lambda: _connect(config))
    yield from _disk(config)
    yield from _found("content", lambda: _content(config))
    yield from _found("catalog", lambda: _catalog(config))
    try:
        site = open_site(config)
    except StrandlineError as error:
        yield _fault("store", error)
        return
    try:
        yield from _found("store", lambda: _store(site))
        if not is_proven(config.lake_settings()):
            yield from _found("catalog's promises", lambda: _promises(config, site))
        yield from _found("clock", lambda: _clock(site))
    finally:
        site.b.close()
    for name in config.sinks:
        yield from _found(f"sink {name}", partial(_sink, config, name))
    yield from _observed(config)


def _found(what: str, look: "Callable[[], str | Finding]") -> Iterator[Finding]:
    try:
        found = look()
    except StrandlineError as error:
        yield _fault(what, error)
    else:
        yield found if isinstance(found, Finding) else Finding(what, "ok", found)


def _fault(what: str, error: StrandlineError) -> Finding:
    return Finding(what, "fault", error.message, error.hint or "")


# The machine


def _python() -> Finding:
    return Finding("Python", "ok", f"{sys.version.split()[0]}, strandline {version('strandline')}")


def _pyspark() -> str | Finding:
    try:
        return f"pyspark {version('pyspark')}"
    except PackageNotFoundError:
        return Finding("Spark", "fault", "pyspark is not installed", "pip install 'strandline[lake]'")


def _java() -> str:
    from strandline.lake.spark.class_archive import archive_file, can_archive
    from strandline.lake.spark.java import find_java

    found = find_java()
    archive = "with" if archive_file(found).is_file() else "without"
    remedy = (
        " (`strandline doctor --prepare` makes one)" if archive == "without" and can_archive(found) else ""
    )
    return f"Java {found.version} at {found.home}, {archive} a class archive{remedy}"


def _jars(config: Config) -> str | Finding:
    from strandline.lake.spark.jars import coordinates, ivy_folder, missing

    lake, spark = config.lake_settings(), config.spark_settings()
    folder, wanted = ivy_folder(spark.conf), coordinates(lake)
    if lacking := missing(folder, wanted):
        text = f"not fetched yet: {', '.join(lacking)}"
        return Finding("jars", "warning", text, "the first start of Spark fetches them, and needs a network")
    return f"{len(wanted)} in {folder / 'jars'}"


def _connect(config: Config) -> str:
    from strandline.lake.spark.connect import DEFAULT_PORT, address

    remote = config.spark_settings().remote or ""
    url = urlsplit(remote)
    _reach(url.hostname or "", url.port or DEFAULT_PORT)
    return f"{address(remote)} answers"


def _disk(config: Config) -> Iterator[Finding]:
    """Of each file system that holds something of the node."""
    places = {
        "home": config.home,
        "content": Path(config.content_url),
        "warehouse": Path(config.lake_settings().warehouse),
    }
    seen: set[int] = set()
    for name, path in places.items():
        if "://" in str(path) or ":/" in str(path):
            continue
        there = next((each for each in (path, *path.parents) if each.exists()), None)
        if there is None or there.stat().st_dev in seen:
            continue
        seen.add(there.stat().st_dev)
        free = shutil.disk_usage(there).free
        level: Level = "fault" if free < NO_BYTES else "warning" if free < LITTLE_BYTES else "ok"
        remedy = "" if level == "ok" else "make room: `strandline retention run`, `strandline maintain`"
        yield Finding(f"disk of {name}", level, f"{free / 1024**3:,.1f} GiB free", remedy)


# The node


def _store(site: Site) -> str:
    datasets = site.standing.datasets()
    return f"{len(datasets)} datasets, {site.standing.position():,} events"


def _clock(site: Site) -> str | Finding:
    """Against the newest of what was recorded: a clock that is behind it went back."""
    changed = [
        strand_state.changed_at
        for dataset in site.standing.datasets()
        for strand_state in site.standing.strand_states(dataset).values()
    ]
    ahead_s = (max(changed, default=0) - site.clock.now_us()) / 1e6
    if ahead_s <= AHEAD_S:
        return "not behind what is recorded"
    text = f"{ahead_s:,.0f} s behind the newest rows"
    return Finding("clock", "warning", text, "set the clock, by NTP: ages and schedules go by it")


def _content(config: Config) -> str:
    from strandline.storage import open_content

    store = open_content(config.content_url, **config.content_options())
    first = next(iter(store.stored()), None)
    return "empty" if first is None else "can be listed"


def _catalog(config: Config) -> str:
    from strandline.lake.metadata.iceberg import check_pointers, table_pointers

    lake = config.lake_settings()
    pointers = table_pointers(lake)
    check_pointers(lake, pointers)
    return f"{len(pointers)} tables, their metadata is there"


def _promises(config: Config, site: Site) -> str | Finding:
    """What the probe of the catalog has found. Trying it needs Spark, which nothing here starts."""
    found = probed(site.b, config.lake_settings())
    if found is None or found.missing is None:
        text = "nobody has tried whether the catalog keeps what a flush relies on"
        return Finding("catalog's promises", "warning", text, "the first flush or load tries it")
    if error := found.error():
        raise error
    return f"the catalog was tried, and keeps all {len(PROMISES)}"


def _sink(config: Config, name: str) -> str:
    """Whether somebody listens, for one that is reached over HTTP; whether objects can be put, for a folder
    or a bucket; else whether it can be made at all."""
    from strandline.sinks.blob.blob_sink import BlobSink

    sink = config.sink(name)
    if isinstance(sink, BlobSink):
        return _folder(Path(sink.dir)) if sink.destination == "local" else _bucket(sink)
    url = urlsplit(str(getattr(sink, "url", "")))
    if url.hostname:
        _reach(url.hostname, url.port or {"http": 80, "https": 443}[url.scheme])
        return f"{url.scheme}://{url.netloc} listens; `strandline sync {name}` tells whether it lets us in"
    return f"configured; `strandline sink verify {name}` looks at it"


def _folder(folder: Path) -> str:
    there = next(each for each in (folder, *folder.parents) if each.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise UnavailableError(
            f"nothing can be put into {folder}: {there} is no folder that this user may write to",
            hint="make the folder, or name another as `dir`",
        )
    return "the folder can be written to" if there == folder else f"the folder will be made in {there}"


def _bucket(sink: "BlobSink") -> str:
    """By one object that is not there: a bucket that is not there, or lets nobody in, says so."""
    endpoint = urlsplit(sink.endpoint)
    if endpoint.hostname:
        _reach(endpoint.hostname, endpoint.port or {"http": 80, "https": 443}[endpoint.scheme])
    sink.store().look("doctor")
    return f"bucket {sink.bucket} answers, and lets us look"


def _observed(config: Config) -> Iterator[Finding]:
    """Nothing else waits for a collector: where it is down, that is a warning."""
    remedy = 'pip install "strandline[observe]"'
    if config.observe.metrics:
        if find_spec("prometheus_client") is None:
            yield Finding("metrics", "fault", "prometheus_client is not installed", remedy)
        else:
            yield Finding("metrics", "ok", "served as /metrics by `strandline up` and `server run`")
    if config.observe.traces is not None:
        if find_spec("opentelemetry") is None:
            yield Finding("traces", "fault", "opentelemetry is not installed", remedy)
            return
        url = urlsplit(config.observe.traces)
        try:
            _reach(url.hostname or "", url.port or {"http": 80, "https": 443}[url.scheme])
        except UnavailableError as error:
            yield Finding("traces", "warning", f"{error.message}: spans are lost", error.hint or "")
        else:
            yield Finding("traces", "ok", f"{url.scheme}://{url.netloc} listens")


def _reach(host: str, port: int) -> None:
    try:
        socket.create_connection((host, port), REACH_S).close()
    except OSError as error:
        raise UnavailableError(
            f"nobody answers at {host} port {port}: {error}", hint="start it, or correct its address"
        ) from error
