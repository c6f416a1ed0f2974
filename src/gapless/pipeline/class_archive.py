"""The archive of classes with which Spark's driver starts in two thirds of the time.

Java can write down the classes that it has loaded (class data sharing), and map that file into its memory at
the next start instead of reading, checking and linking each of them anew. The file is good for one Java, one
PySpark and one set of jars; Java leaves it alone where it does not fit. `python -m gapless.demo.rehearsal`
makes it. Without it everything works the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from gapless.java import Java

_SILENT = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-Xlog:class+path=off")


def archive_path(java: Java, jars: Sequence[Path]) -> Path:
    """Where the archive for these is, or would be: beside the jars."""
    from pyspark import __version__ as spark_version

    about_java = java.home / "release"
    told = about_java.read_text() if about_java.is_file() else ""
    parts = [str(java.home), told, spark_version, *map(str, jars)]
    name = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]
    return jars[0].parent / f"classes-{name}.jsa"


def options_to_use(archive: Path) -> list[str]:
    """For the driver's Java: nothing if there is no archive."""
    return [_quoted(f"-XX:SharedArchiveFile={archive}"), *_SILENT] if archive.is_file() else []


def options_to_make(archive: Path) -> list[str]:
    """For a Java that is to write the archive when it ends."""
    return [_quoted(f"-XX:ArchiveClassesAtExit={archive}"), *_SILENT]


def _quoted(option: str) -> str:
    """Spark takes the options apart as a shell would."""
    return f'"{option}"'
