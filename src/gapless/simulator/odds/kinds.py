"""What goes wrong: each kind strikes once, at a moment that the seed chooses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gapless.simulator.odds.configuration import BROKERS, Acks
from gapless.simulator.odds.model import PRODUCERS, REBOOT_MS, RESTART_MS, SESSION_ENDS_MS, SLOWER_REBOOT_MS
from gapless.simulator.odds.sender import Sender
from gapless.simulator.odds.stage import Stage

HOUR, DAY = 3_600.0, 86_400.0
YEAR = 365.25 * DAY
AWAY_MS = 10_000
"""How long a leader has been alone when it ends, too."""
SHORTEST_CUT_MS, LONGEST_CUT_MS = 1_000, 30_000


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault."""

    name: str
    meaning: str
    each: str
    """What has this fault once in `mtbf_s`."""
    count: int
    """How many of these the simulated cluster has for each that is struck."""
    mtbf_s: float
    """Once in so many seconds, unless somebody knows better."""
    lasts_ms: int
    """How long load goes on after it."""
    strike: Callable[[Stage], None]


KINDS: dict[str, Kind] = {}


def kind(
    name: str, meaning: str, *, each: str, count: int, mtbf_s: float, lasts_ms: int
) -> Callable[[Callable[[Stage], None]], Callable[[Stage], None]]:
    """Register a kind of fault."""

    def register(strike: Callable[[Stage], None]) -> Callable[[Stage], None]:
        KINDS[name] = Kind(name, meaning, each, count, mtbf_s, lasts_ms, strike)
        return strike

    return register


@kind(
    "crash",
    "a broker's process is killed; its page cache stays",
    each="broker",
    count=BROKERS,
    mtbf_s=30 * DAY,
    lasts_ms=3_000,
)
def crash(stage: Stage) -> None:
    """See its meaning."""
    broker = stage.some_broker()
    stage.world.crash(broker)
    stage.world.after(RESTART_MS, lambda: _start(stage, broker))


@kind(
    "power",
    "a machine loses its power: what its system had not written to disk is gone",
    each="machine",
    count=BROKERS,
    mtbf_s=YEAR,
    lasts_ms=REBOOT_MS + SLOWER_REBOOT_MS + 2_000,
)
def power(stage: Stage) -> None:
    """See its meaning."""
    _machine_ends(stage, stage.some_broker(), stage.cut_power)


@kind(
    "rack",
    "all machines lose their power at once, and come back one by one",
    each="cluster",
    count=1,
    mtbf_s=5 * YEAR,
    lasts_ms=REBOOT_MS + SLOWER_REBOOT_MS + 2_000,
)
def rack(stage: Stage) -> None:
    """See its meaning."""
    for broker in stage.world.hosts:
        _machine_ends(stage, broker, stage.cut_power)


@kind(
    "disk",
    "a machine ends with its disk, and comes back with an empty one",
    each="machine",
    count=BROKERS,
    mtbf_s=50 * YEAR,
    lasts_ms=REBOOT_MS + SLOWER_REBOOT_MS + 2_000,
)
def disk(stage: Stage) -> None:
    """See its meaning."""
    _machine_ends(stage, stage.some_broker(), lambda broker: stage.world.lose_disk(broker, noticed=False))


@kind(
    "reset",
    "a producer's connection with a broker breaks: requests and acknowledgements under way are gone",
    each="connection",
    count=1,
    mtbf_s=DAY,
    lasts_ms=2_000,
)
def reset(stage: Stage) -> None:
    """See its meaning. All break, each at a moment of its own: what one does is nothing to the others."""
    for sender in stage.senders:
        for broker in stage.world.hosts:
            ways = (sender.number, broker)
            stage.world.after(
                stage.random.randrange(2 * stage.model.linger_ms),
                lambda ways=ways: stage.world.network.reset(*ways),  # type: ignore[misc]
            )


