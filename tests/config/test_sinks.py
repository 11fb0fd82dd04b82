"""The sinks of the configuration: their keys, their faults, what is odd about them, and what they become."""

import pickle
from pathlib import Path
from typing import Any

import pytest

from strandline.base.secret import SecretMissing
from strandline.config.config import Config, SinkNotConfigured, load_config
from strandline.sinks.blob.blob_sink import BlobSink
from strandline.sinks.forward.forward_sink import ForwardSink
from strandline.sinks.registry import GROUP
from tests.config.test_config import fault_of, faults_of, load

MIB = 1024**2
FORWARD = '[sinks.centre]\ntype = "forward"\nurl = "https://centre.example"\n'
BLOB = '[sinks.archive]\ntype = "blob"\ndestination = "local"\ndir = "out"\n'


def forward(folder: Path, **keys: Any) -> ForwardSink:
    lines = "".join(f"{key} = {value!r}\n".replace("True", "true") for key, value in keys.items())
    sink = load(folder, FORWARD + lines).sink("centre")
    assert isinstance(sink, ForwardSink)
    return sink


def test_every_key_has_the_default_of_the_specification(tmp_path: Path) -> None:  # L-CFG-1
    config = load(tmp_path, FORWARD + BLOB)

    centre, archive = config.sinks["centre"], config.sinks["archive"]
    assert (centre.type, centre.schedule, centre.enabled) == ("forward", "* * * * *", True)
    assert (centre.include, centre.exclude, centre.start) == (("*",), (), "all")
    assert (centre.max_intent_rows, archive.max_intent_rows) == (200_000, 1_000_000)
    assert (centre.max_lag_s, config.warnings) == (3600, ())
    assert config.sink("centre") == ForwardSink(
        url="https://centre.example",
        token=None,
        compression="none",
        max_unit_rows=5000,
        max_unit_bytes=4 * MIB,
        max_body_bytes=64 * MIB,
        inline_wait_s=300,
        poison_attempts=3,
        on_poison="dead_letter",
        parallel=4,
        include_row_id=False,
    )
    assert config.sink("archive") == BlobSink(
        "local",
        dir=str(tmp_path / "out"),
        home=str(tmp_path),
        encoder="parquet",
        codec="snappy",
        max_object_rows=1_000_000,
        max_object_bytes=128 * MIB,
        min_object_bytes=0,
        max_delay_s=0,
    )


def test_keys_reach_the_sink(tmp_path: Path) -> None:  # L-CFG-1
    sink = forward(tmp_path, compression="zstd", max_unit_rows=7, max_unit_bytes="1KiB", include_row_id=True)

    assert (sink.compression, sink.max_unit_rows, sink.max_unit_bytes) == ("zstd", 7, 1024)
    assert sink.include_row_id
    config = load(tmp_path, FORWARD + 'max_intent_rows = 5\nschedule = "0 2 * * *"\nenabled = false\n')
    assert (config.sinks["centre"].max_intent_rows, config.sinks["centre"].enabled) == (5, False)
    assert config.sinks["centre"].cron.hours == {2}


def test_two_sinks_of_one_kind_are_two(tmp_path: Path) -> None:  # L-WM-4
    config = load(tmp_path, BLOB + BLOB.replace("archive", "other").replace("out", "elsewhere"))

    assert [*config.sinks] == ["archive", "other"]
    assert config.sink("archive") != config.sink("other")
    assert config.warnings == ()


def test_a_sink_takes_the_datasets_that_it_includes_and_does_not_exclude(tmp_path: Path) -> None:  # L-DRV-6
    config = load(tmp_path, FORWARD + 'include = ["logs", "web-*"]\nexclude = ["web-internal*"]\n')

    taken = [
        name for name in ("logs", "web-1", "web-internal-2", "metrics") if config.sinks["centre"].takes(name)
    ]

    assert taken == ["logs", "web-1"]


# Secrets


