"""The configuration: every key and its default, every fault at once, places, secrets, datasets, homes."""

import pickle
import re
import shutil
import socket
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.config.config import (
    Config,
    ConfigError,
    HomeExists,
    HomeNotFound,
    default_config,
    find_home,
    load_config,
    with_declared,
    write_default,
)
from strandline.config.keys import keys
from strandline.config.toml_file import key_lines, parse_size, size_text
from strandline.errors import NotFoundError, StrandlineError, UnavailableError, UsageError
from strandline.rows.dataset import Column, Dataset, Identity, SchemaBreaking

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "configure.md"
MIB, GIB = 1024**2, 1024**3


def load(folder: Path, text: str, *, version: str = "version = 1\n") -> Config:
    path = folder / "strandline.toml"
    path.write_bytes(f"{version}{text}".encode())
    return load_config(path)


def faults_of(folder: Path, text: str, **more: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(folder, text, **more)
    return [str(problem) for problem in caught.value.problems]


def fault_of(folder: Path, text: str, **more: str) -> str:
    (fault,) = faults_of(folder, text, **more)
    return fault


# Keys and defaults


def test_every_key_has_the_default_of_the_specification(
    tmp_path: Path,
) -> None:  # L-CFG-1, L-SPOOL-11, -12, -15
    config = load(tmp_path, "")

    assert (config.node.name, config.node.strict_datasets) == (socket.gethostname(), None)
    assert (config.content.grace_h, config.lake.catalog, config.lake.format) == (24, "jdbc", 2)
    assert (config.spark.master, config.spark.remote, config.spark.session_timezone) == (
        "local[*]",
        None,
        "UTC",
    )
    assert (config.content.conf, config.lake.conf, config.spark.conf) == ({}, {}, {})
    spool = config.spool
    assert (spool.flush_bytes, spool.max_age_s, spool.max_bytes) == (128 * MIB, 120, 4 * GIB)
    assert (spool.max_row_bytes, spool.append_timeout_s) == (16 * MIB, 30)
    assert (spool.linger_ms, spool.group_rows, spool.group_bytes) == (100, 10_000, 8 * MIB)
    assert (config.flush.max_rows, config.flush.max_bytes) == (1_000_000, 512 * MIB)
    compaction = config.compaction
    assert (compaction.min_snapshots, compaction.max_snapshot_age_h, compaction.max_snapshots) == (
        10,
        24,
        250,
    )
    server = config.server
    assert (server.listen, server.tokens, server.keep_source) == ("127.0.0.1:8080", (), False)
    assert (server.max_body_bytes, server.rate_bytes_per_s) == (64 * MIB, 0)
    assert config == default_config(tmp_path)


def test_the_page_on_configuration_lists_every_key_with_its_default() -> None:  # L-CFG-1
    rows = re.findall(r"^\| `\[(.+?)\] (.+?)` \| (.+?) \| (.+?) \|$", PAGE.read_text(), re.MULTILINE)

    assert rows == [(doc.section, doc.key, doc.default, doc.about) for doc in keys()]


def test_the_example_on_the_page_is_a_configuration(tmp_path: Path) -> None:  # L-CFG-1
    (example,) = re.findall(r"^```toml\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)

    config = load(tmp_path, example, version="")

    assert config.datasets["orders"].identity == Identity("id")


def test_a_file_of_a_new_node_says_the_defaults_and_changes_none(tmp_path: Path) -> None:  # L-CFG-1
    path = write_default(tmp_path / "new")

    text = path.read_text()
    spoken = re.sub(r"^#(?=[a-z_]+ = |\[)", "", text, flags=re.MULTILINE)
    none = (
        "remote|password|strict_datasets|tls_certificate|tls_key_file|traces|bucket"  # they have no default
    )
    spoken = re.sub(rf"^({none}) = .*", "", spoken, flags=re.MULTILINE)
    for line in re.findall(r"^#([a-z_]+ = .*)", text, flags=re.MULTILINE):
        tomllib.loads(line)  # each can be used as it stands
    before, _, datasets = spoken.partition("[datasets.orders]")
    assert load_config(path) == default_config(tmp_path / "new")
    assert load(tmp_path / "new", before, version="") == default_config(tmp_path / "new")
    assert datasets.count(" = ") > 10
    orders = load(tmp_path / "new", spoken, version="").datasets["orders"]
    assert orders == Dataset(
        "orders",
        (Column("id", "bigint", required=True), Column("at", "timestamp")),
        identity=Identity("id"),
        collapse=True,
        dedupe_on_flush=True,
    )


@given(st.integers(min_value=0, max_value=2**63))
def test_a_size_is_read_back_as_it_was_written(size: int) -> None:  # L-CFG-1
    assert parse_size(size_text(size)) == size


def test_a_size_is_a_text_with_a_unit_or_a_number_of_bytes(tmp_path: Path) -> None:  # L-CFG-1
    config = load(tmp_path, '[spool]\nflush_bytes = "3 KiB"\nmax_row_bytes = 77\nmax_bytes = "2GiB"')

    assert (config.spool.flush_bytes, config.spool.max_row_bytes) == (3072, 77)
    assert config.spool.max_bytes == 2 * GIB


@pytest.mark.parametrize(
    "wrong", ['"128MB"', '"lots"', '"1.5GiB"', '"-1MiB"', "0", "-5", "1.5", "true", '"0B"']
)
def test_what_is_no_size_above_zero_is_refused(tmp_path: Path, wrong: str) -> None:  # L-CFG-2
    fault = fault_of(tmp_path, f"[spool]\n\nflush_bytes = {wrong}")

    assert fault.startswith("line 4: spool.flush_bytes: ")
    assert "pending bytes" in fault


@pytest.mark.parametrize(
    ("section", "line"),
    [
        ("spool", "max_age_s = 0"),
        ("spool", "append_timeout_s = inf"),
        ("spool", "linger_ms = -1"),
        ("spool", "group_rows = 0"),
        ("flush", "max_rows = 0"),
        ("compaction", "max_snapshots = 0"),
        ("compaction", 'max_snapshot_age_h = "24"'),
        ("content", "grace_h = -1"),
        ("node", 'name = ""'),
        ("node", 'name = "a\\nb"'),
        ("node", 'strict_datasets = "yes"'),
        ("lake", 'catalog = "jdbcx"'),
        ("lake", "format = 1"),
        ("spark", "conf = { a = [1] }"),
        ("spark", "conf = 5"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_by_line_and_key(
    tmp_path: Path, section: str, line: str
) -> None:  # L-CFG-2
    fault = fault_of(tmp_path, f"[{section}]\n{line}")

    assert fault.startswith(f"line 3: {section}.{line.partition(' ')[0]}: ")


def test_limits_that_contradict_each_other_are_refused(tmp_path: Path) -> None:  # L-CFG-2
    text = '[spool]\nflush_bytes = "2GiB"\nmax_bytes = "1GiB"\n[compaction]\nmin_snapshots = 251'

    spool, compaction = faults_of(tmp_path, text)

    assert spool == "line 3: spool.flush_bytes: 2,147,483,648 is above max_bytes, which is 1,073,741,824"
    assert compaction == "line 6: compaction.min_snapshots: 251 is above max_snapshots, which is 250"


# Faults


def test_all_faults_of_a_file_come_at_once_in_its_order(tmp_path: Path) -> None:  # L-CFG-1
    text = '[spool]\nmax_age = 5\n\n[lake]\nformat = 9\n[harbour]\ndefault_days = 3\n[stor]\nurl = "x"\n'
    text += "[sink.a]\n"

    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)

    assert [(problem.line, problem.key) for problem in caught.value.problems] == [
        (3, "spool.max_age"),
        (6, "lake.format"),
        (7, "harbour"),
        (9, "stor"),
        (11, "sink"),
    ]
    unknown, _, harbour, store, _ = (problem.text for problem in caught.value.problems)
    assert unknown == "no such key; did you mean max_age_s?"
    assert harbour.startswith("no such key; there are node, store, content, ")
    assert store == "no such key; did you mean store?"
    assert caught.value.message.startswith(
        f"{tmp_path / 'strandline.toml'} has 5 faults\n  line 3: spool.max_age"
    )
    assert caught.value.kind == "config"
    assert caught.value.hint is not None


@pytest.mark.parametrize("section", ["harbour", "harbour.b"])
def test_a_section_that_does_not_exist_is_refused(tmp_path: Path, section: str) -> None:  # L-CFG-1
    assert "no such key" in fault_of(tmp_path, f"[{section}]\n")


@pytest.mark.parametrize("text", ["spool = 5", "datasets = 5", "[datasets]\nx = 5", "[[spool]]"])
def test_what_should_be_a_table_and_is_none_is_refused(tmp_path: Path, text: str) -> None:  # L-CFG-1
    assert "is no table" in fault_of(tmp_path, text)


def test_lines_are_right_after_values_and_texts_of_many_lines() -> None:  # L-CFG-1
    text = (
        'a = """\nb = 1\n[c]\n"""\r\n[ "d.e" ] # x\nf.g = [\n  1, # [h]\n]\n'
        "\n\"i j\" = { k = 2 }\n[[l]]\nm = '[n]'"
    )

    lines = key_lines(text)

    assert lines == {
        "a": 1,
        "d.e": 5,
        "d.e.f": 6,
        "d.e.f.g": 6,
        "d.e.i j": 10,
        "d.e.i j.k": 10,
        "l": 11,
        "l.m": 12,
    }


@pytest.mark.parametrize(
    ("line", "found"),
    [("", "is missing"), ("version = 2\n", "2 is not known"), ("version = true\n", "True is not known")],
)
def test_another_version_is_refused_before_anything_else(
    tmp_path: Path, line: str, found: str
) -> None:  # L-CFG-1
    fault = fault_of(tmp_path, "[not_known_yet]\n", version=line)

    assert f"version: {found}" in fault


def test_a_file_that_is_no_toml_is_refused_with_the_line(tmp_path: Path) -> None:  # L-CFG-1
    assert re.search(r"no TOML: .*line 3", fault_of(tmp_path, "[spool]\nmax_age_s = \n"))


def test_a_file_that_cannot_be_read_is_no_empty_one(tmp_path: Path) -> None:  # L-CFG-1
    path = tmp_path / "strandline.toml"
    with pytest.raises(HomeNotFound, match=re.escape(str(path))):
        load_config(path)
    path.write_bytes(b"version = 1 # \xff")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(path)


def test_the_errors_survive_pickling(tmp_path: Path) -> None:
    errors: list[StrandlineError] = []
    for act in (lambda: load(tmp_path, "[x]\n[y]\n"), lambda: find_home(str(tmp_path / "none"))):
        with pytest.raises(StrandlineError) as caught:
            act()
        errors.append(caught.value)

    again = pickle.loads(pickle.dumps(errors))

    assert [type(error) for error in again] == [ConfigError, HomeNotFound]
    assert [(str(error), error.facts) for error in again] == [(str(error), error.facts) for error in errors]


# Places


def test_relative_paths_start_at_the_folder_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # L-CFG-1
    (tmp_path / "node").mkdir()
    monkeypatch.chdir(tmp_path)
    Path("node/strandline.toml").write_text(
        'version = 1\nstore.url = "state/s.db"\ncontent.url = "../blobs"\nlake.warehouse = "/srv/tables"\n'
    )

    config = load_config(Path("node/strandline.toml"))

    assert config.home == tmp_path / "node"
    assert config.store_url == str(tmp_path / "node/state/s.db")
    assert config.content_url == str((tmp_path / "blobs").resolve())
    assert config.lake_settings().warehouse == "/srv/tables"
    assert config.lake_settings().uri == str(tmp_path / "node/state/catalog.db")
    assert config.spark_settings().log == str(tmp_path / "node/logs/spark.log")


def test_a_home_without_a_file_has_everything_inside_it(tmp_path: Path) -> None:  # L-CFG-1
    config = default_config(tmp_path)

    lake = config.lake_settings()
    assert config.store_url == str(tmp_path / "strandline.db")
    assert config.content_url == str(tmp_path / "content")
    assert (lake.warehouse, lake.uri) == (str(tmp_path / "warehouse"), str(tmp_path / "catalog.db"))
    assert (lake.catalog, lake.format, lake.conf) == ("jdbc", 2, {})


def test_a_moved_home_has_its_places_where_it_is_now(tmp_path: Path) -> None:  # L-CTL-7
    before = load_config(write_default(tmp_path / "here"))

    shutil.move(tmp_path / "here", tmp_path / "there")

    after = load_config(tmp_path / "there" / "strandline.toml")
    for old, new in zip(_places(before), _places(after), strict=True):
        assert new == old.replace(str(tmp_path / "here"), str(tmp_path / "there"))


def _places(config: Config) -> list[str]:
    lake = config.lake_settings()
    return [config.store_url, config.content_url, lake.warehouse, lake.uri, str(config.spark_settings().log)]


def test_urls_stay_as_they_are(tmp_path: Path) -> None:  # L-CFG-1
    config = load(
        tmp_path,
        'store.url = "postgresql://me@db/x?sslmode=require"\ncontent.url = "s3://bucket/prefix"\n'
        'lake.warehouse = "s3://bucket/tables"\nspark.remote = "sc://spark:15002"',
    )

    assert config.store_url == "postgresql://me@db/x?sslmode=require"
    assert config.content_url == "s3://bucket/prefix"
    assert config.lake_settings().warehouse == "s3://bucket/tables"
    assert config.lake_settings().uri == config.store_url
    assert config.spark_settings().remote == "sc://spark:15002"


def test_a_catalog_that_is_not_jdbc_is_told_nothing_of_the_store(tmp_path: Path) -> None:  # L-CFG-1
    text = '[lake]\ncatalog = "rest"\nwarehouse = "analytics"\nconf = { uri = "https://catalog.example" }'

    lake = load(tmp_path, text).lake_settings()

    assert (lake.catalog, lake.warehouse, lake.uri) == ("rest", "analytics", "")
    assert lake.conf == {"uri": "https://catalog.example"}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('store.url = "mysql://host/db"', "postgresql:"),
        ('store.url = "memory:"', "a path"),
        ('store.url = "postgresql://[::1/x"', "no URL"),
        ('store.url = "~/strandline.db"', "not expanded"),
        ('store.url = "catalog.db"', "another name"),
        ('store.password = "env:X"', "SQLite takes none"),
        ('content.url = "ftp://host"', "s3:"),
        ('content.conf = { region = "x" }', "a bucket"),
        ('spark.remote = "spark://host"', "sc://host:port"),
        ('spark = { master = "local[1]", remote = "sc://host" }', "one of the two"),
    ],
)
def test_a_place_that_cannot_be_is_refused(tmp_path: Path, text: str, wanted: str) -> None:  # L-CFG-2
    fault = fault_of(tmp_path, text)

    assert fault.startswith(f"line 2: {text[:5]}")
    assert wanted in fault


# Secrets


@pytest.mark.parametrize(
    "text",
    [
        'store.url = "postgresql://me:hunter2@db/x"',
        'store.url = "postgresql://me@db/x?password=hunter2"',
        'store = { url = "postgresql://me@db/x", password = "hunter2" }',
        'store = { url = "postgresql://me@db/x", password = ["hunter2"] }',
        'lake.warehouse = "s3://key:hunter2@bucket"',
        'lake.conf."s3.secret-access-key" = "hunter2"',
        'lake.conf.credential = "hunter2"',
        'lake.conf = { credential = "hunter2", a = [] }',
        'spark.conf.spark.authenticate.secret = "hunter2"',
        'spark.conf."spark.hadoop.fs.s3a.secret.key" = "hunter2"',
        'content = { url = "s3://b", conf = { secret_access_key = "hunter2" } }',
        'spark.remote = "sc://host:443/;token=hunter2"',
    ],
)
def test_a_secret_in_the_file_is_refused_and_not_repeated(tmp_path: Path, text: str) -> None:  # L-CFG-1
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)

    assert "hunter2" not in repr(caught.value) + str(caught.value.facts)
    assert caught.value.problems[0].line == 2


def test_secrets_come_from_the_environment_or_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # L-CFG-1
    monkeypatch.setenv("PG", "p@ss/w:ord")
    monkeypatch.setenv("CONNECT", "sc://host:443/;token=t")
    (tmp_path / "key.txt").write_text("s3cret\n")
    config = load(
        tmp_path,
        'store = { url = "postgresql://me@db:5432/x?sslmode=require", password = "env:PG" }\n'
        'content = { url = "s3://b", conf = { region = "eu", secret_access_key = "file:key.txt" } }\n'
        'lake.conf."s3.secret-access-key" = "file:key.txt"\nspark.remote = "env:CONNECT"\n',
    )

    assert config.store_url == "postgresql://me:p%40ss%2Fw%3Aord@db:5432/x?sslmode=require"
    assert config.lake_settings().uri == config.store_url
    assert config.lake_settings().conf == {"s3.secret-access-key": "s3cret"}
    assert config.content_options() == {"region": "eu", "secret_access_key": "s3cret"}
    assert config.spark_settings().remote == "sc://host:443/;token=t"
    assert not re.search("p@ss|s3cret|token=", repr(config))


def test_a_secret_that_is_not_there_is_an_error_where_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # L-CFG-1
    monkeypatch.delenv("PG", raising=False)
    (tmp_path / "empty").write_text("\n")
    config = load(
        tmp_path,
        'store = { url = "postgresql://me@db/x", password = "env:PG" }\n'
        'content = { url = "s3://b", conf = { token = "file:none" } }\nspark.conf.secret = "file:empty"',
    )

    with pytest.raises(ConfigError, match=r"store\.password: the environment has no PG") as caught:
        _ = config.store_url
    assert "env:PG" in (caught.value.hint or "")
    with pytest.raises(ConfigError, match=r"content\.conf\.token: cannot read .*none"):
        config.content_options()
    with pytest.raises(ConfigError, match=r"spark\.conf\.secret: .*empty is empty"):
        config.spark_settings()


def test_conf_goes_to_spark_unchanged_dotted_or_quoted(tmp_path: Path) -> None:  # L-CFG-2
    config = load(
        tmp_path,
        '[spark.conf]\nspark.driver.memory = "2g"\n"spark.sql.shuffle.partitions" = 4\n'
        'spark.ui.enabled = false\n"spark.eventLog.dir" = "file:/tmp/events"\n"x.env" = "env:PATH"\n'
        '"spark.hadoop.fs.s3a.aws.credentials.provider" = "a.B"\n',
    )

    assert config.spark_settings().conf == {
        "spark.driver.memory": "2g",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "4",
        "spark.eventLog.dir": "file:/tmp/events",
        "x.env": "env:PATH",
        "spark.hadoop.fs.s3a.aws.credentials.provider": "a.B",
    }


# Datasets


def test_a_dataset_is_declared_with_its_columns_in_order(tmp_path: Path) -> None:  # L-CFG-3, L-SCH-4
    config = load(
        tmp_path,
        """
[datasets.orders]
columns.id = { type = "bigint", required = true }
columns.at = "bigint"
columns.price = "decimal(12,2)"
columns.shop = "string"
timestamp = "at"
timestamp_unit = "ms"
source = ["shop"]
identity = { key = "id", legacy = ["shop", "at"], join = "/" }
signal = "sales"
seq_bucket = 1000
source_buckets = 16
""",
    )

    assert config.declared("orders") == Dataset(
        "orders",
        (
            Column("id", "bigint", required=True),
            Column("at", "bigint"),
            Column("price", "decimal(12,2)"),
            Column("shop", "string"),
        ),
        source_columns=("shop",),
        identity=Identity("id", ("shop", "at"), "/"),
        collapse=True,
        dedupe_on_flush=True,
        seq_bucket=1000,
        source_buckets=16,
    )
    settings = config.settings_of("orders")
    assert (settings.signal, settings.timestamp, settings.timestamp_unit) == ("sales", "at", "ms")
    assert settings.timestamp_fallbacks == ()
    assert config.declared("unheard_of") is None
    assert config.settings_of("unheard_of").signal == "unheard_of"


@pytest.mark.parametrize(
    ("text", "collapse", "dedupe"),
    [
        ("", False, False),
        ('identity = { key = "id" }', True, True),
        ('identity = { key = "id" }\nduplicates = "keep"', False, False),
        ('identity = { key = "id" }\ndedupe_on_flush = false', True, False),
        ('duplicates = "collapse"', True, False),
        ('duplicates = "collapse"\ndedupe_on_flush = true', True, True),
    ],
)
def test_duplicates_collapse_by_default_only_with_an_identity(
    tmp_path: Path, text: str, collapse: bool, dedupe: bool
) -> None:  # L-STAMP-4, L-FLUSH-9
    dataset = load(tmp_path, f"[datasets.d]\n{text}").datasets["d"]

    assert (dataset.collapse, dataset.dedupe_on_flush) == (collapse, dedupe)


def test_a_dataset_that_keeps_duplicates_removes_none_on_flush(
    tmp_path: Path,
) -> None:  # L-STAMP-4, L-FLUSH-9
    fault = fault_of(tmp_path, "[datasets.d]\ndedupe_on_flush = true")

    assert fault.startswith("line 3: datasets.d.dedupe_on_flush: ")


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('columns = { a = "text" }', "columns.a"),
        ('columns = { a = { type = "int", requird = true } }', "columns.a.requird"),
        ("columns = { a = { required = true } }", "columns.a"),
        ("columns = { a = 5 }", "columns.a"),
        ('columns = { _sl_seq = "bigint" }', "columns._sl_seq"),
        ('columns = { _row_id = "bigint" }', "columns._row_id"),
        ('columns = { source = "string" }', "columns.source"),
        ('columns = { a = "int", A = "int" }', ""),
        ('columns = { a = "int" }\ntimestamp = "b"', "timestamp"),
        ('columns = { a = "bigint" }\ntimestamp = "a"', "timestamp"),
        ('columns = { a = "string" }\ntimestamp_fallbacks = ["a"]', "timestamp_fallbacks"),
        ('columns = { a = "string" }\nsource = ["b"]', "source"),
        ('columns = { a = "string" }\nidentity = { key = "b" }', "identity"),
        ('columns = { a = "string" }\nidentity = { key = "a", legacy = ["b"] }', "identity"),
        ("identity = { legacy = [] }", "identity"),
        ('identity = { key = "a", join = "" }', "identity.join"),
        ('identity = "a"', "identity"),
        ('timestamp_unit = "minutes"', "timestamp_unit"),
        ('duplicates = "drop"', "duplicates"),
        ('signal = "a/b"', "signal"),
        ("seq_bucket = 0", "seq_bucket"),
        ("seq_bucket = 3000000000", "seq_bucket"),
        ("source_buckets = -1", "source_buckets"),
        ("colums = {}", "colums"),
    ],
)
def test_a_dataset_that_cannot_be_is_refused(
    tmp_path: Path, text: str, key: str
) -> None:  # L-CFG-2, L-STAMP-8
    fault = fault_of(tmp_path, f"[datasets.d]\n{text}")

    place = f"datasets.d.{key}" if key else "datasets.d"
    assert re.fullmatch(rf"line \d: {re.escape(place)}: .+", fault)


