"""A late produce or a late EndTxn never joins or ends another transaction (KIP-890).

For clients of the newer protocol that is certain; for older ones as far as verification reaches.
"""

from __future__ import annotations

import pytest

from gapless.core.transactions.transaction import State
from gapless.wire.apis import ApiKey
from gapless.wire.errors import ErrorCode
from gapless.wire.messages import WriteTxnMarkersRequest
from tests.core.harness import World, batch
from tests.core.transactions.actors import Transactor, known, make_world, read, stable, state_of


@pytest.fixture
def world() -> World:
    return make_world()


@pytest.fixture
def newer(world: World) -> Transactor:
    transactor = Transactor(world, newer=True)
    assert transactor.init() == 0
    return transactor


@pytest.fixture
def older(world: World) -> Transactor:
    transactor = Transactor(world, newer=False)
    assert transactor.init() == 0
    return transactor


def marker_request(
    producer: tuple[int, int], *, commit: bool, version: int, coordinator_epoch: int = 0
) -> WriteTxnMarkersRequest:
    """WriteTxnMarkers for partition 0 of topic t."""
    marker_type = WriteTxnMarkersRequest.WritableTxnMarker
    return WriteTxnMarkersRequest(
        markers=[
            marker_type(
                producer_id=producer[0],
                producer_epoch=producer[1],
                transaction_result=commit,
                topics=[marker_type.WritableTxnMarkerTopic(name="t", partition_indexes=[0])],
                coordinator_epoch=coordinator_epoch,
                transaction_version=version,
            )
        ]
    )


def mark(
    world: World, producer: tuple[int, int], *, commit: bool, version: int, coordinator_epoch: int = 0
) -> int:
    body = marker_request(producer, commit=commit, version=version, coordinator_epoch=coordinator_epoch)
    error: int = world.call(ApiKey.WRITE_TXN_MARKERS, 2, body).markers[0].topics[0].partitions[0].error_code
    return error


# ----------------------------------------------------------------------------------- the newer protocol


def test_every_transaction_has_an_epoch_of_its_own(newer: Transactor) -> None:
    for epoch in range(5):
        assert newer.producer[1] == epoch
        newer.write("t", b"a")
        assert newer.end(commit=epoch % 2 == 0) == 0


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("follows", [True, False])
def test_a_late_produce_is_refused_whether_another_transaction_runs_or_not(
    world: World, newer: Transactor, commit: bool, follows: bool
) -> None:
    first = newer.producer
    newer.write("t", b"a")
    newer.end(commit=commit)
    if follows:
        newer.write("t", b"b")
    late = newer.send("t", b"late", producer=first, sequence=1)
    elsewhere = newer.send("u", b"late", producer=first, sequence=0)
    assert late == elsewhere == ErrorCode.INVALID_PRODUCER_EPOCH
    if follows:
        newer.commit()
    assert b"late" not in read(world, "t", committed=False)
    assert stable(world, "t") == world.partition("t").high_watermark
    assert stable(world, "u") == 0


@pytest.mark.parametrize("commit", [True, False])
def test_a_late_end_does_not_end_the_next_transaction(world: World, newer: Transactor, commit: bool) -> None:
    first = newer.producer
    newer.write("t", b"a")
    newer.commit()
    newer.write("t", b"b")
    assert newer.end(commit=commit, producer=first) == ErrorCode.PRODUCER_FENCED
    assert state_of(world) is State.ONGOING
    assert read(world, "t") == [b"a"]


def test_a_late_marker_does_not_end_the_next_transaction(world: World, newer: Transactor) -> None:
    newer.write("t", b"a")
    newer.commit()
    newer.write("t", b"b")
    assert mark(world, newer.producer, commit=True, version=2) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert read(world, "t") == [b"a"]
    newer.abort()
    assert read(world, "t") == [b"a"]


def test_a_marker_that_is_repeated_is_written_once(world: World, newer: Transactor) -> None:
    newer.write("t", b"a")
    newer.commit()
    end = world.partition("t").log.end_offset
    assert mark(world, newer.producer, commit=True, version=2) == 0
    assert world.partition("t").log.end_offset == end


