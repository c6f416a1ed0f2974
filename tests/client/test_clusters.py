"""What the tests of the client library expect of the clusters that they share."""

from __future__ import annotations

from tests.client.conftest import Kafka, new_topic
from tests.servers import retention_ms


def test_the_clusters_keep_records_of_any_age(kafka: Kafka) -> None:
    assert retention_ms(kafka.bootstrap, new_topic(kafka)) == "-1"
