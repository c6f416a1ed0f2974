"""Mistakes around whoever reads a topic and writes to another, exactly once as it thinks."""

from __future__ import annotations

from collections.abc import Sequence

from gapless.core.api import txn_offset_commit
from gapless.core.groups.commits import Committer, NewOffset, commit_in_transaction
from gapless.core.groups.state import GroupsState
from gapless.simulator.clients.relay import Relay
from gapless.simulator.mutants.mutant import Wrong, mutant
from gapless.wire.errors import ErrorCode


def _whoever_commits(
    groups: GroupsState,
    group_id: str,
    committer: Committer,
    producer: tuple[int, int],
    offsets: Sequence[NewOffset],
) -> list[ErrorCode]:
    return commit_in_transaction(groups, group_id, Committer(), producer, offsets)


mutant(
    12,
    "commit-without-generation",
    "KIP-447",
    """Offsets that are committed in a transaction are not checked against the generation of the group. A
    member that has lost its partitions without knowing it commits what it has made of them, and so does
    their new owner: everything is there twice.""",
    Wrong(txn_offset_commit, "commit_in_transaction", _whoever_commits),
    found_as=("relayed-once",),
    profile="relay",
    seed=13,
)


def _always_another(self: Relay) -> str:
    return f"{self.group}-{self.number}-{self._incarnation}"


mutant(
    13,
    "random-transactional-id",
    "KIP-98",
    """Each process that does a job takes a transactional.id that nobody had before, where only the id
    tells that it is the same job. Its predecessor, which was taken for dead, is never fenced, and both
    write what came of the same records.""",
    Wrong(Relay, "transactional_id", _always_another),
    found_as=("relayed-once",),
    profile="relay",
)
