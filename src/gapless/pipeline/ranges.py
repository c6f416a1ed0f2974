"""Which part of which topic a task of a micro-batch reads.

Spark plans a task for each source partition that has news, and knows its offsets; the rows do not tell it,
once a transform has dropped those columns. So the plan is asked: from the rows' RDD back to the source, as
long as every step gives a partition the rows of one partition. Any shuffle, union or coalescing on the way
ends that, and then there is no answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ONE_TO_ONE = "org.apache.spark.OneToOneDependency"
_SOURCE_RDD = "org.apache.spark.sql.execution.datasources.v2.DataSourceRDD"
_KAFKA_PARTITION = "org.apache.spark.sql.kafka010.KafkaBatchInputPartition"


class Range(NamedTuple):
    """Offsets of a source partition: `start` is the first, `end` the one after the last."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"


def source_ranges(rows: DataFrame) -> list[Range] | None:
    """What each partition of `rows` was read from, in their order; None if they are not read one to one.

    Plans the rows, but runs nothing. Adaptive execution must be off: it would have to run to know its plan.
    """
    rdd = rows._jdf.queryExecution().toRdd()
    partitions = len(rdd.partitions())
    source = _source_of(rdd)
    if source is None:
        return None
    ranges = [_range_of(partition) for partition in source.partitions()]
    read = [found for found in ranges if found is not None]
    # A topic-partition that is split into several tasks has no marker of its own.
    distinct = {(found.topic, found.partition) for found in read}
    return read if len(read) == len(distinct) == partitions == len(ranges) else None


def _source_of(rdd: Any) -> Any | None:
    while True:
        if rdd.getClass().getName() == _SOURCE_RDD:
            return rdd
        dependencies = rdd.dependencies()
        if dependencies.size() != 1:
            return None
        dependency = dependencies.apply(0)
        if dependency.getClass().getName() != _ONE_TO_ONE:
            return None
        rdd = dependency.rdd()


def _range_of(partition: Any) -> Range | None:
    read = partition.inputPartition()
    if read.isEmpty() or read.get().getClass().getName() != _KAFKA_PARTITION:
        return None
    offsets = read.get().offsetRange()
    where = offsets.topicPartition()
    return Range(where.topic(), where.partition(), offsets.fromOffset(), offsets.untilOffset())
