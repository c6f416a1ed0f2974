"""Random lives of producers, zombies, crashes and slow disks: readers see whole transactions or nothing.

What is checked has Jepsen's names: no aborted read (G1a), no torn transaction, no lost or duplicated write.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from random import Random

import pytest

from gapless.core.contract import Request
from gapless.core.transactions.transaction import State
from gapless.wire.apis import ApiKey
from gapless.wire.errors import ErrorCode
from tests.core.transactions.actors import Transactor, known, make_world, read, stable

PLACES = [("t", 0), ("t", 1), ("u", 0), ("u", 1)]
STEPS = 250


@dataclass(slots=True)
class Attempt:
    """One transaction of one producer, as its client knows it."""

    values: dict[tuple[str, int], list[bytes]] = field(default_factory=dict)
    outcome: str = "open"
    """open, committed, aborted, or unknown if the answer was lost."""


class Client:
    """A producer that writes numbered values, and remembers what it was promised."""

    def __init__(self, life: Life, name: str, newer: bool) -> None:
        self.life = life
        self.transactor = Transactor(
            life.world, name, newer=newer, timeout_ms=life.random.choice([800, 60_000])
        )
        self.attempt: Attempt | None = None
        self.is_ready = False

    def act(self) -> None:
        random = self.life.random
        if not self.is_ready:
            self.life.world.hold_flushes = False
            self.life.world.finish_flushes()
            self.is_ready = self.transactor.init() == 0
        elif self.attempt is None or random.random() < 0.6:
            self.write()
        else:
            self.end(commit=random.random() < 0.6)

    def write(self) -> None:
        if self.attempt is None:
            self.attempt = Attempt()
            self.life.attempts.append(self.attempt)
        place = self.life.random.choice(PLACES)
        values = [self.life.new_value() for _ in range(self.life.random.randint(1, 3))]
        request = self.begin_write(place, values)
        if request is None or not self.settle(request) or self.transactor.sent(request):
            self.give_up()
            return
        self.attempt.values.setdefault(place, []).extend(values)

    def begin_write(self, place: tuple[str, int], values: list[bytes]) -> Request | None:
        world, transactor = self.life.world, self.transactor
        if not transactor.newer:
            adding = world.send(ApiKey.ADD_PARTITIONS_TO_TXN, 3, transactor.add_request(place))
            if not self.settle(adding):
                return None
            (topic,) = world.reply(adding).results_by_topic_v3_and_below
            if topic.results_by_partition[0].partition_error_code:
                return None
        return transactor.begin_send(place[0], *values, partition=place[1])

    def end(self, *, commit: bool) -> None:
        attempt, self.attempt = self.attempt, None
        if attempt is None:
            return
        attempt.outcome = "unknown"
        if self.life.random.random() < 0.4:
            self.life.world.hold_flushes = True
        body = self.transactor.end_request(commit=commit)
        request = self.life.world.send(ApiKey.END_TXN, self.transactor.versions["end"], body)
        if self.settle(request):
            error = self.transactor.ended(request)
            if error == 0:
                attempt.outcome = "committed" if commit else "aborted"
            elif error in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING):
                attempt.outcome = "aborted"
                self.is_ready = False
            else:
                self.is_ready = False
        else:
            self.is_ready = False

    def give_up(self) -> None:
        """Something went wrong: what was written so far must not be seen."""
        if self.attempt is not None:
            self.attempt.outcome = "aborted"
        self.attempt = None
        self.is_ready = False

    def settle(self, request: Request) -> bool:
        """Whether the answer came; slow disks make it wait, and sometimes it is lost."""
        world = self.life.world
        if not world.answered(request):
            chance = self.life.random.random()
            if chance < 0.15:
                self.life.crash()
            if chance < 0.3:
                return False
            world.hold_flushes = False
            world.finish_flushes()
            world.advance(200)
        return world.answered(request)


class Life:
    """A broker and its clients."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.is_strict = self.random.random() < 0.6
        """Whether nothing counts before it is on disk: then not even a power cut may lose anything."""
        self.world = make_world(**({"log_flush_interval_messages": "1"} if self.is_strict else {}))
        self.attempts: list[Attempt] = []
        self.numbers = 0
        self.clients = [Client(self, f"id-{n % 3}", newer=self.random.random() < 0.5) for n in range(5)]

    def new_value(self) -> bytes:
        self.numbers += 1
        return b"%d" % self.numbers

    def run(self) -> None:
        for step in range(STEPS):
            chance = self.random.random()
            if chance < 0.85:
                self.random.choice(self.clients).act()
            elif chance < 0.9:
                self.world.advance(self.random.randrange(1500))
            elif chance < 0.95:
                self.world.hold_flushes = self.random.random() < 0.7
            else:
                self.crash()
            if step % 8 == 0:
                self.check(finished=False)
        self.finish()
        self.check(finished=True)

    def crash(self) -> None:
        """The broker dies; what clients were waiting for is lost, what they had been told is not."""
        if self.is_strict and self.random.random() < 0.5:
            for flush in self.world.flushes:
                if self.random.random() < 0.5:
                    self.world.reach_disk(flush)
            self.world.power_cut()
        else:
            if self.random.random() < 0.3:
                self.world.node.save_producers()
            self.world.restart()
        self.world.hold_flushes = False
        self.world.finish_flushes()
        self.world.advance(0)

    def finish(self) -> None:
        self.world.hold_flushes = False
        self.world.finish_flushes()
        for client in self.clients:
            if client.attempt is not None:
                client.give_up()
        for name in range(3):
            assert Transactor(self.world, f"id-{name}", newer=True).init() == 0

    # --------------------------------------------------------------------------------------- promises

    def check(self, *, finished: bool) -> None:
        seen = {place: read(self.world, *place) for place in PLACES}
        for place, values in seen.items():
            assert len(values) == len(set(values)), f"{place} shows a value twice"
        for attempt in self.attempts:
            self.check_attempt(attempt, seen, finished)
        if finished:
            for place in PLACES:
                assert stable(self.world, *place) == self.world.partition(*place).high_watermark
            for name in range(3):
                transaction = known(self.world, f"id-{name}")
                assert transaction is not None
                assert transaction.state is State.EMPTY

    @staticmethod
    def check_attempt(attempt: Attempt, seen: dict[tuple[str, int], list[bytes]], finished: bool) -> None:
        shown = {
            place: [value for value in seen[place] if value in values]
            for place, values in attempt.values.items()
        }
        if attempt.outcome in ("aborted", "open"):
            assert not any(shown.values()), f"aborted read (G1a): {attempt}"
        if not finished:
            return
        if attempt.outcome == "committed":
            assert shown == attempt.values, f"lost write: {attempt}"
        elif attempt.outcome == "unknown":
            assert shown == attempt.values or not any(shown.values()), f"torn transaction: {attempt}"


@pytest.mark.parametrize("seed", range(25))
def test_readers_see_whole_transactions_or_nothing(seed: int) -> None:
    Life(seed).run()


def trace(seed: int) -> str:
    life = Life(seed)
    life.run()
    lines = [f"{now_ms} {re.sub(' at 0x[0-9a-f]+', '', line)}" for now_ms, line in life.world.trace]
    return "\n".join(lines)


def test_a_seed_replays_under_any_hash_seed() -> None:
    outputs = []
    for hash_seed in ("1", "2"):
        code = "import hashlib; from tests.core.transactions.test_random import trace;"
        code += "print(hashlib.sha256(trace(3).encode()).hexdigest())"
        environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
        )
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1]
