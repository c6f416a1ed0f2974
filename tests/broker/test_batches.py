"""Batches that no sane client sends: an error for their sender, nothing stored, and nobody else notices."""

from __future__ import annotations

from gapless.wire.compression import Compression
from gapless.wire.errors import ErrorCode
from gapless.wire.messages import ListOffsetsRequest, ListOffsetsResponse
from tests.broker.process import Broker, unhurt
from tests.broker.raw import (
    Partition,
    ProduceRequest,
    ProduceResponse,
    RawClient,
    batch_of,
    produce_request,
)
from tests.wire.odd_batches import CASES, GOOD

MB = 2**20


def end_of(client: RawClient, topic: str) -> int:
    end: int = client.fetch(topic, 0).high_watermark
    return end


def test_every_odd_batch_gets_its_answer_and_only_accepted_ones_are_stored(broker: Broker) -> None:
    with unhurt(broker), broker.connect() as client:
        client.metadata("odd")
        for case in CASES:
            before = end_of(client, "odd")
            result = client.produce("odd", case.payload)
            assert ErrorCode(result.error_code) is case.ours, case.name
            if result.error_code:
                assert (result.base_offset, end_of(client, "odd")) == (-1, before), case.name
                assert result.error_message, case.name
            else:
                assert result.base_offset == before, case.name
    assert "Traceback" not in broker.said()


def test_records_that_lie_about_themselves_do_not_disturb_a_search_by_time(broker: Broker) -> None:
    asked_type = ListOffsetsRequest.ListOffsetsTopic
    with broker.connect() as client:
        client.metadata("liars")
        for case in CASES:
            client.produce("liars", case.payload)
        for timestamp in (-6, -5, -4, -3, -2, -1, 0, 1, 1_800_000_000_000, 2**63 - 1, -(2**63)):
            partition = asked_type.ListOffsetsPartition(
                partition_index=0, current_leader_epoch=-1, timestamp=timestamp
            )
            topic = asked_type(name="liars", partitions=[partition])
            request = ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[topic])
            reply = client.call(request, 5, ListOffsetsResponse)
            assert reply.topics[0].partitions[0].error_code == 0
    assert "Traceback" not in broker.said()


def test_records_may_be_missing_altogether(broker: Broker) -> None:
    with broker.connect() as client:
        client.metadata("empty")
        reply = client.call(produce_request("empty", None), 9, ProduceResponse)
        assert reply.responses[0].partition_responses[0].error_code == ErrorCode.INVALID_RECORD
        nothing = ProduceRequest(transactional_id=None, acks=-1, timeout_ms=10_000, topic_data=[])
        assert client.call(nothing, 9, ProduceResponse).responses == []
        assert end_of(client, "empty") == 0


def test_small_batches_that_open_to_megabytes_cannot_hold_up_the_broker(broker: Broker) -> None:
    bomb = bytes(batch_of(bytes(15 * MB), compression=Compression.ZSTD))
    assert len(bomb) < 2000
    data = ProduceRequest.TopicProduceData(
        name="bombs", partition_data=[Partition(index=0, records=bomb)] * 2000
    )
    request = ProduceRequest(transactional_id=None, acks=-1, timeout_ms=10_000, topic_data=[data])
    with broker.connect() as client:
        client.metadata("bombs")
    before = broker.pss_mb()
    with unhurt(broker) as bystander, broker.connect() as client:
        client.call(request, 9, ProduceResponse)
    assert bystander.longest_s < 3
    assert broker.pss_mb() - before < 50


def test_without_acknowledgement_an_error_ends_the_connection(broker: Broker) -> None:
    with broker.connect() as client:
        client.metadata("unacknowledged")
        client.send_message(produce_request("unacknowledged", GOOD, acks=0), 9)
        assert client.metadata("unacknowledged").topics  # nothing came in between
        client.send_message(produce_request("unacknowledged", GOOD[:-1], acks=0), 9)
        client.wait_until_closed()
        (line,) = broker.lines_about(client)
    assert "INVALID_RECORD" in line
