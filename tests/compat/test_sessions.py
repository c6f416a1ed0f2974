"""Fetch sessions and leader epochs, request by request: what the broker remembers and what it makes of it."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.protocol.consumer import FetchRequest, OffsetForLeaderEpochRequest

from gapless.wire.errors import ErrorCode

from .conftest import NewTopic
from .raw import Connection, RawClient, batch, fetch_partition, fetch_request, records_in

NEW_SESSION = 0
CLOSE_SESSION = -1


@pytest.fixture
def topic(raw: RawClient, new_topic: NewTopic) -> str:
    """Three partitions with a record each, at one broker: a session is about partitions of one leader."""
    topic = new_topic(3, one_leader=True)
    for partition in range(3):
        raw.produce(topic, batch([b"%d" % partition]), partition=partition)
    return topic


@pytest.fixture
def leader(raw: RawClient, topic: str) -> Connection:
    return raw.leader(topic)


def start_session(leader: Connection, topic: str) -> int:
    """A session over all three partitions, which are read to their ends."""
    wanted = {topic: [fetch_partition(partition, 0) for partition in range(3)]}
    answer = leader.ask(fetch_request(wanted, session_epoch=NEW_SESSION))
    assert answer.error_code == ErrorCode.NONE
    assert set(values(answer)) == {b"0", b"1", b"2"}
    moved = {topic: [fetch_partition(partition, 1) for partition in range(3)]}
    assert values(leader.ask(fetch_request(moved, session_id=answer.session_id, session_epoch=1))) == []
    return int(answer.session_id)


def partitions(answer: Any) -> list[int]:
    return [place.partition_index for responded in answer.responses for place in responded.partitions]


def values(answer: Any) -> list[bytes | None]:
    places = [place for responded in answer.responses for place in responded.partitions]
    return [record.value for place in places if place.records for record in records_in(place.records)]


def test_a_session_answers_only_with_what_is_new(raw: RawClient, leader: Connection, topic: str) -> None:
    session = start_session(leader, topic)
    nothing = leader.ask(fetch_request({}, session_id=session, session_epoch=2))
    assert (nothing.error_code, nothing.session_id, partitions(nothing)) == (ErrorCode.NONE, session, [])
    raw.produce(topic, batch([b"new"]), partition=1)
    news = leader.ask(fetch_request({}, session_id=session, session_epoch=3))
    assert partitions(news) == [1]
    assert values(news) == [b"new"]


def test_a_session_forgets_what_it_is_told_to_forget(raw: RawClient, leader: Connection, topic: str) -> None:
    session = start_session(leader, topic)
    forgotten = [FetchRequest.ForgottenTopic(topic=topic, partitions=[1])]
    leader.ask(fetch_request({}, forgotten=forgotten, session_id=session, session_epoch=2))
    for partition in range(3):
        raw.produce(topic, batch([b"new"]), partition=partition)
    news = leader.ask(fetch_request({}, session_id=session, session_epoch=3))
    assert sorted(partitions(news)) == [0, 2]


def test_a_session_takes_up_what_is_added(
    raw: RawClient, leader: Connection, new_topic: NewTopic, topic: str
) -> None:
    session = start_session(leader, topic)
    other = new_topic(one_leader=True)
    raw.produce(other, batch([b"other"]))
    answer = leader.ask(fetch_request({other: [fetch_partition(0, 0)]}, session_id=session, session_epoch=2))
    assert values(answer) == [b"other"]
    raw.produce(topic, batch([b"new"]), partition=2)
    moved = {other: [fetch_partition(0, 1)]}
    assert values(leader.ask(fetch_request(moved, session_id=session, session_epoch=3))) == [b"new"]


def test_a_wrong_epoch_is_refused(leader: Connection, topic: str) -> None:
    session = start_session(leader, topic)
    answer = leader.ask(fetch_request({}, session_id=session, session_epoch=7))
    assert answer.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH


def test_an_unknown_session_is_refused(leader: Connection) -> None:
    answer = leader.ask(fetch_request({}, session_id=123_456_789, session_epoch=1))
    assert answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_closed_session_is_unknown(leader: Connection, topic: str) -> None:
    session = start_session(leader, topic)
    closed = leader.ask(fetch_request({}, session_id=session, session_epoch=CLOSE_SESSION))
    assert (closed.error_code, closed.session_id) == (ErrorCode.NONE, 0)
    answer = leader.ask(fetch_request({}, session_id=session, session_epoch=2))
    assert answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_session_belongs_to_the_broker_and_not_to_the_connection(
    raw: RawClient, leader: Connection, other_raw: RawClient, topic: str
) -> None:
    session = start_session(leader, topic)
    raw.produce(topic, batch([b"new"]))
    answer = other_raw.leader(topic).ask(fetch_request({}, session_id=session, session_epoch=2))
    assert values(answer) == [b"new"]


def test_a_reader_of_another_epoch_is_told_so(raw: RawClient, topic: str) -> None:
    """The leader's epoch of a new topic is 0."""
    assert raw.fetch(topic, leader_epoch=0).error_code == ErrorCode.NONE
    assert raw.fetch(topic, leader_epoch=1).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


def test_the_end_of_an_epoch_is_told(raw: RawClient, topic: str) -> None:
    def end_of(epoch: int, current: int = -1) -> tuple[int, int, int]:
        topics = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
        place = topics.OffsetForLeaderPartition(partition=0, current_leader_epoch=current, leader_epoch=epoch)
        asked = OffsetForLeaderEpochRequest(
            replica_id=-1, topics=[topics(topic=topic, partitions=[place])], version=4
        )
        ((found,),) = [responded.partitions for responded in raw.ask(asked).topics]
        return found.error_code, found.leader_epoch, found.end_offset

    assert end_of(0) == (ErrorCode.NONE, 0, 1)
    assert end_of(0, current=0) == (ErrorCode.NONE, 0, 1)
    assert end_of(5) == (ErrorCode.NONE, -1, -1)
    assert end_of(0, current=5) == (ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1)
