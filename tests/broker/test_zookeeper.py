"""ZooKeeper's own ways to fail, and three brokers that agree through it: nothing acknowledged is lost."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from gapless.broker.coordination.blobs import PART_BYTES
from gapless.broker.coordination.owner import Owner
from gapless.broker.coordination.port import CannotCoordinate, JournalFailed, JournalMoved
from gapless.core.records import ConfigSet, MetadataRecord, ProducerIdsReserved, to_json
from gapless.errors import UsageError
from gapless.testing.processes import free_row_of_ports
from gapless.testing.zookeeper import ZooKeeper
from tests.broker.cluster import Member, Members
from tests.broker.process import up, wait_until
from tests.broker.test_cluster_failover import SETTINGS, Writer, create, new_leader, read_all
from tests.broker.test_cluster_processes import sees, supervised

SESSION_TIMEOUT_S = 10.0


@pytest.fixture
def place(zookeeper: ZooKeeper) -> str:
    return zookeeper.url(uuid4().hex)


@contextlib.contextmanager
def meeting(place: str, node_id: int | None = None) -> Iterator[Any]:
    """Access to a place; with a session if there is a number."""
    from gapless.broker.coordination.zookeeper import ZooKeeperCoordination

    with contextlib.closing(ZooKeeperCoordination(place, SESSION_TIMEOUT_S)) as coordination:
        if node_id is not None:
            coordination.claim(node_id)
        yield coordination


@contextlib.contextmanager
def raw_client(zookeeper: ZooKeeper) -> Iterator[Any]:
    from kazoo.client import KazooClient

    client = KazooClient(zookeeper.address)
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()


# ---------------------------------------------------------------------------------------------- the journal


def large(number: int = 0) -> list[MetadataRecord]:
    """A change that no single node can hold, however it is compressed."""
    return [ConfigSet(2, f"t{number}", "a", os.urandom(PART_BYTES).hex()) for _ in range(3)]


def test_a_change_that_is_too_large_for_a_node_is_one_change_all_the_same(
    place: str, zookeeper: ZooKeeper
) -> None:
    parts = f"/{place.rpartition('/')[2]}/parts"
    with meeting(place, 1) as one, meeting(place, 2) as two, raw_client(zookeeper) as client:
        records = large()
        assert one.append(0, records) == 1
        assert two.read(0) == (1, records)
        kept = sorted(client.get_children(parts))
        assert len(kept) == 4
        with pytest.raises(JournalMoved):
            two.append(0, large())
        assert sorted(client.get_children(parts)) == kept, "who has lost leaves nothing behind"


def test_a_large_snapshot_replaces_the_one_before_and_the_changes(
    place: str, zookeeper: ZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = f"/{place.rpartition('/')[2]}"
    monkeypatch.setattr("gapless.broker.coordination.zookeeper.KEPT_CHANGES", 2)
    monkeypatch.setattr("gapless.broker.coordination.zookeeper.COMPACT_AFTER_CHANGES", 10)
    with meeting(place, 1) as one, raw_client(zookeeper) as client:
        snapshot = large()
        for version in range(30):
            one.append(version, large() if version == 3 else [ProducerIdsReserved(version)])
            if version % 10 == 9:
                snapshot = large(version)
                one.compact(version + 1, snapshot)
        with meeting(place, 2) as two:
            assert two.read(0) == (30, snapshot)
        assert len(client.get_children(f"{root}/parts")) == 4
        assert sorted(client.get_children(f"{root}/journal")) == ["0000000029", "0000000030"]


def test_each_change_is_written_once_though_zookeeper_dies_in_between(
    place: str, zookeeper: ZooKeeper
) -> None:
    """Whether a write has happened that was not answered is found out, not guessed."""
    changes = 300
    with meeting(place, 1) as one:

        def write() -> None:
            for version in range(changes):
                one.append(version, [ProducerIdsReserved(version)])

        writer = threading.Thread(target=write)
        writer.start()
        for _ in range(2):
            zookeeper.kill()
            zookeeper.start()
        writer.join()
        assert one.read(0) == (changes, [ProducerIdsReserved(version) for version in range(changes)])


def test_a_damaged_change_is_named(place: str, zookeeper: ZooKeeper) -> None:
    with meeting(place, 1) as one, raw_client(zookeeper) as client:
        one.append(0, [ProducerIdsReserved(1)])
        client.set(f"/{place.rpartition('/')[2]}/journal/0000000001", b"{}\nthis is no change")
        with pytest.raises(JournalFailed, match=f"{place} is damaged"):
            one.read(0)


# ------------------------------------------------------------------------------------------------- sessions


def test_a_process_is_known_by_more_than_its_number() -> None:
    me = Owner.me()
    assert me.is_here()
    assert not me.is_gone()
    assert me._replace(started="1").is_gone()  # the number was given to another
    assert Owner.from_bytes(me.to_bytes()) == me
    for stranger in (me._replace(machine="another", pid=2**22 - 1), Owner.from_bytes(b"?")):
        assert not stranger.is_here()
        assert not stranger.is_gone()
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert me._replace(pid=child.pid).is_gone()  # ended, and not yet asked how
    child.wait()
    assert me._replace(pid=child.pid).is_gone()


LIVE = """
import sys
from gapless.broker.coordination.zookeeper import ZooKeeperCoordination
from gapless.broker.coordination.port import JournalFailed
coordination = ZooKeeperCoordination(sys.argv[1], 2.0)
coordination.claim(2)
print("there", flush=True)
sys.stdin.readline()
try:
    coordination.append(0, [])
