"""Mistakes in how a follower's log is made to agree with its leader's."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from gapless.core.log import LogFailed
from gapless.core.partition import Partition
from gapless.core.records import PartitionChanged
from gapless.core.replication import copying, fetchers, serving
from gapless.simulator.mutants.mutant import Wrong, mutant
from gapless.storage import rules as storage_rules
from gapless.wire.batch import BatchHeader, InvalidBatch, is_intact
from gapless.wire.errors import ErrorCode
from gapless.wire.fetch import FetchPartition

Agreement = tuple[int, int] | ErrorCode | None

_assign = Partition.assign
_agrees = serving.agrees
_check = copying._check
_start_over = copying.start_over

# --------------------------------------------------------------------------------------------- 1: KIP-101


def _cut_to_own_watermark(self: Partition, change: PartitionChanged, now_ms: int = 0) -> None:
    is_renewed = 0 <= self.leader_epoch < change.leader_epoch
    _assign(self, change, now_ms)
    if is_renewed and self.leader >= 0 and not self.is_leader:
        with suppress(LogFailed):
            self.truncate_to(self.high_watermark)


mutant(
    1,
    "truncate-to-hw",
    "KIP-101",
    """A follower that hears of a new leader cuts its log to its own high watermark, which may be behind
    the true one. If it is then elected before it has fetched again, what was committed is lost.""",
    Wrong(Partition, "assign", _cut_to_own_watermark),
    found_as=("lost-write", "logs-differ", "high-watermark"),
    profile="elections",
)

# --------------------------------------------------------------------------------------------- 2: KIP-279


def _agrees_by_end(partition: Partition, wish: FetchPartition) -> Agreement:
    found = _agrees(partition, wish)
    if isinstance(found, tuple) and found[1] >= wish.fetch_offset:
        return None  # that the epochs are not the same is not noticed
    return found


def _cut_to_leaders_end(partition: Partition, epoch: int, end_offset: int) -> None:
    partition.truncate_to(end_offset)


mutant(
    2,
    "compare-ends-only",
    "KIP-279",
    """Leader and follower look for the place where their logs part by one offset, whether or not both
    know the epoch that ended there. After leaders have changed fast, a follower keeps records that its
    leader never had, and both disagree for good.""",
    Wrong(serving, "agrees", _agrees_by_end),
    Wrong(fetchers, "truncate_by_epoch", _cut_to_leaders_end),
    found_as=("logs-differ", "lost-write", "inconsistent-offsets"),
    profile="leaders",
    seed=26,
)

# --------------------------------------------------------------------------------------------- 3: KIP-320


def _whoever_leads(self: Partition, claimed_epoch: int) -> ErrorCode:
    return ErrorCode.NONE if self.is_leader else ErrorCode.NOT_LEADER_OR_FOLLOWER


def _trusts_the_outdated(partition: Partition, wish: FetchPartition) -> Agreement:
    is_outdated = wish.current_leader_epoch != partition.leader_epoch
    if is_outdated and partition.log.start_offset <= wish.fetch_offset <= partition.log.end_offset:
        return None
    return _agrees(partition, wish)


mutant(
    3,
    "unfenced-fetch",
    "KIP-320",
    """A leader serves fetches from other epochs than its own by their offset alone. One that has not
    heard of a change makes its followers give up what was committed meanwhile, or counts records as
    replicated in whose place they have others.""",
    Wrong(Partition, "leadership_error", _whoever_leads),
    Wrong(serving, "agrees", _trusts_the_outdated),
    found_as=("logs-differ", "lost-write", "high-watermark"),
    profile="leaders",
    seed=26,
)

# ------------------------------------------------------------------------------------------ 5: KAFKA-7164

_followed: WeakKeyDictionary[Partition, tuple[int, int]] = WeakKeyDictionary()


def _compares_with_a_new_leader(partition: Partition) -> int:
    leader, epoch = _followed.setdefault(partition, (partition.leader, partition.leader_epoch))
    if leader == partition.leader and epoch != partition.leader_epoch:
        return -1
    _followed[partition] = (partition.leader, partition.leader_epoch)
    return partition.log.latest_epoch


def _keeps_what_is_longer(partition: Partition, leaders_start: int) -> None:
    if partition.log.end_offset <= leaders_start:
        _start_over(partition, leaders_start)


mutant(
    5,
    "same-leader-no-truncation",
    "KAFKA-7164",
    """A follower compares its log with its leader's when the leader is another one, and not when only the
    epoch is new; nor does it begin anew if it has more than its leader. A leader that has lost its place
    and won it again meanwhile may have given up what the follower keeps.""",
    Wrong(fetchers, "epoch_to_compare", _compares_with_a_new_leader),
    Wrong(fetchers, "start_over", _keeps_what_is_longer),
    found_as=("logs-differ", "lost-write", "high-watermark"),
    profile="leaders",
    seed=5,
)

# ------------------------------------------------------------------------------------------ 8: KAFKA-9491


def _watermark_left_behind(self: Partition) -> int:
    return min(self.high_watermark, self.log.end_offset)


mutant(
    8,
    "hw-left-behind",
    "KAFKA-9491",
    """A follower whose whole log was dropped, because it ended before its leader's begins, leaves its
    high watermark where it was. It then says that nothing is committed of what it has, and who comes to
    read there finds nothing.""",
    Wrong(Partition, "_watermark_within", _watermark_left_behind),
    found_as=("high-watermark",),
    profile="retention",
    seed=14,
)

# ------------------------------------------------------------------------------------------ 9: KAFKA-3919


def _agrees_by_offset(partition: Partition, wish: FetchPartition) -> Agreement:
    end_offset = partition.log.end_offset
    if wish.fetch_offset > end_offset:
        return wish.last_fetched_epoch, end_offset
    return _agrees(partition, replace(wish, last_fetched_epoch=-1))


def _checks_sums_only(partition: Partition, payload: memoryview, batch: BatchHeader, end_offset: int) -> None:
    with suppress(InvalidBatch):
        _check(partition, payload, batch, end_offset)
        return
    if not is_intact(payload, batch):
        raise InvalidBatch(ErrorCode.CORRUPT_MESSAGE, "a batch from the leader is damaged")


def _anything_follows(*_chain: Any) -> None:
    pass


mutant(
    9,
    "offsets-go-back",
    "KAFKA-3919",
    """Logs are compared by their ends alone, and a follower appends whatever comes. A leader that has
    lost its end by a power cut and has grown again sends a batch from its beginning, in the middle of
    which the follower's log ends: there offsets go back, and no index can be built of it.""",
    Wrong(serving, "agrees", _agrees_by_offset),
    Wrong(copying, "_check", _checks_sums_only),
    Wrong(storage_rules, "check_chain", _anything_follows),
    found_as=("nonmonotonic-log",),
    profile="power",
    seed=19,
)