def test_a_transaction_begins_with_its_first_batch(world: World, newer: Transactor) -> None:
    """The first batch is lost on the way, the second arrives: it must not begin the transaction."""
    assert newer.send("t", b"second", sequence=1) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert newer.send("t", b"first", sequence=0) == 0
    assert newer.send("t", b"second", sequence=1) == 0
    newer.commit()
    assert newer.send("t", b"2nd of the next", sequence=1) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert read(world, "t") == [b"first", b"second"]


def test_an_abort_without_parts_still_raises_the_epoch(world: World, newer: Transactor) -> None:
    for _ in range(3):
        before = newer.producer
        assert newer.abort() == 0
        assert newer.producer == (before[0], before[1] + 1)
    assert newer.commit() == ErrorCode.INVALID_TXN_STATE
    assert newer.write("t", b"a") == 0
    assert newer.commit() == 0
    assert read(world, "t") == [b"a"]


def test_an_end_that_is_repeated_is_answered_as_the_first_time(newer: Transactor) -> None:
    before = newer.producer
    newer.write("t", b"a")
    newer.commit()
    after = newer.producer
    assert newer.end(commit=True, producer=before) == 0
    assert newer.producer == after
    assert newer.end(commit=False, producer=before) == ErrorCode.INVALID_TXN_STATE


# ----------------------------------------------------------------------------------- the older protocol


def test_a_partition_must_be_added_before_it_is_written_to(world: World, older: Transactor) -> None:
    assert older.send("t", b"a") == ErrorCode.TRANSACTION_ABORTABLE
    older.versions = older.versions | {"produce": 10}
    assert older.send("t", b"a", sequence=0) == ErrorCode.INVALID_TXN_STATE
    older.add(("t", 0))
    assert older.send("t", b"a", sequence=0) == 0
    assert older.send("t", b"b", partition=1) == ErrorCode.INVALID_TXN_STATE
    assert world.partition("t", 1).log.end_offset == 0


def test_a_late_produce_of_an_older_client_leaves_nothing_hanging(world: World, older: Transactor) -> None:
    older.write("t", b"a")
    older.commit()
    assert older.send("t", b"late") == ErrorCode.TRANSACTION_ABORTABLE
    older.add(("u", 0))
    assert older.send("t", b"late") == ErrorCode.TRANSACTION_ABORTABLE
    assert stable(world, "t") == world.partition("t").high_watermark
    assert read(world, "t", committed=False) == [b"a"]


def test_what_was_verified_counts_no_more_once_a_marker_has_passed() -> None:
    """The transaction ends between the coordinator's word and the append."""
    world = make_world(log_flush_interval_messages="1")
    transactor = Transactor(world, newer=False)
    transactor.init()
    transactor.add(("t", 0))
    world.hold_flushes = True
    world.send(ApiKey.ADD_PARTITIONS_TO_TXN, 3, transactor.add_request(("u", 0)))
    sending = transactor.begin_send("t", b"a")
    assert not world.answered(sending)  # the coordinator's word rests on a record that is not committed yet
    world.send(ApiKey.WRITE_TXN_MARKERS, 2, marker_request(transactor.producer, commit=False, version=0))
    world.hold_flushes = False
    world.finish_flushes()
    assert transactor.sent(sending) == ErrorCode.INVALID_TXN_STATE
    assert read(world, "t", committed=False) == []


# --------------------------------------------------------------------------------------------- both


@pytest.mark.parametrize("is_newer", [False, True])
def test_requests_that_wait_for_the_coordinator_keep_their_order(is_newer: bool) -> None:
    world = make_world(log_flush_interval_messages="1")
    transactor = Transactor(world, newer=is_newer)
    transactor.init()
    world.hold_flushes = True
    if not is_newer:
        world.send(ApiKey.ADD_PARTITIONS_TO_TXN, 3, transactor.add_request(("t", 0)))
    sending = [transactor.begin_send("t", b"%d" % number) for number in range(5)]
    assert not any(map(world.answered, sending))
    world.hold_flushes = False
    world.finish_flushes()
    assert [transactor.sent(request) for request in sending] == [0] * 5
    transactor.commit()
    assert read(world, "t") == [b"%d" % number for number in range(5)]