@kind(
    "partition",
    "a broker is cut off from the others and from the coordination service, with half of the producers",
    each="broker",
    count=BROKERS,
    mtbf_s=YEAR,
    lasts_ms=LONGEST_CUT_MS + 2_000,
)
def partition(stage: Stage) -> None:
    """See its meaning. It lasts from one second to thirty; short ones are as likely as long ones."""
    world, broker = stage.world, stage.some_broker()
    near = stage.random.choice(stage.senders).number
    lasts_ms = round(SHORTEST_CUT_MS * (LONGEST_CUT_MS / SHORTEST_CUT_MS) ** stage.random.random())
    mend = stage.cut_off(broker, but=(near,))
    others = [other for other in world.hosts if other != broker]
    for other in others:
        world.cut(near, other)
    world.journal.held[broker] = True
    mended = False

    def give_up() -> None:
        if not mended:
            world.crash(broker)

    def end() -> None:
        nonlocal mended
        mended = True
        mend()
        for other in others:
            world.network.open(near, other)
            world.network.open(other, near)
        world.journal.release(broker)
        _start(stage, broker)

    world.after(SESSION_ENDS_MS, give_up)
    world.after(lasts_ms, end)


@kind(
    "producer",
    "a producer's process is killed, and starts again",
    each="producer",
    count=1,
    mtbf_s=30 * DAY,
    lasts_ms=RESTART_MS + 3_000,
)
def producer(stage: Stage) -> None:
    """See its meaning. All are killed: what one does is nothing to the others."""
    for number in range(PRODUCERS):
        _kill_producer(stage, number)


def _kill_producer(stage: Stage, number: int) -> None:
    """What it had not sent is gone with it; of what was not acknowledged nobody knows."""
    before = stage.senders[number]
    places = list(stage.places_of(before))
    before.stop()
    stage.world.network.ended(before.number)
    unsent_ms = sum(stage.silence(place) for place in places)
    trusting = stage.configuration.acks is Acks.NONE or not stage.model.resend
    if trusting:
        stage.lost_unsent_ms += unsent_ms
    under_way = {place: stage.unacknowledged(place) for place in places}

    def start_again() -> None:
        after: Sender = stage.new_sender(f"{before.name}'")
        stage.senders[number] = after
        for place in places:
            stage.speak(place)
            for write in under_way[place]:
                if trusting:
                    stage.promised.add(write.value)
                else:
                    after.send_batch(place, [write])

    stage.world.after(RESTART_MS, start_again)


@kind(
    "alone",
    "all followers are away, and after ten seconds alone the leader is killed; a follower is back first",
    each="cluster",
    count=1,
    mtbf_s=YEAR,
    lasts_ms=AWAY_MS + RESTART_MS,
)
def alone(stage: Stage) -> None:
    """See its meaning: what unclean elections are about."""
    _followers_then_leader(stage, stage.world.crash)


@kind(
    "alone-power",
    "the same, but the leader's machine loses its power",
    each="cluster",
    count=1,
    mtbf_s=10 * YEAR,
    lasts_ms=AWAY_MS + RESTART_MS,
)
def alone_power(stage: Stage) -> None:
    """See its meaning: what min.insync.replicas is about."""
    _followers_then_leader(stage, stage.cut_power)


def _followers_then_leader(stage: Stage, how: Callable[[int], None]) -> None:
    leader = stage.some_broker()
    followers = [broker for broker in stage.world.hosts if broker != leader]
    for follower in followers:
        stage.world.crash(follower)

    def end() -> None:
        _machine_ends(stage, leader, how)
        for follower in followers:
            stage.world.after(RESTART_MS, lambda follower=follower: _start(stage, follower))  # type: ignore[misc]

    stage.world.after(AWAY_MS, end)


def _machine_ends(stage: Stage, broker: int, how: Callable[[int], None]) -> None:
    """Nobody is told: others find out by its silence."""
    mend = stage.cut_off(broker)
    how(broker)

    def is_back() -> None:
        mend()
        stage.world.network.ended(broker)  # whoever still sends to the process that was hears it now
        _start(stage, broker)

    stage.world.after(REBOOT_MS + stage.random.randrange(SLOWER_REBOOT_MS), is_back)


def _start(stage: Stage, broker: int) -> None:
    if not stage.world.hosts[broker].alive:
        stage.world.start(broker)
