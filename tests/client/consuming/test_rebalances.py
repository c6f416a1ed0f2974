"""Members come and go while handlers run: nothing is lost, and nothing repeated, with each protocol."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gapless.client.consuming.consumer import Consumer
from gapless.client.records import Record, TopicPartition
from gapless.client.stores.sqlite import SqliteStore
from tests.client.conftest import Kafka, new_topic, wait_for
from tests.client.consuming.helpers import write
from tests.client.consuming.test_consumer import consumer_of
from tests.client.consuming.test_crashes import effects_of
from tests.client.processes.common import QUICK
from tests.client.processes.consume import make_table, write_effect

COUNT, PARTITIONS = 900, 4
PROTOCOLS: dict[str, dict[str, Any]] = {
    "eager": {"partition.assignment.strategy": "range"},
    "cooperative": {"partition.assignment.strategy": "cooperative-sticky"},
    "server-side": {"group.protocol": "consumer"},
}


class Member:
    """A consumer that runs in a thread."""

    def __init__(self, consumer: Consumer, handler: Callable[..., None]) -> None:
        self.consumer = consumer
        self.error: BaseException | None = None
        self._handler = handler
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.consumer.run(self._handler)
        except BaseException as error:
            self.error = error

    def stop(self) -> None:
        self.consumer.stop()
        self._thread.join(60)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error


def properties_for(protocol: str) -> dict[str, Any]:
    if protocol != "server-side":
        return {**QUICK, **PROTOCOLS[protocol]}
    # With this one the broker says how often members report, and when they are dead.
    return {"fetch.wait.max.ms": 50, **PROTOCOLS[protocol]}


def member_of(
    kafka: Kafka,
    topic: str,
    protocol: str,
    handler: Callable[..., None],
    properties: dict[str, Any] | None = None,
    **options: Any,
) -> Member:
    consumer = Consumer(
        kafka.bootstrap,
        group=f"g-{topic}",
        topics=topic,
        properties={**properties_for(protocol), **(properties or {})},
        **options,
    )
    return Member(consumer, handler)


@pytest.mark.slow_variants("apache")
@pytest.mark.parametrize(
    ("protocol", "semantics"),
    [(protocol, "at-least-once") for protocol in PROTOCOLS] + [("eager", "at-most-once")],
)
def test_members_come_and_go_and_each_record_is_handled_once(
    kafka: Kafka, protocol: str, semantics: str
) -> None:
    topic = new_topic(kafka, PARTITIONS)
    write(kafka.bootstrap, topic, COUNT // 2, partitions=PARTITIONS)
    seen: list[tuple[str, Record]] = []

    def handler(name: str) -> Callable[[Record], None]:
        def handle(record: Record) -> None:
            time.sleep(0.004)
            seen.append((name, record))

        return handle

    def begin(name: str) -> Member:
        return member_of(
            kafka, topic, protocol, handler(name), semantics=semantics, workers=2, batch_records=5
        )

    first = begin("first")
    wait_for(lambda: len(seen) > 20, "the first works")
    second = begin("second")
    wait_for(second.consumer.assignment, "the second has partitions")
    write(kafka.bootstrap, topic, COUNT // 2, partitions=PARTITIONS, first=COUNT // 2)
    first.stop()
    wait_for(lambda: len({record[:3] for _name, record in seen}) == COUNT, "all is handled")
    second.stop()
    handled = Counter((record.partition, record.offset) for _name, record in seen)
    assert len(handled) == COUNT
    assert [place for place, times in handled.items() if times > 1] == []
    assert {name for name, _record in seen} == {"first", "second"}


@pytest.mark.parametrize("protocol", ["eager", "cooperative"])
def test_a_handler_that_outlasts_the_handover_is_not_run_beside_itself(
    embedded: Kafka, protocol: str
) -> None:
    """It is at work when its partition goes and comes back; the partition waits for it."""
    topic = new_topic(embedded, 2)
    write(embedded.bootstrap, topic, 40, partitions=2)
    at_work, both = Counter[int](), []
    hold = threading.Event()

    def handle(record: Record) -> None:
        at_work[record.partition] += 1
        if at_work[record.partition] > 1:
            both.append(record)
        if record[1:3] == (0, 3) and not hold.is_set():
            hold.wait(20)
        seen.add(record[1:3])
        at_work[record.partition] -= 1

    seen: set[Any] = set()
    # A revocation waits for the handler for half of max.poll.interval.ms.
    hurried = {"session.timeout.ms": 6000, "max.poll.interval.ms": 6000}
    first = member_of(embedded, topic, protocol, handle, hurried, batch_records=1, workers=2)
    wait_for(lambda: at_work[0] == 1 and len(seen) >= 23, "a handler hangs")
    other = member_of(embedded, topic, protocol, lambda record: seen.add(record[1:3]))
    wait_for(other.consumer.assignment, "the other has a partition")
    other.stop()
    wait_for(lambda: len(first.consumer.assignment()) == 2, "both partitions are back")
    time.sleep(0.3)  # long enough to begin too early
    hold.set()
    wait_for(lambda: len(seen) == 40, "all is handled")
    first.stop()
    assert both == []


def test_with_a_store_every_effect_happens_once_through_rebalances(kafka: Kafka, tmp_path: Path) -> None:
    path = tmp_path / "effects.db"
    make_table(str(path))
    topic = new_topic(kafka, PARTITIONS)
    write(kafka.bootstrap, topic, COUNT, partitions=PARTITIONS)

    def handle(record: Record, tx: Any) -> None:
        write_effect(tx, record)
        time.sleep(0.001)

    def begin() -> Member:
        store = SqliteStore(str(path))
        return member_of(
            kafka, topic, "cooperative", handle, semantics="exactly-once", store=store, batch_records=10
        )

    first = begin()
    wait_for(lambda: len(effects_of(path)) > 20, "the first works")
    second = begin()
    wait_for(second.consumer.assignment, "the second has partitions")
    first.stop()
    wait_for(lambda: len(effects_of(path)) >= COUNT, "all is handled")
    second.stop()
    expected = sorted((topic, n % PARTITIONS, n // PARTITIONS, f"{n:06d}") for n in range(COUNT))
    assert sorted(effects_of(path)) == expected


def test_who_was_overtaken_in_the_store_goes_on_from_there(
    kafka: Kafka, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Another consumer used the same store for the same partition; who is turned away goes on behind it."""
    path = tmp_path / "effects.db"
    make_table(str(path))
    topic = new_topic(kafka)
    write(kafka.bootstrap, topic, 30)
    partition = TopicPartition(topic, 0)
    other = SqliteStore(str(path))

    def handle(record: Record, tx: Any) -> None:
        write_effect(tx, record)

    member = Member(consumer_of(kafka, topic, store=SqliteStore(str(path))), handle)
    wait_for(lambda: len(effects_of(path)) == 30, "all is handled")
    other.open(f"group-of-{topic}")
    assert other.take(partition) == 30
    ahead = [Record(topic, 0, offset, None, b"%06d" % offset) for offset in range(30, 40)]
    other.apply(partition, ahead, handle)
    write(kafka.bootstrap, topic, 30, first=30)
    wait_for(lambda: len(effects_of(path)) >= 60, "the rest is handled")
    member.stop()
    other.close()
    assert effects_of(path) == [(topic, 0, offset, f"{offset:06d}") for offset in range(60)]
    assert caplog.text.count("has taken") == 1