def test_a_coordinator_that_cannot_commit_is_waited_for_only_so_long() -> None:
    world = make_world(log_flush_interval_messages="1")
    transactor = Transactor(world, newer=True)
    transactor.init()
    world.hold_flushes = True
    sending = transactor.begin_send("t", b"a")
    world.advance(10_000)
    assert transactor.sent(sending) == ErrorCode.NOT_ENOUGH_REPLICAS
    assert world.partition("t").log.end_offset == 0


def test_outside_its_transaction_a_producer_cannot_write(world: World, newer: Transactor) -> None:
    newer.write("t", b"a")
    plain = world.produce("t", batch(b"plain", producer=newer.producer, sequence=1))
    assert plain.error == ErrorCode.INVALID_TXN_STATE
    newer.commit()
    assert read(world, "t") == [b"a"]


def test_a_transactional_batch_without_a_transactional_id_is_refused(world: World, newer: Transactor) -> None:
    body = newer.produce_request("t", b"a", producer=newer.producer, sequence=0)
    body.transactional_id = None
    message = world.call(ApiKey.PRODUCE, 12, body)
    assert message.topics[0].partitions[0].error == ErrorCode.INVALID_TXN_STATE


def test_one_request_is_of_one_producer(world: World, newer: Transactor) -> None:
    body = newer.produce_request("t", b"a", producer=newer.producer, sequence=0)
    other = newer.produce_request("u", b"a", producer=(99, 0), sequence=0)
    body.topics += other.topics
    message = world.call(ApiKey.PRODUCE, 12, body)
    errors = [topic.partitions[0].error for topic in message.topics]
    assert errors == [ErrorCode.INVALID_PRODUCER_ID_MAPPING] * 2


def test_a_request_for_many_partitions_adds_them_all_at_once(world: World, newer: Transactor) -> None:
    body = newer.produce_request("t", b"a", producer=newer.producer, sequence=0)
    for topic, partition in (("t", 1), ("u", 0), ("u", 1)):
        more = newer.produce_request(topic, b"b", partition=partition, producer=newer.producer, sequence=0)
        body.topics += more.topics
    message = world.call(ApiKey.PRODUCE, 12, body)
    assert [topic.partitions[0].error for topic in message.topics] == [0] * 4
    transaction = known(world)
    assert transaction is not None
    assert list(transaction.partitions) == [("t", 0), ("t", 1), ("u", 0), ("u", 1)]


def test_a_zombie_coordinators_marker_is_refused(world: World, older: Transactor) -> None:
    older.write("t", b"a")
    assert mark(world, older.producer, commit=True, version=0, coordinator_epoch=5) == 0
    fenced = mark(world, older.producer, commit=False, version=0, coordinator_epoch=4)
    assert fenced == ErrorCode.TRANSACTION_COORDINATOR_FENCED


def test_markers_for_what_is_not_there_are_refused_one_by_one(world: World) -> None:
    marker_type = WriteTxnMarkersRequest.WritableTxnMarker
    body = WriteTxnMarkersRequest(
        markers=[
            marker_type(
                producer_id=1,
                producer_epoch=0,
                transaction_result=True,
                topics=[
                    marker_type.WritableTxnMarkerTopic(name="t", partition_indexes=[0, 7]),
                    marker_type.WritableTxnMarkerTopic(name="nope", partition_indexes=[0]),
                ],
                coordinator_epoch=0,
                transaction_version=0,
            )
        ]
    )
    (marker,) = world.call(ApiKey.WRITE_TXN_MARKERS, 1, body).markers
    errors = [part.error_code for topic in marker.topics for part in topic.partitions]
    assert errors == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
