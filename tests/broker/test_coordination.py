"""What every implementation of the coordination port promises: one suite for all of them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from gapless.broker.coordination.filesystems import network_file_system
from gapless.broker.coordination.port import (
    COMPACT_AFTER_CHANGES,
    KEPT_CHANGES,
    Coordination,
    JournalFailed,
    JournalMoved,
    NodeIdInUse,
)
from gapless.broker.coordination.sqlite import SqliteCoordination
from gapless.core.records import (
    BrokerRegistered,
    ConfigSet,
    ControllerElected,
    MetadataRecord,
    PartitionChanged,
    ProducerIdsReserved,
    TopicCreated,
    TopicDeleted,
)
from gapless.testing.zookeeper import ZooKeeper
from tests.broker.process import wait_until
from tests.broker.raw import PATIENCE_S

ID = UUID(int=7, version=4)
SESSION_TIMEOUT_S = 10.0
Join = Callable[[int], Coordination]


@pytest.fixture(params=["sqlite", "zookeeper"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where brokers meet, as a child process is told it."""
    if request.param == "sqlite":
        return str(tmp_path)
    server: ZooKeeper = request.getfixturevalue("zookeeper")
    return server.url(uuid4().hex)


def connect(place: str) -> Coordination:
    """Access to a place, without a session."""
    if "://" not in place:
        return SqliteCoordination(Path(place))
    from gapless.broker.coordination.zookeeper import ZooKeeperCoordination

    return ZooKeeperCoordination(place, SESSION_TIMEOUT_S)


def meet(place: str, node_id: int) -> Coordination:
    """A broker's access to a place, its session begun."""
    coordination = connect(place)
    try:
        coordination.claim(node_id)
    except BaseException:
        coordination.close()
        raise
    return coordination


@pytest.fixture
def join(place: str) -> Iterator[Join]:
    """Makes brokers that leave with the test."""
    with contextlib.ExitStack() as joined:

        def enter(node_id: int) -> Coordination:
            coordination = meet(place, node_id)
            joined.callback(coordination.close)
            return coordination

        yield enter


def ids(number: int) -> list[MetadataRecord]:
    return [ProducerIdsReserved(number)]


# ---------------------------------------------------------------------------------------------- the journal


def test_what_was_appended_is_read_back_by_all_and_later(place: str, join: Join) -> None:
    one = meet(place, 1)
    records: list[MetadataRecord] = [
        TopicCreated("t", ID),
        PartitionChanged(ID, 0, 0, 3, (0, 1), (0,), 7, (1,), 0, (2,), (0,)),
        ConfigSet(2, "t", "a", None),
        BrokerRegistered(2, "h", 9092, 4, True),
        ControllerElected(2, 5),
    ]
    assert one.append(0, records) == 1
    assert one.append(1, [TopicDeleted(ID)]) == 2
    assert join(2).read(0) == (2, [*records, TopicDeleted(ID)])
    one.close()
    assert join(1).read(0) == (2, [*records, TopicDeleted(ID)])


def test_a_reader_gets_what_is_new(join: Join) -> None:
    one, two = join(1), join(2)
    assert two.read(0) == (0, [])
    one.append(0, ids(1))
    one.append(1, ids(2))
    assert two.read(1) == (2, ids(2))
    assert two.read(2) == (2, [])


def test_only_the_first_of_two_writers_wins(join: Join) -> None:
    one, two = join(1), join(2)
    one.append(0, ids(1000))
    with pytest.raises(JournalMoved):
        two.append(0, ids(2000))
    assert two.append(1, ids(2000)) == 2
    assert one.read(0) == (2, [*ids(1000), *ids(2000)])


