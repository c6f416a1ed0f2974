"""The benchmark of the audit runs, and each contender finds every record."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks.scenarios import audit
from gapless.errors import GaplessError
from gapless.testing.broker import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.mark.slow
def test_an_audit_and_counts_of_a_topic_are_timed(spark: SparkSession) -> None:
    times = audit.Times(400, 7)
    with EmbeddedBroker() as broker:
        topic = audit.fill(broker.bootstrap, times.records, times.sources)
        bench = audit.Bench(broker.bootstrap, spark)
        for contender in audit.CONTENDERS:
            took_s, cpu_s = bench.run(contender, topic, times.records)
            times.seconds[contender].append(took_s)
            times.cpu_s[contender].append(cpu_s)
        with pytest.raises(GaplessError, match="found 400 records of 401"):
            bench.run(audit.BARE, topic, times.records + 1)
        most_bytes = audit.memory_of_audit(broker.bootstrap, topic)
    assert most_bytes > 10_000_000
    by_topic, memory = audit.tables([times], most_bytes)
    assert (by_topic.row_count, memory.row_count) == (1, 1)


def test_a_ratio_is_taken_round_by_round() -> None:
    times = audit.Times(1, 1, {audit.AUDIT: [3.0, 8.0], audit.COUNT: [2.0, 4.0], audit.BARE: [1.0, 1.0]})
    assert times.ratios(audit.COUNT) == [1.5, 2.0]