def test_a_dataset_needs_a_name_that_a_table_can_have(tmp_path: Path) -> None:  # L-CFG-2
    assert 'datasets."a b"' in fault_of(tmp_path, '[datasets."a b"]\n')


def test_four_datasets_ship_and_messages_are_known_by_their_parts(tmp_path: Path) -> None:  # L-CFG-3
    config = default_config(tmp_path)

    shipped = {name: config.declared(name) for name in ("logs", "traces", "metrics", "messages")}

    assert all(shipped.values())
    assert config.datasets == {}
    messages = shipped["messages"]
    assert messages is not None
    assert messages.identity == Identity("part_id", ("message_id", "part_index"), "#")
    assert (messages.collapse, messages.dedupe_on_flush) == (True, True)
    for name, dataset in shipped.items():
        assert dataset is not None
        timestamp = dataset.column(config.settings_of(name).timestamp or "")
        assert timestamp is not None
        assert timestamp.type == "timestamp"
        assert all(dataset.column(column) for column in dataset.source_columns)
        assert not any(column.required for column in dataset.columns)


def test_keys_of_the_file_go_before_those_that_ship(tmp_path: Path) -> None:  # L-CFG-3
    shipped = default_config(tmp_path).declared("logs")
    assert shipped is not None

    config = load(tmp_path, '[datasets.logs]\nsource = ["pod"]\nsource_buckets = 64\n')

    assert config.declared("logs") == replace(shipped, source_columns=("pod",), source_buckets=64)
    assert config.settings_of("logs").timestamp == "ts"


