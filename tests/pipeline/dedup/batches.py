"""What tests of the source side share: records with identities, and micro-batches over what is there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka import Producer

from gapless.client.formats import SEQUENCE_HEADER, SOURCE_HEADER, sequence_header, source_header
from gapless.pipeline.properties import client_properties
from gapless.pipeline.source import read_source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from gapless.pipeline.sections import Source

INCARNATION = b"incarnat"
PATIENCE_S = 120
Headers = Sequence[tuple[str, bytes | None]]


def identity(source: str, sequence: int, incarnation: bytes = INCARNATION) -> Headers:
    return [
        (SOURCE_HEADER, source_header(source, incarnation)),
        (SEQUENCE_HEADER, sequence_header(sequence)),
    ]


class Sent(NamedTuple):
    """A record as it was sent."""

    partition: int
    value: bytes
    headers: Headers


def send(bootstrap: str, topic: str, records: Iterable[Sent]) -> None:
    """Acknowledged when it returns, in this order in each partition."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0})
    for each in records:
        producer.produce(topic, each.value, partition=each.partition, headers=list(each.headers))
    assert producer.flush(30) == 0


def run_batches(
    spark: SparkSession,
    source: Source,
    checkpoint: Path,
    on_batch: Callable[[DataFrame, int], None],
    transform: Callable[[DataFrame], DataFrame] = lambda stream: stream,
) -> list[int]:
    """Run micro-batches over all records and return their numbers. Raises what a batch raises.

    PySpark keeps the exception that a batch raises, and with it the variables of every frame of its
    traceback, so it is given a different exception.
    """
    failed: list[BaseException] = []
    done: list[int] = []

    def succeeds(rows: DataFrame, number: int) -> bool:
        try:
            on_batch(rows, number)
            done.append(number)
        except BaseException as error:
            failed.append(error)
        return not failed

    def batch(rows: DataFrame, number: int) -> None:
        if not succeeds(rows, number):
            raise RuntimeError("the batch has failed")

    stream = transform(read_source(spark, source, client_properties()))
    query = (
        stream.writeStream.foreachBatch(batch)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(PATIENCE_S)
    except Exception:
        if failed:
            raise failed.pop() from None
        raise
    finally:
        query.stop()
    return done


class MemoryFolder:
    """As `CheckpointFolder`, for tests without Spark."""

    def __init__(self, files: Mapping[str, bytes] | None = None) -> None:
        self.files = dict(files or {})

    def read(self, name: str) -> bytes | None:
        return self.files.get(name)

    def write(self, name: str, data: bytes) -> None:
        self.files[name] = data

    def names(self, folder: str) -> list[str]:
        return sorted(name.removeprefix(f"{folder}/") for name in self.files if name.startswith(f"{folder}/"))

    def delete(self, name: str) -> None:
        self.files.pop(name, None)
