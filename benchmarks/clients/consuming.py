"""A consumer on librdkafka that reads one partition from its beginning to a known end."""

from __future__ import annotations

from confluent_kafka import Consumer, TopicPartition

from benchmarks.clients.jobs import Consume
from benchmarks.meters import Usage

_MAX_AT_ONCE = 10_000
_PATIENCE_S = 30.0


class ReadFailed(RuntimeError):
    """The records are not all there."""


def run(job: Consume) -> dict[str, float]:
    """Time from the assignment to the last record; the connection stands before.

    By default librdkafka rests for a second whenever 100,000 records wait in its queue, so its naps would be
    measured: the two properties about the queue prevent that.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": job.bootstrap,
            "group.id": "benchmark",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "fetch.queue.backoff.ms": 5,
            "queued.min.messages": 1_000_000,
            "log_level": 3,
        }
    )
    try:
        consumer.list_topics(job.topic, timeout=_PATIENCE_S)
        consume, seen, last_offset = consumer.consume, 0, -1
        usage = Usage.begin(job.broker_pids)
        consumer.assign([TopicPartition(job.topic, 0, 0)])
        while seen < job.records:
            # Never more than there are: `consume` waits for the number that it was asked for.
            messages = consume(min(_MAX_AT_ONCE, job.records - seen), _PATIENCE_S)
            if not messages:
                raise ReadFailed(
                    f"nothing came for {_PATIENCE_S:.0f} s after {seen} of {job.records} records"
                )
            seen += len(messages)
            offset = messages[-1].offset()
            last_offset = -1 if offset is None else offset
        answer = usage.end()
    finally:
        consumer.close()
    # Errors arrive in the place of records; had there been any, the last offset would not fit the count.
    if last_offset != seen - 1:
        raise ReadFailed(f"{seen} records were read, but the last one has offset {last_offset}")
    return answer
