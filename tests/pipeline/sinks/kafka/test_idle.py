"""A pipeline that is idle for longer than its cluster keeps offsets; its markers are offsets.

Kafka keeps offsets for at least a minute, and this test waits that long. `test_repetition.py` shows in a
moment that an idle pipeline commits its markers again.
"""

from __future__ import annotations

import time

import pytest

from gapless.pipeline.sinks.kafka import KafkaSink
from gapless.pipeline.sinks.port import SinkContext
from gapless.testing.broker import EmbeddedBroker
from tests.pipeline.sinks.kafka.helpers import context, wait_for

SETTINGS = {"offsets.retention.minutes": "1", "offsets.retention.check.interval.ms": "1000"}
MARKERS = {"orders-0": 17, "orders-1": 18}


def offsets_of(sink: KafkaSink, pipeline: SinkContext) -> dict[str, int]:
    return {slot: marker[0] for slot, marker in sink.markers(pipeline).items()}


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_markers_of_an_idle_pipeline_do_not_expire() -> None:
    """A sink keeps the pipeline alive that it opened last. The other one shows that a minute has passed."""
    with EmbeddedBroker(config=SETTINGS) as broker:
        kept, forgotten = context("kept"), context("forgotten")
        sink = KafkaSink(broker.bootstrap, "out", keep_alive_s=10.0)
        for each in (forgotten, kept):
            sink.open(each)
            sink.restore_markers(each, MARKERS, 3)

        def forgot() -> bool:
            time.sleep(1.0)
            sink.idle()
            return not sink.markers(forgotten)

        wait_for(forgot, "the other pipeline's markers have expired", 150)
        assert offsets_of(sink, kept) == MARKERS
