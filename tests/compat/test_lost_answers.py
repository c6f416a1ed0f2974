"""Answers that get lost on the way: what each client's retries leave in the log, idempotent and not."""

from __future__ import annotations

import pytest

from .clients import Client, Sending
from .clients.confluent import Confluent
from .conftest import CLIENTS, MakeClient, NewTopic
from .lossy_proxy import Fate, lossy_proxy
from .sample import Record, numbered, numbers

STORM = [
    *(Fate.DELIVER, Fate.LOSE_ANSWER, Fate.LOSE_REQUEST, Fate.DELIVER, Fate.TEAR_REQUEST, Fate.LOSE_ANSWER),
    *(Fate.LOSE_ANSWER, Fate.DELIVER, Fate.DELIVER, Fate.TEAR_REQUEST, Fate.DELIVER, Fate.LOSE_ANSWER),
]


def everything_in(topic: str, reader: Confluent) -> list[Record]:
    first, end = reader.bounds(topic, 0)
    return reader.read(topic, 0, first, end - first)


def for_lines(records: list[Record]) -> list[Record]:
    """The records without times, which kcat cannot send."""
    return [record._replace(timestamp_ms=None) for record in records]


def test_a_lost_answer_without_idempotence_leaves_two_copies(
    client: Client, reader: Confluent, bootstrap: str, new_topic: NewTopic
) -> None:
    """Claim C2 (and B10): the write was done, the sender cannot know, sends again, and both are stored."""
    topic = new_topic()
    with lossy_proxy(bootstrap, [Fate.LOSE_ANSWER]) as proxy:
        client.produce(topic, for_lines(numbered(1)), Sending(idempotent=False), bootstrap=proxy.bootstrap)
    assert proxy.fates[Fate.LOSE_ANSWER] == 1
    assert numbers(everything_in(topic, reader)) == [0, 0]


def test_a_storm_of_losses_with_idempotence_leaves_one_copy_of_each_in_order(
    client: Client, reader: Confluent, bootstrap: str, new_topic: NewTopic
) -> None:
    """Claims C4, C5, C7: whatever was lost, every acknowledged record is there once, in the order sent."""
    topic = new_topic()
    records = for_lines(numbered(400, size_bytes=100))
    how = Sending(idempotent=True, batch_bytes=1_000)
    with lossy_proxy(bootstrap, STORM) as proxy:
        client.produce(topic, records, how, bootstrap=proxy.bootstrap)
    assert proxy.fates[Fate.LOSE_ANSWER] >= 3
    assert proxy.fates[Fate.TEAR_REQUEST] >= 1
    assert numbers(everything_in(topic, reader)) == list(range(400))


@pytest.mark.parametrize("name", [name for name in CLIENTS if name != "aiokafka"])
def test_answers_that_never_come_are_waited_for_and_then_sent_again(
    name: str, make_client: MakeClient, reader: Confluent, bootstrap: str, new_topic: NewTopic
) -> None:
    """Claims C4, C5, on a connection that looks healthy. (aiokafka gives a batch up with its request.)"""
    topic = new_topic()
    how = Sending(idempotent=True, batch_bytes=1_000, answer_timeout_ms=500)
    with lossy_proxy(bootstrap, [Fate.DELIVER, Fate.SILENCE]) as proxy:
        make_client(name).produce(
            topic, for_lines(numbered(100, size_bytes=100)), how, bootstrap=proxy.bootstrap
        )
    assert proxy.fates[Fate.SILENCE] == 1
    assert numbers(everything_in(topic, reader)) == list(range(100))
