"""Classic Spark: a Java of its own beside this process, started, listened to, and ended by us.

Whatever it says, Spark's own log, the launcher's and the resolver's talk, goes to one file and never to our
stdout or stderr. It ends with us, also if we are killed: its input ends then.
"""

import os
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from typing import IO, TYPE_CHECKING, Any, Final

from strandline.config.lake_settings import LakeSettings, SparkSettings
from strandline.errors import UnavailableError, UsageError
from strandline.lake.spark import jars
from strandline.lake.spark.class_archive import (
    OPTIONS_KEY,
    archive_file,
    archive_options,
    can_archive,
    make_archive,
)
from strandline.lake.spark.conf import LOOPBACK, fixed_ports, is_local, joined, open_conf, spark_conf
from strandline.lake.spark.connect import CONNECT_MODE, check_executors
from strandline.lake.spark.java import Java, find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG_CONF: Final = Path(__file__).with_name("log4j2.properties")
END_S: Final = 30
FAILURE: Final = re.compile(r"^.*(\bERROR\b|\bError\b|Exception\b).*\n.*$", re.MULTILINE)  # two lines say it


class SparkNotStarted(UnavailableError):
    """Spark did not come up."""

    def __init__(self, found: str, log: str) -> None:
        super().__init__(
            f"Spark did not start: {found}",
            hint=f"the last lines of {log} say why; correct it and start again",
        )
        self.found, self.log = found, log


class PortTaken(UnavailableError):
    """A port that the conf fixes is in use."""

    def __init__(self, ports: Mapping[str, str], log: str) -> None:
        fixed = ", ".join(f"{key}={value}" for key, value in ports.items())
        super().__init__(
            f"Spark could not have a port that its conf fixes ({fixed}): another process has it",
            hint="leave the port out of the conf of [spark], and Spark takes a free one; or end that process",
        )
        self.ports, self.log = dict(ports), log


@dataclass(frozen=True, slots=True)
class Classic:
    """A session, the gateway to its Java, and its log, if that goes when the session does."""

    session: "SparkSession"
    gateway: Any
    scratch_log: Path | None

    def bury(self) -> None:
        """Let go of what is left of a Spark whose Java died, or that somebody else stopped."""
        from pyspark import SparkContext
        from pyspark.sql import SparkSession

        if (context := SparkContext._active_spark_context) is not None:  # noqa: SLF001  # as in _refuse_foreign
            context._jsc = None  # noqa: SLF001  # or stopping it would ask the dead Java
            context.stop()
        SparkSession._instantiatedSession = SparkSession._activeSession = None  # noqa: SLF001
        _end_java(self.gateway)

    def close(self, end_s: float = END_S) -> None:
        self.session.stop()
        _end_java(self.gateway, end_s)
        if self.scratch_log is not None:
            self.scratch_log.unlink(missing_ok=True)


def is_alive(session: "SparkSession") -> bool:
    """Whether the Java behind a session runs, and its context was not stopped."""
    from pyspark import SparkContext

    context = session.sparkContext
    gateway: Any = SparkContext._gateway  # noqa: SLF001  # no public way tells without asking Java
    if context is not SparkContext._active_spark_context or gateway is None:  # noqa: SLF001
        return False
    process: Popen[bytes] | None = gateway.proc
    return process is None or process.poll() is None


def open_classic(lake: LakeSettings, spark: SparkSettings, tell: Callable[[str], None]) -> Classic:
    """Start Spark; if that fails nothing is left running, and the log stays to be read."""
    _refuse_foreign()
    conf = spark_conf(lake, spark)
    java = find_java()
    environment = _launch_environment(spark, java)
    log = _log_file(spark)
    gateway = None
    with log.open("ab") as out, _environment(environment):
        said_from = out.tell()
        try:
            if _fetch_jars(lake, spark, tell, out):
                _make_archive(java, spark, tell, out)
            launched = {**open_conf(conf), **_jar_conf(lake, spark), **_java_conf(conf, log)}
            tell("starting Spark")
            gateway = _launch(launched, java, out)
            session = _session(gateway, {key: conf[key] for key in conf if key not in launched})
            if not is_local(spark):
                check_executors(session)
        except BaseException as error:
            meaning = _meaning(error, spark, log, said_from)  # first: Java is asked what its errors say
            if gateway is not None:
                _end_java(gateway)
            if meaning is None:
                raise
            raise meaning from None  # pyspark's own cannot be shown without its Java; the log has it
    return Classic(session, gateway, log if spark.log is None else None)


def _refuse_foreign() -> None:
    from pyspark import SparkContext

    if SparkContext._active_spark_context is not None:  # noqa: SLF001  # the public way to ask would start one
        raise UsageError(
            "this process has a Spark session that Strandline did not start, without the catalog",
            hint="stop it first, or run Strandline in a process of its own",
        )


def prepare(lake: LakeSettings, spark: SparkSettings, tell: Callable[[str], None]) -> bool:
    """Do now what the first start would do and no later one does: fetch the jars, make the class archive.
    False if this Java makes none."""
    java = find_java()
    log = _log_file(spark)
    with log.open("ab") as out, _environment(_launch_environment(spark, java)):
        _fetch_jars(lake, spark, tell, out)
        is_made = _make_archive(java, spark, tell, out)
    if spark.log is None:
        log.unlink()
    return is_made


def _launch_environment(spark: SparkSettings, java: Java) -> dict[str, str | None]:
    python = os.environ.get("PYSPARK_PYTHON") or spark.conf.get("spark.pyspark.python") or sys.executable
    os.environ["PYSPARK_PYTHON"] = python  # stays: pyspark reads it in this process, whenever a task is made
    environment: dict[str, str | None] = {
        "JAVA_HOME": str(java.home),
        "SPARK_REMOTE": None,  # spark-submit refuses it beside a master
        CONNECT_MODE: None,
    }
    if is_local(spark):
        environment["SPARK_LOCAL_IP"] = LOOPBACK  # the UI listens there alone; no conf says so
    return environment


