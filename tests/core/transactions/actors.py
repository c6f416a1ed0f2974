"""Clients of transactions for tests: producers of both protocols, and readers of what is committed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gapless.core.contract import Request, TopicPartition
from gapless.core.transactions.state import TransactionsState
from gapless.core.transactions.transaction import State, Transaction
from gapless.wire.apis import ApiKey
from gapless.wire.batch import parse_header
from gapless.wire.errors import ErrorCode
from gapless.wire.fetch import FetchPartition, FetchRequest, FetchTopic
from gapless.wire.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)
from gapless.wire.produce import ProducePartition, ProduceRequest, ProduceTopic
from gapless.wire.records import build_batch, iterate_records
from tests.core.harness import World

GROUP_KEY, TRANSACTION_KEY = 0, 1

OLDER = {"produce": 11, "init": 4, "add": 3, "add_offsets": 3, "offsets": 3, "end": 4}
NEWER = {"produce": 12, "init": 5, "add": 3, "add_offsets": 3, "offsets": 5, "end": 5}


def make_world(**settings: str) -> World:
    """A broker with topics `t` and `u` of two partitions, which coordinates transactions and groups."""
    few: dict[str, Any] = {"transaction_state_log_num_partitions": "2", "offsets_topic_num_partitions": "2"}
    world = World(**(few | settings))
    for key_type in (GROUP_KEY, TRANSACTION_KEY):
        body = FindCoordinatorRequest(key_type=key_type, coordinator_keys=["x"])
        world.call(ApiKey.FIND_COORDINATOR, 4, body)
    world.advance(0)
    world.create_topic("t", partitions=2)
    world.create_topic("u", partitions=2)
    return world


_NO_MEMBER: dict[str, Any] = {"generation_id": -1, "member_id": "", "group_instance_id": None}


class Transactor:
    """A transactional producer. Codes of failures are returned; what it learns of itself it keeps."""

    def __init__(
        self, world: World, transactional_id: str = "x", *, newer: bool, timeout_ms: int = 60_000
    ) -> None:
        self.world = world
        self.transactional_id = transactional_id
        self.versions = NEWER if newer else OLDER
        self.newer = newer
        self.timeout_ms = timeout_ms
        self.producer = (-1, -1)
        self.sequences: dict[TopicPartition, int] = {}

    # ---------------------------------------------------------------------------------------- requests

    def init_request(self, claimed: tuple[int, int] = (-1, -1)) -> InitProducerIdRequest:
        return InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self.timeout_ms,
            producer_id=claimed[0],
            producer_epoch=claimed[1],
        )

    def produce_request(
        self, topic: str, *values: bytes, partition: int = 0, producer: tuple[int, int], sequence: int
    ) -> ProduceRequest:
        payload = build_batch(
            [(self.world.now_ms, None, value) for value in values],
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=sequence,
            transactional=True,
        )
        parts = [ProducePartition(partition, memoryview(payload))]
        return ProduceRequest(self.transactional_id, -1, 1000, [ProduceTopic(topic, None, parts)])

    def add_request(self, *partitions: tuple[str, int]) -> AddPartitionsToTxnRequest:
        topic_type = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
        return AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer[0],
            v3_and_below_producer_epoch=self.producer[1],
            v3_and_below_topics=[topic_type(name=topic, partitions=[index]) for topic, index in partitions],
        )

    def end_request(self, *, commit: bool, producer: tuple[int, int] | None = None) -> EndTxnRequest:
        producer_id, epoch = producer or self.producer
        return EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=producer_id,
            producer_epoch=epoch,
            committed=commit,
        )

    # ------------------------------------------------------------------------------------------- calls

    def init(self, claimed: tuple[int, int] = (-1, -1)) -> ErrorCode:
        """Start; tries again as long as the predecessor's transaction is being aborted."""
        for _ in range(10):
            error = self.try_init(claimed)
            if error is not ErrorCode.CONCURRENT_TRANSACTIONS:
                return error
            self.world.advance(100)
        return ErrorCode.CONCURRENT_TRANSACTIONS

    def try_init(self, claimed: tuple[int, int]) -> ErrorCode:
        reply = self.world.call(ApiKey.INIT_PRODUCER_ID, self.versions["init"], self.init_request(claimed))
        if reply.error_code == 0:
            self.become((reply.producer_id, reply.producer_epoch))
        return ErrorCode(reply.error_code)

    def become(self, producer: tuple[int, int]) -> None:
        if producer != self.producer:
            self.sequences.clear()
        self.producer = producer

    def add(self, *partitions: tuple[str, int]) -> ErrorCode:
        """AddPartitionsToTxn; the first error, if there is one."""
        version = self.versions["add"]
        reply = self.world.call(ApiKey.ADD_PARTITIONS_TO_TXN, version, self.add_request(*partitions))
        results = [
            ErrorCode(result.partition_error_code)
            for topic in reply.results_by_topic_v3_and_below
            for result in topic.results_by_partition
        ]
        return next(filter(None, results), ErrorCode.NONE)

    def send(
        self,
        topic: str,
        *values: bytes,
        partition: int = 0,
        producer: tuple[int, int] | None = None,
        sequence: int | None = None,
    ) -> ErrorCode:
        """Produce into the transaction; an older client must have added the partition."""
        request = self.begin_send(topic, *values, partition=partition, producer=producer, sequence=sequence)
        return self.sent(request)

    def begin_send(
        self,
        topic: str,
        *values: bytes,
        partition: int = 0,
        producer: tuple[int, int] | None = None,
        sequence: int | None = None,
    ) -> Request:
        name = TopicPartition(topic, partition)
        if sequence is None:
            sequence = self.sequences.get(name, 0)
        if producer in (None, self.producer):
            self.sequences[name] = sequence + len(values)
        body = self.produce_request(
            topic, *values, partition=partition, producer=producer or self.producer, sequence=sequence
        )
        return self.world.send(ApiKey.PRODUCE, self.versions["produce"], body)

    def sent(self, request: Request) -> ErrorCode:
        return ErrorCode(self.world.reply(request).topics[0].partitions[0].error)

    def write(self, topic: str, *values: bytes, partition: int = 0) -> ErrorCode:
        """What a client does for a record: add the partition if its protocol asks for it, then produce."""
        if not self.newer and (error := self.add((topic, partition))):
            return error
        return self.send(topic, *values, partition=partition)

    def end(self, *, commit: bool, producer: tuple[int, int] | None = None) -> ErrorCode:
        body = self.end_request(commit=commit, producer=producer)
        return self.ended(self.world.send(ApiKey.END_TXN, self.versions["end"], body))

    def ended(self, request: Request) -> ErrorCode:
        reply = self.world.reply(request)
        if reply.error_code == 0 and self.newer:
            self.become((reply.producer_id, reply.producer_epoch))
        return ErrorCode(reply.error_code)

    def commit(self) -> ErrorCode:
        return self.end(commit=True)

    def abort(self) -> ErrorCode:
        return self.end(commit=False)

    # ------------------------------------------------------------------------------------------ offsets

    def add_offsets(self, group: str = "g") -> ErrorCode:
        body = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer[0],
            producer_epoch=self.producer[1],
            group_id=group,
        )
        reply = self.world.call(ApiKey.ADD_OFFSETS_TO_TXN, self.versions["add_offsets"], body)
        return ErrorCode(reply.error_code)

    def send_offset(
        self, offset: int, group: str = "g", topic: str = "t", partition: int = 0, **committer: Any
    ) -> ErrorCode:
        """TxnOffsetCommit of one offset; an older client must have added the group."""
        topic_type = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
        part = topic_type.TxnOffsetCommitRequestPartition(
            partition_index=partition,
            committed_offset=offset,
            committed_leader_epoch=-1,
            committed_metadata="",
        )
        body = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=self.producer[0],
            producer_epoch=self.producer[1],
            topics=[topic_type(name=topic, partitions=[part])],
            **(_NO_MEMBER | committer),
        )
        reply = self.world.call(ApiKey.TXN_OFFSET_COMMIT, self.versions["offsets"], body)
        return ErrorCode(reply.topics[0].partitions[0].error_code)


