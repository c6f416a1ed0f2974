"""Mistakes in what counts as committed, and in when a producer is told so."""

from __future__ import annotations

from gapless.core.api.produce import _Unsettled
from gapless.core.partition import Partition
from gapless.core.replication.followers import Followers
from gapless.simulator.mutants.mutant import Wrong, mutant

_propose = Followers.propose
_is_safe = _Unsettled._is_safe
_advance = Partition.advance_high_watermark

LOSSES = ("lost-write", "in-sync", "logs-differ", "high-watermark", "nonmonotonic-poll")


def _largest_end(self: Followers, own_end: int) -> int:
    return min(own_end, max((follower.end_offset for follower in self._counted), default=own_end))


mutant(
    14,
    "hw-of-the-fastest",
    "KAFKA-50",
    """The high watermark follows the fastest follower in the in-sync set, not the slowest. Consumers read
    and producers are promised what a follower that is elected next never had.""",
    Wrong(Followers, "smallest_end", _largest_end),
    found_as=("high-watermark", "lost-write"),
    profile="elections",
    seed=1,
)


def _here_is_enough(self: _Unsettled) -> bool:
    return True if self.acks == -1 else _is_safe(self)


mutant(
    15,
    "early-acknowledgement",
    "KAFKA-50",
    """A producer that asks for acks=all is answered as soon as the leader has its records. If the leader
    dies before its followers have fetched them, they are gone, though they were promised.""",
    Wrong(_Unsettled, "_is_safe", _here_is_enough),
    found_as=("lost-write",),
    profile="elections",
    seed=6,
)

mutant(
    16,
    "no-insync-floor",
    "KAFKA-1555",
    """min.insync.replicas is not looked at, neither when records are taken nor when they are committed:
    one replica in sync is enough for acks=all. What that one alone has was promised, and another that is
    still eligible is elected without it.""",
    Wrong(Partition, "insync_floor", 1),
    found_as=LOSSES,
    profile="elections",
    seed=8,
)


def _committed_members_only(self: Followers, additions: tuple[int, ...]) -> None:
    _propose(self, ())
    self.proposed = additions


mutant(
    19,
    "hw-ignores-proposed",
    "KIP-497",
    """A leader that has proposed a new member of the in-sync set does not wait for it before it hears
    that the proposal is in the journal. Whoever has heard it first may elect the new member, which lacks
    what was committed in between.""",
    Wrong(Followers, "propose", _committed_members_only),
    found_as=LOSSES,
    profile="leaders",
    seed=16,
)

mutant(
    20,
    "hw-below-floor",
    "KIP-966",
    """The high watermark goes on while fewer than min.insync.replicas are in sync. A replica that left
    the set at that time counts as one that holds all, and if it is elected, what was committed since is
    lost.""",
    Wrong(Partition, "_may_commit", True),
    found_as=LOSSES,
    profile="elections",
    seed=35,
)


def _of_all_who_fetch(self: Partition) -> None:
    _advance(self)
    if self.is_leader and self.followers is not None:
        ends = [each.end_offset for each in self.followers.by_id.values() if each.end_offset >= 0]
        self.high_watermark = max(self.log.start_offset, min([self.high_watermark, *ends]))


mutant(
    22,
    "hw-of-all-who-fetch",
    "KAFKA-50",
    """The high watermark is the smallest end of all followers that fetch, in sync or not, also if it was
    higher before. One that comes back after a while moves it back: what producers were told is committed
    cannot be read for a while, and who asks for the end is told a lower one than before.""",
    Wrong(Partition, "advance_high_watermark", _of_all_who_fetch),
    found_as=("high-watermark",),
    profile="elections",
)
