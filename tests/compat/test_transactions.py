"""Claims C6, C7, C8: transactions of every client, as every client reads them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import pytest

from .clients import eventually
from .clients.java import JavaClient
from .conftest import CLIENTS, MakeClient, NewTopic
from .isolation import NewName, committed_offset, read_isolated, values, values_by_partition
from .transactors import Fenced, MakeTransactor, Transactor
from .transactors.aio import AiokafkaTransactor
from .transactors.confluent import ConfluentTransactor
from .transactors.java import JavaTransactor
from .transactors.kafka_python import KafkaPythonTransactor

MANY_PARTITIONS = 12
TRANSACTIONS = 60
TRANSACTORS = ("confluent", "kafka-python", "aiokafka", "java-4.3", "java-3.9")


@pytest.fixture
def make_transactor(make_client: MakeClient, bootstrap: str) -> Iterator[MakeTransactor]:
    """Started producers, that end with the test."""
    with ExitStack() as stack:

        def make(name: str, transactional_id: str, timeout_ms: int = 60_000) -> Transactor:
            made: Transactor
            if name.startswith("java"):
                client = make_client(name)
                if not isinstance(client, JavaClient):
                    raise TypeError(name)
                made = JavaTransactor(client, bootstrap, transactional_id, timeout_ms)
            else:
                kinds = {
                    kind.name: kind
                    for kind in (ConfluentTransactor, KafkaPythonTransactor, AiokafkaTransactor)
                }
                made = kinds[name](bootstrap, transactional_id, timeout_ms)
            stack.callback(made.close)
            return made

        yield make


@pytest.mark.parametrize("name", TRANSACTORS)
def test_commits_show_in_all_partitions_and_aborts_nowhere(
    name: str,
    make_transactor: MakeTransactor,
    topic_name: NewName,
    new_topic: NewTopic,
    bootstrap: str,
) -> None:
    """Claim C8."""
    topic = new_topic(partitions=2)
    transactor = make_transactor(name, topic_name())
    for number in range(6):
        transactor.begin()
        for partition in (0, 1):
            transactor.send(topic, partition, b"%d" % number)
        transactor.flush()
        if number % 2:
            transactor.abort()
        else:
            transactor.commit()
    both = (0, 1)
    committed = [b"0", b"2", b"4"]
    eventually(lambda: values_by_partition(bootstrap, topic, both), dict.fromkeys(both, committed))
    everything = [b"%d" % number for number in range(6)]
    assert values_by_partition(bootstrap, topic, both, committed=False) == dict.fromkeys(both, everything)


@pytest.mark.parametrize("name", TRANSACTORS)
def test_a_transaction_may_begin_as_soon_as_the_one_before_has_ended(
    name: str,
    make_transactor: MakeTransactor,
    topic_name: NewName,
    new_topic: NewTopic,
    bootstrap: str,
) -> None:
    """Claim C8: the broker answers the end of a transaction before all partitions have its marker.

    Java 4.3 does not announce partitions (transactions v2), so its next record may reach a partition's leader
    before the marker does.
    """
    topic = new_topic(MANY_PARTITIONS)
    transactor = make_transactor(name, topic_name())
    for number in range(TRANSACTIONS):
        transactor.begin()
        for partition in range(MANY_PARTITIONS):
            transactor.send(topic, partition, b"%d" % number)
        if number % 3 == 2:
            transactor.flush()
            transactor.abort()
        else:
            transactor.commit()
    committed = [b"%d" % number for number in range(TRANSACTIONS) if number % 3 != 2]
    everything = dict.fromkeys(range(MANY_PARTITIONS), committed)
    eventually(lambda: values_by_partition(bootstrap, topic, everything), everything)


@pytest.mark.parametrize("name", CLIENTS)
def test_every_client_reads_what_is_committed_and_can_read_all(
    name: str,
    make_transactor: MakeTransactor,
    make_client: MakeClient,
    topic_name: NewName,
    new_topic: NewTopic,
    bootstrap: str,
) -> None:
    """Claim C8; two transactions run side by side, and one stays open."""
    topic = new_topic()
    first, second = make_transactor("confluent", topic_name()), make_transactor("confluent", topic_name())
    for transactor in (first, second):
        transactor.begin()
    first.send(topic, 0, b"first, committed")
    first.flush()
    second.send(topic, 0, b"second, aborted")
    second.flush()
    first.send(topic, 0, b"first, committed too")
    first.commit()
    second.abort()
    first.begin()
    first.send(topic, 0, b"first, open")
    first.flush()
    second.begin()
    second.send(topic, 0, b"second, after it")
    second.commit()
    shown = [b"first, committed", b"first, committed too"]
    eventually(lambda: values(bootstrap, topic), shown)
    client = make_client(name)
    assert read_isolated(client, bootstrap, topic, len(shown), committed=True) == shown
    everything = read_isolated(client, bootstrap, topic, 5, committed=False)
    assert everything == [
        b"first, committed",
        b"second, aborted",
        b"first, committed too",
        b"first, open",
        b"second, after it",
    ]


@pytest.mark.parametrize("name", TRANSACTORS)
def test_offsets_are_part_of_the_transaction(
    name: str,
    make_transactor: MakeTransactor,
    topic_name: NewName,
    new_topic: NewTopic,
    bootstrap: str,
) -> None:
    """Claim C8: consume, transform, produce, with the position in the same transaction."""
    source, target, group = new_topic(), new_topic(), topic_name()
    transactor = make_transactor(name, topic_name())
    transactor.begin()
    transactor.send(target, 0, b"result")
    transactor.send_offset(group, source, 0, 5)
    transactor.commit()
    eventually(partial(committed_offset, bootstrap, group, source), 5)
    transactor.begin()
    transactor.send(target, 0, b"dropped")
    transactor.send_offset(group, source, 0, 9)
    transactor.abort()
    eventually(lambda: values(bootstrap, target), [b"result"])
    assert committed_offset(bootstrap, group, source) == 5


@pytest.mark.parametrize("name", TRANSACTORS)
def test_a_restarted_producer_fences_its_zombie(
    name: str,
    make_transactor: MakeTransactor,
    topic_name: NewName,
    new_topic: NewTopic,
    bootstrap: str,
) -> None:
    """Claim C8: what the zombie had begun is aborted, and it can neither write nor commit any more."""
    topic, transactional_id = new_topic(), topic_name()
    zombie = make_transactor(name, transactional_id)
    zombie.begin()
    zombie.send(topic, 0, b"of the zombie")
    zombie.flush()
    successor = make_transactor(name, transactional_id)
    successor.begin()
    successor.send(topic, 0, b"of the successor")
    successor.commit()
    eventually(lambda: values(bootstrap, topic), [b"of the successor"])
    with pytest.raises(Fenced):
        zombie.commit()
    assert values(bootstrap, topic) == [b"of the successor"]


@pytest.mark.parametrize(
    ("name", "successor_name"),
    [(name, "java-4.3" if name == "confluent" else "confluent") for name in TRANSACTORS],
)
def test_a_crashed_producers_transaction_is_aborted_by_its_successor_of_another_kind(
    name: str,
    successor_name: str,
    make_transactor: MakeTransactor,
    topic_name: NewName,
    new_topic: NewTopic,
    bootstrap: str,
) -> None:
    """Claims C6, C8: the transactional id outlives the session, and the client."""
    topic, transactional_id = new_topic(), topic_name()
    crashed = make_transactor(name, transactional_id)
    crashed.begin()
    crashed.send(topic, 0, b"left open")
    crashed.flush()
    successor = make_transactor(successor_name, transactional_id)
    successor.begin()
    successor.send(topic, 0, b"goes on")
    successor.commit()
    eventually(lambda: values(bootstrap, topic), [b"goes on"])


@pytest.mark.parametrize("name", ["confluent", "java-4.3"])
def test_a_transaction_that_takes_too_long_is_aborted(
    name: str,
    make_transactor: MakeTransactor,
    topic_name: NewName,
    new_topic: NewTopic,
    bootstrap: str,
) -> None:
    topic = new_topic()
    slow = make_transactor(name, topic_name(), timeout_ms=1000)
    slow.begin()
    slow.send(topic, 0, b"too slow")
    slow.flush()
    other = make_transactor("confluent", topic_name())
    other.begin()
    other.send(topic, 0, b"in time")
    other.commit()
    eventually(lambda: values(bootstrap, topic), [b"in time"])
