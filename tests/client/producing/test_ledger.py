"""Registers in the ledger: who sends for a source and from where on; kept alive in idle times (C6)."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka.admin import ConfigResource

from gapless.client.formats import LEDGER_TOPIC, position_group
from gapless.client.producing.ledger import Committed, Ledger, connection_properties
from gapless.client.producing.ownership import (
    Position,
    PositionLost,
    SourceTakenOver,
    fingerprint,
    judge_fingerprint,
    judge_owner,
    judge_position,
    new_instance,
)
from gapless.client.spool import Spooled, SpoolRestored
from tests.client.conftest import Kafka, new_topic, wait_for
from tests.client.producing.sending import (
    check_sent,
    position_in,
    properties_of,
    seals_of_source,
    send,
    sending,
)

RECORD = Spooled(7, b"8 bytes.", "orders", 2, 5, 1_700_000_000_000, b"key", b"value", ())


@pytest.mark.slow_variants("apache")
def test_an_idle_producer_commits_its_registers_again(kafka: Kafka, tmp_path: Path) -> None:
    """What was deleted behind its back is back after the next time."""
    topic = new_topic(kafka)
    source = f"{topic}-alive"
    with sending(kafka, tmp_path, source, keep_alive_s=0.3) as sender:
        send(sender, topic, range(10), 1).wait(30)
        group = position_group(source, sender.incarnation)
        wait_for(lambda: _delete(kafka, group), "the group can be deleted")
        wait_for(lambda: position_in(kafka, source, sender.incarnation), "it is there again")
        position = position_in(kafka, source, sender.incarnation)
        assert position is not None
        assert position.offset == 10
    check_sent(kafka, tmp_path, source)


def _delete(kafka: Kafka, group: str) -> bool:
    kafka.admin.delete_consumer_groups([group])[group].result(30)
    return True


def test_seals_come_at_intervals_on_close_and_after_a_restart(kafka: Kafka, tmp_path: Path) -> None:
    topic = new_topic(kafka, 2)
    source = f"{topic}-seals"
    with sending(kafka, tmp_path, source, seal_every_s=0.2) as sender:
        send(sender, topic, range(10)).wait(30)
        wait_for(
            lambda: seals_of_source(kafka, source), "a seal at its interval, though nothing more is sent"
        )
    with sending(kafka, tmp_path, source, seal_every_s=60) as sender:
        send(sender, topic, range(10, 30)).wait(30)
    seals = seals_of_source(kafka, source)
    reasons = [seal.reason for seal in seals]
    assert reasons[0] == "interval"
    assert reasons[-2:] == ["recovered", "close"]
    assert seals[-2].counts == {topic: 10}
    assert {(each.first, each.last) for each in seals[-1].intervals} == {(5, 14)}
    check_sent(kafka, tmp_path, source)


def test_seals_can_be_left_out(embedded: Kafka, tmp_path: Path) -> None:
    topic = new_topic(embedded)
    source = f"{topic}-unsealed"
    for start in (0, 10):
        with sending(embedded, tmp_path, source, seal_every_s=0) as sender:
            send(sender, topic, range(start, start + 10), 1).wait(30)
    assert seals_of_source(embedded, source) == []


def test_the_ledger_is_kept_for_ever(kafka: Kafka) -> None:
    Ledger(properties_of(kafka)).ensure_topic()
    resource = ConfigResource(ConfigResource.Type.TOPIC, LEDGER_TOPIC)
    wait_for(
        lambda: kafka.admin.describe_configs([resource])[resource].result(30)["retention.ms"].value == "-1",
        "the ledger is kept",
    )
    Ledger(properties_of(kafka)).ensure_topic()  # twice is harmless


def test_only_what_any_client_needs_is_handed_on() -> None:
    given = {
        "bootstrap.servers": "b:1",
        "sasl.username": "u",
        "ssl.ca.location": "/ca",
        "security.protocol": "SASL_SSL",
        "linger.ms": 5,
        "transactional.id": "x",
    }
    assert set(connection_properties(given)) == {
        "bootstrap.servers",
        "sasl.username",
        "ssl.ca.location",
        "security.protocol",
    }


# -------------------------------------------------------------------------- decisions, on values alone


def judged(committed: Committed | None, *, claimed: bool = True, sent: int = 0, stored: int = 100) -> int:
    position = judge_position(
        committed, source="s", claimed=claimed, sent=sent, stored=stored, instance="mine"
    )
    return position.offset


def test_absence_is_a_beginning_only_before_first_use() -> None:
    assert judged(None, claimed=False) == 0
    with pytest.raises(PositionLost):
        judged(None, claimed=True)


def test_a_position_is_between_what_the_spool_remembers_and_where_it_ends() -> None:
    assert judged(Committed(10, "x:-"), sent=10, stored=10) == 10
    assert judged(Committed(10, "x:-"), sent=3, stored=20) == 10
    assert judged(Committed(0, "x:-"), claimed=False) == 0, "died between the claim and its note"
    with pytest.raises(PositionLost, match="went back from 11 to 10"):
        judged(Committed(10, "x:-"), sent=11)
    with pytest.raises(SpoolRestored):
        judged(Committed(21, "x:-"), stored=20)


def test_the_last_record_is_known_by_its_fingerprint() -> None:
    position = Position.of(Committed(8, f"instance:{fingerprint(RECORD)}"))
    judge_fingerprint(position, RECORD, source="s")
    judge_fingerprint(position, None, source="s")
    judge_fingerprint(Position(8, "instance"), RECORD, source="s")
    for other in (
        RECORD._replace(value=b"other"),
        RECORD._replace(key=None),
        RECORD._replace(timestamp_ms=1_700_000_000_001),
        RECORD._replace(partition=1),
    ):
        with pytest.raises(SpoolRestored, match="not the one that was sent"):
            judge_fingerprint(position, other, source="s")


def test_whoever_is_another_than_before_has_taken_over() -> None:
    judge_owner(None, source="s", mine="me", before=None)
    judge_owner(Committed(0, "me"), source="s", mine="me", before=None)
    judge_owner(Committed(0, "old"), source="s", mine="me", before="old")
    with pytest.raises(SourceTakenOver):
        judge_owner(Committed(0, "other"), source="s", mine="me", before=None)
    with pytest.raises(SourceTakenOver):
        judge_owner(Committed(0, "other"), source="s", mine="me", before="old")
    assert new_instance() != new_instance()
