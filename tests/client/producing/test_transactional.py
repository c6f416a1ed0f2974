"""The spool drains in transactions: records and position together, told only when committed (C6, B9)."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from gapless.client.producing.receipts import LeftInSpool, StillWaiting
from gapless.client.producing.session import Session
from gapless.client.producing.transactional import TransactionalSender
from gapless.client.spool import Spool
from gapless.errors import GaplessError, UsageError
from tests.client.conftest import Kafka, new_topic, read_all, wait_for
from tests.client.producing.sending import (
    Gate,
    check_sent,
    new_sender,
    position_in,
    properties_of,
    send,
    sending,
    undecided,
    values,
)


def test_records_and_position_become_visible_together(
    kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C6: while a transaction is open, neither is there; after it, both are."""
    topic = new_topic(kafka, 2)
    gate = Gate(monkeypatch)
    with sending(kafka, tmp_path, f"{topic}-together") as sender:
        gate.shut()
        receipt = send(sender, topic, range(100))
        assert gate.arrived.wait(30)
        assert len(read_all(kafka, topic, committed=False)) == 100
        assert read_all(kafka, topic) == []
        assert sender.committed == 0
        gate.open()
        receipt.wait(30)
        assert values(read_all(kafka, topic)) == {
            (topic, 0): list(range(0, 100, 2)),
            (topic, 1): list(range(1, 100, 2)),
        }
        position = position_in(kafka, f"{topic}-together", sender.incarnation)
        assert position is not None
        assert position.offset == 100
    check_sent(kafka, tmp_path, f"{topic}-together")


def test_the_position_is_committed_as_zero_before_first_use(kafka: Kafka, tmp_path: Path) -> None:
    source = f"first-use-on-{new_topic(kafka)}"
    with sending(kafka, tmp_path, source) as sender:
        position = position_in(kafka, source, sender.incarnation)
        assert position is not None
        assert position.offset == 0
        assert sender.spool.claimed


