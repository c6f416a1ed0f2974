"""One broker's part in the cluster: it registers, watches over the others, and leaves in good order.

All that it decides is decided again on the newest image if the journal has moved on, so two brokers that
act at the same moment do no harm: the second finds that nothing is left to do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from gapless.core.changes import Change, Decision
from gapless.core.config_keys import BROKER, TOPIC
from gapless.core.config_tables import TOPIC_KEYS
from gapless.core.contract import BrokerDied, Started
from gapless.core.log import LogFailed
from gapless.core.membership.contact import Contact
from gapless.core.membership.decisions import (
    Arrival,
    Outcome,
    elect_leaderless,
    fence,
    prefer,
    register,
    take_control,
)
from gapless.core.membership.departures import Departures
from gapless.core.membership.elections import Policy
from gapless.core.membership.pause import Pause
from gapless.core.membership.reassignment import finish_all, is_finished
from gapless.core.records import (
    BrokerRegistered,
    BrokerRemoved,
    ConfigSet,
    ControllerElected,
    MetadataRecord,
    PartitionChanged,
)
from gapless.core.timers import Timer

if TYPE_CHECKING:
    from gapless.core.node import Node

STAND_IN_MS = 150
"""How much longer than its predecessor each next broker waits before it fences a dead one itself."""
MAX_LINES = 5
Configs = Mapping[tuple[int, str], Mapping[str, str]]


class Death(NamedTuple):
    """A life that is over for certain, and since when this broker knows."""

    epoch: int
    known_ms: int


class Duty(NamedTuple):
    """What a broker must do about the others: fence those that are gone (dead or hung), and take control."""

    gone: dict[int, str]
    takes_control: bool


class Membership:
    """Registration, liveness, control and departure of one broker."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.contact = Contact(node)
        self.pause = Pause(node, self.contact)
        self.departures = Departures(node)
        self._dead: dict[int, Death] = {}
        self._life: Arrival | None = None
        self._fenced_ms: int | None = None
        self._under_way: dict[str, None] = {}
        self._heartbeat: Timer | None = None
        self._rebalance: Timer | None = None
        self._stopping = False
        self._stopped = False

    @property
    def is_controller(self) -> bool:
        """Whether this broker watches over the others."""
        node = self._node
        return node.image.controller.node_id == node.node_id and node.image.is_live(node.node_id)

    def policy(self, topic: str, configs: Configs | None = None) -> Policy:
        """What a topic's settings say of elections: those in force, or others."""
        node = self._node
        configs = node.image.configs if configs is None else configs
        own = configs.get((TOPIC, topic), {})
        dynamic = configs.get((BROKER, str(node.node_id)), {}), configs.get((BROKER, ""), {})

        def value(name: str) -> Any:
            key = TOPIC_KEYS[name]
            return key.parse(next(node.settings.topic_layers(key, own, *dynamic)).value)

        return Policy(
            value("min.insync.replicas"),
            value("unclean.leader.election.enable"),
            topic in node.image.topics and node.image.topics[topic].flushed,
        )

    # ------------------------------------------------------------------------------------ registration

    def register(self, event: Started, then: Callable[[], None]) -> None:
        """Begin a life; what follows for the partitions enters the journal with it."""
        self._life = Arrival(self._node.node_id, event.host, event.port, event.keeps_all, event.keeps_flushed)

        def cannot(reason: str) -> None:
            raise LogFailed(reason)

        self._register(self._life, lambda _answer: then(), cannot)

    def _register(self, arrival: Arrival, done: Callable[[Any], None], failed: Callable[[str], None]) -> None:
        node = self._node

        def decide() -> Decision:
            dead = [node_id for node_id in self.contact.others() if self._is_dead(node_id)]
            return self._decision(register(node.image, self.policy, arrival, dead))

        node.propose(Change(decide, done, failed))

    def _register_anew(self) -> None:
        """Found hung and fenced, though it runs: come back once it can be heard again."""
        node = self._node
        if self._fenced_ms is None:
            self._fenced_ms = node.now_ms
            node.tell(f"broker {node.node_id} was taken for dead or hung: it registers anew", is_problem=True)
            self.contact.ask_all()
        if self._life is not None and self._hears_enough_to_return(self._fenced_ms):
            unbroken = self._life._replace(keeps_all=True)  # whatever was lost was lost before this life
            self._once("registration", lambda done, failed: self._register(unbroken, done, failed))

    def _hears_enough_to_return(self, since_ms: int) -> bool:
        """It must hear most of the others, and the controller: who does not hear it would fence it again."""
        others = [node_id for node_id in self.contact.others() if not self._is_dead(node_id)]
        if not others:
            return True
        heard = [node_id for node_id in others if self.contact.heard_since(node_id, since_ms)]
        controller = self._node.image.controller.node_id
        return 2 * len(heard) > len(others) and (controller in heard or controller not in others)

    # ------------------------------------------------------------------------------- watching over others

    def broker_died(self, event: BrokerDied) -> None:
        """Somebody's process is gone for certain."""
        if event.node_id == self._node.node_id:
            return
        known = self._dead.get(event.node_id)
        if known is None or known.epoch != event.epoch:  # told twice, it is known since the first time
            self._dead[event.node_id] = Death(event.epoch, self._node.now_ms)
        self.review()

    def _is_dead(self, node_id: int) -> bool:
        death = self._dead.get(node_id)
        return death is not None and death.epoch == self._node.image.brokers[node_id].epoch

    def review(self) -> None:
        """Look whether somebody must be fenced, or this broker must come back."""
        node = self._node
        if not node.serving or self._stopping:
            return
        if not node.image.is_live(node.node_id):
            self._register_anew()
            return
        self._fenced_ms = None
        duty = self._duty()
        if duty.gone or duty.takes_control:
            self._propose("fencing", self._decide_fencing)

    def _duty(self) -> Duty:
        """What falls to this broker now. The controller comes first, then the others by their numbers."""
        node = self._node
        image = node.image
        if not image.is_live(node.node_id):
            return Duty({}, False)
        others = self.contact.others()
        majority = self.contact.hears_majority()
        gone = {node_id: "dead" for node_id in others if self._is_dead(node_id)}
        dead = list(gone)
        gone |= {n: "hung" for n in others if n not in gone and majority and self.contact.is_silent(n)}
        controller = image.controller.node_id
        present = [node_id for node_id in (*others, node.node_id) if node_id not in gone]
        present.sort(key=lambda node_id: (node_id != controller, node_id))
        rank = present.index(node.node_id)
        if rank == 0:
            return Duty(gone, controller != node.node_id)
        return Duty(dict.fromkeys(self._overdue(dead, rank), "dead"), False)

    def _decide_fencing(self) -> Outcome:
        node = self._node
        duty = self._duty()
        outcome = fence(node.image, self.policy, duty.gone) if duty.gone else Outcome([], [])
        if duty.takes_control:
            outcome.records.insert(0, take_control(node.image, node.node_id))
        lines = [f"broker {node_id} is {how}: others lead in its place" for node_id, how in duty.gone.items()]
        return Outcome(outcome.records, lines + outcome.problems)

    def _overdue(self, dead: list[int], rank: int) -> list[int]:
        """Those dead brokers whose fencing was left to others long enough."""
        node = self._node
        overdue = []
        for node_id in dead:
            due_ms = self._dead[node_id].known_ms + rank * STAND_IN_MS
            if due_ms <= node.now_ms:
                overdue.append(node_id)
            elif "stand in" not in self._under_way:
                self._under_way["stand in"] = None
                node.timers.at(due_ms, self._stand_in)
        return overdue

    def _stand_in(self) -> None:
        self._under_way.pop("stand in", None)
        self.review()

    def _beat(self) -> None:
        self._heartbeat = None
        self.contact.ask_all()
        self.review()
        self._keep_time()

    def _keep_time(self) -> None:
        """Run the timers that are needed; a broker that is alone needs none."""
        node = self._node
        has_others = len(node.image.brokers) > 1
        self.pause.watch(has_others=has_others and node.serving)
        if not has_others or not node.serving or self._stopped:
            return
        if self._heartbeat is None:
            self._heartbeat = node.timers.at(node.now_ms + self.contact.interval_ms, self._beat)
        if (
            self._rebalance is None
            and self.is_controller
            and node.settings.get("auto.leader.rebalance.enable")
        ):
            interval_ms = node.settings.get("leader.imbalance.check.interval.seconds") * 1000
            self._rebalance = node.timers.at(node.now_ms + interval_ms, self._give_back)

    def _give_back(self) -> None:
        """Let partitions be led by their first replicas again."""
        self._rebalance = None
        if self.is_controller:
            self._propose("rebalance", lambda: prefer(self._node.image))
        self._keep_time()

    # ---------------------------------------------------------------------------- what the journal brings

    def begin(self) -> None:
        """This broker is registered and serves."""
        self._keep_time()
        self.contact.ask_all()
        self.review()

    def replayed(self, records: list[MetadataRecord]) -> None:
        """Records have changed the image: see what follows from them for this broker."""
        if not self._node.serving:
            return
        shape = finished = allowed = False
        for record in records:
            match record:
                case PartitionChanged():
                    finished = finished or is_finished(record)
                case BrokerRegistered():
                    shape = True
                    self.departures.replayed(record)
                case BrokerRemoved():
                    shape = True
                case ControllerElected():
                    shape = finished = allowed = True
                case ConfigSet():
                    allowed = allowed or record.key == "unclean.leader.election.enable"
        if shape:
            self._keep_time()
            self.review()
        if self.is_controller and finished:
            self._propose("reassignment", lambda: finish_all(self._node.image, self.policy))
        if self.is_controller and allowed:
            self._propose("election", lambda: elect_leaderless(self._node.image, self.policy))

    # ------------------------------------------------------------------------------------------ departure

    def stop_asked(self) -> None:
        """Hand over what is led here, within bounds; then the process may end."""
        node = self._node
        self._stopping = True
        if not node.serving or self.pause.holding or not self.contact.others():
            self._stop("")
            return
        node.timers.at(
            node.now_ms + node.settings.get("controlled.shutdown.timeout.ms"), lambda: self._stop("")
        )

        def decide() -> Decision:
            leaves = node.image.is_live(node.node_id) and self.contact.others()
            outcome = fence(node.image, self.policy, (node.node_id,)) if leaves else Outcome([], [])
            return self._decision(outcome)

        node.propose(Change(decide, self._stop, self._stop))

    def _stop(self, _answer: Any) -> None:
        if not self._stopped:
            self._stopped = True
            self._node.stop()

    # ------------------------------------------------------------------------------------------ proposing

    def _propose(self, what: str, decide: Callable[[], Outcome]) -> None:
        """Propose what `decide` finds, unless that is under way already."""
        self._once(
            what,
            lambda done, failed: self._node.propose(Change(lambda: self._decision(decide()), done, failed)),
        )

    def _once(self, what: str, begin: Callable[[Callable[[Any], None], Callable[[str], None]], None]) -> None:
        if what in self._under_way:
            return
        self._under_way[what] = None

        def failed(reason: str) -> None:
            self._under_way.pop(what, None)
            self._node.tell(f"{what} could not be written to the journal: {reason}", is_problem=True)

        begin(lambda _answer: self._under_way.pop(what, None), failed)

    def _decision(self, outcome: Outcome) -> Decision:
        return Decision(outcome.records, lambda: self._tell(outcome.problems))

    def _tell(self, problems: list[str]) -> None:
        for line in problems[:MAX_LINES]:
            self._node.tell(line, is_problem=True)
        if len(problems) > MAX_LINES:
            self._node.tell(f"and {len(problems) - MAX_LINES} more", is_problem=True)
