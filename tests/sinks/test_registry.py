"""The kinds of sinks: those that ship, those that a package brings, and those that nobody knows."""

import pickle
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from strandline.base.secret import SecretMissing
from strandline.errors import UsageError
from strandline.sinks.blob.blob_sink import BlobSink
from strandline.sinks.forward.forward_sink import ForwardSink
from strandline.sinks.registry import BUILT_IN, GROUP, SinkOptions, SinkTypeUnknown, make_sink, sink_types
from strandline.sinks.sink import Delivery, Limits, Sink


@dataclass(frozen=True)
class Nowhere(Sink):
    """What a package might bring."""

    options: SinkOptions
    secret: str

    @property
    def fingerprint(self) -> str:
        return "nowhere"

    def limits(self, mean_row_bytes: float) -> Limits:
        return Limits(10)

    @contextmanager
    def opened(self) -> Iterator[Delivery]:
        raise NotImplementedError
        yield


def configure(options: SinkOptions) -> Nowhere:
    return Nowhere(options, options.secret(options.keys["password"]))


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with entry points, as an installer would leave it."""
    facts = tmp_path / "sinks_of_others-1.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: sinks-of-others\nVersion: 1\n")
    (facts / "entry_points.txt").write_text(
        f"[{GROUP}]\nnowhere = tests.sinks.test_registry:configure\nbroken = no_such_module:configure\n"
    )
    monkeypatch.syspath_prepend(tmp_path)


def test_a_kind_that_ships_is_made_from_its_keys(tmp_path: Path) -> None:  # L-CFG-2
    forward = make_sink("forward", SinkOptions("a", {"url": "https://x.example", "parallel": 2}, tmp_path))
    blob = make_sink("blob", SinkOptions("b", {"destination": "local", "dir": "out"}, tmp_path))

    assert forward == ForwardSink(url="https://x.example", parallel=2)
    assert blob == BlobSink("local", dir=str(tmp_path / "out"), home=str(tmp_path))


def test_the_credentials_of_a_bucket_are_looked_up(tmp_path: Path) -> None:  # L-CFG-1
    (tmp_path / "key").write_text("hunter2\n")
    keys = {"destination": "azure", "bucket": "c", "credentials": {"account_name": "a", "key": "file:key"}}

    blob = make_sink("blob", SinkOptions("b", keys, tmp_path))

    assert isinstance(blob, BlobSink)
    assert blob.credentials == {"account_name": "a", "key": "hunter2"}
    assert "hunter2" not in repr(blob)


def test_a_package_brings_kinds_of_its_own(
    installed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # L-DRV-11
    monkeypatch.setenv("SECRET", "hunter2")
    options = SinkOptions("mine", {"password": "env:SECRET", "other": [1]}, tmp_path)

    sink = make_sink("nowhere", options)

    assert {"blob", "forward", "nowhere"} <= {*sink_types()}
    assert isinstance(sink, Nowhere)
    assert (sink.options, sink.secret) == (options, "hunter2")


def test_a_kind_that_nobody_brings_is_an_error_that_names_those_there_are() -> None:  # L-CFG-2
    with pytest.raises(SinkTypeUnknown, match="blob, forward") as caught:
        make_sink("kafka", SinkOptions("a", {}, Path()))

    assert pickle.loads(pickle.dumps(caught.value)).facts == caught.value.facts


def test_a_package_that_cannot_be_loaded_is_named(installed: None) -> None:  # L-CFG-2
    with pytest.raises(UsageError, match="no_such_module"):
        make_sink("broken", SinkOptions("a", {}, Path()))


@pytest.mark.parametrize(
    ("text", "error"), [("hunter2", UsageError), ("env:NOT_THERE_AT_ALL", SecretMissing)]
)
def test_a_secret_is_looked_up_and_never_taken_for_one_itself(text: str, error: Any) -> None:  # L-CFG-1
    with pytest.raises(error) as caught:
        SinkOptions("a", {}, Path()).secret(text)

    assert "hunter2" not in str(caught.value)


def test_what_ships_is_registered_like_any_other() -> None:  # L-DRV-11
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())

    assert project["project"]["entry-points"][GROUP] == BUILT_IN
