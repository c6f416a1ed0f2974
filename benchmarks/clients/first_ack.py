"""How long after its launch a broker or a cluster takes the first record: knock until one is acknowledged."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from itertools import cycle
from struct import Struct

from confluent_kafka import KafkaException, Producer

from benchmarks.clients.jobs import FirstAck
from benchmarks.clients.producing import LoadFailed, flush, new_producer

# Not idempotent: librdkafka asks for a producer id every 500 ms only, and would measure that.
_IMPATIENT: dict[str, str | int] = {
    "enable.idempotence": False,
    "linger.ms": 0,
    "reconnect.backoff.ms": 5,
    "reconnect.backoff.max.ms": 10,
    "retry.backoff.ms": 5,
    "retry.backoff.max.ms": 10,
    "topic.metadata.refresh.fast.interval.ms": 10,
    "socket.connection.setup.timeout.ms": 1000,
    "log_level": 0,
}
_KNOCK_EVERY_S = 0.01
_REPLY_TIMEOUT_S = 1.0

_CREATE_TOPICS, _CREATE_TOPICS_VERSION = 19, 4  # the last version without tagged fields
_HEADER = Struct(">hhih")  # CreateTopics, version, correlation id, no client id
_TOPIC = Struct(">ihii")  # partitions, replicas, no assignments, no settings
_TAIL = Struct(">i?")  # timeout, do it
_COUNT = Struct(">i")


def run(job: FirstAck) -> dict[str, float]:
    """A single broker makes the topic by itself, when it is asked for the topic's leader."""
    deadline = time.monotonic() + job.timeout_s
    producer, failures = new_producer(job.bootstrap, _IMPATIENT)
    print("waiting", flush=True)
    if job.replicas > 1:
        _create_topic(job, deadline)
        _wait_until_in_sync(producer, job, deadline)
    producer.produce(job.topic, b"first", partition=0)
    flush(producer, failures, deadline - time.monotonic())
    return {"acked_at_s": time.monotonic()}


def _wait_until_in_sync(producer: Producer, job: FirstAck, deadline: float) -> None:
    """Kafka makes a topic as soon as it knows the brokers; one that is not ready is not in sync yet."""
    while _replicas_in_sync(producer, job.topic) != job.replicas:
        if time.monotonic() > deadline:
            raise LoadFailed(f"{job.topic} was not in sync within {job.timeout_s:.0f} s")
        time.sleep(_KNOCK_EVERY_S)


def _replicas_in_sync(producer: Producer, topic: str) -> int:
    try:
        partitions = producer.list_topics(topic, timeout=_REPLY_TIMEOUT_S).topics[topic].partitions
    except KafkaException:
        return 0  # not yet; the deadline decides
    return len(partitions[0].isrs) if partitions else 0


def _create_topic(job: FirstAck, deadline: float) -> None:
    """Ask one broker after the other, as long as there are too few of them.

    librdkafka looks for a controller once a second only, and would measure that.
    """
    addresses = _addresses(job.bootstrap)
    while not _created(next(addresses), job):
        if time.monotonic() > deadline:
            raise LoadFailed(f"no topic with {job.replicas} replicas within {job.timeout_s:.0f} s")
        time.sleep(_KNOCK_EVERY_S)


def _addresses(bootstrap: str) -> Iterator[tuple[str, int]]:
    parts = (address.rpartition(":") for address in bootstrap.split(","))
    return cycle([(host, int(port)) for host, _, port in parts])


def _created(address: tuple[str, int], job: FirstAck) -> bool:
    name = len(job.topic).to_bytes(2, "big") + job.topic.encode()
    request = b"".join(
        (
            _HEADER.pack(_CREATE_TOPICS, _CREATE_TOPICS_VERSION, 1, -1),
            _COUNT.pack(1) + name + _TOPIC.pack(1, job.replicas, 0, 0),
            _TAIL.pack(int(_REPLY_TIMEOUT_S * 1000), False),
        )
    )
    # Reply: length, correlation id, throttle time, one topic, its name; then the error code.
    error_at = 4 + 4 + 4 + 4 + len(name)
    try:
        with socket.create_connection(address, _REPLY_TIMEOUT_S) as connection:
            connection.sendall(_COUNT.pack(len(request)) + request)
            reply = connection.recv(4096)
    except OSError:
        return False  # not yet; the deadline decides
    return reply[error_at : error_at + 2] == b"\x00\x00"
