"""Noting all that happens in a run, a line for each: what a story is made of."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from uuid import UUID

from gapless.core.coordinators import INTERNAL_TOPICS
from gapless.core.partition import Partition
from gapless.core.records import BrokerRegistered, ControllerElected, MetadataRecord, PartitionChanged
from gapless.simulator.arguments import named
from gapless.simulator.case import Step
from gapless.simulator.deciding import Decisions
from gapless.simulator.history import Place
from gapless.simulator.looking import records_of
from gapless.simulator.scene import Scene
from gapless.simulator.watching import Watcher
from gapless.simulator.world import Host

SHOWN_VALUES = 6
SAYS = "says: "
"""How a line begins that a broker has for its operator."""
_PLACE = re.compile(r"\b(\w+)-(\d+)\b")
_TRANSACTION = re.compile(r"\btransaction (\d+)\b")
_VALUES = re.compile(r"\brecords? (\d+)(?: to (\d+))?|\breads ([\d, ]+) from|\[([\d, ]+)\]")


class Kind(IntEnum):
    """What a line is about; the larger, the sooner it is left out of a story."""

    FAULT = 0
    RECORD = 1
    """Of a record that was lost, doubled or misplaced."""
    LOSS = 2
    ELECTION = 3
    CLIENT = 4
    COPY = 5
    CLUSTER = 6
    WATERMARK = 7


@dataclass(slots=True, eq=False)
class Line:
    """Somebody did something."""

    at_ms: int
    who: str
    text: str
    kind: Kind
    places: list[Place] = field(default_factory=list)
    records: list[int] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.at_ms / 1000:7.3f}  {self.who:<16} {self.text}"


class Notes(Watcher):
    """Everything, in the order in which it happened."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self._scene: Scene
        self._began_ms = 0
        self._shapes: dict[Place, PartitionChanged] = {}
        self._place_of: dict[tuple[UUID, int], Place] = {}
        self._held: dict[tuple[int, Place], dict[int, int]] = {}
        self._lives: dict[tuple[int, Place], int] = {}
        self._watermarks: dict[tuple[int, Place], int] = {}

    def begin(self, scene: Scene) -> None:
        self._scene, self._began_ms = scene, scene.world.now_ms
        scene.history.say = self._said
        scene.world.on_told = lambda node_id, text: self._said(f"broker {node_id}", SAYS + text)
        scene.world.journal.on_entry.append(self._decided)
        decisions = Decisions(scene, self._of_transactions)
        scene.world.on_event = decisions.happened
        scene.on_change += [self._changed, decisions.changed]
        for name, topic in scene.topics.items():
            for index in range(topic.partitions):
                place = (name, index)
                shape = self._shapes[place] = scene.assignment(place)
                self._place_of[shape.topic_id, index] = place
                self._note(_name(place), _led(shape), Kind.ELECTION, place)

    def _note(
        self, who: str, text: str, kind: Kind, place: Place | None = None, records: Iterable[int] = ()
    ) -> None:
        at_ms = self._scene.world.now_ms - self._began_ms
        places = places_in(text, self._scene.topics) if place is None else [place]
        self.lines.append(Line(at_ms, who, text, kind, places, list(records)))

    # ----------------------------------------------------------------------------------------- clients

    def after(self, step: Step, came_to_pass: bool) -> None:
        """Faults speak for themselves, and so do most clients."""
        given = named(step)
        client = given.get("client", "")
        if step.what == "send":
            values = list(self._scene.history.writes)[-given["count"] :]
            place = (given["topic"], given["partition"])
            self._note(client, f"sends {_records(values)} to {_name(place)}", Kind.CLIENT, place, values)
        elif step.what == "succeed":
            self._note(client, "is a new process now; the old one goes on as a zombie", Kind.RECORD)

    def _said(self, who: str, text: str) -> None:
        """Faults and clients tell what happens in words; places and records are found in them."""
        if text.startswith(SAYS):
            kind = Kind.CLUSTER
        else:
            kind = Kind.CLIENT if who in self._scene.clients else Kind.FAULT
        self._note(who, text, kind, None, _values_in(text) if kind is Kind.CLIENT else ())
        transaction = _TRANSACTION.search(text)
        if transaction is not None:  # what it is about is of all its records, also of those to come
            self.lines[-1].records = self._scene.history.attempts[int(transaction[1])].values

    def _of_transactions(self, who: str, text: str, places: list[Place], values: list[int]) -> None:
        """A late request has arrived, or a coordinator has decided something."""
        self._note(who, text, Kind.CLIENT, None, values)
        self.lines[-1].places = places

    # ------------------------------------------------------------------------------------- the cluster

    def _decided(self, records: list[MetadataRecord]) -> None:
        """The journal has something new."""
        for record in records:
            match record:
                case BrokerRegistered(fenced=True):
                    self._note(
                        "the journal", f"says that broker {record.node_id} is dead or hung", Kind.CLUSTER
                    )
                case BrokerRegistered():
                    self._note("the journal", f"has broker {record.node_id} again", Kind.CLUSTER)
                case ControllerElected():
                    self._note(f"broker {record.node_id}", "is the controller now", Kind.CLUSTER)
                case PartitionChanged():
                    self._reshaped(record)

    def _reshaped(self, now: PartitionChanged) -> None:
        place = self._place_of.get((now.topic_id, now.partition))
        if place is None:  # the topic has just got it
            topic = self._scene.world.journal.image.topics_by_id[now.topic_id]
            place = self._place_of[now.topic_id, now.partition] = (topic.name, now.partition)
            self._shapes[place] = now
            self._note(_name(place), _led(now), Kind.ELECTION, place)
            return
        before, self._shapes[place] = self._shapes[place], now
        if now.leader_epoch != before.leader_epoch:
            self._note(_name(place), _led(now), Kind.ELECTION, place)
        elif now.isr != before.isr or now.eligible != before.eligible:
            self._note(_name(place), f"has in sync: {_in_sync(now)}", Kind.ELECTION, place)
        elif now.replicas != before.replicas:
            self._note(_name(place), f"has replicas {_numbers(now.replicas)}", Kind.CLUSTER, place)

    def _changed(self, host: Host, place: Place, replica: Partition) -> None:
        """A replica's log or watermark is another than it was."""
        key, who = (host.node_id, place), f"broker {host.node_id}"
        held = self._held.setdefault(key, {})
        end = replica.log.end_offset
        gone = {offset: value for offset, value in held.items() if offset >= end}
        if gone:
            values = list(gone.values())
            for offset in gone:
                del held[offset]
            lost = f"{_records(values)} of {_name(place)}"
            if self._lives.get(key) != host.life:
                text = f"has come back without {lost}"
            elif replica.is_leader:
                text = f"no longer has {lost}"
            else:
                text = f"gives up {lost}, now that broker {replica.leader} leads"
            self._note(who, text, Kind.LOSS, place, values)
        self._lives[key] = host.life
        if place[0] not in INTERNAL_TOPICS:
            new = list(records_of(replica.log, max(held, default=-1) + 1))
            held.update(new)
            if new:
                verb = "stores" if replica.is_leader else "copies"
                values = [each.value for each in new]
                text = f"{verb} {_records(values)} in {_name(place)} at {new[0].offset}"
                self._note(who, text, Kind.COPY, place, values)
        watermark = replica.high_watermark
        if watermark != self._watermarks.get(key, 0) and place[0] not in INTERNAL_TOPICS:
            self._watermarks[key] = watermark
            self._note(who, f"has the watermark of {_name(place)} at {watermark}", Kind.WATERMARK, place)


