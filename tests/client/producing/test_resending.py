"""Lost records come again from the spool, the same as they were, all or none (F3)."""

from __future__ import annotations

from pathlib import Path

import pytest

from gapless.client.formats import LEDGER_TOPIC, Interval, Seal, identity_of
from gapless.client.producing.resending import Resending
from gapless.client.records import Record
from gapless.client.spool import Spool
from gapless.errors import Unreachable
from tests.client.conftest import Kafka, new_topic, read_all, wait_for
from tests.client.producing.sending import properties_of


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    return tmp_path / "spool"


def fill(folder: Path, source: str, topic: str, records: int) -> bytes:
    """A spool whose records have all been sent, as it believes. Its incarnation."""
    with Spool(folder, source) as spool:
        tickets = [
            spool.append(
                topic,
                number % 2,
                b"%d" % number,
                key=b"k",
                headers=[("mine", b"%d" % number)],
                timestamp_ms=1_700_000 + number,
            )
            for number in range(records)
        ]
        spool.wait_stored(tickets[-1])
        spool.note_sent(records)
        return spool.incarnation


def committed(kafka: Kafka, topic: str, records: int) -> list[Record]:
    """What can be read: a moment after the commit, when all partitions have heard of it."""
    wait_for(lambda: len(read_all(kafka, topic)) >= records, f"{topic} can be read")
    return read_all(kafka, topic)


def test_wanted_records_are_sent_as_they_were(kafka: Kafka, spool: Path) -> None:
    topic = new_topic(kafka, 2)
    incarnation = fill(spool, topic, topic, 20)
    with Resending(spool, properties_of(kafka)) as resending:
        wanted = [Interval(topic, 0, 2, 4), Interval(topic, 1, 9, 12)]
        resent = resending.send({incarnation: wanted, b"another!": [Interval(topic, 0, 0, 9)]})
    assert resent.records == 4
    assert resent.found == {incarnation: (Interval(topic, 0, 2, 4), Interval(topic, 1, 9, 9))}
    found = committed(kafka, topic, 4)
    assert [(each.partition, each.value, each.key, each.timestamp_ms) for each in found] == [
        (number % 2, b"%d" % number, b"k", 1_700_000 + number) for number in (4, 6, 8, 19)
    ]
    identities = [identity_of(each.headers) for each in found]
    assert identities == [(topic, incarnation, sequence) for sequence in (2, 3, 4, 9)]
    assert [dict(each.headers)["mine"] for each in found] == [b"4", b"6", b"8", b"19"]
    seals = [Seal.from_bytes(each.value or b"") for each in committed(kafka, LEDGER_TOPIC, 1)]
    (seal,) = [each for each in seals if each.source == topic]
    assert (seal.reason, seal.intervals) == ("repaired", resent.found[incarnation])


@pytest.mark.slow_variants("apache")
def test_nothing_wanted_sends_nothing(kafka: Kafka, spool: Path) -> None:
    topic = new_topic(kafka, 2)
    incarnation = fill(spool, topic, topic, 4)
    with Resending(spool, properties_of(kafka)) as resending:
        assert resending.send({incarnation: []}).records == 0
    assert read_all(kafka, topic) == []


def test_of_two_who_repair_only_the_second_sends(kafka: Kafka, spool: Path) -> None:
    topic = new_topic(kafka, 2)
    incarnation = fill(spool, topic, topic, 4)
    wanted = {incarnation: [Interval(topic, 0, 0, 1)]}
    with Resending(spool, properties_of(kafka)) as first, Resending(spool, properties_of(kafka)) as second:
        with pytest.raises(Unreachable, match=r"nothing of .* was sent again"):
            first.send(wanted)
        assert second.send(wanted).records == 2
    assert len(committed(kafka, topic, 2)) == 2


def test_without_a_cluster_it_gives_up_in_time(spool: Path) -> None:
    fill(spool, "lonely", "orders", 1)
    nowhere = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}
    with pytest.raises(Unreachable, match="was sent again"), Resending(spool, nowhere, timeout_s=2):
        pass