def test_columns_in_the_file_put_all_that_ships_aside(tmp_path: Path) -> None:  # L-CFG-3
    config = load(tmp_path, '[datasets.messages]\ncolumns = { id = "bigint", body = "string" }\n')

    columns = (Column("id", "bigint"), Column("body", "string"))
    assert config.declared("messages") == Dataset("messages", columns)
    assert config.settings_of("messages").timestamp is None


# Growth


RECORDED = Dataset("d", (Column("n", "int", required=True), Column("t", "string")), version=7)


def test_a_dataset_of_record_grows_into_what_is_declared() -> None:  # L-SCH-5, L-SCH-6
    declared = Dataset(
        "d", (Column("n", "bigint"), Column("x", "json")), identity=Identity("n"), collapse=True
    )

    grown = with_declared(RECORDED, declared)

    columns = (Column("n", "bigint"), Column("t", "string"), Column("x", "json"))
    assert grown == replace(declared, columns=columns, version=8)
    assert with_declared(grown, declared) is grown


def test_settings_alone_make_a_new_version_too() -> None:  # L-SCH-5
    grown = with_declared(RECORDED, Dataset("d", source_columns=("t",)))

    assert grown == replace(RECORDED, source_columns=("t",), version=8)


@pytest.mark.parametrize(
    ("change", "column"),
    [
        ({"columns": (Column("t", "bigint"),)}, "t"),
        ({"columns": (Column("t", "string", required=True),)}, "t"),
        ({"columns": (Column("new", "string", required=True),)}, "new"),
        ({"seq_bucket": 5}, "_sl_seq"),
        ({"source_buckets": 5}, "source"),
    ],
)
def test_anything_but_growth_is_refused_and_named(change: dict[str, Any], column: str) -> None:  # L-SCH-6
    with pytest.raises(SchemaBreaking) as caught:
        with_declared(RECORDED, replace(Dataset("d"), **change))

    assert (caught.value.kind, caught.value.dataset, caught.value.column) == ("schema_breaking", "d", column)
    assert caught.value.found != caught.value.wanted


