"""Java parts of Spark, Apache Kafka and ZooKeeper: which, where they lie, and that they are the pinned ones.

`ivy.xml` pins revisions, `SHA256SUMS` the bytes. `python -m gapless.jars` retrieves what is missing.
"""

from __future__ import annotations

import os
from pathlib import Path

from gapless.errors import GaplessError

HERE = Path(__file__).resolve().parent
IVY_FILE = HERE / "ivy.xml"
SUMS_FILE = HERE / "SHA256SUMS"


class JarsMissing(GaplessError):
    """Jars are absent or not the pinned ones. The message says what to do."""


def jars_folder() -> Path:
    """`GAPLESS_JARS` if set; in a checkout its folder `jars`; else a folder in the user's cache."""
    chosen = os.environ.get("GAPLESS_JARS")
    if chosen:
        return Path(chosen)
    checkout = HERE.parents[2]
    if (checkout / "pyproject.toml").is_file() and HERE.parents[1].name == "src":
        return checkout / "jars"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "gapless" / "jars"


def pinned_sums(set_name: str) -> dict[str, str]:
    """File name to sha256 of every jar of a set (`spark`, `kafka`, `zookeeper`)."""
    sums = {}
    for line in SUMS_FILE.read_text().splitlines():
        digest, _, path = line.partition("  ")
        folder, _, name = path.partition("/")
        if folder == set_name:
            sums[name] = digest
    return sums


def jar_paths(set_name: str) -> list[Path]:
    """The jars of a set, by name. Only presence is looked at: bytes were checked on retrieval."""
    folder = jars_folder() / set_name
    paths = [folder / name for name in sorted(pinned_sums(set_name))]
    if not paths or not all(path.is_file() for path in paths):
        raise JarsMissing(
            f"the jars for {set_name} are not complete in {folder}: run: python -m gapless.jars {set_name}"
        )
    return paths
