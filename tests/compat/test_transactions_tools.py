"""Apache's own tools on transactions: kafka-transactions, the perf test, the message copier, the dumpers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from gapless.core.shard import shard_of
from gapless.testing.broker import EmbeddedBroker

from .clients import ANSWER_TIMEOUT_S, eventually
from .conftest import NewTopic as MakeTopic
from .isolation import NewName, committed_offset, values, values_by_partition
from .jvm import run_formatter, run_tool
from .raw import COORDINATORS
from .transactors.confluent import ConfluentTransactor

COPIER = "org.apache.kafka.tools.TransactionalMessageCopier"

pytestmark = pytest.mark.java_clients


def transactions(bootstrap: str, *arguments: str) -> list[dict[str, str]]:
    """The rows that kafka-transactions prints, by the names of their columns."""
    lines = run_tool("kafka-transactions", "--bootstrap-server", bootstrap, *arguments).splitlines()
    rows = [[cell.strip() for cell in line.split("\t")] for line in lines if line.strip()]
    return [dict(zip(rows[0], row, strict=False)) for row in rows[1:]]


def test_transactions_are_listed_and_described(
    bootstrap: str, new_topic: MakeTopic, topic_name: NewName
) -> None:
    topic, transactional_id = new_topic(), topic_name()
    transactor = ConfluentTransactor(bootstrap, transactional_id, 30_000)
    transactor.begin()
    transactor.send(topic, 0, b"open")
    transactor.flush()
    (listed,) = (row for row in transactions(bootstrap, "list") if row["TransactionalId"] == transactional_id)
    assert listed["TransactionState"] == "Ongoing"
    (described,) = transactions(bootstrap, "describe", "--transactional-id", transactional_id)
    assert described["TransactionTimeoutMs"] == "30000"
    assert described["TopicPartitions"] == f"{topic}-0"
    (producer,) = transactions(bootstrap, "describe-producers", "--topic", topic, "--partition", "0")
    assert producer["ProducerId"] == listed["ProducerId"]
    assert producer["CurrentTransactionStartOffset"] == "0"
    transactor.commit()
    eventually(
        lambda: transactions(bootstrap, "describe", "--transactional-id", transactional_id)[0][
            "TransactionState"
        ],
        "CompleteCommit",
    )


@pytest.mark.parametrize(("partitions", "records"), [(1, 5_000), (12, 20_000)])
def test_the_newer_protocol_carries_the_perf_test(
    bootstrap: str, new_topic: MakeTopic, topic_name: NewName, partitions: int, records: int
) -> None:
    """Apache's 4.3 client does not add partitions, and gets a new epoch with each transaction.

    A transaction ends every 10 ms, and the next one begins at once, with several batches for each partition:
    some of them reach the leader before the marker of the transaction that has ended.
    """
    topic, transactional_id = new_topic(partitions), topic_name()
    load = ["--num-records", str(records), "--record-size", "100", "--throughput", "-1"]
    ends = ["--transactional-id", transactional_id, "--transaction-duration-ms", "10"]
    printed = run_tool(
        "kafka-producer-perf-test", "--topic", topic, *load, "--bootstrap-server", bootstrap, *ends
    )
    assert f"{records} records sent" in printed
    (described,) = transactions(bootstrap, "describe", "--transactional-id", transactional_id)
    assert int(described["ProducerEpoch"]) > 1
    found = values_by_partition(bootstrap, topic, range(partitions))
    assert sum(map(len, found.values())) == records


def test_the_message_copier_copies_each_message_once(
    bootstrap: str, new_topic: MakeTopic, topic_name: NewName
) -> None:
    """Claim C8, by the tool of Kafka's own system tests: random aborts, offsets in the transaction."""
    source, target, group = new_topic(), new_topic(), topic_name()
    feeder = ConfluentTransactor(bootstrap, topic_name(), 60_000)
    feeder.begin()
    for number in range(500):
        feeder.send(source, 0, b"%d" % number)
    feeder.commit()
    printed = run_tool(
        COPIER,
        *("--broker-list", bootstrap, "--transactional-id", topic_name(), "--consumer-group", group),
        *("--input-topic", source, "--input-partition", "0", "--output-topic", target),
        *("--max-messages", "500", "--transaction-size", "20", "--enable-random-aborts"),
    )
    last = json.loads(printed.strip().splitlines()[-1])
    assert int(last["remaining"]) == 0
    assert values(bootstrap, target) == [b"%d" % number for number in range(500)]
    assert committed_offset(bootstrap, group, source) >= 500