except JournalFailed as error:
    print(error, flush=True)
"""


def test_who_has_hung_for_too_long_has_lost_its_session_and_writes_nothing(place: str) -> None:
    command = [sys.executable, "-c", LIVE, place]
    with (
        meeting(place, 1) as one,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        one.read(0)
        assert not one.is_dead(2)
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: one.read(0) == (0, []) and one.is_dead(2), "its session ends")
        with meeting(place, 2):  # another may be broker 2 now
            process.send_signal(signal.SIGCONT)
            process.stdin.write("\n")
            process.stdin.flush()
            assert "the session of broker 2" in process.stdout.readline()
        assert one.read(0) == (0, [])


ELSEWHERE = """
import sys
from gapless.broker.coordination import owner
from gapless.broker.coordination.zookeeper import ZooKeeperCoordination
owner._machine = lambda: "another machine"
ZooKeeperCoordination(sys.argv[1], 2.0).claim(2)
print("there", flush=True)
sys.stdin.readline()
"""


def test_a_process_of_another_machine_is_dead_when_its_session_has_ended(place: str) -> None:
    command = [sys.executable, "-c", ELSEWHERE, place]
    with (
        meeting(place, 1) as one,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process,
    ):
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        process.kill()
        process.wait()
        one.read(0)
        assert not one.is_dead(2), "who could know that from here?"
        with meeting(place, 2):  # waits for the end of the session
            one.read(0)
            assert not one.is_dead(2)
        wait_until(lambda: one.is_dead(2), "its end is seen")


# ------------------------------------------------------------------------------------------ a user's mistakes


@pytest.mark.zookeeper
def test_a_zookeeper_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gapless.broker.coordination.zookeeper_session.CONNECT_TIMEOUT_S", 0.2)
    with (
        pytest.raises(CannotCoordinate, match=r"no ZooKeeper answers at 127\.0\.0\.1:1 "),
        meeting("zookeeper://127.0.0.1:1/x"),
    ):
        pass


def test_a_path_that_must_not_be_written_is_named(place: str, zookeeper: ZooKeeper) -> None:
    from kazoo.security import make_acl

    path = f"/{place.rpartition('/')[2]}"
    with raw_client(zookeeper) as client:
        client.create(path, acl=[make_acl("world", "anyone", read=True)])
    with pytest.raises(CannotCoordinate, match=f"does not let us write to {path}"), meeting(place):
        pass


@pytest.mark.parametrize("url", ["zookeeper://h", "zookeeper:///p", "zk://h/p", "zookeeper://h:x/p"])
@pytest.mark.zookeeper
def test_what_is_no_address_is_refused(url: str) -> None:
    from gapless.broker.coordination.zookeeper_session import parse_url

    with pytest.raises(UsageError, match=url):
        parse_url(url)
    assert parse_url("zookeeper://a,b:99/p/q/") == ("a:2181,b:99", "/p/q")


# ------------------------------------------------------------------------------------------------- a cluster


class FarMember(Member):
    """A broker with a folder of its own, as on a machine of its own."""

    def __init__(self, place: str, data_dir: Path, node_id: int, config: Mapping[str, str]) -> None:
        super().__init__(data_dir / f"host-{node_id}", node_id, 3, config)
        self.place = place

    def _options(self) -> list[str | Path]:
        own = ["--join", self.place, "--node-id", str(self.node_id), "--cluster-size", "3"]
        return [*own, *super(Member, self)._options()]


class FarMembers(Members):
    """Brokers whose journal is in ZooKeeper."""

    def __init__(self, place: str, data_dir: Path) -> None:
        numbers = (1, 2, 3)
        super().__init__(data_dir, {each: FarMember(place, data_dir, each, SETTINGS) for each in numbers})
        self.place = place

    def journal(self, kind: str, after_version: int = 0) -> list[dict[str, Any]]:
        with meeting(self.place) as coordination:
            _, records = coordination.read(after_version)
        return [each for each in map(to_json, records) if each["kind"] == kind]


@pytest.fixture
def cluster(place: str, tmp_path: Path) -> Iterator[FarMembers]:
    members = FarMembers(place, tmp_path)
    with contextlib.ExitStack() as held:
        for member in members:
            held.callback(member.close)
        members.start_all()
        yield members


def test_brokers_are_watched_over_brought_back_and_joined(place: str, tmp_path: Path) -> None:
    port = str(free_row_of_ports(2))
    with supervised(tmp_path, "--brokers", "2", "--port", port, "--coordination", place) as cluster:
        os.kill(cluster.children()[1], signal.SIGKILL)
        wait_until(lambda: "bring it back with: gapless" in cluster.said(), "it is reported", cluster.said)
        revival = cluster.said().partition("bring it back with: gapless ")[2].splitlines()[0].split()
        new = ["up", "--join", place, "--data", str(tmp_path / "another"), "--port", "0"]
        commands = [[sys.executable, "-m", "gapless", *arguments] for arguments in (revival, new)]
        with contextlib.ExitStack() as started:
            for command in commands:
                process = started.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
                started.callback(process.terminate)
                assert process.stdout is not None
                assert process.stdout.readline().startswith("ready: ")
            for address in cluster.addresses:
                wait_until(partial(sees, address, 1, 2, 3), "all are there", cluster.said)
        assert (tmp_path / "another" / "broker-3").is_dir()


@pytest.mark.parametrize(
    "options",
    [
        ("--coordination", "zookeeper://h/p", "--join", "zookeeper://h/p"),
        ("--coordination", "zookeeper://h/p", "--join", "folder"),
        ("--coordination", "http://h/p"),
        ("--join", "zookeeper://h"),
    ],
)
@pytest.mark.zookeeper
def test_options_that_make_no_sense_are_refused(tmp_path: Path, options: tuple[str, ...]) -> None:
    result = up("--port", "0", "--data", tmp_path / "data", *options)
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "data").exists()


def test_a_killed_leader_costs_nothing_and_its_number_is_free_at_once(cluster: FarMembers) -> None:
    """B3, D7 with ZooKeeper."""
    create(cluster, "t", 2)
    with Writer(cluster, "t") as writer:
        cluster[2].kill()
        assert new_leader(cluster, "t", 2) in (1, 3)
        writer.wait_for_more()
        cluster[2].start()
        cluster.wait_for("t", isr={1, 2, 3})
        writer.wait_for_more()
    assert read_all(cluster, "t", len(writer.acknowledged)) == writer.acknowledged
    assert not list(cluster.data_dir.glob("**/metadata.sqlite"))


def test_brokers_serve_on_while_zookeeper_is_away_and_agree_when_it_is_back(
    cluster: FarMembers, zookeeper: ZooKeeper
) -> None:
    create(cluster, "t", 1)
    pids = [member.pid for member in cluster]
    with Writer(cluster, "t") as writer:
        zookeeper.kill()
        for member in cluster:
            member.wait_until_said("serving on until it is back")
        writer.wait_for_more(100)
        zookeeper.start()
        create(cluster, "t2", 2)
        assert [member.pid for member in cluster if member.running] == pids
        cluster[1].kill()
        new_leader(cluster, "t", 1)
        writer.wait_for_more()
    assert read_all(cluster, "t", len(writer.acknowledged)) == writer.acknowledged


def test_a_broker_that_zookeeper_has_given_up_ends_and_can_come_back(cluster: FarMembers) -> None:
    create(cluster, "t", 3)
    with Writer(cluster, "t") as writer:
        cluster[3].pause()
        new_leader(cluster, "t", 3)
        writer.wait_for_more()
        with meeting(cluster.place) as coordination:
            wait_until(lambda: coordination.read(0) and coordination.is_dead(3), "its session ends")
        cluster[3].resume()
        wait_until(lambda: not cluster[3].running, "it ends", cluster.last_words)
        assert "the session of broker 3" in cluster[3].last_words()
        cluster[3].start()
        cluster.wait_for("t", isr={1, 2, 3})
    assert read_all(cluster, "t", len(writer.acknowledged)) == writer.acknowledged


def test_a_broker_stops_when_told_though_zookeeper_is_away(cluster: FarMembers, zookeeper: ZooKeeper) -> None:
    zookeeper.kill()
    cluster[1].wait_until_said("serving on until it is back")
    assert cluster[1].stop_and_tell() == 0
    zookeeper.start()
    cluster[1].start()
    wait_until(cluster.all_know_each_other, "all are there", cluster.last_words)
