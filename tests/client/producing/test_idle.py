"""A producer that is idle for longer than its cluster keeps offsets (C6).

Kafka keeps offsets for at least a minute, and this test waits that long. `test_ledger.py` shows in a moment
that an idle producer commits its registers again.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Consumer

from gapless.client.producing.ledger import Ledger, register
from gapless.testing.cluster import Cluster
from tests.client.conftest import Kafka, new_topic, wait_for
from tests.client.producing.sending import (
    check_sent,
    owner_in,
    position_in,
    properties_of,
    send,
    sending,
)

CONTROL = "control"
SOURCE = "idle"
SETTINGS = {"offsets.retention.minutes": "1", "offsets.retention.check.interval.ms": "1000"}


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_offsets_do_not_expire_while_their_producer_is_idle(tmp_path: Path) -> None:
    """The offset of the control group expires; those of the idle producer do not."""
    with Cluster(brokers=1, settings=SETTINGS, proxy=False) as cluster:
        kafka = Kafka("embedded", cluster.bootstrap, cluster, cluster.brokers)
        topic = new_topic(kafka)
        ledger = Ledger(properties_of(kafka))
        ledger.ensure_topic()  # brokers refuse offsets of a topic that does not exist
        commit_control(kafka)
        with sending(kafka, tmp_path, SOURCE, keep_alive_s=15.0) as sender:
            send(sender, topic, range(10), 1).wait(30)
            wait_for(lambda: ledger.read(CONTROL) is None, "the control's offset has expired", 100)
            ledger.rest()
            position = position_in(kafka, SOURCE, sender.incarnation)
            assert position is not None
            assert position.offset == 10
            assert owner_in(kafka, SOURCE) is not None
            send(sender, topic, range(10, 20), 1).wait(30)
        with sending(kafka, tmp_path, SOURCE) as again:
            send(again, topic, range(20, 30), 1).wait(30)
        assert len(check_sent(kafka, tmp_path, SOURCE)) == 30


def commit_control(kafka: Kafka) -> None:
    """Commit an offset that no client commits again."""
    control = Consumer(properties_of(kafka, **{"group.id": CONTROL}))
    control.commit(offsets=[register(10, "control")], asynchronous=False)
    control.close()