# Homes


def test_a_home_is_named_or_in_the_environment_or_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # L-CFG-1
    named, environment, above = (write_default(tmp_path / name).parent for name in "abc")
    (above / "deep" / "er").mkdir(parents=True)
    monkeypatch.chdir(above / "deep" / "er")
    monkeypatch.setenv("STRANDLINE_HOME", str(environment))

    assert find_home(str(named)) == named
    assert find_home(None) == environment
    monkeypatch.delenv("STRANDLINE_HOME")
    assert find_home(None) == above
    monkeypatch.chdir(above)
    assert find_home(None) == above
    assert find_home("../a") == above / "../a"


def test_where_no_node_lives_the_error_says_how_to_make_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # L-CFG-1
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STRANDLINE_HOME", raising=False)

    with pytest.raises(HomeNotFound, match="nor a folder above it") as caught:
        find_home(None)
    assert isinstance(caught.value, NotFoundError)
    assert "`strandline init` makes a node" in (caught.value.hint or "")
    (tmp_path / "strandline.db").touch()  # of a node that Python made
    with pytest.raises(HomeNotFound) as caught:
        find_home(None)
    assert "keeps all it has" in (caught.value.hint or "")
    with pytest.raises(HomeNotFound, match=r"--home names .*typo"):
        find_home("typo")
    monkeypatch.setenv("STRANDLINE_HOME", "elsewhere")
    with pytest.raises(HomeNotFound, match=r"STRANDLINE_HOME names .*elsewhere"):
        find_home(None)


