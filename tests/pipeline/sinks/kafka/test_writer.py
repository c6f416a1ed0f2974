"""A sink's task against whoever else writes its slot: zombies, other attempts, lost answers, the clock (C8).

Without Spark: the task is called as a worker would call it.
"""

from __future__ import annotations

import gc
import itertools
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from gapless.pipeline.sinks.kafka import KafkaSink
from gapless.pipeline.sinks.kafka import writer as writers
from gapless.pipeline.sinks.kafka.clients import Target
from gapless.pipeline.sinks.kafka.cluster import ensure_ledger, read_markers
from gapless.pipeline.sinks.kafka.markers import Marker, Register, now_ms
from gapless.pipeline.sinks.kafka.sender import Fenced, InDoubt, Sender, TransactionLost
from gapless.pipeline.sinks.kafka.writer import KafkaWriter
from gapless.pipeline.sinks.port import SinkRefused
from gapless.pipeline.slots import MarkerMismatch, Mode, Slot
from gapless.pipeline.tasks import Done, RowRefused
from gapless.pipeline.whole import InputCutOff
from gapless.testing.broker import EmbeddedBroker
from tests.broker.process import wait_until
from tests.pipeline.sinks.kafka.helpers import committed_values, context, new_topic, read_all

pytestmark = pytest.mark.timeout(120)
_numbers = itertools.count()


class Stage:
    """A writer with a topic and a name of its own."""

    def __init__(self, bootstrap: str, timeout_ms: int = 60_000) -> None:
        self.bootstrap = bootstrap
        self.topic = new_topic(bootstrap, 1)
        self.target = Target(bootstrap, timeout_ms, {})
        self.prefix = f"gapless.pipeline.writer-{next(_numbers)}.out."
        self.writer = KafkaWriter(self.target, self.prefix, "checkpoint-1", self.topic)
        ensure_ledger(self.target)
        self.writer.establish([self.slot(0)], reset=False)

    def slot(self, batch: int, name: str = "orders-0") -> Slot:
        return Slot(Mode.ALIGNED, name, batch, batch * 10, batch * 10 + 10)

    def write(self, batch: int, rows: Iterator[pa.RecordBatch] | None = None) -> Done:
        return self.writer.write(self.slot(batch), self.rows(batch) if rows is None else rows)

    def rows(self, batch: int) -> Iterator[pa.RecordBatch]:
        return iter(
            [numbers(range(batch * 10, batch * 10 + 5)), numbers(range(batch * 10 + 5, batch * 10 + 10))]
        )

    def values(self) -> list[int]:
        return committed_values(self.bootstrap, self.topic)

    def marker(self) -> Marker:
        return read_markers(self.target, self.prefix)["orders-0"]


def numbers(values: range) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": [str(value) for value in values]})


def write_elsewhere(writer: KafkaWriter, slot: Slot) -> None:
    """Write one batch in another process, which has none of this process's cached producers."""
    writer.write(slot, iter([numbers(range(slot.start, slot.end))]))


@pytest.fixture(autouse=True)
def _close_cached_clients() -> Iterator[None]:
    """Close the clients that the writer caches for later batches. A worker's clients end with its process."""
    yield
    while writers._kept:
        writers._kept.popitem()[1].give_up()


@pytest.fixture
def stage(output: str) -> Stage:
    return Stage(output)


def test_batch_after_batch_by_one_producer_and_each_once(stage: Stage) -> None:
    """Producers are reused: the marker still names the one that wrote last."""
    assert [stage.write(batch)[:3] for batch in (0, 0, 1, 1, 2)] == [
        ("orders-0", 10, False),
        ("orders-0", 0, True),
        ("orders-0", 10, False),
        ("orders-0", 0, True),
        ("orders-0", 10, False),
    ]
    first = stage.marker().instance
    stage.write(3)
    assert stage.marker().instance == first
    assert stage.marker()[:3] == (40, "checkpoint-1", 3)
    assert stage.values() == list(range(40))


def test_a_producer_that_was_kept_gives_way_to_who_wrote_after_it(stage: Stage) -> None:
    stage.write(0)
    first = stage.marker().instance
    with ProcessPoolExecutor(1, get_context("spawn")) as other:
        other.submit(write_elsewhere, stage.writer, stage.slot(1)).result(60)
    second = stage.marker().instance
    stage.write(2)
    assert len({first, second, stage.marker().instance}) == 3
    assert stage.values() == list(range(30))