@contextmanager
def _environment(changes: Mapping[str, str | None]) -> Iterator[None]:
    """Our environment with these changes, for Java to inherit: pyspark lets it be given in no other way."""
    before = {key: os.environ.get(key) for key in changes}
    try:
        _set_environment(changes)
        yield
    finally:
        _set_environment(before)


def _set_environment(values: Mapping[str, str | None]) -> None:
    for key, value in values.items():
        if value is None:
            os.environ.pop(key, None)
        else:
            os.environ[key] = value


def _log_file(spark: SparkSettings) -> Path:
    if spark.log is None:
        handle, name = tempfile.mkstemp(prefix="strandline-spark-", suffix=".log")
        os.close(handle)
        return Path(name)
    Path(spark.log).parent.mkdir(parents=True, exist_ok=True)
    return Path(spark.log)


def _java_conf(conf: Mapping[str, str], log: Path) -> dict[str, str]:
    ours = [f"-Dlog4j2.configurationFile={LOG_CONF.as_uri()}", f"-Dstrandline.log={log.absolute()}"]
    return {OPTIONS_KEY: f"{shlex.join(ours)} {conf.get(OPTIONS_KEY, '')}".strip()}


def _make_archive(java: Java, spark: SparkSettings, tell: Callable[[str], None], out: IO[bytes]) -> bool:
    if archive_file(java).is_file():
        return True
    if not can_archive(java):
        return False
    tell("keeping Spark's classes ready, once: later starts take two thirds of the time")
    return make_archive(java, spark.conf, out)


def _fetch_jars(
    lake: LakeSettings, spark: SparkSettings, tell: Callable[[str], None], out: IO[bytes]
) -> bool:
    """Whether some were lacking and are there now."""
    ivy, wanted = jars.ivy_folder(spark.conf), jars.coordinates(lake)
    lacking = jars.missing(ivy, wanted)
    if lacking:
        tell(f"resolving the jars of Iceberg, once: {', '.join(lacking)}")
        jars.fetch(lacking, spark.conf, out)
    return bool(lacking) and not jars.missing(ivy, wanted)


def _jar_conf(lake: LakeSettings, spark: SparkSettings) -> dict[str, str]:
    """Ours by file; the user's as they say, beside ours."""
    ivy, wanted = jars.ivy_folder(spark.conf), jars.coordinates(lake)
    unplaced = jars.missing(ivy, wanted)  # Ivy settings of the user's own may put them elsewhere
    files = [str(jars.jar_file(ivy, coordinate)) for coordinate in wanted if coordinate not in unplaced]
    conf = {
        "spark.jars": joined(*files, spark.conf.get("spark.jars")),
        "spark.jars.packages": joined(*unplaced, spark.conf.get("spark.jars.packages")),
        "spark.jars.ivy": str(ivy),
    }
    return {key: value for key, value in conf.items() if value}


def _launch(conf: Mapping[str, str], java: Java, out: IO[bytes]) -> Any:
    """From the class archive, if there is one. A damaged one may end Java at once: it goes if Java starts
    without."""
    from pyspark.errors import PySparkException

    archive = shlex.join(archive_options(java, conf))
    if not archive:
        return _launch_java(conf, out)
    try:
        return _launch_java({**conf, OPTIONS_KEY: f"{archive} {conf[OPTIONS_KEY]}"}, out)
    except PySparkException:
        gateway = _launch_java(conf, out)
        archive_file(java).unlink(missing_ok=True)
        return gateway


def _launch_java(conf: Mapping[str, str], out: IO[bytes]) -> Any:
    from pyspark import SparkConf
    from pyspark.java_gateway import launch_gateway

    launch: Any = launch_gateway  # pyspark leaves it untyped
    return launch(SparkConf(loadDefaults=False).setAll([*conf.items()]), {"stdout": out, "stderr": out})


def _session(gateway: Any, conf: Mapping[str, str]) -> "SparkSession":
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    settings = SparkConf(loadDefaults=False).setAll([*conf.items()])
    return SparkSession(SparkContext(conf=settings, gateway=gateway))


def _end_java(gateway: Any, end_s: float = END_S) -> None:
    from pyspark import SparkContext

    if SparkContext._active_spark_context is not None:  # noqa: SLF001  # no session came of it, or the check failed
        SparkContext._active_spark_context.stop()  # noqa: SLF001
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001  # or the next start would use the dead one
    gateway.shutdown()
    process: Popen[bytes] | None = gateway.proc
    if process is None:  # spark-submit started Java first, and us from there
        return
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(end_s)
    except TimeoutExpired:
        process.kill()
        process.wait(END_S)


def _meaning(
    error: BaseException, spark: SparkSettings, log: Path, said_from: int
) -> UnavailableError | None:
    """What an error of pyspark's means to a user. `said_from` is where this start begins in the log."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    if not isinstance(error, (Py4JError, PySparkException)):
        return None
    said = f"{log.read_bytes()[said_from:].decode(errors='replace')}\n{error}"
    if "BindException" in said and (ports := fixed_ports(spark)):
        return PortTaken(ports, str(log))
    if "unresolved dependency" in said:
        wanted = spark.conf.get("spark.jars.packages", "").split(",")
        return jars.JarsUnresolved(wanted, jars.ivy_folder(spark.conf) / "jars", str(log))
    found = FAILURE.search(said)
    return SparkNotStarted(" ".join(found[0].split()) if found else str(error), str(log))
