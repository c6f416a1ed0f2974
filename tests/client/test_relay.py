"""Consume, transform, produce, with the offsets in the transaction (C8): each output once, whatever dies."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from gapless.client.consuming.failures import REASON_HEADER, DeadLetters, ProcessingFailed
from gapless.client.records import Record
from gapless.client.relaying import Output, Relay, RelayFailed, RelayFenced
from gapless.errors import Unreachable, UsageError
from tests.client.conftest import Kafka, new_topic, read_all, wait_for
from tests.client.consuming.helpers import finish, running, spawn, values, write
from tests.client.processes.common import QUICK

COUNT = 60
DIE_AT = "000025"


class Running:
    """A relay in a thread."""

    def __init__(self, kafka: Kafka, topic: str, function: Callable[[Record], Any], **options: Any) -> None:
        group = options.pop("group", f"relay-of-{topic}")
        properties = {**QUICK, **options.pop("consumer_properties", {})}
        self.relay = Relay(
            kafka.bootstrap,
            group=group,
            topics=topic,
            function=function,
            consumer_properties=properties,
            **options,
        )
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.relay.run()
        except BaseException as error:
            self.error = error

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    def stop(self) -> None:
        self.relay.stop()
        self._thread.join(60)
        assert self.ended
        if self.error is not None:
            raise self.error


def copies(kafka: Kafka, out: str) -> list[bytes]:
    return [record.value or b"" for record in read_all(kafka, out)]


def two_of_each(count: int) -> list[bytes]:
    return [b"%s-%d" % (value, copy) for copy in range(2) for value in values(count)]


def test_a_function_gives_nothing_one_or_several(kafka: Kafka) -> None:
    topic, out, other = new_topic(kafka, 2), new_topic(kafka), new_topic(kafka)
    write(kafka.bootstrap, topic, 300, partitions=2)

    def function(record: Record) -> Any:
        number = int(record.value or b"")
        if number % 3 == 0:
            return None
        if number % 3 == 1:
            return out, record.value, b"a key", [("header", b"kept")]
        return [Output(out, record.value), Output(other, record.value, timestamp_ms=1_700_000_000_000)]

    running = Running(kafka, topic, function, transaction_records=50)
    wait_for(lambda: running.relay.relayed == 300, "all is relayed")
    running.stop()
    found = read_all(kafka, out)
    assert sorted(record.value or b"" for record in found) == [v for n, v in enumerate(values(300)) if n % 3]
    assert {(r.key, *r.headers) for r in found if int(r.value or b"") % 3 == 1} == {
        (b"a key", ("header", b"kept"))
    }
    others = read_all(kafka, other)
    assert sorted(record.value or b"" for record in others) == values(300)[2::3]
    assert {record.timestamp_ms for record in others} == {1_700_000_000_000}


@pytest.mark.slow_variants("apache")
@pytest.mark.parametrize("moment", ["after-produce", "after-offsets", "after-commit"])
def test_a_crash_at_any_moment_neither_loses_nor_repeats(kafka: Kafka, moment: str) -> None:
    """C8: SIGKILL after the outputs, after the offsets, after the commit; a successor takes over."""
    topic, out = new_topic(kafka), new_topic(kafka, 2)
    write(kafka.bootstrap, topic, COUNT)
    job = {
        "bootstrap": kafka.bootstrap,
        "topics": [topic],
        "out": out,
        "group": f"relay-of-{topic}",
        "transactional_id": f"relay-of-{topic}",
        "properties": {"group.instance.id": "the-one"},
    }
    assert finish(spawn("relaying", **job, die_at=DIE_AT, moment=moment)) == -signal.SIGKILL
    with running("relaying", **job) as successor:
        wait_for(lambda: len(copies(kafka, out)) >= 2 * COUNT, "the rest is relayed", 40)
        successor.send_signal(signal.SIGTERM)
        assert finish(successor) == 0
    assert copies(kafka, out) == two_of_each(COUNT)
    if moment != "after-commit":
        assert len(read_all(kafka, out, committed=False)) > 2 * COUNT  # aborted copies are in the log


@pytest.mark.slow_variants("apache")
def test_a_zombie_changes_nothing(kafka: Kafka) -> None:
    """C8: a relay is away for longer than its session, another has taken over; then it wakes up."""
    wake_a_zombie(kafka, same_id=False)


def test_a_zombie_with_the_id_of_its_successor_ends(embedded: Kafka) -> None:
    wake_a_zombie(embedded, same_id=True)


def wake_a_zombie(kafka: Kafka, same_id: bool) -> None:
    topic, out = new_topic(kafka), new_topic(kafka, 2)
    write(kafka.bootstrap, topic, COUNT)
    job = {"bootstrap": kafka.bootstrap, "topics": [topic], "out": out, "group": f"relay-of-{topic}"}
    with running(
        "relaying",
        **job,
        transactional_id="zombie" + topic,
        die_at=DIE_AT,
        moment="after-produce",
        signal="SIGSTOP",
    ) as zombie:
        wait_for(lambda: len(read_all(kafka, out, committed=False)) > 20, "the first is in its work")
        wait_for(lambda: is_stopped(zombie.pid), "the first sleeps")
        successor_id = "zombie" + topic if same_id else "successor" + topic
        with running("relaying", **job, transactional_id=successor_id) as successor:
            wait_for(lambda: len(copies(kafka, out)) >= 2 * COUNT, "the second relays all", 40)
            zombie.send_signal(signal.SIGCONT)
            if same_id:
                assert finish(zombie) == 1  # fenced: it says so, and ends
            write(kafka.bootstrap, topic, 10, first=COUNT)
            wait_for(lambda: len(copies(kafka, out)) >= 2 * (COUNT + 10), "what is new is relayed", 40)
            successor.send_signal(signal.SIGTERM)
            assert finish(successor) == 0
    assert copies(kafka, out) == two_of_each(COUNT + 10)


def is_stopped(pid: int) -> bool:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rsplit(")", 1)[1].split()[0] == "T"


@pytest.mark.slow_variants("apache")
def test_a_rebalance_within_a_transaction_aborts_it(kafka: Kafka) -> None:
    """The function takes so long that the group gives its partition to another; offsets are then refused."""
    topic, out = new_topic(kafka, 2), new_topic(kafka)
    write(kafka.bootstrap, topic, 40, partitions=2)
    begun, slow = threading.Event(), Counter[str]()

    def dawdle(record: Record) -> Output:
        if record.offset == 3 and not slow["done"]:
            slow["done"] += 1
            begun.set()
            time.sleep(7)
        return Output(out, record.value)

    consumer_properties = {"max.poll.interval.ms": 6000}
    first = Running(
        kafka, topic, dawdle, transactional_id=f"a-{topic}", consumer_properties=consumer_properties
    )
    assert begun.wait(30)
    second = Running(kafka, topic, lambda record: Output(out, record.value), transactional_id=f"b-{topic}")
    wait_for(lambda: first.relay.relayed + second.relay.relayed >= 40, "all is relayed", 40)
    first.stop()
    second.stop()
    assert sorted(copies(kafka, out)) == values(40)


def test_a_second_relay_with_the_same_id_fences_the_first(kafka: Kafka) -> None:
    topic, out = new_topic(kafka, 2), new_topic(kafka)
    write(kafka.bootstrap, topic, 20, partitions=2)
    first = Running(kafka, topic, lambda record: Output(out, record.value))
    wait_for(lambda: first.relay.relayed == 20, "the first works")
    second = Running(kafka, topic, lambda record: Output(out, record.value))

    def more() -> bool:
        write(kafka.bootstrap, topic, 2, partitions=2, first=20 + 2 * len(rounds))
        rounds.append(1)
        time.sleep(0.2)
        return first.ended

    rounds: list[int] = []
    wait_for(more, "the first is fenced")
    with pytest.raises(RelayFenced, match="give each its own"):
        first.stop()
    total = 20 + 2 * len(rounds)
    wait_for(lambda: len(copies(kafka, out)) >= total, "the second goes on")
    second.stop()
    assert sorted(copies(kafka, out)) == values(total)


def test_a_function_that_raises_is_tried_again_then_stops_or_makes_a_dead_letter(kafka: Kafka) -> None:
    topic, out, dead = new_topic(kafka), new_topic(kafka), new_topic(kafka)
    write(kafka.bootstrap, topic, 20)
    calls = Counter[int]()

    def function(record: Record) -> Output:
        calls[record.offset] += 1
        if record.offset == 7:
            raise ValueError("no good \udcff")
        return Output(out, record.value)

    options: dict[str, Any] = {"retries": 2, "backoff_ms": 1, "transaction_records": 5}
    stopped = Running(kafka, topic, function, **options)
    wait_for(lambda: stopped.ended, "the relay gives up")
    with pytest.raises(ProcessingFailed, match=r"failed 3 times .* offset 7: ValueError: no good"):
        stopped.stop()
    assert copies(kafka, out) == values(7)

    going_on = Running(kafka, topic, function, **options, on_failure=DeadLetters(dead))
    wait_for(lambda: going_on.relay.relayed == 13, "the rest is relayed")
    going_on.stop()
    assert copies(kafka, out) == [value for value in values(20) if value != values(20)[7]]
    [letter] = read_all(kafka, dead)
    assert dict(letter.headers)[REASON_HEADER] == b"ValueError: no good \\udcff"
    assert calls[7] == 6


def test_a_stop_ends_retries_and_leaves_the_record_undone(kafka: Kafka) -> None:
    topic, out, dead = new_topic(kafka), new_topic(kafka), new_topic(kafka)
    write(kafka.bootstrap, topic, 20)
    calls, is_well = Counter[int](), threading.Event()

    def function(record: Record) -> Output:
        calls[record.offset] += 1
        if record.offset == 7 and not is_well.is_set():
            raise ConnectionError("away for a moment")
        return Output(out, record.value)

    options: dict[str, Any] = {"backoff_ms": 20_000, "on_failure": DeadLetters(dead)}
    stopped = Running(kafka, topic, function, **options)
    wait_for(lambda: calls[7], "the function fails")
    stopped.stop()
    assert calls[7] == 1
    assert copies(kafka, out) == values(7)
    is_well.set()
    successor = Running(kafka, topic, function, **options)
    wait_for(lambda: successor.relay.relayed == 13, "the rest is relayed")
    successor.stop()
    assert copies(kafka, out) == values(20)
    assert read_all(kafka, dead) == []


def test_an_output_that_could_never_be_written_is_its_records_failure(embedded: Kafka) -> None:
    topic, out, dead = new_topic(embedded), new_topic(embedded), new_topic(embedded)
    impossible: list[Any] = [
        Output(out, 7),  # type: ignore[arg-type]
        Output(7, b""),  # type: ignore[arg-type]
        Output(out, b"", partition="0"),  # type: ignore[arg-type]
        Output(out, b"", headers=[("a", 7)]),  # type: ignore[list-item]
        Output(out, b"", timestamp_ms="now"),  # type: ignore[arg-type]
        Output(out, "\ud800"),
        [Output(out, b"half"), Output(out, b"x" * 2_000_000)],
        Output(out, b"fine", headers={"a": "mapping"}),
    ]
    write(embedded.bootstrap, topic, len(impossible))
    relay = Running(
        embedded, topic, lambda record: impossible[record.offset], retries=0, on_failure=DeadLetters(dead)
    )
    wait_for(lambda: relay.ended or relay.relay.relayed == len(impossible), "all are relayed")
    relay.stop()
    assert copies(embedded, out) == [b"fine"]
    reasons = [str(dict(each.headers)[REASON_HEADER]) for each in read_all(embedded, dead)]
    assert len(reasons) == len(impossible) - 1
    assert "a record of 2,000,000 bytes is too large" in reasons[-1]


def test_an_output_that_cannot_be_written_is_told(kafka: Kafka) -> None:
    topic = new_topic(kafka)
    write(kafka.bootstrap, topic, 5)
    relay = Running(
        kafka,
        topic,
        lambda record: Output("no/such/topic", record.value),
        retries=1,
        producer_properties={"message.timeout.ms": 1000},
    )
    wait_for(lambda: relay.ended, "the relay gives up", 40)
    with pytest.raises(RelayFailed, match="a transaction failed 2 times"):
        relay.stop()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"producer_properties": {"acks": 1}}, "would lose"),
        ({"producer_properties": {"enable.idempotence": False}}, "need enable.idempotence"),
        ({"producer_properties": {"transactional.id": "x"}}, "an argument of its own"),
        ({"consumer_properties": {"isolation.level": "read_uncommitted"}}, "would relay aborted records"),
        ({"consumer_properties": {"enable.auto.commit": True}}, "not processed yet"),
        ({"transaction_records": 0}, "use 1 or more"),
    ],
)
def test_contradictions_are_refused_with_the_reason(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        Relay("localhost:1", group="g", topics="t", function=lambda record: None, **options)


def test_a_cluster_that_is_not_there_is_told() -> None:
    relay = Relay("127.0.0.1:1", group="g", topics="t", function=lambda record: None, connect_timeout_s=1)
    with pytest.raises(Unreachable, match="no broker answers"):
        relay.run()