def test_secrets_are_looked_up_when_the_sink_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # L-CFG-1
    monkeypatch.delenv("CENTRE_TOKEN", raising=False)
    config = load(tmp_path, FORWARD + 'token = "env:CENTRE_TOKEN"\n')

    with pytest.raises(SecretMissing, match="CENTRE_TOKEN"):
        config.sink("centre")

    monkeypatch.setenv("CENTRE_TOKEN", "hunter2")
    sink = config.sink("centre")
    assert isinstance(sink, ForwardSink)
    assert sink.token is not None
    assert sink.token.text == "hunter2"
    assert "hunter2" not in repr(config) + repr(sink)


@pytest.mark.parametrize(
    "text",
    [
        FORWARD + 'token = "hunter2"\n',
        FORWARD.replace("//", "//me:hunter2@"),
        FORWARD.replace("example", "example/?token=hunter2"),
        BLOB.replace('"local"\ndir', '"azure"\nbucket') + 'credentials = { account_key = "hunter2" }\n',
    ],
)
def test_a_secret_in_the_file_is_refused_and_not_repeated(tmp_path: Path, text: str) -> None:  # L-CFG-1
    assert "hunter2" not in fault_of(tmp_path, text)


# Faults


@pytest.mark.parametrize(
    ("text", "line", "key", "wanted"),
    [
        (FORWARD + 'schedule = "every day"\n', 5, "schedule", "is no schedule"),
        (FORWARD + 'schedule = "0 0 31 2 *"\n', 5, "schedule", "no such day"),
        (FORWARD + "shedule = 1\n", 5, "shedule", "did you mean schedule?"),
        (FORWARD + "max_unit_row = 1\n", 5, "max_unit_row", "did you mean max_unit_rows?"),
        (FORWARD + "codec = 1\n", 5, "codec", "no such key"),
        (FORWARD + "max_unit_rows = 0\n", 5, "max_unit_rows", "rows of one request"),
        (FORWARD + "max_intent_rows = 0\n", 5, "max_intent_rows", "under way"),
        (FORWARD + "max_lag_s = 0\n", 5, "max_lag_s", "how late"),
        (FORWARD + "poison_attempts = 0\n", 5, "poison_attempts", "refuses"),
        (FORWARD + 'start = "here"\n', 5, "start", "now"),
        (FORWARD + 'compression = "lz4"\n', 5, "compression", "zstd"),
        (FORWARD + 'include = ["a b"]\n', 5, "include", "datasets"),
        (FORWARD + 'include = "logs"\n', 5, "include", "datasets"),
        (FORWARD + 'max_unit_bytes = "1MiB"\nmax_body_bytes = "1KiB"\n', 5, "max_unit_bytes", "above"),
        (FORWARD.replace("forward", "kafka"), 3, "type", "blob, forward"),
        (FORWARD.replace("https", "ftp"), 2, "", "url is none"),
        (FORWARD.replace('url = "https://centre.example"', ""), 2, "", "url is missing"),
        (FORWARD.replace('type = "forward"', ""), 2, "", "type is missing"),
        (BLOB + 'encoder = "avro"\n', 6, "encoder", "parquet"),
        (BLOB + 'codec = "gzip"\n', 6, "codec", "zstd"),
        (BLOB + 'min_object_bytes = "1MiB"\n', 6, "min_object_bytes", "max_delay_s"),
        (BLOB + 'bucket = "x"\n', 2, "", "a bucket of 'local'"),
        (BLOB.replace('dir = "out"', ""), 2, "", "no dir"),
        (BLOB.replace("local", "ftp"), 4, "destination", "azure"),
        ("[sinks]\ncentre = 5\n", 3, "", "is no table"),
        ("sinks = 5\n", 2, "", "is no table"),
        (FORWARD.replace("centre]", '"a/b"]'), 2, "", "is no name"),
    ],
)
def test_a_fault_is_named_by_line_and_key(
    tmp_path: Path, text: str, line: int, key: str, wanted: str
) -> None:  # L-CFG-1, L-CFG-2
    fault = fault_of(tmp_path, text)

    assert fault.startswith(f"line {line}: sinks")
    assert (f".{key}: " if key else ": ") in fault
    assert wanted in fault


