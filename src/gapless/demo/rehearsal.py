"""A first, small run of the pipeline, for whose sake all later ones start sooner.

    python -m gapless.demo.rehearsal

When it ends, Java writes down the classes that it has used (see `gapless.pipeline.class_archive`). It carries
some records from a topic into another one and two tables, repeats some with Spark's own sink, and lets an
audit find them, so that these are the classes of a usual pipeline, and of all that the demo does.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka.admin import AdminClient, NewTopic

from gapless.audit.auditing import Auditor
from gapless.audit.carried import Matching
from gapless.audit.tables import SinkSpec
from gapless.client import Producer
from gapless.errors import GaplessError
from gapless.java import find_java
from gapless.pipeline import Definition, Pipeline, require_spark, spark_session
from gapless.pipeline.class_archive import archive_path, options_to_make
from gapless.testing.broker import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORDS = 300
_TOPIC, _COPY = "rehearsal", "rehearsed"
_WRITE_S = 120.0
_REQUEST_S = 30.0

_DEFINITION = """\
name = "rehearsal"
checkpoint = "checkpoint"
[source]
bootstrap = "{bootstrap}"
topics = ["rehearsal"]
value = "json"
schema = "id BIGINT"
[dedup]
by = "identity"
[transform]
sql = "SELECT key, headers, partition, offset, to_json(struct(id)) AS value FROM records"
[[sinks]]
type = "kafka"
topic = "rehearsed"
[[sinks]]
type = "delta"
path = "delta"
[[sinks]]
type = "parquet"
path = "parquet"
"""


def rehearse() -> Path | None:
    """Make the archive; None if this Java writes none."""
    archive = archive_path(find_java(), require_spark())
    unfinished = archive.with_suffix(".unfinished")
    for earlier in (archive, unfinished):
        earlier.unlink(missing_ok=True)
    config = {"spark.driver.extraJavaOptions": " ".join(options_to_make(unfinished))}
    spark = spark_session("rehearsal", short_lived=True, config=config)
    with tempfile.TemporaryDirectory(prefix="gapless-rehearsal-") as folder, EmbeddedBroker() as broker:
        _fill(broker.bootstrap)
        text = _DEFINITION.format(bootstrap=broker.bootstrap)
        Pipeline(Definition.parse(text, "rehearsal.toml", Path(folder)), spark=spark).run(once=True)
        _repeat(spark, broker.bootstrap)
        _audit(spark, broker.bootstrap, Path(folder))
    _end_java(spark)
    if not unfinished.is_file():
        return None
    unfinished.replace(archive)
    for other in archive.parent.glob("classes-*.jsa"):
        if other != archive:
            other.unlink()
    return archive


def _fill(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    made = admin.create_topics([NewTopic(name, 2, 1) for name in (_TOPIC, _COPY)])
    for each in made.values():
        each.result(_REQUEST_S)
    with Producer(bootstrap, "rehearsal", "at-least-once") as producer:
        for number in range(RECORDS):
            producer.send(_TOPIC, b'{"id": %d}' % number, key=str(number))


def _repeat(spark: SparkSession, bootstrap: str) -> None:
    """With Spark's own sink, which nobody keeps from it."""
    usual = {"kafka.bootstrap.servers": bootstrap, "includeHeaders": "true"}
    copied = spark.read.format("kafka").options(**usual, subscribe=_COPY).load()
    again = copied.filter("offset % 10 < 3").select("key", "value", "headers")
    again.write.format("kafka").options(**usual, topic=_COPY).save()


def _audit(spark: SparkSession, bootstrap: str, folder: Path) -> None:
    auditor = Auditor(spark, bootstrap, _TOPIC)
    auditor.look()
    tables = [SinkSpec(kind, str(folder / kind)) for kind in ("delta", "parquet")]
    auditor.look_into(tables, Matching(), None)
    auditor.look_into([SinkSpec("kafka", _COPY)], Matching(by="key"), None)


def _end_java(spark: SparkSession) -> None:
    """It ends when its standard input does, and writes the archive then."""
    process = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
    spark.stop()
    process.stdin.close()
    try:
        process.wait(_WRITE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        raise GaplessError(f"Java has not written it within {_WRITE_S:g} s") from None


def main() -> None:
    began_s = time.monotonic()
    try:
        archive, why_not = rehearse(), "this Java writes none"
    except (GaplessError, OSError) as error:
        archive, why_not = None, str(error)
    if archive is None:
        sys.stderr.write(f"Spark will start without an archive of classes: {why_not}\n")
    else:
        megabytes, took_s = archive.stat().st_size / 1e6, time.monotonic() - began_s
        sys.stdout.write(f"{archive.name}: {megabytes:.0f} MB of Spark's classes, in {took_s:.0f} s\n")


if __name__ == "__main__":
    main()
