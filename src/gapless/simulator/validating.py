"""Whether a case that somebody wrote, or changed, can be played; if not, why, in words for people.

What a step or a client takes is known from the signatures of what carries it out.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, signature
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from gapless.core.api.refusals import Refusal
from gapless.core.api.topics import check_topic_name
from gapless.core.config_keys import InvalidConfig
from gapless.core.config_tables import TOPIC_KEYS
from gapless.core.configs import Settings
from gapless.core.coordinators import INTERNAL_TOPICS
from gapless.simulator.actions import ACTIONS
from gapless.simulator.case import Case, ClientPlan, Step, TopicPlan
from gapless.simulator.clients.membership import MEMBERSHIPS
from gapless.simulator.faults import FAULTS
from gapless.simulator.faults.fault import COORDINATED
from gapless.simulator.scene import CLIENTS, Scene

FEWEST_BROKERS, MOST_BROKERS = 1, 9
MOST_PARTITIONS = 100
LONGEST_MS = 3_600_000
LEAST_MS = {"ahead_ms": -LONGEST_MS, "old_ms": -1}
"""Times that may be negative."""


class Implausible(ValueError):
    """The case cannot be played."""


def validate(case: Case) -> None:
    """Raise `Implausible` if a case cannot be played."""
    _expect(_fits(case.seed, int) and _fits(case.profile, str), "its seed or its profile is none")
    _expect(
        _fits(case.brokers, int) and FEWEST_BROKERS <= case.brokers <= MOST_BROKERS,
        f"it has {case.brokers!r} brokers, and not {FEWEST_BROKERS} to {MOST_BROKERS}",
    )
    for name in ("jitter", "harm_only"):
        value = getattr(case, name)
        _expect(isinstance(value, bool), f"{name} is {value!r}, and not true or false")
    _settings(case)
    for kind, plans in (("topic", case.topics), ("client", case.clients)):
        names = [plan.name for plan in plans]
        twice = [name for turn, name in enumerate(names) if name in names[:turn]]
        _expect(not twice, f"there are two {kind}s {next(iter(twice), None)!r}")
    for topic in case.topics:
        _topic(case, topic)
    for client in case.clients:
        _client(case, client)
    for step in case.steps:
        try:
            _step(case, step)
        except Implausible as why:
            raise Implausible(f"step {step.what!r} at {step.at_ms!r} ms: {why}") from None


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Implausible(otherwise)


# ---------------------------------------------------------------------------------- the cluster, clients


def _settings(case: Case) -> None:
    try:
        Settings(case.settings)
        for configs in (case.internal, *(topic.configs for topic in case.topics)):
            for name, text in configs.items():
                _expect(name in TOPIC_KEYS, f"there is no setting {name} of topics")
                TOPIC_KEYS[name].parse(text)
    except (InvalidConfig, AttributeError, TypeError) as error:
        raise Implausible(f"a setting is wrong: {error}") from None


def _topic(case: Case, topic: TopicPlan) -> None:
    where = f"topic {topic.name!r}"
    _expect(_fits(topic.name, str) and bool(topic.name.strip()), f"{where} has no name")
    _expect(topic.name not in INTERNAL_TOPICS, f"{where} is the coordinators' own")
    try:
        check_topic_name(topic.name)
    except Refusal as why:
        raise Implausible(f"{where}: {why}") from None
    _expect(
        _fits(topic.partitions, int) and 1 <= topic.partitions <= MOST_PARTITIONS,
        f"{where} has {topic.partitions!r} partitions, and not 1 to {MOST_PARTITIONS}",
    )
    _expect(
        _fits(topic.replicas, int) and 1 <= topic.replicas <= case.brokers,
        f"{where} has {topic.replicas!r} replicas, and there are {case.brokers} brokers",
    )


def _client(case: Case, client: ClientPlan) -> None:
    where = f"client {client.name!r}"
    _expect(_fits(client.name, str) and bool(client.name.strip()), f"{where} has no name")
    _expect(client.kind in CLIENTS, f"{where} is a {client.kind!r}, and there are {', '.join(CLIENTS)}")
    make = CLIENTS[client.kind].__init__
    hints = get_type_hints(make, localns={"Scene": Scene})
    known = {
        name: parameter
        for name, parameter in signature(make).parameters.items()
        if parameter.kind is Parameter.KEYWORD_ONLY
    }
    for name, value in client.options.items():
        _expect(name in known, f"{where} has the option {name!r}, which no {client.kind} knows")
        may_be = _fits(value, hints[name]) and (not _is_time(name) or 0 < value <= LONGEST_MS)
        _expect(may_be and value != "", f"the option {name} of {where} cannot be {value!r}")
    for name, parameter in known.items():
        is_given = name in client.options or parameter.default is not Parameter.empty
        _expect(is_given, f"{where} lacks the option {name}")
    named = (client.options.get(name) for name in ("topic", "target"))
    for topic in (each for each in named if each is not None):
        _expect(topic in _topics(case), f"{where} names the topic {topic!r}, which is not there")
    protocol = client.options.get("protocol", "classic")
    _expect(protocol in MEMBERSHIPS, f"{where} has the protocol {protocol!r}: {', '.join(MEMBERSHIPS)}")
    _expect(client.options.get("acks", 1) in (-1, 0, 1), f"{where} has other acks than -1, 0 or 1")


def _topics(case: Case) -> list[str]:
    return [topic.name for topic in case.topics]


# --------------------------------------------------------------------------------------------- steps


def _step(case: Case, step: Step) -> None:
    _expect(step.what in ACTIONS or step.what in FAULTS, "there is no such action or fault")
    _expect(_fits(step.at_ms, int) and 0 <= step.at_ms <= LONGEST_MS, f"its time is not 0 to {LONGEST_MS} ms")
    carry_out: Callable[..., Any] = ACTIONS[step.what] if step.what in ACTIONS else FAULTS[step.what].inject
    try:
        given = signature(carry_out).bind(None, *step.arguments).arguments
    except TypeError as error:
        raise Implausible(f"its arguments do not fit ({error})") from None
    hints = get_type_hints(carry_out)
    for name, value in list(given.items())[1:]:
        _expect(_fits(value, hints[name]), f"its argument {name} cannot be {value!r}")
        _argument(case, name, value)
    if "topic" in given and "partition" in given:
        _place(case, given["topic"], given["partition"])
    for write in given.get("writes", ()):
        _expect(len(write) == 3 and _fits(write[2], int) and write[2] > 0, f"{write!r} cannot be written")
        _place(case, *write[:2])


def _argument(case: Case, name: str, value: Any) -> None:
    match name:
        case "client":
            _expect(value in [client.name for client in case.clients], f"there is no client {value!r}")
        case "topic":
            _expect(value in _topics(case), f"there is no topic {value!r}")
        case "count":
            _expect(value > 0, f"{value} is no number of records")
        case "who" | "node_id" | "one" | "other" | "source" | "target":
            _broker(case, value)
        case "replicas":
            _expect(len(value) > 0, "there are no replicas")
            for node_id in value:
                _broker(case, node_id)
        case "kept_percent" | "percent":
            _expect(0 <= value <= 100, f"{name} cannot be {value}")
        case "floor":
            _expect(1 <= value <= case.brokers, f"{name} cannot be {value}")
        case _ if _is_time(name):
            _expect(LEAST_MS.get(name, 0) <= value <= LONGEST_MS, f"{name} cannot be {value}")


def _is_time(name: str) -> bool:
    return name == "ms" or name.endswith("_ms")


def _broker(case: Case, who: str | int) -> None:
    if isinstance(who, int):
        _expect(1 <= who <= case.brokers, f"there is no broker {who}")
        return
    role, *place = who.split() or [""]
    if role in ("leader", "follower") and len(place) == 2 and place[1].isdecimal():
        _place(case, place[0], int(place[1]))
    else:
        _expect(not place and role in ("controller", *COORDINATED), f"{who!r} is no broker and no role")


def _place(case: Case, topic: Any, partition: Any) -> None:
    found = [each for each in case.topics if each.name == topic]
    _expect(bool(found), f"there is no topic {topic!r}")
    is_there = _fits(partition, int) and 0 <= partition < found[0].partitions
    _expect(is_there, f"{topic} has no partition {partition!r}")


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a type, as far as cases have them."""
    if hint is Any:
        return True
    if get_origin(hint) is UnionType:
        return any(_fits(value, each) for each in get_args(hint))
    if get_origin(hint) in (list, tuple):
        items = get_args(hint)[0]
        return isinstance(value, list | tuple) and all(_fits(each, items) for each in value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)
