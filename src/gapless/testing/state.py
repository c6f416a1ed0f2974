"""What brokers say of a cluster when they are asked directly, one by one, past any proxy."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from struct import Struct
from typing import Any, NamedTuple

from gapless.errors import GaplessError
from gapless.wire.call import decode_answer, encode_call
from gapless.wire.errors import ErrorCode
from gapless.wire.messages import CreateTopicsRequest, ListOffsetsRequest, MetadataRequest

ANSWER_TIMEOUT_S = 5.0
_CLIENT_ID = b"gapless-testing"
_LENGTH = Struct(">i")
_METADATA_VERSION, _LIST_OFFSETS_VERSION, _CREATE_TOPICS_VERSION = 7, 5, 5
_LATEST = -1


class Refused(GaplessError):
    """A broker has answered with an error."""


class PartitionState(NamedTuple):
    """A partition, as a broker sees it."""

    leader: int | None
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]

    def __str__(self) -> str:
        leader = "no leader" if self.leader is None else f"leader {self.leader}"
        return f"{leader} (epoch {self.leader_epoch}), in-sync {list(self.in_sync)} of {list(self.replicas)}"


def ask(address: tuple[str, int], request: Any, version: int, timeout_s: float = ANSWER_TIMEOUT_S) -> Any:
    """Send one request over a connection of its own. Raises `OSError` if there is no answer."""
    with socket.create_connection(address, timeout_s) as connection:
        connection.sendall(encode_call(request.API_KEY, version, 1, _CLIENT_ID, request))
        (size,) = _LENGTH.unpack(_read(connection, _LENGTH.size))
        return decode_answer(request.API_KEY, version, memoryview(_read(connection, size)))


def _read(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(size - len(parts))
        if not part:
            raise ConnectionError("the broker has closed the connection")
        parts += part
    return bytes(parts)


def controller(address: tuple[str, int]) -> int:
    """The number of the controller, -1 for none."""
    answer = ask(address, MetadataRequest(topics=[], allow_auto_topic_creation=False), _METADATA_VERSION)
    return int(answer.controller_id)


def brokers(address: tuple[str, int]) -> list[int]:
    """The brokers that take part in the cluster."""
    answer = ask(address, MetadataRequest(topics=[], allow_auto_topic_creation=False), _METADATA_VERSION)
    return sorted(broker.node_id for broker in answer.brokers)


def partition(address: tuple[str, int], topic: str, index: int) -> PartitionState | None:
    """A partition; None if the broker knows of none."""
    wanted = MetadataRequest.MetadataRequestTopic(name=topic)
    answer = ask(
        address, MetadataRequest(topics=[wanted], allow_auto_topic_creation=False), _METADATA_VERSION
    )
    for found in answer.topics[0].partitions:
        if found.partition_index == index:
            leader = None if found.leader_id < 0 else found.leader_id
            return PartitionState(
                leader, found.leader_epoch, tuple(found.replica_nodes), tuple(found.isr_nodes)
            )
    return None


def high_watermark(leader: tuple[str, int], topic: str, index: int) -> int | None:
    """Up to where consumers may read; None while the broker cannot say."""
    topics = ListOffsetsRequest.ListOffsetsTopic
    place = topics.ListOffsetsPartition(partition_index=index, current_leader_epoch=-1, timestamp=_LATEST)
    request = ListOffsetsRequest(
        replica_id=-1, isolation_level=0, topics=[topics(name=topic, partitions=[place])]
    )
    found = ask(leader, request, _LIST_OFFSETS_VERSION).topics[0].partitions[0]
    return None if found.error_code else int(found.offset)


def create_topic(
    address: tuple[str, int], name: str, partitions: int, replicas: int, config: Mapping[str, str]
) -> None:
    """Create a topic. Raises `Refused` with the broker's reason; that it exists is no reason."""
    topics = CreateTopicsRequest.CreatableTopic
    configs = [topics.CreatableTopicConfig(name=key, value=value) for key, value in config.items()]
    wanted = topics(
        name=name, num_partitions=partitions, replication_factor=replicas, assignments=[], configs=configs
    )
    request = CreateTopicsRequest(topics=[wanted], timeout_ms=10_000, validate_only=False)
    created = ask(address, request, _CREATE_TOPICS_VERSION, 15.0).topics[0]
    if created.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
        reason = created.error_message or ErrorCode(created.error_code).name
        raise Refused(f"the topic {name} could not be created: {reason}")