def test_a_zombie_is_fenced_and_what_it_sent_is_not_committed(stage: Stage) -> None:
    """C8: two producers by hand; the later one wins, whatever the earlier one had come to."""
    name = stage.prefix + "orders-0"
    zombie, register = Sender(stage.target, name), Register(stage.target, name)
    zombie.init()
    zombie.begin()
    zombie.send(stage.rows(0), stage.topic)
    zombie.mark(register, Marker(10, "checkpoint-1", 0, zombie.instance, now_ms()))
    assert stage.write(0).rows == 10
    with pytest.raises(Fenced):
        zombie.commit()
    zombie.discard()
    register.close()
    assert stage.values() == list(range(10))
    assert len(read_all(stage.bootstrap, stage.topic, committed=False)) >= 10


def test_an_error_does_not_keep_the_producer_open_that_failed(stage: Stage) -> None:
    """Spark keeps a failed task's error for a while, and with its traceback all variables of each call."""
    before = producers()
    wrong_partition = pa.RecordBatch.from_pydict({"value": ["1"], "partition": [7]})
    with pytest.raises(RowRefused) as _refused:
        stage.write(0, iter([wrong_partition]))
    assert producers() == before
    replaced, other = (Sender(stage.target, stage.prefix + "orders-0") for _ in range(2))
    replaced.init()
    replaced.begin()
    replaced.send(stage.rows(0), stage.topic)
    other.init()
    with pytest.raises(Fenced) as _fenced:
        replaced.commit()
    replaced.discard()
    other.discard()
    assert producers() == before


def producers() -> list[object]:
    """Return all producers of this process."""
    return [each for each in gc.get_objects() if isinstance(each, Producer)]


class Attempt:
    """A write in a thread of its own, which stops after its first rows until it is let go."""

    def __init__(self, stage: Stage, batch: int) -> None:
        self._stage = stage
        self._batch = batch
        self._go = threading.Event()
        self.begun = threading.Event()
        self.result: Done | BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self.begun.wait(30)

    def finish(self) -> Done | BaseException | None:
        self._go.set()
        self._thread.join(60)
        return self.result

    def _rows(self) -> Iterator[pa.RecordBatch]:
        rows = self._stage.rows(self._batch)
        yield next(rows)
        self.begun.set()
        self._go.wait(60)
        yield from rows

    def _run(self) -> None:
        try:
            self.result = self._stage.write(self._batch, self._rows())
        except Exception as error:
            self.result = error
        finally:
            self.begun.set()


def test_an_attempt_that_was_overtaken_waits_for_the_other_and_counts_as_done(stage: Stage) -> None:
    """A speculative copy: one of the two writes, the other says that it is written."""
    slow = Attempt(stage, 0)
    assert stage.write(0).rows == 10
    done = slow.finish()
    assert isinstance(done, Done)
    assert done.skipped
    assert stage.values() == list(range(10))


def test_an_attempt_that_was_overtaken_by_one_that_died_fails_and_can_be_repeated(output: str) -> None:
    stage = Stage(output, timeout_ms=2_000)
    slow = Attempt(stage, 0)
    other = Sender(stage.target, stage.prefix + "orders-0")
    other.init()
    other.discard()
    assert isinstance(slow.finish(), TransactionLost)
    assert stage.write(0).rows == 10
    assert stage.values() == list(range(10))


def test_a_transaction_that_takes_too_long_is_only_tried_again(output: str) -> None:
    """The cluster ends it; nothing of it is seen, and the next attempt writes all of it."""
    stage = Stage(output, timeout_ms=1_000)
    slow = Attempt(stage, 0)
    time.sleep(2.5)  # the length of the transaction
    failed = slow.finish()
    assert isinstance(failed, TransactionLost), failed
    assert stage.values() == []
    assert stage.write(0).rows == 10
    assert stage.values() == list(range(10))