def test_of_many_writers_each_version_has_one(join: Join) -> None:
    written: list[tuple[int, int]] = []

    def write(node_id: int, coordination: Coordination) -> None:
        for _ in range(20):
            while True:
                version, _ = coordination.read(0)
                with contextlib.suppress(JournalMoved):
                    written.append((coordination.append(version, ids(node_id)), node_id))
                    break

    threads = [threading.Thread(target=write, args=(number, join(number))) for number in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    version, records = join(4).read(0)
    assert version == 60
    assert [
        *enumerate((r.next_producer_id for r in records if isinstance(r, ProducerIdsReserved)), 1)
    ] == sorted(written)


def test_a_long_history_is_compacted_and_keeps_its_version(join: Join) -> None:
    one, behind = join(1), join(2)
    one.append(0, ids(0))
    one.compact(1, ids(99))  # not worth while
    assert one.read(0) == (1, ids(0))
    for version in range(1, COMPACT_AFTER_CHANGES):
        one.append(version, ids(version))
    one.compact(COMPACT_AFTER_CHANGES, ids(9))
    assert join(3).read(0) == (COMPACT_AFTER_CHANGES, ids(9))
    assert one.append(COMPACT_AFTER_CHANGES, ids(10)) == COMPACT_AFTER_CHANGES + 1
    assert join(4).read(0) == (COMPACT_AFTER_CHANGES + 1, [*ids(9), *ids(10)])
    # Who was in the middle reads on as if nothing had happened.
    assert behind.read(COMPACT_AFTER_CHANGES - 1) == (
        COMPACT_AFTER_CHANGES + 1,
        [*ids(COMPACT_AFTER_CHANGES - 1), *ids(10)],
    )


def test_who_was_away_for_too_long_is_told(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    assert KEPT_CHANGES > COMPACT_AFTER_CHANGES
    one, behind = join(1), join(2)
    monkeypatch.setattr(f"{type(one).__module__}.KEPT_CHANGES", 2)
    for version in range(COMPACT_AFTER_CHANGES + 1):
        one.append(version, ids(version))
    one.compact(COMPACT_AFTER_CHANGES, ids(9))
    with pytest.raises(JournalFailed, match="start it again"):
        behind.read(1)


def test_all_agree_on_the_id_of_the_cluster(join: Join) -> None:
    one = join(1)
    assert len(one.cluster_id) == 22
    assert one.cluster_id == one.cluster_id == join(2).cluster_id


# ------------------------------------------------------------------------------------------------- sessions


def test_a_number_belongs_to_one_process_at_a_time(place: str, join: Join) -> None:
    one = meet(place, 1)
    with pytest.raises(NodeIdInUse, match="broker 1"):
        meet(place, 1)
    one.close()
    join(1)


LIVE = """
import sys
from tests.broker.test_coordination import meet
meet(sys.argv[1], int(sys.argv[2])).append(0, [])
print("there", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def living(place: str, node_id: int) -> Iterator[subprocess.Popen[str]]:
    """Another process that has a broker's session."""
    command = [sys.executable, "-c", LIVE, place, str(node_id)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "there\n"
            yield process
        finally:
            process.kill()


def test_a_killed_process_is_dead_at_once_and_a_hung_one_is_not(place: str, join: Join) -> None:
    one = join(1)
    with living(place, 2) as process:
        one.read(0)
        assert not one.is_dead(2)
        os.kill(process.pid, signal.SIGSTOP)
        assert not one.is_dead(2)
        process.kill()
        process.wait()
        wait_until(lambda: one.is_dead(2), "it is seen, though nobody reads again")
    assert one.is_dead(3)  # that never was
    join(2)
    one.read(0)
    assert not one.is_dead(2)


# --------------------------------------------------------------------------------------------------- nudges


def test_a_change_and_an_end_are_seen_by_others_at_once(
    place: str, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def watch() -> None:
        one, two = join(1), meet(place, 2)
        monkeypatch.setattr(f"{type(one).__module__}.POLL_S", 1000.0)  # the slow look would see it, too
        nudges = asyncio.Event()
        loop = asyncio.get_running_loop()
        one.watch(loop, nudges.set)
        two.watch(loop, lambda: None)

        async def until(condition: Callable[[], bool]) -> None:
            async with asyncio.timeout(PATIENCE_S):
                nudges.clear()
                while not condition():
                    await nudges.wait()
                    nudges.clear()

        await until(lambda: one.read(0) == (0, []) and not one.is_dead(2))
        await asyncio.to_thread(two.append, 0, ids(1))
        two.announce()
        await until(lambda: one.read(0) == (1, ids(1)))
        await asyncio.to_thread(two.close)
        await until(lambda: one.is_dead(2))

    asyncio.run(watch())


# --------------------------------------------------------------------------------------------- SQLite alone


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "metadata.sqlite").write_bytes(b"this is no database" * 100)
    coordination = SqliteCoordination(tmp_path)
    with pytest.raises(JournalFailed, match=r"metadata\.sqlite"):
        coordination.read(0)
    coordination.close()


def test_a_long_path_does_not_keep_brokers_from_talking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("long" * 40)
    monkeypatch.setattr("gapless.broker.coordination.sqlite.POLL_S", 1000.0)

    async def watch() -> None:
        one, two = SqliteCoordination(folder), SqliteCoordination(folder)
        nudged = asyncio.Event()
        for node_id, each, moved in ((1, one, nudged.set), (2, two, lambda: None)):
            each.claim(node_id)
            each.watch(asyncio.get_running_loop(), moved)
        two.append(0, ids(1))
        two.announce()
        async with asyncio.timeout(PATIENCE_S):
            await nudged.wait()
        one.close()
        two.close()

    asyncio.run(watch())


def test_network_file_systems_are_recognised(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    point = str(tmp_path / "far away").replace(" ", "\\040")
    mounts.write_text(
        "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n"
        f"40 22 0:50 / {point} rw,relatime shared:2 master:3 - nfs4 server:/export rw\n"
        f"41 22 0:51 / {tmp_path}/near rw - tmpfs none rw\n"
    )
    for name in ("far away", "near", "far away too"):
        (tmp_path / name).mkdir()
    assert network_file_system(tmp_path / "far away", mounts) == "nfs4"
    assert network_file_system(tmp_path / "near", mounts) is None
    assert network_file_system(tmp_path / "far away too", mounts) is None
    assert network_file_system(tmp_path, tmp_path / "missing") is None
