"""What retention took has expired, if it can have been that: else it is lost, or nobody can tell."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from gapless.audit import Verdict
from gapless.audit.auditing import Auditor
from tests.audit.planting import Planted
from tests.audit.test_audit import A, B, Bench, headers_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOUR_MS = 3_600_000


@pytest.fixture
def bench(spark: SparkSession, bootstrap: str) -> Bench:
    return Bench(spark, bootstrap)


def test_what_was_lost_at_one_look_does_not_expire_at_the_next(bench: Bench) -> None:
    """Retention takes what was read, and so nothing of a source of which there was nothing."""
    planted = Planted({0: [(A, n) for n in range(10)]}, [[(A, 0, 0, 9)], [(B, 0, 0, 2)]])
    bench.fill(planted)
    auditor = Auditor(bench.spark, bench.bootstrap, bench.topic, ledger=bench.ledger)
    assert auditor.look().hops[0].counts.lost == 3
    bench.expire({0: 5})
    assert auditor.look().hops[0].counts.lost == 3
    # What it takes before anybody has read it may have been anything.
    producer = bench.producer()
    for number in range(10, 20):
        bench.send(producer, bench.topic, 0, headers_of(A, number))
    producer.flush()
    bench.expire({0: 15})
    counts = auditor.look().hops[0].counts
    assert (counts.lost, counts.expired) == (0, 3)


@pytest.mark.parametrize("first_look", [True, False])
def test_a_source_that_is_lost_as_a_whole_has_not_expired_where_older_records_are_left(
    bench: Bench, first_look: bool
) -> None:
    """The seals are hours younger than what retention has left. Who watched knows that it is lost."""
    bench.make(bench.topic)
    bench.make(bench.ledger)
    producer, now_ms = bench.producer(), time.time_ns() // 1_000_000
    for number in range(20):
        time_ms = now_ms - 5 * HOUR_MS + number
        producer.produce(bench.topic, b"x", partition=0, headers=headers_of(A, number), timestamp=time_ms)
    bench.seal(producer, [(A, 0, 0, 19)], now_ms - 5 * HOUR_MS)
    producer.flush()
    bench.expire({0: 10})
    auditor = Auditor(bench.spark, bench.bootstrap, bench.topic, ledger=bench.ledger)
    if first_look:
        report = auditor.look()
        assert (report.verdict, report.hops[0].counts.expired) == (Verdict.CLEAN, 10)
    bench.seal(producer, [(B, 0, 0, 4)])
    producer.flush()
    for _ in range(2):
        report = auditor.look()
        (hop,) = report.hops
        assert report.verdict is (Verdict.FINDINGS if first_look else Verdict.UNKNOWN)
        assert (hop.counts.expired, hop.counts.lost) == ((10, 5) if first_look else (15, 0))
    # What comes unread and goes again may have been anything.
    for number in range(20, 30):
        bench.send(producer, bench.topic, 0, headers_of(A, number))
    producer.flush()
    bench.expire({0: 25})
    counts = auditor.look().hops[0].counts
    assert (counts.expired, counts.lost) == (15, 0)
