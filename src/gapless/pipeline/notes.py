"""What Spark wrote down of a query in its checkpoint: where each batch ends, and which are done.

A batch's ends are written before it begins, and that it is done after `foreachBatch` has returned.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from gapless.pipeline.progress import TopicPartition
from gapless.pipeline.ranges import Range

if TYPE_CHECKING:
    from gapless.pipeline.folder import CheckpointFolder

Ends = dict[TopicPartition, int]
"""The next offset of each source partition."""


def last_finished(folder: CheckpointFolder) -> int | None:
    """The number of the last batch that is done; None before the first."""
    return max((int(name) for name in folder.names("../commits") if name.isdecimal()), default=None)


def ends_of(folder: CheckpointFolder, batch: int) -> Ends:
    """Where a batch ends. Batch -1 stands for where the first one starts. Nothing for batches not known."""
    data = folder.read(f"../offsets/{batch}" if batch >= 0 else "../sources/0/0")
    if data is None:
        return {}
    offsets: dict[str, dict[str, int]] = json.loads(data.decode().splitlines()[-1])
    return {
        TopicPartition(topic, int(partition)): end
        for topic, partitions in offsets.items()
        for partition, end in partitions.items()
    }


def ranges_of(folder: CheckpointFolder, batch: int) -> list[Range]:
    """What a batch reads of each source partition in which it has something to read."""
    starts = ends_of(folder, batch - 1)
    found = [
        Range(*where, starts.get(where, 0), end) for where, end in sorted(ends_of(folder, batch).items())
    ]
    return [each for each in found if each.start < each.end]
