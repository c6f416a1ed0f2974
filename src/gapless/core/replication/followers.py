"""What a leader knows of the other replicas of one partition, for as long as it leads in one epoch.

The high watermark is the smallest end within the *maximal* in-sync set: the committed set and every member
that was proposed for it, because a proposal may be in the journal before its author knows. Whoever leaves
counts until that is committed.
"""

from __future__ import annotations

from gapless.core.records import PartitionChanged

UNKNOWN = -1


class Follower:
    """One other replica, as its fetches show it."""

    __slots__ = ("_fetched_ms", "_leader_end_then", "broker_epoch", "caught_up_ms", "end_offset")

    def __init__(self) -> None:
        self.end_offset = UNKNOWN
        self.broker_epoch = UNKNOWN
        """The life of the broker that fetched last."""
        self.caught_up_ms = UNKNOWN
        self._fetched_ms = UNKNOWN
        self._leader_end_then = 0

    def fetched(self, end_offset: int, leader_end: int, broker_epoch: int, now_ms: int) -> None:
        """It has everything below `end_offset` and asks for more."""
        if end_offset >= leader_end:
            self.caught_up_ms = now_ms
        elif end_offset >= self._leader_end_then:
            self.caught_up_ms = max(self.caught_up_ms, self._fetched_ms)
        self.end_offset = end_offset
        self.broker_epoch = broker_epoch
        self._fetched_ms = now_ms
        self._leader_end_then = leader_end


class Followers:
    """The other replicas of a partition that is led here."""

    __slots__ = ("_counted", "_isr", "_node_id", "by_id", "proposed")

    def __init__(self, node_id: int) -> None:
        self._node_id = node_id
        self._isr: tuple[int, ...] = ()
        self._counted: list[Follower] = []
        self.by_id: dict[int, Follower] = {}
        self.proposed: tuple[int, ...] = ()
        """Who may be in the in-sync set already, though the news has not come."""

    def assign(self, change: PartitionChanged, now_ms: int) -> None:
        """Take over what the journal says; it also tells what became of a proposal that was under way."""
        others = [node_id for node_id in change.replicas if node_id != self._node_id]
        self.by_id = {node_id: self.by_id.get(node_id) or Follower() for node_id in others}
        for node_id, follower in self.by_id.items():
            if node_id in change.isr and node_id not in self._isr:
                follower.caught_up_ms = now_ms  # a new member, or one of a new leader, gets time to show up
        self._isr = change.isr
        self.propose(())

    def propose(self, additions: tuple[int, ...]) -> None:
        """From now on these may be in the in-sync set."""
        self.proposed = additions
        self._counted = [
            follower
            for node_id, follower in self.by_id.items()
            if node_id in self._isr or node_id in additions
        ]

    def smallest_end(self, own_end: int) -> int:
        """The end that all of the maximal in-sync set have reached."""
        end = own_end
        for follower in self._counted:
            end = min(end, follower.end_offset)
        return end

    def lags(self, node_id: int, leader_end: int, now_ms: int, lag_max_ms: int) -> bool:
        """Whether a member has not caught up for too long. One that has everything is never late."""
        follower = self.by_id.get(node_id)
        if follower is None:
            return False
        if follower.end_offset >= leader_end:
            follower.caught_up_ms = now_ms
        return now_ms - follower.caught_up_ms > lag_max_ms