# --------------------------------------------------------------------------------------------- words


def _name(place: Place) -> str:
    return f"{place[0]}-{place[1]}"


def _numbers(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers)) or "nobody"


def _in_sync(shape: PartitionChanged) -> str:
    eligible = f", eligible: {_numbers(shape.eligible)}" if shape.eligible else ""
    return f"{_numbers(shape.isr)}{eligible}"


def _led(shape: PartitionChanged) -> str:
    leader = f"broker {shape.leader}" if shape.leader > 0 else "nobody"
    return f"is led by {leader} in epoch {shape.leader_epoch}, in sync: {_in_sync(shape)}"


def _records(values: list[int]) -> str:
    if len(values) == 1:
        return f"record {values[0]}"
    if len(values) > 2 and values == list(range(values[0], values[0] + len(values))):
        return f"records {values[0]} to {values[-1]}"
    more = f" and {len(values) - SHOWN_VALUES} more" if len(values) > SHOWN_VALUES else ""
    return f"records {', '.join(map(str, values[:SHOWN_VALUES]))}{more}"


def places_in(text: str, topics: Collection[str]) -> list[Place]:
    """The partitions that a line names."""
    return [(topic, int(index)) for topic, index in _PLACE.findall(text) if topic in topics]


def _values_in(text: str) -> Iterator[int]:
    """The records that a line names."""
    for first, last, read, listed in _VALUES.findall(text):
        if first:
            yield from range(int(first), int(last or first) + 1)
        else:
            yield from (int(value) for value in (read or listed).split(",") if value.strip())