def test_a_new_file_never_takes_the_place_of_another(tmp_path: Path) -> None:  # L-CFG-1
    path = write_default(tmp_path / "new" / "node")
    path.write_text("version = 1 # mine")

    with pytest.raises(HomeExists, match="is there already") as caught:
        write_default(path.parent)

    assert isinstance(caught.value, UsageError)
    assert path.read_text() == "version = 1 # mine"
    assert list(path.parent.iterdir()) == [path]


def test_a_home_that_cannot_be_written_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(UnavailableError, match="cannot write"):
        write_default(tmp_path / "file")


def test_the_configuration_is_read_without_spark_or_arrow() -> None:  # L-OBS-1
    heavy = "{'pyspark', 'pyarrow', 'obstore'}"
    code = f"import sys, strandline.config.config; sys.exit(bool({heavy} & {{*sys.modules}}))"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# The receiver


def test_the_tokens_of_a_server_are_named_and_never_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # L-CFG-1
    monkeypatch.setenv("A_TOKEN", "secret")
    (tmp_path / "b.txt").write_text("other\n")

    config = load(tmp_path, '[server]\ntokens = ["env:A_TOKEN", "file:b.txt"]')

    assert config.server_tokens() == ["secret", "other"]
    assert "hunter2" not in fault_of(tmp_path, '[server]\ntokens = ["hunter2"]')