@pytest.mark.slow
def test_kafka_decodes_the_records_of_the_coordinator(
    bootstrap: str, new_topic: MakeTopic, topic_name: NewName
) -> None:
    topic, transactional_id = new_topic(), topic_name()
    transactor = ConfluentTransactor(bootstrap, transactional_id, 60_000)
    transactor.begin()
    transactor.send(topic, 0, b"a")
    transactor.commit()
    shard = shard_of(transactional_id, COORDINATORS)

    def states() -> list[Any]:
        found = run_formatter("TransactionLogMessageFormatter", bootstrap, "__transaction_state", shard)
        own = (each for each in found if each["key"]["data"]["transactionalId"] == transactional_id)
        return [each["value"]["data"] for each in own]

    # The client learns of the commit before the markers are written, and with them the last state.
    eventually(lambda: [state["transactionStatus"] for state in states()], [0, 1, 2, 4])
    found = states()
    assert found[0]["transactionPartitions"] is None
    assert found[1]["transactionPartitions"] == [{"topic": topic, "partitionIds": [0]}]


# ------------------------------------------------------------------------------- on a broker of its own


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path / "data") as running:
        admin = AdminClient({"bootstrap.servers": running.bootstrap})
        for future in admin.create_topics([NewTopic("t", 1, 1)]).values():
            future.result(ANSWER_TIMEOUT_S)
        yield running


def test_a_hanging_transaction_is_found_and_aborted(broker: EmbeddedBroker) -> None:
    """A disaster takes the coordinator's log: nobody knows of the transaction that is open in a partition."""
    transactor = ConfluentTransactor(broker.bootstrap, "x", 60_000)
    transactor.begin()
    transactor.send("t", 0, b"hangs")
    transactor.flush()
    transactor.close()
    broker.kill()
    for folder in (broker.data_dir / "broker-1").glob("__transaction_state-*"):
        shutil.rmtree(folder)
    broker.start()
    feeder = ConfluentTransactor(broker.bootstrap, "y", 60_000)
    feeder.begin()
    feeder.send("t", 0, b"behind it")
    feeder.commit()
    assert values(broker.bootstrap, "t") == []
    found = transactions(
        broker.bootstrap, "find-hanging", "--broker-id", "1", "--max-transaction-timeout", "0"
    )
    (hanging,) = (row for row in found if row["Topic"] == "t")
    assert hanging["StartOffset"] == "0"
    run_tool(
        "kafka-transactions",
        *("--bootstrap-server", broker.bootstrap, "abort"),
        *("--topic", "t", "--partition", "0", "--start-offset", "0"),
    )
    eventually(lambda: values(broker.bootstrap, "t"), [b"behind it"])


def test_kafka_reads_the_files_with_markers_and_aborted_transactions(broker: EmbeddedBroker) -> None:
    transactor = ConfluentTransactor(broker.bootstrap, "x", 60_000)
    for number, commit in enumerate((True, False, True)):
        transactor.begin()
        transactor.send("t", 0, b"%d" % number)
        transactor.flush()
        if commit:
            transactor.commit()
        else:
            transactor.abort()
    broker.stop()
    folder = (broker.data_dir / "broker-1") / "t-0"
    (log,) = folder.glob("*.log")
    dumped = run_tool("kafka-dump-log", "--files", str(log), "--print-data-log")
    assert [kind for line in dumped.splitlines() for kind in ("COMMIT", "ABORT") if kind in line] == [
        "COMMIT",
        "ABORT",
        "COMMIT",
    ]
    (index,) = folder.glob("*.txnindex")
    dumped = run_tool("kafka-dump-log", "--files", str(index))
    assert "firstOffset: 2 lastOffset: 3 lastStableOffset: 4" in dumped
    (snapshot,) = folder.glob("*.snapshot")
    dumped = run_tool("kafka-dump-log", "--files", str(snapshot))
    assert "firstSequence: 2 lastSequence: 2 lastOffset: 4" in dumped
    state_logs = list((broker.data_dir / "broker-1").glob("__transaction_state-*/*.log"))
    state_logs = [path for path in state_logs if path.stat().st_size]
    dumped = run_tool("kafka-dump-log", "--files", str(state_logs[0]), "--transaction-log-decoder")
    assert '"transactionalId":"x"' in dumped
