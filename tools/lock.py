"""Pin every dependency of `pyproject.toml` with its hashes, for all platforms and Pythons that we support.

Three files come out of it: what builds (`requirements-build.lock`), what runs and tests (`requirements.lock`)
and the Java runtime for machines without one (`requirements-java.lock`).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = ("spark", "zookeeper", "postgres", "redis", "dev")
WANTED = {
    "requirements-build.lock": ["--group", "build"],
    "requirements.lock": [
        *(part for extra in EXTRAS for part in ("--extra", extra)),
        "pyproject.toml",
    ],
    "requirements-java.lock": ["--group", "java"],
}
OPTIONS = [
    *("--universal", "--python-version", "3.11", "--generate-hashes", "--upgrade", "--quiet"),
    *("--no-emit-index-url", "--no-emit-find-links", "--custom-compile-command", "make lock"),
]


def main() -> int:
    """Write the three lock files; stop at the first that cannot be resolved."""
    uv = Path(sys.executable).with_name("uv")
    for name, arguments in WANTED.items():
        command: list[str | Path] = [uv, "pip", "compile", *OPTIONS, "--output-file", name, *arguments]
        if subprocess.run(command, cwd=ROOT, check=False).returncode != 0:
            print(f"lock: {name} was not written", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