def test_callbacks_and_waiting_fire_after_the_commit_and_in_order(
    kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(kafka)
    gate = Gate(monkeypatch)
    told: list[tuple[GaplessError | None, int]] = []
    seen_at_first_call: list[int] = []

    def on_delivery(error: GaplessError | None, receipt: Any) -> None:
        if not told:
            seen_at_first_call.append(len(read_all(kafka, topic)))
        told.append((error, receipt.sequence))

    async def awaited(receipt: Any) -> Any:
        return await asyncio.wait_for(receipt, 30)

    with sending(kafka, tmp_path, f"{topic}-callbacks") as sender:
        gate.shut()
        receipts = [sender.send(topic, 0, b"%d" % each, None, None, None, on_delivery) for each in range(20)]
        receipts[-1].stored(30)
        assert gate.arrived.wait(30)
        with pytest.raises(StillWaiting):
            receipts[0].wait(0.1)
        assert not told
        assert not any(receipt.done for receipt in receipts)
        gate.open()
        assert receipts[-1].wait(30) is receipts[-1]
        assert asyncio.run(awaited(receipts[3])) is receipts[3]
        wait_for(lambda: len(told) == 20, "all callbacks were called")
    assert told == [(None, each) for each in range(20)]
    assert seen_at_first_call == [20]


def test_a_transaction_closes_after_its_time(
    kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(kafka)
    gate = Gate(monkeypatch)
    with sending(
        kafka, tmp_path, f"{topic}-time", transaction_ms=150, transaction_records=1_000_000
    ) as sender:
        began = time.monotonic()
        first = send(sender, topic, range(1), 1)
        first.stored(30)
        last = send(sender, topic, range(1, 50), 1)
        last.wait(30)
        assert first.done
        assert time.monotonic() - began >= 0.14
        assert gate.commits == 1


def test_a_transaction_closes_after_its_number_of_records(
    kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(kafka)
    gate = Gate(monkeypatch)
    with sending(kafka, tmp_path, f"{topic}-number", transaction_ms=30_000, transaction_records=50) as sender:
        send(sender, topic, range(100), 1).wait(30)
        assert gate.commits == 2
        with pytest.raises(StillWaiting):
            send(sender, topic, range(100, 101), 1).wait(0.3)
        assert sender.flush(30) == 0, "a flush waits for no more records"
    check_sent(kafka, tmp_path, f"{topic}-number")


def test_a_seal_waits_for_room_behind_the_records_of_its_transaction(embedded: Kafka, tmp_path: Path) -> None:
    topic = new_topic(embedded)
    few = {"queue.buffering.max.messages": 5}
    with sending(embedded, tmp_path, f"{topic}-few", few, seal_every_s=0.01) as sender:
        for first in range(0, 50, 5):
            send(sender, topic, range(first, first + 5), 1)
            assert sender.flush(30) == 0
    check_sent(embedded, tmp_path, f"{topic}-few")


def test_a_transaction_that_could_only_time_out_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="choose at most half"), Spool(tmp_path, "slow") as spool:
        TransactionalSender(spool, "slow", {"transaction.timeout.ms": "10000"}, transaction_ms=6000)
    with pytest.raises(UsageError, match="cannot be understood"), Spool(tmp_path, "slow") as spool:
        TransactionalSender(spool, "slow", {"transaction.timeout.ms": "soon"})


def test_a_callback_that_would_wait_for_itself_is_refused(embedded: Kafka, tmp_path: Path) -> None:
    topic = new_topic(embedded)
    refused: list[str] = []

    def on_delivery(error: GaplessError | None, receipt: Any) -> None:
        for wait in (sender.flush, sender.close):
            with pytest.raises(UsageError, match="would wait for itself"):
                wait(1)
            refused.append(wait.__name__)

    with sending(embedded, tmp_path, f"{topic}-itself") as sender:
        sender.send(topic, 0, b"0", None, None, None, on_delivery)
        wait_for(lambda: refused == ["flush", "close"], "both are refused")


def test_a_callback_that_raises_stops_nobody(embedded: Kafka, tmp_path: Path) -> None:
    topic = new_topic(embedded)

    def on_delivery(error: GaplessError | None, receipt: Any) -> None:
        raise RuntimeError("a user's mistake")

    with sending(embedded, tmp_path, f"{topic}-raises") as sender:
        for each in range(3):
            sender.send(topic, 0, b"%d" % each, None, None, None, on_delivery)
        send(sender, topic, range(3, 6), 1).wait(30)
        wait_for(lambda: sender.callback_errors == 3, "all were called")
    check_sent(embedded, tmp_path, f"{topic}-raises")


def test_forgotten_receipts_take_no_memory_in_an_outage(embedded: Kafka, tmp_path: Path) -> None:
    topic = new_topic(embedded)
    with sending(embedded, tmp_path, f"{topic}-forgotten") as sender:
        with embedded.outage():
            held = send(sender, topic, range(2000), 1)
            assert not held.done
            assert not sender._settling._watched
            assert not sender._settling._callbacks
            with pytest.raises(StillWaiting):
                held.wait(0.05)
            with pytest.raises(StillWaiting):
                held.wait(0.05)
            assert len(sender._settling._watched) == 1
        held.wait(30)
    check_sent(embedded, tmp_path, f"{topic}-forgotten")


def test_what_cannot_be_sent_before_closing_stays_in_the_spool(embedded: Kafka, tmp_path: Path) -> None:
    """B9: nothing is lost, the caller is told, and the next producer sends it."""
    topic = new_topic(embedded)
    source = f"{topic}-left"
    told: list[GaplessError | None] = []
    sender = new_sender(embedded, tmp_path, source, patience_s=1.0)
    sender.start()
    send(sender, topic, range(10), 1).wait(30)
    with embedded.outage():
        receipt = sender.send(topic, 0, b"10", None, None, None, lambda error, _: told.append(error))
        began = time.monotonic()
        assert sender.close(0.5) == 1
        assert time.monotonic() - began < 10
        with pytest.raises(LeftInSpool):
            receipt.wait(1)
        assert [type(each) for each in told] == [LeftInSpool]
        with pytest.raises(UsageError):
            send(sender, topic, range(1), 1)
    with sending(embedded, tmp_path, source) as again:
        assert again.flush(30) == 0
    assert [record.value for record in check_sent(embedded, tmp_path, source)][-1] == b"10"


def test_a_producer_starts_and_spools_while_the_cluster_is_away(embedded: Kafka, tmp_path: Path) -> None:
    """B9: an outage at the start delays nothing but the sending."""
    topic = new_topic(embedded)
    source = f"{topic}-away"
    with embedded.outage():
        sender = new_sender(embedded, tmp_path, source, start_wait_s=0.5)
        sender.start()
        send(sender, topic, range(500)[:0], 1)
        receipt = send(sender, topic, range(500), 1)
        receipt.stored(30)
        assert sender.committed is None
    receipt.wait(30)
    assert sender.close(10) == 0
    check_sent(embedded, tmp_path, source)


def test_a_record_that_the_cluster_refuses_holds_up_the_rest_until_it_is_taken(
    kafka: Kafka, tmp_path: Path
) -> None:
    """A message that fails for good makes the commit fail: nothing is skipped, nothing is lost."""
    topic = new_topic(kafka, 1, **{"max.message.bytes": "2000"})
    source = f"{topic}-refused"
    with sending(kafka, tmp_path, source) as sender:
        send(sender, topic, range(5), 1).wait(30)
        sender.send(topic, 0, b"7" * 5000, None, None, None, None)
        behind = send(sender, topic, range(6, 10), 1)
        wait_for(lambda: sender.problem is not None, "the problem is told")
        said = sender.problem
        assert said == f"{topic}-0 does not take a record: Broker: Message size too large"
        assert not behind.done
        assert len(read_all(kafka, topic)) == 5
        _raise_limit(kafka, topic)
        behind.wait(30)
        assert sender.problem is None
    assert len(check_sent(kafka, tmp_path, source)) == 10


def _raise_limit(kafka: Kafka, topic: str) -> None:
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

    entry = ConfigEntry("max.message.bytes", "100000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    kafka.admin.incremental_alter_configs([resource])[resource].result(30)


def test_a_record_that_no_producer_could_send_is_refused_at_once(embedded: Kafka, tmp_path: Path) -> None:
    sender = new_sender(embedded, tmp_path, "too-large")
    with pytest.raises(UsageError, match=r"message\.max\.bytes=1000000"):
        sender.send("any", 0, b"x" * 1_000_001, None, None, None, None)
    assert sender.spool.end == 0
    sender.close(0)


# ------------------------------------------------------------------------------ answers that got lost


@pytest.mark.parametrize("has_happened", [True, False], ids=["committed", "not-committed"])
def test_after_an_unanswered_commit_a_new_producer_reads_what_is_true(
    kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_happened: bool
) -> None:
    """An ambiguous EndTxn is never guessed about: whether it happened or not, nothing is lost or doubled."""
    topic = new_topic(kafka, 2)
    source = f"{topic}-ambiguous"
    real = Session.commit
    sessions: list[int] = []
    failures = iter([True, False, True])

    def commit(session: Session) -> None:
        is_ours = session._source == source  # and not some other test's, which is still at work
        if is_ours:
            sessions.append(id(session))
        fails = is_ours and sender.committed is not None and next(failures, False)
        if fails and not has_happened:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer"))
        real(session)
        if fails:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer"))

    sender = new_sender(kafka, tmp_path, source)
    monkeypatch.setattr(Session, "commit", commit)
    sender.start()
    for start in range(0, 300, 100):
        send(sender, topic, range(start, start + 100)).wait(30)
    assert sender.close(10) == 0
    assert len(dict.fromkeys(sessions)) >= 2
    check_sent(kafka, tmp_path, source)


def test_a_claim_that_was_not_ended_is_not_waited_for(
    kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster would abort its transaction after a minute; the next session does so at once."""
    topic = new_topic(kafka, 2)
    source = f"{topic}-unended"
    real = Session.commit
    failures = iter([True])

    def commit(session: Session) -> None:
        if session._source == source and next(failures, False):
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer"))
        real(session)

    monkeypatch.setattr(Session, "commit", commit)
    with sending(kafka, tmp_path, source) as sender:
        send(sender, topic, range(100)).wait(30)
    check_sent(kafka, tmp_path, source)


def test_a_cluster_that_falls_silent_in_the_middle_loses_and_doubles_nothing(
    kafka: Kafka, tmp_path: Path
) -> None:
    """B9: requests and answers of every kind get lost, more than once; commits too."""
    topic = new_topic(kafka, 2)
    source = f"{topic}-silent"
    with sending(kafka, tmp_path, source, {"socket.timeout.ms": "1000"}, patience_s=1.0) as sender:
        number = 0
        for _ in range(3):
            for _ in range(20):
                send(sender, topic, range(number, number + 20)).stored(30)
                number += 20
            kafka.lose_acks(1)
            kafka.isolate()
            send(sender, topic, range(number, number + 50)).stored(30)
            number += 50
            time.sleep(0.3)  # the time of an outage, not a wait for something
            kafka.heal()
        assert sender.flush(60) == 0
    check_sent(kafka, tmp_path, source)


def test_sending_from_many_threads_keeps_each_partition_in_the_order_of_its_sequences(
    embedded: Kafka, tmp_path: Path
) -> None:
    """Also when librdkafka's queue is smaller than a transaction."""
    topic = new_topic(embedded, 3)
    source = f"{topic}-threads"
    with sending(embedded, tmp_path, source, {"queue.buffering.max.messages": "50"}) as sender:

        def work(number: int) -> None:
            for each in range(300):
                sender.send(topic, each % 3, b"%d" % (number * 1000 + each), b"k", [("h", b"v")], None, None)

        threads = [threading.Thread(target=work, args=(each,)) for each in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sender.flush(30) == 0
    assert len(check_sent(embedded, tmp_path, source)) == 1200
    assert all(record.headers[2:] == [("h", b"v")] for record in read_all(embedded, topic))


# ---------------------------------------------------------------------- timeouts and takeovers apart


def test_a_transaction_that_timed_out_is_no_takeover(
    kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator aborts what takes too long, librdkafka says "fenced": the producer goes on."""
    topic = new_topic(kafka)
    source = f"{topic}-timeout"
    gate = Gate(monkeypatch)
    with sending(kafka, tmp_path, source, {"transaction.timeout.ms": "1000"}) as sender:
        send(sender, topic, range(10), 1).wait(30)
        gate.shut()
        receipt = send(sender, topic, range(10, 20), 1)
        assert gate.arrived.wait(30)
        wait_for(lambda: undecided(kafka, topic) == 0, "the coordinator has aborted the transaction")
        assert len(read_all(kafka, topic)) == 10
        gate.open()
        receipt.wait(30)
        assert sender.failure is None
    assert len(check_sent(kafka, tmp_path, source)) == 20


def test_whoever_starts_later_takes_the_source_over_and_the_first_keeps_its_records(
    kafka: Kafka, tmp_path: Path
) -> None:
    from gapless.client.producing.ownership import SourceTakenOver

    topic = new_topic(kafka)
    source = f"{topic}-taken"
    told: list[GaplessError | None] = []
    first = new_sender(kafka, tmp_path / "first", source)
    first.start()
    send(first, topic, range(10), 1).wait(30)
    with sending(kafka, tmp_path / "second", source) as second:
        send(second, topic, range(100, 110), 1).wait(30)
        first.send(topic, 0, b"10", None, None, None, lambda error, _: told.append(error))
        late = send(first, topic, range(11, 13), 1)
        with pytest.raises(SourceTakenOver, match="taken over"):
            late.wait(30)
        wait_for(lambda: told, "the callback was told")
        assert isinstance(told[0], SourceTakenOver)
        assert isinstance(first.failure, SourceTakenOver)
        with pytest.raises(SourceTakenOver):
            send(first, topic, range(13, 14), 1)
        assert first.close(1) == 3
        send(second, topic, range(110, 120), 1).wait(30)
        assert second.failure is None
    assert values(read_all(kafka, topic)) == {(topic, 0): [*range(10), *range(100, 120)]}
    with sending(kafka, tmp_path / "first", source) as again:
        assert again.flush(30) == 0
    assert values(read_all(kafka, topic)) == {(topic, 0): [*range(10), *range(100, 120), *range(10, 13)]}


def test_some_that_start_at_once_do_not_fight_for_ever(embedded: Kafka, tmp_path: Path) -> None:
    topic = new_topic(embedded)
    source = f"{topic}-race"
    senders = [new_sender(embedded, tmp_path / str(each), source) for each in range(3)]
    failures: list[GaplessError] = []

    def start(number: int) -> None:
        try:
            senders[number].start()
            send(senders[number], topic, range(number * 100, number * 100 + 10), 1).wait(30)
        except GaplessError as error:
            failures.append(error)

    threads = [threading.Thread(target=start, args=(each,)) for each in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    well = [each for each in senders if each.failure is None]
    assert well, failures
    for number, sender in enumerate(senders):
        sender.close(5)
        with Spool(tmp_path / str(number), source):
            pass
    found = values(read_all(embedded, topic)).get((topic, 0), [])
    assert len(found) == len(set(found))


def test_an_owner_that_was_deleted_is_no_takeover(
    embedded: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gapless.client.formats import owner_group
    from tests.client.producing.sending import owner_in

    topic = new_topic(embedded)
    source = f"{topic}-deleted-owner"
    with sending(embedded, tmp_path, source) as sender:
        send(sender, topic, range(5), 1).wait(30)
        embedded.admin.delete_consumer_groups([owner_group(source)])[owner_group(source)].result(30)
        assert owner_in(embedded, source) is None
        _fence(embedded, source)
        send(sender, topic, range(5, 10), 1).wait(30)
        assert owner_in(embedded, source) is not None
    check_sent(embedded, tmp_path, source)


def _fence(kafka: Kafka, source: str) -> None:
    from confluent_kafka import Producer

    stranger = Producer(properties_of(kafka, **{"transactional.id": source}))
    stranger.init_transactions(20)


def test_a_ledger_that_cannot_be_made_is_told_in_one_line(
    embedded: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gapless.client.formats import LEDGER_TOPIC
    from gapless.client.producing import ledger

    class Refused:
        def result(self) -> None:
            raise KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, "not allowed"))

    monkeypatch.setattr(ledger.Ledger, "_exists", lambda *_: False)
    monkeypatch.setattr(
        "gapless.client.producing.ledger.AdminClient.create_topics",
        lambda *_, **__: {LEDGER_TOPIC: Refused()},
    )
    sender = new_sender(embedded, tmp_path, "not-allowed")
    with pytest.raises(ledger.LedgerMissing, match=r"gapless\.ledger is missing and cannot be made .*allow"):
        sender.start()
    sender.close(1)
