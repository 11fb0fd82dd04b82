"""Opening a store, the light front door, the facade."""

import subprocess
import sys
from pathlib import Path

import pytest

from strandline import persist
from strandline.errors import NotFoundError, UsageError
from strandline.persist import Store, append, last_seq, mem_backend, open_store
from strandline.persist.backends.memory import MemoryBackend
from strandline.persist.backends.sqlite import SqliteBackend


def test_nothing_opens_a_fresh_store_in_memory_each_time() -> None:  # P-API-1
    one, other = open_store(), open_store("memory:")

    append(one, "a", "x", 1, {})

    assert isinstance(one, MemoryBackend)
    assert last_seq(other, "a") == 0


def test_a_backend_comes_back_as_it_is() -> None:  # P-API-2
    b = mem_backend()

    assert open_store(b) is b


def test_sqlite_urls_are_read_as_sqlalchemy_reads_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # P-API-4
    monkeypatch.chdir(tmp_path)

    paths: list[str | Path] = [str(tmp_path / "plain.db"), tmp_path / "p.db"]
    targets = ["sqlite:///rel.db", f"sqlite:///{tmp_path}/abs.db", *paths]
    for target in targets:
        b = open_store(target)
        assert isinstance(b, SqliteBackend)
        append(b, "a", "x", 1, {})
        b.close()

    assert sorted(file.name for file in tmp_path.glob("*.db")) == ["abs.db", "p.db", "plain.db", "rel.db"]


@pytest.mark.parametrize(
    ("target", "options", "words"),
    [
        ("", {}, "empty"),
        ("mysql://x/y", {}, "mysql"),
        ("sqlite://", {}, "names no file"),
        ("sqlite:///", {}, "names no file"),
        ("memory:", {"schema": "x"}, "schema"),
        ("x.db", {"token": "t"}, "token"),
        ("x.db", {"synchronous": "OFF"}, "OFF"),
    ],
)
def test_a_wrong_url_or_option_is_named(
    target: str, options: dict[str, str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # P-API-4
    monkeypatch.chdir(tmp_path)

    with pytest.raises(UsageError, match=words) as caught:
        open_store(target, **options)

    assert caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_there_is_not_made_on_request(tmp_path: Path) -> None:  # P-API-4
    with pytest.raises(NotFoundError):
        open_store(tmp_path / "deep" / "x.db", create=False)

    assert list(tmp_path.iterdir()) == []


def test_the_front_door_is_light() -> None:
    heavy = "apsw psycopg urllib3 starlette uvicorn httpx click rich obstore pyspark asyncio"
    code = f"import sys, strandline.persist; print([m for m in {heavy.split()} if m in sys.modules])"

    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert found.stdout.strip() == "[]"


def test_the_facade_has_every_function_over_a_backend() -> None:
    store = Store(mem_backend())

    event = store.append("a", "x", 1, {"n": 1})

    assert store.read("a") == [event]
    assert {"append", "kv_cas", "compact", "erase_stream", "verify"} <= set(dir(store))
    with pytest.raises(AttributeError, match="publish"):
        store.publish("a", "x", 1, {})


def test_every_public_name_has_its_place_in_the_reference() -> None:
    reference = Path(__file__).parents[2] / "docs" / "reference"
    pages = "".join(page.read_text(encoding="utf-8") for page in reference.glob("*.md"))

    assert [name for name in persist.__all__ if f"`{name}`" not in pages] == []
