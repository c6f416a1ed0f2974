"""The source of a pipeline: topics as an unbounded DataFrame, committed records only.

    records = read_source(spark, Source("127.0.0.1:9092", ["orders"]), client_properties())

Columns: topic, partition, offset, timestamp, key, value, headers. A micro-batch has one task for each topic
partition with news, which is what lets sinks be aligned with the source: `minPartitions` is never set.
Partitions that are added are read from their beginning.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gapless.errors import Unreachable, UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from gapless.pipeline.properties import ClientProperties
    from gapless.pipeline.sections import Source

COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
GROUP_PREFIX = "gapless.source"
"""How the groups begin under which Spark reads: for clusters that allow groups by their names."""
# After every poll Spark asks the broker for both ends of the partition, and loses what else it had fetched.
# With the client's usual 500 records to a poll that is a good part of the work: here it takes a whole fetch.
_RECORDS_PER_POLL = "100000"
# It asks over the connection on which a fetch for what comes next is under way: at the end of the log the
# broker keeps that fetch, and so the question, for as long as it may. Spark reads only what is there already.
_WAIT_MS = "5"
# A reader that has missed a change of leaders stands still until it asks again by itself. Java's clients do
# that every five minutes, which is how long a pipeline stood still when a broker had died.
_METADATA_MS = "5000"
_EARLIEST = -2  # as Kafka's protocol and Spark's options have it
_PATIENCE_S = 30.0


def read_source(
    spark: SparkSession,
    source: Source,
    properties: ClientProperties,
    *,
    starting: Mapping[str, Mapping[int, int]] | None = None,
) -> DataFrame:
    """The records of a source, from where it says, or from the offsets `starting`.

    Where to start counts for a new checkpoint only; others go on where they are. Partitions of which
    `starting` says nothing are read from their earliest record.
    """
    options = {
        **reading_options(source.bootstrap, properties),
        "subscribe": ",".join(source.topics),
        "startingOffsets": _starting(source, properties, starting),
        "failOnDataLoss": "true" if source.on_loss == "stop" else "false",
        "maxOffsetsPerTrigger": str(source.max_records_per_batch),
    }
    return spark.readStream.format("kafka").options(**options).load().select(*COLUMNS)


def reading_options(bootstrap: str, properties: ClientProperties) -> dict[str, str]:
    """How Spark reads topics, whichever: fast, committed records only, with their headers."""
    return {
        "kafka.max.poll.records": _RECORDS_PER_POLL,
        "kafka.fetch.max.wait.ms": _WAIT_MS,
        "kafka.metadata.max.age.ms": _METADATA_MS,
        **properties.for_spark(bootstrap),
        "kafka.isolation.level": "read_committed",
        "includeHeaders": "true",
        "groupIdPrefix": GROUP_PREFIX,
    }


def partitions_of(source: Source, properties: ClientProperties) -> dict[str, list[int]]:
    """The partitions of the source's topics. Raises for topics that are not there."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    try:
        admin = AdminClient(properties.for_librdkafka(source.bootstrap))
        known = admin.list_topics(timeout=_PATIENCE_S).topics
    except KafkaException as error:
        raise Unreachable(f"cannot reach a Kafka broker at {source.bootstrap}: {error.args[0]}") from None
    missing = [topic for topic in source.topics if topic not in known or known[topic].error is not None]
    if missing:
        raise UsageError(f"there is no topic {', '.join(missing)} at {source.bootstrap}")
    return {topic: sorted(known[topic].partitions) for topic in source.topics}


def _starting(
    source: Source, properties: ClientProperties, given: Mapping[str, Mapping[int, int]] | None
) -> str:
    wanted = source.starting if given is None else given
    if isinstance(wanted, str):
        return wanted
    return starting_offsets(wanted, partitions_of(source, properties))


def starting_offsets(wanted: Mapping[str, Mapping[int, int]], partitions: Mapping[str, Sequence[int]]) -> str:
    """Spark's way to write offsets: it wants to be told of every partition."""
    for topic, offsets in wanted.items():
        for partition in offsets:
            if partition not in partitions.get(topic, ()):
                raise UsageError(f"`starting` names {topic}-{partition}, which does not exist")
    return json.dumps(
        {
            topic: {str(each): wanted.get(topic, {}).get(each, _EARLIEST) for each in numbers}
            for topic, numbers in partitions.items()
        }
    )
