"""A record's partition: for a key the one of Java's clients, without one in runs, remembered for outages."""

from __future__ import annotations

import itertools
import random
import time
from pathlib import Path

import pytest
from kafka.partitioner.default import murmur2 as murmur2_of_another

from gapless.client.producing import partitions
from gapless.client.producing.partitions import RUN_RECORDS, RUN_S, STEP_RECORDS, Partitions, murmur2
from gapless.errors import Unreachable, UsageError


def six(_topic: str, _timeout_s: float) -> int:
    return 6


def away(_topic: str, _timeout_s: float) -> int:
    raise Unreachable("nobody answers")


def test_keys_are_hashed_as_java_does() -> None:
    # From the tests of Apache Kafka.
    assert [murmur2(key) - (1 << 32 if murmur2(key) >> 31 else 0) for key in (b"21", b"foobar")] == [
        -973932308,
        -790332482,
    ]
    chance = random.Random(7)
    for length in range(40):
        key = chance.randbytes(length)
        assert murmur2(key) == murmur2_of_another(key) & 0xFFFFFFFF


def test_a_key_stays_in_its_partition() -> None:
    chosen = Partitions(six)
    assert {chosen.choose("t", b"customer-7") for _ in range(50)} == {
        (murmur2(b"customer-7") & 0x7FFFFFFF) % 6
    }
    assert len({chosen.choose("t", b"%d" % each) for each in range(100)}) == 6


def test_records_without_a_key_go_in_runs_to_all_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "RUN_S", 3600.0)
    chosen = Partitions(six)
    where = [chosen.choose("t", None) for _ in range(6 * RUN_RECORDS)]
    changes = sum(first != second for first, second in itertools.pairwise(where))
    assert (len(set(where)), changes) == (6, 5)


def test_a_step_of_a_run_goes_where_its_records_would_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "RUN_S", 3600.0)
    monkeypatch.setattr(random, "randrange", lambda _count: 3)
    by_steps, one_by_one = Partitions(six), Partitions(six)
    for _ in range(3 * RUN_RECORDS // STEP_RECORDS):
        assert {by_steps.go_on("t")} == {one_by_one.choose("t", None) for _ in range(STEP_RECORDS)}


def test_a_slow_stream_is_spread_too() -> None:
    chosen = Partitions(six)
    where = set()
    for _ in range(6):
        where |= {chosen.choose("t", None) for _ in range(STEP_RECORDS)}
        time.sleep(2 * RUN_S)
    assert len(where) == 6


def test_a_topic_that_grows_is_noticed_when_it_is_asked_for_again() -> None:
    counts = iter([2, 4])
    chosen = Partitions(lambda _topic, _timeout_s: next(counts))
    assert chosen.check("t", 1) == 1
    assert chosen.check("t", 3) == 3
    counts = iter([4])
    with pytest.raises(UsageError, match="t has no partition 9: it has 0 to 3"):
        chosen.check("t", 9)


def test_an_outage_is_bridged_by_what_an_earlier_producer_knew(tmp_path: Path) -> None:
    before = Partitions(six, tmp_path).choose("t", b"key")
    assert Partitions(away, tmp_path).choose("t", b"key") == before
    with pytest.raises(Unreachable, match="how many partitions other has is not known"):
        Partitions(away, tmp_path).choose("other", b"key")


def test_a_spoilt_memory_is_as_good_as_none(tmp_path: Path) -> None:
    for spoilt in ("", "[]", '{"t": "x"}', '{"t": 0}'):
        (tmp_path / partitions.MEMORY_FILE).write_text(spoilt)
        with pytest.raises(Unreachable):
            Partitions(away, tmp_path).choose("t", None)


def test_refreshing_while_the_cluster_is_away_changes_nothing() -> None:
    answers = [6]

    def ask(_topic: str, _timeout_s: float) -> int:
        if not answers:
            raise Unreachable("away")
        return answers.pop()

    chosen = Partitions(ask)
    chosen.choose("t", None)
    chosen.refresh_all()
    assert chosen.choose("t", b"key") < 6


def test_a_disk_that_cannot_remember_a_topic_refuses_no_record(tmp_path: Path) -> None:
    assert Partitions(six, tmp_path / "gone").choose("orders", b"key") in range(6)
