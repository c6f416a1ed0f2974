"""Which folders a producer accepts as its spool: not one that would lose or repeat what others have sent."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from gapless.client import Producer
from gapless.errors import UsageError
from tests.client.conftest import Kafka, new_topic


@pytest.mark.parametrize("word", ["at-least-once", None])
@pytest.mark.parametrize("mode", ["always", "fallback"])
def test_a_spool_whose_position_is_on_the_cluster_is_sent_exactly_once_only(
    embedded: Kafka, tmp_path: Path, word: str | None, mode: Literal["always", "fallback"]
) -> None:
    """Else the next exactly-once start found a position behind what was sent, and blamed the cluster."""
    topic = new_topic(embedded)
    with Producer(embedded.bootstrap, "claimed", "exactly-once", spool=tmp_path) as producer:
        producer.send(topic, b"0", wait=True)
    with pytest.raises(UsageError, match="drained exactly-once: its position is on the cluster"):
        Producer(embedded.bootstrap, "claimed", word, spool=tmp_path, spool_mode=mode)
    with Producer(embedded.bootstrap, "claimed", "exactly-once", spool=tmp_path) as producer:
        assert producer.send(topic, b"1", wait=True).sequence == 1
