"""`gapless spool`: what a spool holds, whether it is intact, sending it, finding its lost position."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from gapless.audit.cluster import Cluster
from gapless.client.formats import identity_of
from gapless.client.spool import Spool
from tests.broker.process import wait_until
from tests.servers import retention_ms

from .conftest import Gapless, NewTopic

SOURCE = "till-7"


def fill(folder: Path, topic: str, count: int) -> None:
    with Spool(folder, SOURCE, segment_bytes=2000) as spool:
        for number in range(count):
            spool.append(topic, 0, b"%d" % number * 10, timestamp_ms=1_700_000_000_000 + number)


def values(bootstrap: str, topic: str) -> list[bytes]:
    """All that is committed in partition 0, in order, checking that each has its identity."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "look",
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    found: list[bytes] = []
    # Apache Kafka answers a commit before its markers are written.
    Cluster(bootstrap, {"bootstrap.servers": bootstrap}).settled_ends(topic)
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        while (message := consumer.poll(30)) is not None and message.error() is None:
            identity = identity_of(message.headers())  # type: ignore[arg-type]
            assert identity is not None
            assert (identity.source, identity.sequence) == (SOURCE, len(found))
            found.append(message.value() or b"")
    finally:
        consumer.close()
    return found


def positions(gapless: Gapless, group: str) -> list[int]:
    described = gapless("groups", "describe", group, "--json")
    return [each["committed"] for each in json.loads(described.out or "{}").get("partitions", [])]


def test_status_in_words_and_as_json_also_while_it_is_open(tmp_path: Path, run_gapless: Gapless) -> None:
    fill(tmp_path, "orders", 100)
    ran = run_gapless("spool", "status", str(tmp_path))
    assert ran.code == 0
    assert "unsent:      100 records, the oldest of 2023-11-14 22:13:20 UTC" in ran.out
    assert "in use:      no" in ran.out
    with Spool(tmp_path, SOURCE) as spool:
        spool.note_sent(40)
        seen = json.loads(run_gapless("spool", "status", str(tmp_path), "--json").out)
    assert (seen["source"], seen["sent"], seen["stored"], seen["unsent"]) == (SOURCE, 40, 100, 60)
    assert seen["pid"]
    assert seen["incarnation"] == spool.incarnation.hex()


def test_verify_says_what_is_damaged_and_exits_with_1(tmp_path: Path, run_gapless: Gapless) -> None:
    fill(tmp_path, "orders", 100)
    ran = run_gapless("spool", "verify", str(tmp_path))
    assert (ran.code, ran.out.startswith("all intact: 100 records")) == (0, True)
    path = min(tmp_path.glob("*.segment"))
    content = bytearray(path.read_bytes())
    content[300] ^= 1
    path.write_bytes(content)
    ran = run_gapless("spool", "verify", str(tmp_path))
    assert ran.code == 1
    assert f"{path} is damaged at byte" in ran.out
    found = json.loads(run_gapless("spool", "verify", str(tmp_path), "--json").out)
    assert len(found["problems"]) == 1


@pytest.mark.parametrize("command", ["status", "verify", "drain", "recover"])
def test_a_folder_that_is_no_spool_gives_one_line(command: str, tmp_path: Path, run_gapless: Gapless) -> None:
    ran = run_gapless("spool", command, str(tmp_path))
    assert (ran.code, ran.err) == (2, f"gapless: there is no spool in {tmp_path}\n")


def test_drain_refuses_what_would_lose_or_repeat(tmp_path: Path, run_gapless: Gapless) -> None:
    fill(tmp_path, "orders", 1)
    assert run_gapless("spool", "drain", str(tmp_path), "--semantics", "at-most-once").code == 2
    with Spool(tmp_path, SOURCE) as spool:
        spool.note_claimed()
    ran = run_gapless("spool", "drain", str(tmp_path), "--semantics", "at-least-once")
    assert (ran.code, "drained exactly-once" in ran.err) == (2, True)


@pytest.mark.parametrize("semantics", ["at-least-once", "exactly-once"])
def test_drain_sends_all_of_it_in_order(
    tmp_path: Path, gapless: Gapless, bootstrap: str, new_topic: NewTopic, semantics: str
) -> None:
    topic = new_topic()
    fill(tmp_path, topic, 300)
    ran = gapless("spool", "drain", str(tmp_path), "--semantics", semantics, "--timeout", "60")
    assert (ran.code, ran.out) == (0, f"sent 300 records of {SOURCE}\n"), ran.err
    assert values(bootstrap, topic) == [b"%d" % number * 10 for number in range(300)]
    seen = json.loads(gapless("spool", "status", str(tmp_path), "--json").out)
    assert (seen["unsent"], seen["claimed"]) == (0, semantics == "exactly-once")
    again = gapless("spool", "drain", str(tmp_path), "--timeout", "60")
    assert (again.code, again.out) == (0, f"sent 0 records of {SOURCE}\n"), again.err
    assert len(values(bootstrap, topic)) == 300


def test_the_clusters_keep_records_of_any_age(bootstrap: str, new_topic: NewTopic) -> None:
    """The spools of these tests have records of 2023."""
    assert retention_ms(bootstrap, new_topic()) == "-1"


@pytest.mark.slow_variants("apache")
def test_recover_finds_the_position_in_the_topics(
    tmp_path: Path, gapless: Gapless, bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic()
    fill(tmp_path, topic, 50)
    assert (
        gapless("spool", "drain", str(tmp_path), "--semantics", "exactly-once", "--timeout", "60").code == 0
    )
    with Spool(tmp_path, SOURCE) as spool:
        group = f"gapless.position.{SOURCE}.{spool.incarnation.hex()}"
        spool.append(topic, 0, b"later")
    # Apache Kafka answers a commit before its offsets count: the group would come back after its deletion.
    wait_until(lambda: positions(gapless, group) == [50], "the position is committed")
    (tmp_path / "hints").unlink()
    ran = gapless("groups", "delete", group, "--yes")
    assert ran.code == 0, ran.err
    lost = gapless("spool", "drain", str(tmp_path), "--timeout", "60")
    assert lost.code == 1
    assert "recover" in lost.err
    ran = gapless("spool", "recover", str(tmp_path))
    assert ran.code == 0, ran.err
    assert ran.out == (
        f"the position of {SOURCE} is 50 (the cluster had none); still to be sent: 1 records\n"
    )
    assert gapless("spool", "drain", str(tmp_path), "--timeout", "60").out == f"sent 1 records of {SOURCE}\n"
    assert len(values(bootstrap, topic)) == 51