@pytest.mark.parametrize("happened", [True, False])
def test_a_commit_without_an_answer_is_looked_up(
    stage: Stage, happened: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B10: a missing answer does not mean that it failed."""
    commit = Sender.commit
    stage.write(0)

    def commit_and_hear_nothing(self: Sender) -> None:
        if happened:
            commit(self)
        raise InDoubt("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(Sender, "commit", commit_and_hear_nothing)
        if happened:
            assert stage.write(1).skipped
        else:
            with pytest.raises(TransactionLost):
                stage.write(1)
    assert stage.write(1).skipped is happened
    assert stage.values() == list(range(20))


@pytest.mark.parametrize("error", [InputCutOff, ZeroDivisionError])
def test_rows_that_end_in_an_error_are_not_written_and_nobody_waits_for_them(
    stage: Stage, error: type[Exception]
) -> None:
    def rows() -> Iterator[pa.RecordBatch]:
        yield numbers(range(100, 105))
        raise error("the rows end here")

    with pytest.raises(error):
        stage.write(0, rows())
    stage.write(0)
    assert stage.values() == list(range(10))


def test_rows_that_no_cluster_takes_are_refused_by_name(stage: Stage) -> None:
    cases: list[tuple[dict[str, list[Any]], str]] = [
        ({"value": ["1"], "partition": [7]}, f"{stage.topic}-7 does not take a record"),
        ({"value": ["x" * 2_000_000]}, f"{stage.topic} does not take a record: .*large"),
        ({"value": ["1"], "headers": [[{"key": None, "value": b""}]]}, "no Kafka record"),
    ]
    for columns, message in cases:
        with pytest.raises(RowRefused, match=message):
            stage.write(0, iter([pa.RecordBatch.from_pydict(columns)]))
    stage.write(0)
    assert stage.values() == list(range(10))


def test_a_slot_without_rows_moves_its_marker(stage: Stage) -> None:
    assert stage.write(0, iter([]))[:3] == ("orders-0", 0, False)
    assert stage.write(0).skipped
    assert stage.marker().position == 10


def test_a_marker_that_is_not_where_it_should_be_is_refused(stage: Stage) -> None:
    with pytest.raises(MarkerMismatch, match="gone"):
        stage.writer.write(stage.slot(0, "never-0"), stage.rows(0))
    with pytest.raises(MarkerMismatch, match="only up to offset 0"):
        stage.write(1)
    stage.write(0)
    stage.write(1)
    with pytest.raises(MarkerMismatch, match="ahead"):
        stage.write(0)
    another = KafkaWriter(stage.target, stage.prefix, "checkpoint-2", stage.topic)
    with pytest.raises(MarkerMismatch, match="written by checkpoint checkpoint-1"):
        another.write(stage.slot(2), stage.rows(2))
    with pytest.raises(SinkRefused, match="gapless pipeline clean"):
        another.establish([stage.slot(2)], reset=False)
    with pytest.raises(SinkRefused):
        another.establish([stage.slot(2)], reset=True)
    assert stage.values() == list(range(20))


def test_establishing_again_changes_nothing_and_resetting_sets(stage: Stage) -> None:
    """A crash between making the marker and remembering it."""
    before = stage.marker()
    stage.writer.establish([stage.slot(0)], reset=False)
    assert stage.marker() == before
    stage.write(0)
    with pytest.raises(MarkerMismatch, match="ahead"):
        stage.writer.establish([stage.slot(0)], reset=False)
    stage.writer.establish([stage.slot(7)], reset=True)
    assert stage.marker().position == 70
    stage.write(7)
    assert stage.values() == [*range(10), *range(70, 80)]


def test_a_worker_keeps_only_so_many_producers(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(bootstrap)
    monkeypatch.setattr(writers, "MAX_KEPT", 3)
    slots = [stage.slot(0, f"many-{number}") for number in range(12)]
    stage.writer.establish(slots, reset=False)
    before = librdkafkas()
    for slot in slots:
        stage.writer.write(slot, iter([]))
    # A cached slot has up to two clients: its producer, and the consumer that reads its marker.
    wait_until(lambda: librdkafkas() <= before + 2 * 3, "the evicted clients have ended")


def librdkafkas() -> int:
    """Return how many librdkafka clients this process has: each has one thread of this name."""
    names = [task / "comm" for task in Path("/proc/self/task").iterdir()]
    return sum(each.exists() and each.read_text() == "rdk:main\n" for each in names)


def test_keeping_alive_waits_for_a_better_time_when_the_cluster_is_away(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """There are days left: a pipeline does not stop for it."""
    with EmbeddedBroker() as broker:
        sink = KafkaSink(broker.bootstrap, "out", keep_alive_s=0.0)
        sink.open(context("kept-through-an-outage"))
        broker.kill()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("gapless.pipeline.sinks.kafka.cluster._REQUEST_S", 1.0)
            sink.idle()
    assert "could not be kept alive, and will be later" in caplog.text