# ---------------------------------------------------------------------------------------------- looking


def fetched(world: World, topic: str, partition: int = 0, offset: int = 0, *, committed: bool = True) -> Any:
    """One fetch; the partition's result."""
    asked = [FetchPartition(partition, fetch_offset=offset, max_bytes=1 << 20)]
    body = FetchRequest(topics=[FetchTopic(topic, None, asked)], isolation_level=int(committed))
    return world.call(ApiKey.FETCH, 11, body).topics[0].partitions[0]


def read(world: World, topic: str, partition: int = 0, *, committed: bool = True) -> list[bytes]:
    """What a consumer delivers, by the rules that clients follow for aborted transactions."""
    found: list[bytes] = []
    offset = world.partition(topic, partition).log.start_offset
    while True:
        result = fetched(world, topic, partition, offset, committed=committed)
        if result.records is None or result.records.size == 0:
            return found
        offset = _deliver(bytes(result.records.read(0, result.records.size)), result.aborted, offset, found)


def _deliver(data: bytes, aborted: list[tuple[int, int]] | None, from_offset: int, found: list[bytes]) -> int:
    pending = sorted(aborted or [], key=lambda entry: entry[1])
    aborting: dict[int, None] = {}
    position, next_offset = 0, from_offset
    while position < len(data):
        batch = parse_header(data, position)
        while pending and pending[0][1] <= batch.last_offset:
            aborting[pending.pop(0)[0]] = None
        if batch.is_control:
            aborting.pop(batch.producer_id, None)
        elif not (batch.is_transactional and batch.producer_id in aborting):
            found += [
                record.value or b"" for record in iterate_records(data, batch) if record.offset >= from_offset
            ]
        position += batch.size_bytes
        next_offset = batch.next_offset
    return next_offset


def known(world: World, transactional_id: str = "x") -> Transaction | None:
    """What the coordinator knows of a transactional id."""
    for shard in world.node.shards.values():
        if isinstance(shard.state, TransactionsState) and transactional_id in shard.state.transactions:
            return shard.state.transactions[transactional_id]
    return None


def state_of(world: World, transactional_id: str = "x") -> State | None:
    transaction = known(world, transactional_id)
    return None if transaction is None else transaction.state


def stable(world: World, topic: str, partition: int = 0) -> int:
    offset: int = world.partition(topic, partition).last_stable_offset
    return offset


def at_epoch(world: World, transactor: Transactor, epoch: int) -> None:
    """As if the producer had restarted very often."""
    for shard in world.node.shards.values():
        if isinstance(shard.state, TransactionsState):
            transaction = shard.state.transactions.get(transactor.transactional_id)
            if transaction is not None:
                shard.state.write(replace(transaction, producer_epoch=epoch))
    transactor.become((transactor.producer[0], epoch))