def test_a_certificate_needs_its_key_and_a_port_is_one(tmp_path: Path) -> None:  # L-CFG-2
    both = load(tmp_path, '[server]\ntls_certificate = "tls/cert.pem"\ntls_key_file = "/etc/key.pem"')

    assert both.server_tls() == (str(tmp_path / "tls/cert.pem"), "/etc/key.pem")
    assert load(tmp_path, "").server_tls() is None
    assert "both or neither" in fault_of(tmp_path, '[server]\ntls_certificate = "cert.pem"')
    assert "no such port" in fault_of(tmp_path, '[server]\nlisten = "0.0.0.0:70000"')
    for bad in ("8080", "host", "a b:1", ":80", "::1:80"):
        assert "server.listen" in fault_of(tmp_path, f'[server]\nlisten = "{bad}"')
    assert load(tmp_path, '[server]\nlisten = "[::1]:0"').server.listen == "[::1]:0"


def test_a_signal_leads_to_the_dataset_that_has_it(tmp_path: Path) -> None:  # L-FWD-1
    config = load(tmp_path, '[datasets.access]\nsignal = "logs"\n[datasets.orders]\n')

    assert config.dataset_of_signal("logs") == "access"
    assert config.dataset_of_signal("orders") == "orders"
    assert config.dataset_of_signal("other") == "other"


def test_nessie_is_refused_with_the_reason(tmp_path: Path) -> None:  # L-FLUSH-14
    (tmp_path / "strandline.toml").write_text('version = 1\n[lake]\ncatalog = "nessie"\n')

    with pytest.raises(
        ConfigError, match=r"lake.catalog: Nessie publishes staged rows at once.*wanted: jdbc"
    ):
        load_config(tmp_path / "strandline.toml")
