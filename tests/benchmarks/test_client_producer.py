"""The benchmark of the producer runs, and counts every record."""

from __future__ import annotations

from benchmarks.scenarios import client_producer
from gapless.testing.broker import EmbeddedBroker


def test_both_sides_of_the_producers_benchmark_acknowledge_all() -> None:
    with EmbeddedBroker() as broker:
        for contender in (client_producer.BARE_WITH_HEADERS, client_producer.PRODUCER):
            run = client_producer.run_one(contender, broker.bootstrap, 200)
            assert (run.records, run.wall_s > 0, run.cpu_us > 0) == (200, True, True)


def test_a_ratio_is_taken_round_by_round() -> None:
    run = client_producer.Run
    runs = {"a": [run(10, 1.0, 2.0), run(10, 4.0, 2.0)], "b": [run(10, 2.0, 1.0), run(10, 4.0, 1.0)]}
    assert client_producer.ratio(runs, "a", "b") == 1.5
    assert client_producer.ratio(runs, "a", "b", cpu=True) == 0.5
