"""A Spark session that works out of the box: our jars, this Python, no web page, no chatter.

Needs the extra `gapless[spark]`, Java and the pinned jars; what is missing is said in one line.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from gapless.errors import GaplessError, UsageError
from gapless.jars import jar_paths
from gapless.java import Java, find_java
from gapless.pipeline.class_archive import archive_path, options_to_use
from gapless.pipeline.failures import cause_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOGGING = Path(__file__).with_name("log4j2.properties")

# What Spark knows. Of anything else its Java complains in a page of its own.
_MASTER = re.compile(
    r"local(\[\s*([1-9]\d*|\*)\s*(,\s*[1-9]\d*\s*)?\])?|local-cluster\[.+\]|spark://.+|k8s://.+|yarn"
)
DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Both suit one machine: the usual 200 shuffle tasks and 50 snapshot tasks would cost more than the work.
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "UTC",
}

ON_ONE_MACHINE = {
    # Nothing listens to the network.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.python.daemon.module": "gapless.pipeline.daemon",
}

SHORT_LIVED = (
    # The quick compiler and the smallest collector: half the processor time for a session of minutes.
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    # With that compiler Java keeps only 48 MB of compiled code. Spark needs more: it was thrown away and
    # compiled again, over and over.
    "-XX:ReservedCodeCacheSize=240m",
    # Room to start with, where Java would collect garbage to find out that Spark needs it. As much heap as it
    # may have at most: with a number, Java would not start where the driver is given less.
    "-XX:MetaspaceSize=256m",
    "-XX:InitialRAMPercentage=100",
)


class SparkMissing(GaplessError):
    """Spark cannot be started on this machine. The message says what to install."""


def require_spark() -> list[Path]:
    """The jars, if all that Spark needs is on this machine; else one line about what is missing."""
    if find_spec("pyspark") is None:
        raise SparkMissing("PySpark is not installed: run: pip install 'gapless[spark]'")
    find_java()
    return jar_paths("spark")


def spark_session(
    name: str = "gapless",
    *,
    master: str = "local[2]",
    short_lived: bool = False,
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """The session of this process: started, or the one that already runs.

    `config` goes before our defaults; what it says of jars and of Java's options comes to ours.
    On a cluster executors run the Python that `spark.pyspark.python` names, else the same path as here.
    """
    if not _MASTER.fullmatch(master):
        raise UsageError(
            f"{master!r} is no master of Spark: local[2], local[*], spark://HOST:PORT, yarn or k8s://URL"
        )
    jars, own = require_spark(), dict(config or {})
    from pyspark.sql import SparkSession

    os.environ["JAVA_HOME"] = str(find_java().home)
    if _is_here(master):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Workers must run what the driver runs, and not the first `python3` on PATH.
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYSPARK_PYTHON"] = (config or {}).get("spark.pyspark.python", sys.executable)
    settings = settings_for(own, jars, find_java(), master=master, short_lived=short_lived)
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        return builder.getOrCreate()
    except (PySparkException, Py4JError) as error:
        raise SparkMissing(f"Spark cannot be started with master {master}: {cause_of(error)}") from None


def settings_for(
    own: Mapping[str, str], jars: Sequence[Path], java: Java, *, master: str, short_lived: bool = False
) -> dict[str, str]:
    """What a session is started with, if `own` is what its user has set."""
    java_options = [
        f"-Dlog4j2.configurationFile={LOGGING.as_uri()}",
        *options_to_use(archive_path(java, jars)),
        *(SHORT_LIVED if short_lived else ()),
    ]
    paths = [str(jar) for jar in jars]
    ours = {
        "spark.driver.extraJavaOptions": (" ", java_options),
        "spark.jars": (",", paths),
        # The same once more: the archive knows only classes of the class path.
        "spark.driver.extraClassPath": (":", paths),
    }
    joined = {
        name: separator.join([*values, *filter(None, [own.get(name)])])
        for name, (separator, values) in ours.items()
    }
    return {**DEFAULTS, **(ON_ONE_MACHINE if _is_here(master) else {}), **own, **joined}


def _is_here(master: str) -> bool:
    return master.startswith("local")
