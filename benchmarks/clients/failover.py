"""The gap in writes when a leader is killed: a steady stream, a SIGKILL, and the time until it flows again.

Which broker leads is asked on a connection of its own, so that the time until there is a new leader and the
time that the producer takes to find it can be told apart.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from itertools import pairwise

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient

from benchmarks.clients.jobs import KillLeader
from benchmarks.clients.producing import LoadFailed, check_count

# What a careful user chooses to find a new leader soon; the rest are librdkafka's defaults. The first one
# matters most: as long as the dead leader is the one that brokers name, it is when librdkafka asks again.
CAREFUL: dict[str, str | int] = {
    "topic.metadata.refresh.interval.ms": 100,
    "topic.metadata.refresh.fast.interval.ms": 10,
    "retry.backoff.ms": 10,
    "retry.backoff.max.ms": 50,
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 50,
}
ASK_EVERY_S = 0.005
"""How exactly the time of an election is known."""
_PATIENCE_S = 60.0
_VALUE = b"x" * 100


class _Stream:
    """Records at a steady pace, and when each was acknowledged. Their order is that of the partition."""

    def __init__(self, job: KillLeader) -> None:
        self._topic = job.topic
        self._every_s = 1 / job.records_per_s
        self._next_s = time.monotonic()
        self.sent = 0
        self.acked_at_s: list[float] = []
        self._producer = Producer(
            {
                "bootstrap.servers": job.bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "on_delivery": self._on_delivery,
                "log_level": 0,
                **CAREFUL,
            }
        )

    def run_until(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while not done():
            now_s = time.monotonic()
            if now_s >= deadline:
                raise LoadFailed(f"writes did not go on within {_PATIENCE_S:.0f} s")
            if now_s >= self._next_s:
                self._producer.produce(self._topic, _VALUE, partition=0)
                self.sent += 1
                self._next_s += self._every_s
            self._producer.poll(max(0.0, self._next_s - time.monotonic()))

    def finish(self) -> None:
        """Wait for what is under way."""
        self._producer.flush(_PATIENCE_S)
        if len(self.acked_at_s) != self.sent:
            raise LoadFailed(f"{self.sent} records were sent, {len(self.acked_at_s)} acknowledged")

    def _on_delivery(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            raise LoadFailed(f"a record was refused: {error}")
        self.acked_at_s.append(time.monotonic())


class _Elections:
    """Asks who leads, from the kill on, until it is somebody else."""

    def __init__(self, job: KillLeader) -> None:
        self._job = job
        self._admin = AdminClient({"bootstrap.servers": job.bootstrap, "log_level": 0, **CAREFUL})
        self._leader()  # the connection stands before the kill
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._elected_at_s = 0.0

    def watch(self) -> None:
        self._thread.start()

    def elected_at_s(self) -> float:
        self._thread.join(_PATIENCE_S)
        if not self._elected_at_s:
            raise LoadFailed(f"no new leader was named within {_PATIENCE_S:.0f} s")
        return self._elected_at_s

    def _ask(self) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while self._leader() in (-1, self._job.leader_id) and time.monotonic() < deadline:
            time.sleep(ASK_EVERY_S)
        self._elected_at_s = time.monotonic()

    def _leader(self) -> int:
        """-1 if there is none, or if nobody answers."""
        try:
            found = self._admin.list_topics(self._job.topic, timeout=1.0)
        except KafkaException:
            return -1
        return found.topics[self._job.topic].partitions[0].leader


def run(job: KillLeader) -> dict[str, float]:
    """The stream is watched until all that was sent before the kill is old news."""
    stream, elections = _Stream(job), _Elections(job)
    stream.run_until(lambda: bool(stream.acked_at_s))
    began_s = time.monotonic()
    stream.run_until(lambda: time.monotonic() - began_s >= job.before_s)

    before, sent_before = len(stream.acked_at_s), stream.sent
    killed_at_s = time.monotonic()
    os.kill(job.leader_pid, signal.SIGKILL)
    elections.watch()
    stream.run_until(lambda: len(stream.acked_at_s) > sent_before)
    flowing_s = time.monotonic()
    stream.run_until(lambda: time.monotonic() - flowing_s >= job.after_s)
    stream.finish()
    check_count(job.bootstrap, job.topic, 1, stream.sent)

    around = stream.acked_at_s[before - 1 :]
    resumed_at_s = stream.acked_at_s[sent_before]  # of the first record that only a new leader can have had
    elected_at_s = min(elections.elected_at_s(), resumed_at_s)
    return {
        "gap_s": max(later - earlier for earlier, later in pairwise(around)),
        "elected_s": elected_at_s - killed_at_s,
        "client_s": max(resumed_at_s - elected_at_s, ASK_EVERY_S),
    }
