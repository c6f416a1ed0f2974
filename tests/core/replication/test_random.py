"""Random faults from a seed: nothing acknowledged with acks=all is lost, and replicas agree (B3, D3, D4)."""

from __future__ import annotations

from random import Random

import pytest

from tests.core.cluster_harness import Answer, ClusterWorld
from tests.core.harness import batch
from tests.core.replication.scenes import break_disk, has_broken_disk

OPERATIONS = 120


class Run:
    """A cluster under random faults, and what must hold after every step of it."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.world = ClusterWorld(
            3,
            seed=seed,
            replica_lag_time_max_ms="400",
            broker_session_timeout_ms="600",
            broker_heartbeat_interval_ms="100",
            replica_fetch_backoff_ms="30",
        )
        self.world.network.latency_ms = lambda: self.random.choice((0, 1, 1, 2, 10))
        self.world.journal.latency_ms = lambda: self.random.choice((0, 1, 5, 30))
        self.world.create_topic("t", min_insync_replicas="2")
        self.world.run(100)
        self.sent: list[tuple[bytes, Answer]] = []
        self.watermarks: dict[tuple[int, int, int], int] = {}
        self.world.on_step = self.check_watermark

    def check_watermark(self, node_id: int) -> None:
        """HW never goes back within an epoch (14)."""
        partition = self.world.node(node_id).partitions.get(("t", 0))
        if partition is None or not partition.is_leader:
            return
        key = (node_id, self.world.hosts[node_id].life, partition.leader_epoch)
        assert partition.high_watermark >= self.watermarks.get(key, 0)
        self.watermarks[key] = partition.high_watermark

    def check_agreement(self) -> None:
        """Logs are equal below HW."""
        alive = [host.node_id for host in self.world.hosts.values() if host.alive]
        replicas = [self.world.partition(node_id) for node_id in alive]
        shared = min((replica.high_watermark for replica in replicas), default=0)
        contents = [self.world.values(node_id, below=shared) for node_id in alive]
        assert all(content == contents[0] for content in contents)

    def produce(self) -> None:
        value = f"v{len(self.sent)}".encode()
        for host in self.world.hosts.values():
            if host.alive and not host.paused and host.node.serving:
                partition = host.node.partitions.get(("t", 0))
                if partition is not None and partition.is_leader:
                    answer = self.world.produce(host.node_id, "t", batch(value), timeout_ms=400)
                    self.sent.append((value, answer))
                    value += b"'"

    def disturb(self) -> None:
        world, node_id = self.world, self.random.choice((1, 2, 3))
        host = world.hosts[node_id]
        all_well = all(other.alive for other in world.hosts.values()) and len(world.assignment().isr) == 3
        match self.random.choice(
            ("crash", "start", "start", "cut", "heal", "elect", "power", "pause", "resume", "disk")
        ):
            case "crash" if host.alive:
                world.crash(node_id)
            case "power" if host.alive and all_well and not has_broken_disk(world, node_id):
                world.power_cut(node_id)
                world.start(node_id, keeps_all=False)
            case "start" if not host.alive:
                world.start(node_id)
            case "cut":
                world.cut(node_id, node_id % 3 + 1)
            case "heal":
                world.heal()
            case "elect" if node_id in world.assignment().isr:
                world.elect(node_id)
            case "pause" if host.alive:
                world.pause(node_id)
            case "resume" if host.paused:
                world.resume(node_id)
            case "disk" if host.alive:
                break_disk(world, node_id)

    def recover(self) -> None:
        world = self.world
        world.heal()
        for host in world.hosts.values():
            if host.paused:
                world.resume(host.node_id)
            if not host.alive or has_broken_disk(world, host.node_id):
                world.restart(host.node_id)

        def settled() -> bool:
            replicas = [world.partition(node_id) for node_id in world.hosts]
            ends = {end for each in replicas for end in (each.log.end_offset, each.high_watermark)}
            return len(world.assignment().isr) == 3 and len(ends) == 1

        world.run_until(settled, 30_000)
        world.run(1500)


@pytest.mark.parametrize("seed", range(36))
def test_nothing_acknowledged_is_lost(seed: int) -> None:
    run = Run(seed)
    for _ in range(OPERATIONS):
        for _ in range(run.random.randrange(4)):
            run.produce()
        if run.random.random() < 0.3:
            run.disturb()
        run.world.run(run.random.choice((0, 1, 5, 20, 100, 700)))
        run.check_agreement()
    run.recover()
    run.check_agreement()
    acknowledged = [value for value, answer in run.sent if answer.done and not answer.partition.error]
    for node_id in run.world.hosts:
        held = run.world.values(node_id)
        assert [value for value in acknowledged if value not in held] == []
        assert held == run.world.values(1)
        assert run.world.partition(node_id).high_watermark == run.world.partition(node_id).log.end_offset
    run.produce()
    run.world.run(200)
    assert run.sent[-1][1].partition.error == 0  # it serves again
