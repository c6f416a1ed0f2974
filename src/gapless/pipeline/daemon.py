"""The process from which Spark forks its Python workers, with what they need imported already.

    spark.python.daemon.module = gapless.pipeline.daemon

Spark's own one has each worker import everything anew, and PySpark from an archive without compiled modules:
two seconds of a processor for each worker, before its first record. Here that is done once.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path

# Of these only Arrow starts a thread: its allocator's, which knows how to be forked.
_NEEDED = (
    "numpy",
    "pyarrow",
    "pyarrow.compute",
    "pyspark.worker",
    "gapless.pipeline.dedup.judging",
    "gapless.pipeline.sinks.kafka.writer",
)


def without_archives(paths: list[str]) -> list[str]:
    """PySpark and Py4J as they are installed, if that is the installation from which Spark runs."""
    rest = [each for each in paths if not each.endswith(".zip")]
    installed = PathFinder.find_spec("pyspark", rest)
    if installed is None or installed.origin is None or PathFinder.find_spec("py4j", rest) is None:
        return paths
    home = Path(installed.origin).parent
    return [each for each in paths if not (each.endswith(".zip") and home in Path(each).parents)]


def main() -> None:
    sys.path[:] = without_archives(sys.path)
    for name in _NEEDED:
        import_module(name)
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
