"""One fault under steady load, and what it takes.

Loss is measured in time: how many milliseconds of a partition's stream are gone. For that each simulated
record stands for a stretch of the stream: a whole batch while the fault strikes, some seconds of it before
and after, when nothing happens that finer batches would show, and days of it for the past in the log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import NamedTuple

from gapless.core.configs import Settings
from gapless.simulator.case import Case, TopicPlan
from gapless.simulator.history import Place, Write
from gapless.simulator.looking import records_of, values_in
from gapless.simulator.odds.configuration import BROKERS, Configuration
from gapless.simulator.odds.model import FLUSH_MS, PARTITIONS, PRODUCERS, SLOW_MS, SLOW_SHARE, Model
from gapless.simulator.odds.sender import Sender
from gapless.simulator.scene import SETTINGS, Scene

TOPIC = "t"
SPREAD_MS = 50
PAST_SLICES = 4
COARSER, COARSEST_MS = 4, 2_000
"""Later, a batch stands for a part of the time since the fault: one in so many, but not more than this."""
LOOK_EVERY_MS = 200
SETTLE_LIMIT_MS = 200_000

# What the simulator shortens elsewhere has its real length here: it decides how much is lost.
REAL_SETTINGS = {name: str(Settings({}).get(name)) for name in SETTINGS} | {
    "auto.create.topics.enable": "false"
}


class Taken(NamedTuple):
    """What a fault has taken, in milliseconds of stream, on average over all partitions."""

    lost_ms: float
    doubled_ms: float
    failed_ms: float
    """Given up by a producer that was told so: not lost, but not stored either."""


class Stage:
    """A cluster under load."""

    def __init__(self, configuration: Configuration, model: Model, seed: int) -> None:
        self.configuration = configuration
        self.model = model
        self.random = Random(seed)
        self.scene = Scene(_case(configuration, seed))
        self.world = self.scene.world
        self.world.on_step = lambda node_id: None  # nobody checks promises here: it is known that some break
        slow = Random(self.random.getrandbits(32))
        self.world.network.latency_ms = lambda: (
            model.latency_ms + (slow.randrange(SLOW_MS) if slow.random() < SLOW_SHARE else 0)
        )
        self.world.flush_latency_ms = lambda node_id: FLUSH_MS
        self._spread_leaders()
        self.senders = [self.new_sender(f"producer-{number}") for number in range(PRODUCERS)]
        self.promised: set[int] = set()
        """Values that the application takes for safe, whatever the producer was told."""
        self.lost_unsent_ms = 0.0
        """What a producer lost before it ever became a record."""
        self._stands_for_ms: dict[int, float] = {}
        self._sent_ms: dict[int, int] = {}
        """When a value was sent; of the past, when it would have been."""
        self._last_sent_ms: dict[Place, int] = {}
        self._silent: set[Place] = set()
        # Some batches and round trips, however long these are: until the past is written, until all is in
        # full swing, the moments of which the fault chooses one, and until the first of it is over.
        beat_ms = max(model.linger_ms, 4 * model.latency_ms)
        self._past_ms, self._warm_up_ms, self._moments_ms, self._fine_ms = (
            beats * beat_ms for beats in (40, 8, 4, 8)
        )

    def _spread_leaders(self) -> None:
        """Let each broker lead as many partitions as any other, whoever was there first."""
        self._settle()
        assignments = [self.scene.assignment(place) for place in self.scene.places()]
        self.world.append(
            *(
                replace(
                    each,
                    leader=each.replicas[0],
                    leader_epoch=each.leader_epoch + 1,
                    partition_epoch=each.partition_epoch + 1,
                )
                for each in assignments
            )
        )
        self.world.run(SPREAD_MS)

    # ------------------------------------------------------------------------------------------ playing

    def play(self, strike: Callable[[Stage], None], lasts_ms: int) -> Taken:
        """Let a fault strike, let all be well again, and count."""
        self._write_past()
        self.world.run(self._past_ms)
        strikes_after_ms = self._warm_up_ms + self.random.randrange(self._moments_ms)
        fine_ms = strikes_after_ms + self._fine_ms
        start_ms = self.world.now_ms
        for place in self.scene.places():
            self._last_sent_ms[place] = start_ms
            self._plan(place, start_ms, fine_ms, lasts_ms)
        self.world.after(strikes_after_ms, lambda: strike(self))
        self.world.run(fine_ms + lasts_ms)
        self._settle()
        return self._count()

    def _write_past(self) -> None:
        """Put into the log what it holds already: the last seconds in slices, the rest as one record."""
        model, now_ms = self.model, self.world.now_ms + self._past_ms
        recent_ms = min(model.writeback_ms, model.retention_ms)
        slice_ms = recent_ms / PAST_SLICES
        past = [(slice_ms, now_ms - round((turn + 0.5) * slice_ms)) for turn in reversed(range(PAST_SLICES))]
        if model.retention_ms > recent_ms:
            past.insert(0, (model.retention_ms - recent_ms, now_ms - model.retention_ms))
        for place in self.scene.places():
            for stands_for_ms, sent_ms in past:
                self._send(place, stands_for_ms, sent_ms)

    def _plan(self, place: Place, start_ms: int, fine_ms: int, lasts_ms: int) -> None:
        linger_ms = self.model.linger_ms
        phase_ms = (place[1] * linger_ms) // PARTITIONS + self.random.randrange(linger_ms)
        at = self.world.agenda.at
        for due_ms in range(start_ms + phase_ms % linger_ms, start_ms + fine_ms, linger_ms):
            at(due_ms, lambda: self._send(place, linger_ms, self.world.now_ms))
        for after_ms, stands_for_ms in _coarser(self._fine_ms, lasts_ms):
            due_ms = start_ms + fine_ms + after_ms
            at(due_ms, lambda ms=stands_for_ms: self._send(place, ms, self.world.now_ms))  # type: ignore[misc]

    def _send(self, place: Place, stands_for_ms: float, sent_ms: int) -> None:
        if place in self._silent:
            return
        value = len(self.scene.history.writes)
        self._stands_for_ms[value] = stands_for_ms
        self._sent_ms[value] = sent_ms
        self._last_sent_ms[place] = sent_ms
        self.sender(place).send(place, 1)

    def _settle(self) -> None:
        """Let time pass until all is well."""
        end_ms = self.world.now_ms + SETTLE_LIMIT_MS
        while any(self.scene.what_is_left()):
            if self.world.now_ms > end_ms:
                raise AssertionError(f"stuck: {'; '.join(self.scene.what_is_left())}")
            self.world.run(LOOK_EVERY_MS)

    # ----------------------------------------------------------------------------------------- counting

    def _count(self) -> Taken:
        lost_ms, doubled_ms, failed_ms = self.lost_unsent_ms, 0.0, 0.0
        copies = Counter(value for place in self.scene.places() for value in values_in(self.scene, place))
        for value, write in self.scene.history.writes.items():
            stands_for_ms, stored = self._stands_for_ms[value], copies[value]
            if stored:
                doubled_ms += (stored - 1) * stands_for_ms
            elif write.acknowledged or write.acks == 0 or value in self.promised:
                lost_ms += stands_for_ms
            else:
                failed_ms += stands_for_ms
        return Taken(lost_ms / PARTITIONS, doubled_ms / PARTITIONS, failed_ms / PARTITIONS)

    # --------------------------------------------------------------------------------- for those who strike

    def new_sender(self, name: str) -> Sender:
        """A producer process."""
        configuration = self.configuration
        sender = Sender(self.scene, name, acks=configuration.acks.code, idempotent=configuration.idempotent)
        self.scene.clients[name] = sender
        return sender

    def sender(self, place: Place) -> Sender:
        """Who writes to a partition: each producer to one of the two that a broker leads."""
        return self.senders[place[1] // BROKERS % PRODUCERS]

    def places_of(self, sender: Sender) -> Iterator[Place]:
        """All that a producer writes to."""
        return (place for place in self.scene.places() if self.sender(place) is sender)

    def silence(self, place: Place) -> float:
        """No more records come for a partition; tells what was waiting to become a batch, in milliseconds."""
        self._silent.add(place)
        return max(0.0, self.world.now_ms - self._last_sent_ms[place])

    def speak(self, place: Place) -> None:
        """Records come again."""
        self._silent.discard(place)

    def unacknowledged(self, place: Place) -> list[Write]:
        """What was sent and not answered."""
        writes = self.scene.history.writes.values()
        return [write for write in writes if write.place == place and not write.acknowledged]

    def some_broker(self) -> int:
        """A number by chance."""
        return self.random.choice(list(self.world.hosts))

    def cut_off(self, broker: int, *, but: tuple[int, ...] = ()) -> Callable[[], None]:
        """Cut a broker off from everybody but some; call the result to mend it."""
        others = [*self.world.hosts, *(client.number for client in self.scene.clients.values())]
        ways = [(broker, other) for other in others if other != broker and other not in but]
        for one, other in ways:
            self.world.cut(one, other)

        def mend() -> None:
            for one, other in ways:
                self.world.network.open(one, other)
                self.world.network.open(other, one)

        return mend

    def cut_power(self, broker: int) -> None:
        """End a machine: of each file only that is left which its system had come to write to disk."""
        host = self.world.hosts[broker]
        kept = {}
        for name, log in host.store.logs.items():
            written_ms = self.world.now_ms - self.random.randrange(self.model.writeback_ms)
            younger = (
                record.offset
                for record in records_of(log)
                if self._sent_ms.get(record.value, written_ms) > written_ms
            )
            kept[name] = min(younger, default=log.end_offset) if name[0] == TOPIC else log.end_offset
        self.world.power_cut(broker, noticed=False, kept=kept)


def _coarser(since_ms: int, lasts_ms: int) -> Iterator[tuple[int, int]]:
    """The longer ago the fault is, the longer the stretches of load: the middle of each, and its length."""
    begin_ms = 0
    while begin_ms < lasts_ms:
        length_ms = min((since_ms + begin_ms) // COARSER, COARSEST_MS, lasts_ms - begin_ms)
        yield begin_ms + length_ms // 2, length_ms
        begin_ms += length_ms


def _case(configuration: Configuration, seed: int) -> Case:
    topic = TopicPlan(TOPIC, PARTITIONS, configuration.replicas, configuration.topic_configs)
    return Case(seed, "odds", BROKERS, (topic,), (), (), settings=REAL_SETTINGS)
