"""Which topics members want, as far as these exist, and how to notice that this has changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING

from gapless.core.consumer_groups.patterns import compiled
from gapless.wire.consumer_group_records import Subscription

if TYPE_CHECKING:
    from gapless.core.image import Image, Topic


class Resolver:
    """Resolves subscriptions against one state of the cluster, each of them once."""

    def __init__(self, image: Image) -> None:
        self._image = image
        self._matches: dict[str, list[str]] = {}
        self._resolved: dict[tuple[tuple[str, ...], str | None], list[Topic]] = {}

    def topics(self, subscription: Subscription) -> list[Topic]:
        """The existing topics of a subscription, each once, in the order of their names."""
        key = (subscription.topics, subscription.regex)
        found = self._resolved.get(key)
        if found is None:
            names = dict.fromkeys((*subscription.topics, *self._matching(subscription.regex)))
            topics = self._image.topics
            found = self._resolved[key] = [topics[name] for name in sorted(names) if name in topics]
        return found

    def _matching(self, regex: str | None) -> list[str]:
        if not regex:
            return []
        if regex not in self._matches:
            pattern = compiled(regex)
            self._matches[regex] = [name for name in self._image.topics if pattern.matches(name)]
        return self._matches[regex]


def all_topics(wanted: Mapping[str, Iterable[Topic]]) -> dict[str, Topic]:
    """The topics that any member wants, by name."""
    found: dict[str, Topic] = {}
    for topics in wanted.values():
        for topic in topics:
            found[topic.name] = topic
    return found


def digest(topics: Mapping[str, Topic]) -> int:
    """A number that changes with the topics, their ids and their sizes; 0 if there are none."""
    if not topics:
        return 0
    state = blake2b(digest_size=8)
    for name in sorted(topics):
        topic = topics[name]
        state.update(topic.topic_id.bytes + len(topic.partitions).to_bytes(4, "big") + name.encode() + b"\0")
    return int.from_bytes(state.digest(), "big", signed=True)
