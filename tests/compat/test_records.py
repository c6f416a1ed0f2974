"""Whoever writes, with whatever compression: everyone reads the same bytes, in the same order."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from .clients import Client, Sending
from .conftest import CLIENTS, MakeClient, NewTopic
from .raw import RawClient, codecs_in
from .sample import CODECS, Record, numbered, numbers


class Written(NamedTuple):
    """A topic in which each partition has the same client's records in another compression."""

    topic: str
    partitions: list[list[Record]]


@pytest.fixture(scope="module")
def written(make_client: MakeClient, new_topic: NewTopic) -> Callable[[str], Written]:
    """What a client wrote, once for all of its readers."""
    known: dict[str, Written] = {}

    def write(name: str) -> Written:
        if name not in known:
            client, topic = make_client(name), new_topic(len(CODECS))
            samples = [client.sample(partition) for partition in range(len(CODECS))]
            for codec, sample in zip(CODECS, samples, strict=True):
                client.produce(topic, sample, Sending(codec))
            known[name] = Written(topic, samples)
        return known[name]

    return write


@pytest.mark.parametrize("writer", CLIENTS)
def test_every_client_reads_what_every_client_wrote_in_every_compression(
    client: Client, writer: str, written: Callable[[str], Written]
) -> None:
    """Claims A1, A4: keys, values, headers, nulls and times come back byte for byte, in each partition."""
    topic, partitions = written(writer)
    for partition, expected in enumerate(partitions):
        found = client.read(topic, partition, 0, len(expected))
        assert [record.offset for record in found] == list(range(len(expected)))
        assert [as_sent(record, sent) for record, sent in zip(found, expected, strict=True)] == expected


@pytest.mark.parametrize("writer", CLIENTS)
def test_every_client_really_compresses_as_it_is_told(
    raw: RawClient, writer: str, written: Callable[[str], Written]
) -> None:
    """A client that doubts the broker's abilities sends uncompressed batches, and no reader notices."""
    topic, _ = written(writer)
    for partition, codec in enumerate(CODECS):
        assert codec in {
            CODECS[number] for number in codecs_in(raw.fetch(topic, partition=partition).records)
        }


def as_sent(found: Record, sent: Record) -> Record:
    """Without what the broker or the client added: the offset, and the time if none was given."""
    timestamp_ms = None if sent.timestamp_ms is None else found.timestamp_ms
    return found._replace(offset=None, timestamp_ms=timestamp_ms)


def test_partitions_are_logs_of_their_own_each_in_its_order(client: Client, new_topic: NewTopic) -> None:
    """Claims A1, A4: offsets count in each partition from zero; the order of sending is kept inside each."""
    topic = new_topic(3)
    for partition in range(3):
        client.produce(topic, numbered(50 + partition, partition=partition))
    for partition in range(3):
        assert client.bounds(topic, partition) == (0, 50 + partition)
        found = client.read(topic, partition, 0, 50 + partition)
        assert numbers(found) == list(range(50 + partition))
        assert {record.partition for record in found} == {partition}