def test_all_faults_come_at_once(tmp_path: Path) -> None:  # L-CFG-1
    text = FORWARD + 'schedule = "x"\nparallel = 0\n' + BLOB + 'encoder = "x"\n[spool]\nnope = 1\n'

    assert len(faults_of(tmp_path, text)) == 4


# What is odd


def test_two_sinks_with_one_destination_are_a_warning(tmp_path: Path) -> None:  # L-CFG-2, L-WM-4
    config = load(tmp_path, FORWARD + FORWARD.replace("centre]", "again]").replace("https://c", "https://C"))

    (warning,) = config.warnings
    assert warning.startswith(
        "sinks centre and again deliver to one destination, forward https://centre.example"
    )
    assert len(config.sinks) == 2


def test_a_name_in_a_filter_that_is_no_dataset_is_a_warning_or_in_a_strict_node_a_fault(
    tmp_path: Path,
) -> None:  # L-CFG-2
    text = FORWARD + 'include = ["orders", "ordrs", "web-*"]\nexclude = ["lgs"]\n[datasets.orders]\n'

    include, exclude = load(tmp_path, text).warnings

    assert include.startswith("sinks.centre.include: 'ordrs' is no dataset that is declared")
    assert exclude.startswith("sinks.centre.exclude: 'lgs'")
    faults = faults_of(tmp_path, text + "[node]\nstrict_datasets = true\n")
    assert [fault.partition(": ")[0] for fault in faults] == ["line 5", "line 6"]


def test_a_token_over_an_open_wire_is_a_warning(tmp_path: Path) -> None:  # L-FWD-15
    token = 'token = "env:T"\n'

    assert "unencrypted" in load(tmp_path, FORWARD.replace("https", "http") + token).warnings[0]
    for url in ("http://localhost:8080", "http://127.0.0.1", "http://[::1]:8080", "https://centre.example"):
        text = FORWARD.replace("https://centre.example", url)
        assert load(tmp_path, text + token).warnings == ()


# What is not there


def test_a_sink_that_is_not_configured_is_an_error_that_names_those_that_are(
    tmp_path: Path,
) -> None:  # L-CLI-1
    config = load(tmp_path, FORWARD)

    with pytest.raises(
        SinkNotConfigured, match=r"no sink 'center' is configured; there are centre"
    ) as caught:
        config.sink("center")

    assert pickle.loads(pickle.dumps(caught.value)).facts == caught.value.facts
    with pytest.raises(SinkNotConfigured, match="there is none"):
        load(tmp_path, "").sink("centre")


def test_a_kind_that_a_package_brings_gets_its_keys_as_they_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # L-CFG-2
    facts = tmp_path / "others" / "sinks_of_others-1.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: sinks-of-others\nVersion: 1\n")
    (facts / "entry_points.txt").write_text(f"[{GROUP}]\nnowhere = tests.sinks.test_registry:configure\n")
    monkeypatch.syspath_prepend(tmp_path / "others")
    monkeypatch.setenv("P", "x")
    text = '[sinks.mine]\ntype = "nowhere"\nexclude = ["logs"]\npassword = "env:P"\nbrokers = ["a", "b"]\n'

    config = load(tmp_path, text)

    assert config.sinks["mine"].keys == {"password": "env:P", "brokers": ["a", "b"]}
    assert config.sink("mine").fingerprint == "nowhere"
    assert config.sinks["mine"].max_intent_rows == 200_000
    assert "a secret stands" in fault_of(tmp_path, text.replace("env:P", "hunter2"))


def test_a_configuration_with_sinks_survives_pickling(tmp_path: Path) -> None:
    config: Config = load(tmp_path, FORWARD + BLOB)

    assert pickle.loads(pickle.dumps(config)) == config
    assert load_config(tmp_path / "strandline.toml") == config
