"""Requests that are well-formed and absurd, or were well-formed until some bits flipped.

Each is answered, or costs its sender the connection. The broker never hangs, never dies, and never meets an
exception that it did not expect: those would be in its log as "request … failed".
"""

from __future__ import annotations

import os
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gapless.core.api.registry import APIS
from gapless.wire.apis import ApiKey
from tests.broker.conftest import BrokerMaker
from tests.broker.nasty import REQUEST_CLASSES, RESPONSE_CLASSES, TOPIC, requests
from tests.broker.process import Broker, unhurt
from tests.broker.raw import (
    ApiVersionsRequest,
    ClosedByBroker,
    RawClient,
    batch_of,
    correlation_of,
    decode_reply,
    frame_of,
)
from tests.wire.made_messages import make_message

LONGEST_WAIT_MS = 20
EFFORT = int(os.environ.get("GAPLESS_FUZZ_EFFORT", "1"))
"""Set it to 50 and get a coffee."""


@pytest.fixture(scope="module")
def victim(broker: Broker) -> Broker:
    """A broker with a topic that requests name, and something in it."""
    with broker.connect() as client:
        client.metadata(TOPIC)
        client.produce(TOPIC, batch_of(b"one", b"two"))
    return broker


def calmed(message: Any) -> Any:
    """The request without a will to wait: a long wait is lawful, but no test has the time."""
    for attribute in ("max_wait_ms", "timeout_ms"):
        if hasattr(message, attribute):
            setattr(message, attribute, min(getattr(message, attribute), LONGEST_WAIT_MS))
    return message


def outcome(client: RawClient, frame: bytes) -> bytes | None:
    """The reply to a frame; None if there is none, or if the connection was closed for it."""
    client.send(frame + frame_of(ApiVersionsRequest(), 0, correlation_id=-77))
    reply = client.receive_frame()
    if correlation_of(reply) == -77:
        return None  # a request that wants no answer
    if correlation_of(client.receive_frame()) != -77:
        raise AssertionError("a request was answered twice")
    return reply


def assert_well(broker: Broker) -> None:
    said = broker.said()
    assert broker.running, said[-3000:]
    assert "Traceback" not in said, said[-3000:]


@pytest.mark.parametrize("api_key", sorted(APIS), ids=lambda key: ApiKey(key).name)
def test_absurd_requests_are_answered_or_refused(victim: Broker, api_key: int) -> None:
    api = APIS[api_key]

    @settings(max_examples=30 * EFFORT, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.integers(api.min_version, api.max_version), st.data())
    def attack(version: int, data: st.DataObject) -> None:
        message = calmed(data.draw(requests(api_key, version)))
        with victim.connect() as client:
            try:
                reply = outcome(client, frame_of(message, version))
            except ClosedByBroker:
                reply = None
            if reply is not None:
                decode_reply(RESPONSE_CLASSES[api_key], version, reply)
        assert_well(victim)

    with unhurt(victim):
        attack()


def test_requests_with_flipped_bits_are_answered_or_refused(victim: Broker) -> None:
    random = Random(20261115)
    choices = [
        (api, version) for api in APIS.values() for version in range(api.min_version, api.max_version + 1)
    ]
    client = victim.connect()
    client.socket.settimeout(0.5)
    with unhurt(victim):
        for _ in range(2000 * EFFORT):
            api, version = random.choice(choices)
            frame = mutated(calmed(make_message(REQUEST_CLASSES[api.key], version, random)), version, random)
            try:
                outcome(client, frame)
            except (ClosedByBroker, TimeoutError):  # a timeout: it may have become a fetch that waits long
                client.close()
                client = victim.connect()
                client.socket.settimeout(0.5)
    client.close()
    assert_well(victim)


def mutated(message: Any, version: int, random: Random) -> bytes:
    """The request's frame with some bits or bytes changed, but neither its length nor what it asks for."""
    frame = bytearray(frame_of(message, version))
    for _ in range(random.choice((1, 1, 2, 5))):
        position = random.randrange(12, len(frame))
        frame[position] = random.choice((frame[position] ^ 1 << random.randrange(8), 0, 0x7F, 0x80, 0xFF))
    return bytes(frame)


def test_a_broker_that_was_attacked_starts_again_with_what_it_has(start_broker: BrokerMaker) -> None:
    broker = start_broker()
    with broker.connect() as client:
        client.metadata(TOPIC)
    random = Random(5)
    changing = (19, 37, 44, 33, 3, 21, 22, 0)  # the APIs that leave something behind
    for _ in range(200 * EFFORT):
        api = APIS[random.choice(changing)]
        version = random.randint(api.min_version, api.max_version)
        message = calmed(make_message(REQUEST_CLASSES[api.key], version, random))
        with broker.connect() as client:
            try:
                outcome(client, frame_of(message, version))
            except ClosedByBroker:
                continue
    broker.restart()
    with broker.connect() as client:
        topics = client.metadata().topics
        assert TOPIC in [topic.name for topic in topics]
        assert all(partition.error_code == 0 for topic in topics for partition in topic.partitions)
    assert_well(broker)
