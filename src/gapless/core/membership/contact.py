"""When this broker last heard from each of the others. It asks them all, again and again, and counts.

Heard means: a question that was sent at that time was answered. Time in which this broker itself did not run
is not counted against the others. Each answer tells how far its author has read the journal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gapless.wire.apis import ApiKey
from gapless.wire.messages import ApiVersionsRequest

if TYPE_CHECKING:
    from gapless.core.node import Node


PING_VERSION = 3
"""The first whose answers tell the version of the journal."""
QUESTION = ApiVersionsRequest(client_software_name="gapless", client_software_version="broker")


class Peer:
    """One life of another broker."""

    __slots__ = ("asked", "epoch", "heard_ms")

    def __init__(self, epoch: int, now_ms: int) -> None:
        self.epoch = epoch
        self.heard_ms = now_ms
        self.asked = False
        """Whether a question is under way."""


class Contact:
    """What this broker knows of the others by asking them."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._peers: dict[int, Peer] = {}
        self.interval_ms: int = node.settings.get("broker.heartbeat.interval.ms")
        self.timeout_ms: int = node.settings.get("broker.session.timeout.ms")
        self.proof_ms = 0
        """When somebody was last known to have heard this broker who knows no more of the journal than it.

        Who knows more may know that this broker was replaced: it has perhaps lost the way to the journal.
        """

    def others(self) -> list[int]:
        """The live brokers besides this one, in the order of their numbers; new ones count as just heard."""
        node = self._node
        live = [broker for broker in node.image.live_brokers() if broker.node_id != node.node_id]
        for broker in live:
            peer = self._peers.get(broker.node_id)
            if peer is None or peer.epoch != broker.epoch:
                self._peers[broker.node_id] = Peer(broker.epoch, node.now_ms)
        return [broker.node_id for broker in live]

    def ask_all(self) -> None:
        """Ask everybody from whom no answer is awaited."""
        for node_id in self.others():
            if not self._peers[node_id].asked:
                self._ask(node_id, self._peers[node_id])

    def _ask(self, node_id: int, peer: Peer) -> None:
        sent_ms = self._node.now_ms
        peer.asked = True

        def answered(message: Any) -> None:
            peer.asked = False
            if message is not None:
                peer.heard_ms = max(peer.heard_ms, sent_ms)
                if message.finalized_features_epoch <= self._node.image.version:
                    self.proof_ms = max(self.proof_ms, sent_ms)

        # Several questions fit into the time after which a broker counts as hung: one may get lost.
        patience_ms = max(1, min(self.timeout_ms // 3, 2 * self.interval_ms))
        self._node.call((node_id, int(ApiKey.API_VERSIONS), PING_VERSION), QUESTION, patience_ms, answered)

    def slept(self, pause_ms: int) -> None:
        """This broker did not run for a while, and could not hear anybody."""
        for peer in self._peers.values():
            peer.heard_ms += pause_ms

    def is_silent(self, node_id: int) -> bool:
        """Whether a broker was not heard for as long as a session lasts."""
        return self._node.now_ms - self._peers[node_id].heard_ms >= self.timeout_ms

    def heard_since(self, node_id: int, since_ms: int) -> bool:
        """Whether something was asked at `since_ms` or later, and answered."""
        peer = self._peers.get(node_id)
        return peer is not None and peer.heard_ms >= since_ms

    def hears_majority(self) -> bool:
        """Whether most of the live brokers, this one among them, are in contact; of two, one is enough.

        Without it a broker that is cut off would take all others for hung.
        """
        others = self.others()
        heard = 1 + sum(not self.is_silent(node_id) for node_id in others)
        return len(others) == 1 or 2 * heard > len(others) + 1
