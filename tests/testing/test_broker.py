"""The launcher of the embedded broker: crashes, restarts, and what is left behind (nothing)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from gapless.testing.broker import BrokerFailed, EmbeddedBroker
from gapless.testing.processes import free_ports


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def send(bootstrap: str, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    producer.produce("t", value)
    assert producer.flush(30) == 0


def values_in(bootstrap: str) -> list[bytes | None]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "enable.auto.commit": False})
    try:
        end = consumer.get_watermark_offsets(TopicPartition("t", 0), timeout=10)[1]
        consumer.assign([TopicPartition("t", 0, 0)])
        return [message.value() for message in consumer.consume(end, timeout=30)]
    finally:
        consumer.close()


def test_a_killed_broker_comes_back_with_its_address_and_its_data() -> None:
    with EmbeddedBroker() as broker:
        address, first = broker.bootstrap, broker.pid
        send(address, b"before")
        broker.kill()
        assert not broker.running
        assert not alive(first)
        broker.start()
        assert broker.bootstrap == address
        send(address, b"after")
        broker.restart()
        assert (broker.bootstrap, values_in(address)) == (address, [b"before", b"after"])


def test_nothing_is_left_behind_but_a_folder_of_the_callers(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "data") as broker:
        send(broker.bootstrap, b"kept")
        pid, log_file = broker.pid, broker.log_file
    assert not alive(pid)
    assert not log_file.exists()
    with EmbeddedBroker(tmp_path / "data") as broker:
        assert values_in(broker.bootstrap) == [b"kept"]
    with EmbeddedBroker() as broker:
        own = broker.data_dir
    assert not own.exists()


def test_port_and_settings_are_the_callers_choice() -> None:
    port = free_ports(1)[0]
    with EmbeddedBroker(port=port, config={"auto.create.topics.enable": "false"}) as broker:
        assert broker.bootstrap == f"127.0.0.1:{port}"
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "allow.auto.create.topics": True})
        assert admin.list_topics("t", timeout=10).topics["t"].error is not None


def test_a_broker_that_cannot_start_says_why() -> None:
    with (
        pytest.raises(BrokerFailed, match=r"unknown setting no\.such\.setting"),
        EmbeddedBroker(config={"no.such.setting": "1"}),
    ):
        pass


def test_a_second_broker_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path):
        second = EmbeddedBroker(tmp_path)
        try:
            with pytest.raises(BrokerFailed, match=r"(?s)it said:\n.*gapless: "):
                second.start()
        finally:
            second.close()


def test_without_a_start_there_is_neither_address_nor_process() -> None:
    broker = EmbeddedBroker()
    with pytest.raises(BrokerFailed, match=r"call start\(\) first"):
        _ = broker.bootstrap
    with pytest.raises(BrokerFailed, match=r"call start\(\) first"):
        _ = broker.pid
    broker.close()
