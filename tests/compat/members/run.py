"""A member's process: reads, prints what it has and what it read, commits, until it is asked to stop.

python -m tests.compat.members.run KIND BOOTSTRAP GROUP TOPIC [INSTANCE]
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Iterable
from typing import Any

from . import HEARTBEAT_MS, session_ms

STRATEGIES = {"confluent-range": "range,roundrobin", "confluent-cooperative": "cooperative-sticky"}


class Stop:
    """Set by SIGTERM."""

    def __init__(self) -> None:
        self.asked = False
        signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, _number: int, _frame: object) -> None:
        self.asked = True


class Reporter:
    """Prints each change of the assignment, and everything that was read."""

    def __init__(self) -> None:
        self._last: list[tuple[str, int]] | None = None

    def has(self, partitions: Iterable[Any]) -> None:
        now = sorted((each.topic, each.partition) for each in partitions)
        if now != self._last:
            self._last = now
            _say({"partitions": now})

    @staticmethod
    def read(values: list[bytes]) -> None:
        if values:
            _say({"read": [value.decode() for value in values]})


def _say(event: dict[str, Any]) -> None:
    """By one write: print() makes two, and a line of the client's log may come in between."""
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def run_confluent(kind: str, bootstrap: str, group: str, topic: str, instance: str | None) -> None:
    from confluent_kafka import Consumer, KafkaException

    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "session.timeout.ms": session_ms(instance),
        "heartbeat.interval.ms": HEARTBEAT_MS,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "fetch.wait.max.ms": 50,
        # Its default is 10 s: a member that waits that long for the broker to be back loses its session.
        "reconnect.backoff.max.ms": 500,
        "partition.assignment.strategy": STRATEGIES[kind],
    } | ({} if instance is None else {"group.instance.id": instance})
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    stop, reporter = Stop(), Reporter()
    while not stop.asked:
        messages = consumer.consume(100, 0.1)
        reporter.has(consumer.assignment())
        values = [message.value() or b"" for message in messages if message.error() is None]
        reporter.read(values)
        if values:
            try:
                consumer.commit(asynchronous=False)
            except KafkaException as error:  # a rebalance came between: somebody else reads it again
                print("commit:", error, flush=True)
    consumer.close()


def run_kafka_python(bootstrap: str, group: str, topic: str, instance: str | None) -> None:
    from kafka import KafkaConsumer
    from kafka.errors import KafkaError

    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group,
        group_instance_id=instance,
        session_timeout_ms=session_ms(instance),
        heartbeat_interval_ms=HEARTBEAT_MS,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        fetch_max_wait_ms=50,
    )
    # kafka-python 3.0.12 may join before it knows the topic, assigns nothing, and joins again when it does;
    # if a poll's time is up in the middle of that, it forgets the second answer and stays without partitions.
    consumer.partitions_for_topic(topic)
    stop, reporter = Stop(), Reporter()
    while not stop.asked:
        polled = consumer.poll(timeout_ms=100)
        reporter.has(consumer.assignment())
        values = [record.value for records in polled.values() for record in records]
        reporter.read(values)
        if values:
            try:
                consumer.commit()
            except KafkaError as error:
                print("commit:", repr(error), flush=True)
    consumer.close()


async def run_aiokafka(bootstrap: str, group: str, topic: str, instance: str | None) -> None:
    from aiokafka import AIOKafkaConsumer
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor
    from aiokafka.errors import KafkaError

    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group,
        group_instance_id=instance,
        session_timeout_ms=session_ms(instance),
        heartbeat_interval_ms=HEARTBEAT_MS,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        fetch_max_wait_ms=50,
        partition_assignment_strategy=(RangePartitionAssignor,),
    )
    stop, reporter = Stop(), Reporter()
    await consumer.start()
    while not stop.asked:
        polled = await consumer.getmany(timeout_ms=100)
        reporter.has(consumer.assignment())
        values = [record.value for records in polled.values() for record in records]
        reporter.read(values)
        if values:
            try:
                await consumer.commit()
            except KafkaError as error:
                print("commit:", repr(error), flush=True)
    await consumer.stop()


def main(kind: str, bootstrap: str, group: str, topic: str, instance: str = "") -> None:
    if kind in STRATEGIES:
        run_confluent(kind, bootstrap, group, topic, instance or None)
    elif kind == "kafka-python":
        run_kafka_python(bootstrap, group, topic, instance or None)
    elif kind == "aiokafka":
        asyncio.run(run_aiokafka(bootstrap, group, topic, instance or None))
    else:
        raise ValueError(kind)


main(*sys.argv[1:])
