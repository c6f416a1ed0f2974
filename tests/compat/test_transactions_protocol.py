"""Every version of every request about transactions is answered in that version, as Kafka answers it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kafka.protocol.admin import DescribeTransactionsRequest, ListTransactionsRequest
from kafka.protocol.metadata import ApiVersionsRequest
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
    WriteTxnMarkersRequest,
)

from gapless.wire.apis import ApiKey
from gapless.wire.errors import ErrorCode

from .clients import Deadline
from .conftest import NewTopic
from .raw import TRANSACTION, RawClient

# What Apache Kafka 4.3.1 speaks.
APIS = {
    ApiKey.INIT_PRODUCER_ID: (0, 5),
    ApiKey.ADD_PARTITIONS_TO_TXN: (0, 5),
    ApiKey.ADD_OFFSETS_TO_TXN: (0, 4),
    ApiKey.END_TXN: (0, 5),
    ApiKey.WRITE_TXN_MARKERS: (1, 2),
    ApiKey.TXN_OFFSET_COMMIT: (0, 5),
    ApiKey.DESCRIBE_TRANSACTIONS: (0, 0),
    ApiKey.LIST_TRANSACTIONS: (0, 2),
}

Name = Callable[[], str]


class Speaker:
    """A transactional producer that speaks whatever version it is told to."""

    def __init__(self, raw: RawClient, transactional_id: str) -> None:
        self.raw = raw
        self.transactional_id = transactional_id
        self.producer = {"producer_id": -1, "producer_epoch": -1}

    def ask(self, request: Callable[[], Any], error_of: Callable[[Any], int]) -> Any:
        """Ask until the previous transaction has ended in all partitions."""
        deadline = Deadline(f"end of a transaction of {self.transactional_id}")
        while deadline.open():
            answer = self.raw.ask(request())
            if error_of(answer) != ErrorCode.CONCURRENT_TRANSACTIONS:
                return answer
        raise AssertionError

    def init(self, version: int = 5) -> int:
        answer = self.ask(
            lambda: InitProducerIdRequest(
                transactional_id=self.transactional_id,
                transaction_timeout_ms=60_000,
                producer_id=-1,
                producer_epoch=-1,
                version=version,
            ),
            lambda answer: answer.error_code,
        )
        if answer.error_code == 0:
            self.producer = {"producer_id": answer.producer_id, "producer_epoch": answer.producer_epoch}
        return int(answer.error_code)

    def add(self, topic: str, version: int = 3, partition: int = 0) -> int:
        if version < 4:
            topic_type = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
            answer = self.ask(
                lambda: AddPartitionsToTxnRequest(
                    v3_and_below_transactional_id=self.transactional_id,
                    v3_and_below_producer_id=self.producer["producer_id"],
                    v3_and_below_producer_epoch=self.producer["producer_epoch"],
                    v3_and_below_topics=[topic_type(name=topic, partitions=[partition])],
                    version=version,
                ),
                lambda answer: _first(answer.results_by_topic_v3_and_below),
            )
            return _first(answer.results_by_topic_v3_and_below)
        answer = self.ask(
            lambda: self._batched(topic, partition, version, verify_only=False),
            lambda answer: _first(answer.results_by_transaction[0].topic_results),
        )
        return _first(answer.results_by_transaction[0].topic_results)

    def verify(self, topic: str, version: int) -> int:
        answer = self.raw.ask(self._batched(topic, 0, version, verify_only=True))
        return _first(answer.results_by_transaction[0].topic_results)

    def _batched(self, topic: str, partition: int, version: int, *, verify_only: bool) -> Any:
        transaction_type = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
        topic_type = transaction_type.AddPartitionsToTxnTopic
        transaction = transaction_type(
            transactional_id=self.transactional_id,
            verify_only=verify_only,
            topics=[topic_type(name=topic, partitions=[partition])],
            **self.producer,
        )
        return AddPartitionsToTxnRequest(transactions=[transaction], version=version)

    def add_offsets(self, group: str, version: int = 3) -> int:
        answer = self.ask(
            lambda: AddOffsetsToTxnRequest(
                transactional_id=self.transactional_id, group_id=group, version=version, **self.producer
            ),
            lambda answer: answer.error_code,
        )
        return int(answer.error_code)

    def commit_offset(self, group: str, topic: str, version: int, partition: int = 0) -> int:
        topic_type = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
        part_type = topic_type.TxnOffsetCommitRequestPartition

        def request() -> Any:
            part = part_type(
                partition_index=partition,
                committed_offset=7,
                committed_leader_epoch=-1,
                committed_metadata="",
            )
            return TxnOffsetCommitRequest(
                transactional_id=self.transactional_id,
                group_id=group,
                generation_id=-1,
                member_id="",
                group_instance_id=None,
                topics=[topic_type(name=topic, partitions=[part])],
                version=version,
                **self.producer,
            )

        answer = self.ask(request, lambda answer: answer.topics[0].partitions[0].error_code)
        return int(answer.topics[0].partitions[0].error_code)

    def end(self, *, commit: bool = True, version: int = 4) -> int:
        answer = self.ask(
            lambda: EndTxnRequest(
                transactional_id=self.transactional_id, committed=commit, version=version, **self.producer
            ),
            lambda answer: answer.error_code,
        )
        if answer.error_code == 0 and version >= 5:
            self.producer = {"producer_id": answer.producer_id, "producer_epoch": answer.producer_epoch}
        return int(answer.error_code)


def _first(topics: Any) -> int:
    return int(topics[0].results_by_partition[0].partition_error_code)


@pytest.fixture
def speaker(raw: RawClient, topic_name: Name) -> Speaker:
    made = Speaker(raw, topic_name())
    assert made.init() == 0
    return made


def test_the_broker_speaks_every_version_that_kafka_speaks(raw: RawClient) -> None:
    spoken = raw.api_versions()
    assert {api: spoken.get(api) for api in APIS} == APIS


@pytest.mark.parametrize("version", [3, 4])
def test_the_newer_protocol_is_announced_as_kafka_announces_it(raw: RawClient, version: int) -> None:
    answer = raw.ask(
        ApiVersionsRequest(client_software_name="compat", client_software_version="1", version=version)
    )
    (finalized,) = (f for f in answer.finalized_features if f.name == "transaction.version")
    assert (finalized.min_version_level, finalized.max_version_level) == (2, 2)
    supported = [f for f in answer.supported_features if f.name == "transaction.version"]
    assert [(f.min_version, f.max_version) for f in supported] == ([(0, 2)] if version >= 4 else [])


@pytest.mark.parametrize("version", range(6))
def test_a_producer_starts_in_every_version(raw: RawClient, topic_name: Name, version: int) -> None:
    speaker = Speaker(raw, topic_name())
    assert speaker.init(version) == 0
    assert speaker.producer["producer_epoch"] == 0
    assert speaker.init(version) == 0
    assert speaker.producer["producer_epoch"] == 1


@pytest.mark.parametrize("version", range(6))
def test_partitions_are_added_in_every_version(speaker: Speaker, new_topic: NewTopic, version: int) -> None:
    topic = new_topic()
    assert speaker.add(topic, version) == 0
    assert speaker.add(topic, version, partition=9) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if version >= 4:
        assert speaker.verify(topic, version) == 0
    speaker.producer["producer_epoch"] += 1
    fenced = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
    assert speaker.add(topic, version) == fenced
    speaker.producer["producer_id"] += 1_000_000
    assert speaker.add(topic, version) == ErrorCode.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize("version", range(5))
def test_groups_are_added_in_every_version(speaker: Speaker, topic_name: Name, version: int) -> None:
    assert speaker.add_offsets(topic_name(), version) == 0
    speaker.producer["producer_epoch"] += 1
    fenced = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
    assert speaker.add_offsets(topic_name(), version) == fenced


@pytest.mark.parametrize("version", range(6))
def test_offsets_are_committed_in_every_version(
    speaker: Speaker, new_topic: NewTopic, topic_name: Name, version: int
) -> None:
    topic, group = new_topic(), topic_name()
    if version < 5:
        assert speaker.add_offsets(group) == 0
    assert speaker.commit_offset(group, topic, version) == 0
    unknown = speaker.commit_offset(group, topic, version, partition=9)
    assert unknown == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert speaker.end(version=5 if version >= 5 else 4) == 0


@pytest.mark.parametrize("version", range(6))
@pytest.mark.parametrize("commit", [True, False])
def test_transactions_end_in_every_version(
    speaker: Speaker, new_topic: NewTopic, version: int, commit: bool
) -> None:
    epoch = speaker.producer["producer_epoch"]
    topic = new_topic()
    assert speaker.add(topic, 5 if version >= 5 else 3) == 0
    assert speaker.end(commit=commit, version=version) == 0
    assert speaker.producer["producer_epoch"] == (epoch + 1 if version >= 5 else epoch)


@pytest.mark.parametrize("version", range(6))
def test_what_was_never_begun_is_not_committed(speaker: Speaker, version: int) -> None:
    assert speaker.end(version=version) == ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize("version", range(6))
def test_an_end_of_a_stranger_is_refused(speaker: Speaker, version: int) -> None:
    speaker.producer["producer_epoch"] += 1
    fenced = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
    assert speaker.end(version=version) == fenced
    speaker.producer["producer_id"] += 1_000_000
    assert speaker.end(version=version) == ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_a_late_end_and_an_abort_of_nothing_in_the_newer_protocol(
    speaker: Speaker, new_topic: NewTopic
) -> None:
    topic = new_topic()
    first = dict(speaker.producer)
    assert speaker.end(commit=False, version=5) == 0
    assert speaker.producer["producer_epoch"] == first["producer_epoch"] + 1
    assert speaker.add(topic, 5) == 0
    assert speaker.end(version=5) == 0
    second, speaker.producer = dict(speaker.producer), first
    assert speaker.end(version=5) == ErrorCode.PRODUCER_FENCED
    speaker.producer = {"producer_id": second["producer_id"], "producer_epoch": second["producer_epoch"] - 1}
    assert speaker.end(commit=False, version=5) == ErrorCode.INVALID_TXN_STATE
    assert speaker.end(commit=True, version=5) == 0
    assert speaker.producer == second


@pytest.mark.parametrize("version", [1, 2])
def test_markers_are_written_in_every_version(raw: RawClient, new_topic: NewTopic, version: int) -> None:
    topic = new_topic()
    marker_type = WriteTxnMarkersRequest.WritableTxnMarker
    topic_type = marker_type.WritableTxnMarkerTopic
    marker = marker_type(
        producer_id=raw.new_producer_id(),
        producer_epoch=0,
        transaction_result=False,
        topics=[topic_type(name=topic, partition_indexes=[0, 9])],
        coordinator_epoch=0,
        transaction_version=0,
    )
    answer = raw.ask(WriteTxnMarkersRequest(markers=[marker], version=version))
    (result,) = answer.markers
    errors = {part.partition_index: part.error_code for part in result.topics[0].partitions}
    assert errors == {0: 0, 9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


@pytest.mark.parametrize("version", range(3))
def test_transactions_are_listed_in_every_version(speaker: Speaker, version: int) -> None:
    coordinator = speaker.raw.coordinator(TRANSACTION, speaker.transactional_id)
    answer = coordinator.ask(
        ListTransactionsRequest(
            state_filters=["Empty", "Odd"],
            producer_id_filters=[speaker.producer["producer_id"]],
            duration_filter=-1,
            transactional_id_pattern=None,
            version=version,
        )
    )
    assert answer.unknown_state_filters == ["Odd"]
    (state,) = answer.transaction_states
    assert (state.transactional_id, state.transaction_state) == (speaker.transactional_id, "Empty")


def test_transactions_are_described(speaker: Speaker, topic_name: Name) -> None:
    own = speaker.raw.coordinator(TRANSACTION, speaker.transactional_id)
    unknown = topic_name()
    while speaker.raw.coordinator(TRANSACTION, unknown) is not own:
        unknown = topic_name()
    asked = [speaker.transactional_id, unknown]
    answer = speaker.raw.ask(DescribeTransactionsRequest(transactional_ids=asked, version=0))
    states = {state.transactional_id: state for state in answer.transaction_states}
    assert states[speaker.transactional_id].transaction_state == "Empty"
    assert states[unknown].error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
