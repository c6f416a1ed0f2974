"""What is known of a topic, as more of it is read: small steps that together know what one big one would.

What is kept stays small: sets of sequences, findings up to a limit, counts by time in slots that widen.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import numpy as np
import pyarrow as pa

from gapless.audit.judging import Held, Promised, Slot, Streams
from gapless.audit.sealing import sealed_too
from gapless.audit.stretches import Stretches, as_set, concatenated, either, overlay, rejoined, united
from gapless.audit.tally import MOST_NAMED, Before
from gapless.pipeline.dedup.runs import Runs
from gapless.pipeline.dedup.seen import Seen

_MOST_SLOTS = 240


def promised_too(old: Promised, new: Promised) -> Promised:
    """What both promise."""
    counts = dict(old.counts)
    for maker, count in new.counts.items():
        counts[maker] = max(count, counts.get(maker, 0))
    return Promised(
        either(old.runs, new.runs),
        counts,
        old.unreadable + new.unreadable,
        fewer(old.slots + new.slots),
        either(old.repaired, new.repaired),
        sealed_too(old.sealed, new.sealed),
        fresh=either(old.fresh, _without(new.timely, old.runs)),
    )


def still_fresh(promised: Promised, partitions: Collection[int], streams: Streams) -> Runs:
    """What cannot have expired before it was promised: only in partitions that are known without a hole."""
    known = np.array([partition in partitions for _, partition in streams.known()] or [False], np.bool_)
    fresh = promised.fresh
    return Runs(*(column[known[fresh.keys]] for column in fresh))


def _without(runs: Runs, others: Runs) -> Runs:
    laid = overlay(runs, others)
    return as_set(laid.where(laid.inside[0] & ~laid.inside[1]))


def held_too(old: Held, new: Held) -> Held:
    """What was held, and what has come since. `new` knows where the partitions end.

    A partition begins where it began at first: what retention took since was read before.
    """
    again, unnamed_again = _named(old.again, new.again)
    late, unnamed_late = _named(old.late, new.late)
    beyond = _sums(old.beyond, new.beyond)
    beyond = _sums(beyond, {key: (count, 0) for key, count in unnamed_again.items()})
    beyond = _sums(beyond, {key: (0, count) for key, count in unnamed_late.items()})
    partitions = dict(new.partitions)
    for partition, before in old.partitions.items():
        now = partitions.get(partition, before._replace(records=0, without_identity=0))
        known_from = before if now.earliest <= before.end else now
        partitions[partition] = now._replace(
            earliest=known_from.earliest,
            begins_ms=known_from.begins_ms,
            records=before.records + now.records,
            without_identity=before.without_identity + now.without_identity,
            last=max(before.last, now.last),
        )
    slots = fewer([*old.slots, *new.slots])
    return Held(united(old.held, new.held), again, late, beyond, partitions, slots)


def without_partition(held: Held, partition: int, streams: Streams) -> Held:
    """All but what is known of one partition, which is read from its beginning again."""
    of_it = np.array([each == partition for _, each in streams.known()] or [False], np.bool_)
    there, again, late = (part.at(~of_it[part.keys]) for part in (held.held, held.again, held.late))
    return Held(
        there,
        again,
        late,
        {key: pair for key, pair in held.beyond.items() if not of_it[key]},
        {each: whole for each, whole in held.partitions.items() if each != partition},
        [slot for slot in held.slots if slot.partition != partition],
    )


def before_of(held: Held, ends: Mapping[int, int], streams: Streams) -> dict[int, Before]:
    """By partition, for those who read on from these ends."""
    known = streams.known()
    of_key = np.array([partition for _, partition in known] or [-1], np.int64)[held.held.keys]
    found = {}
    for partition, end in ends.items():
        part = held.held.at(of_key == partition)
        makers = pa.array([known[key][0] for key in part.keys.tolist()], pa.binary())
        whole = held.partitions.get(partition)
        found[partition] = Before(
            end, 0 if whole is None else whole.records, Seen(makers, part.firsts, part.lasts)
        )
    return found


def fewer(slots: Iterable[Slot]) -> list[Slot]:
    """The same in wider slots, if there are too many."""
    every = list(slots)
    width = max((slot.width_ms for slot in every), default=1)
    while len({slot.begins_ms // width for slot in every}) > _MOST_SLOTS:
        width *= 2
    sums: dict[tuple[bytes, int, int], int] = {}
    for slot in every:
        place = (slot.maker, slot.partition, slot.begins_ms // width * width)
        sums[place] = sums.get(place, 0) + slot.records
    return [Slot(*place, width, records) for place, records in sums.items()]


def _named(old: Stretches, new: Stretches) -> tuple[Stretches, dict[int, int]]:
    """Both up to the limit, and how many records of each stream are beyond it."""
    every = concatenated([old, new])
    places = np.arange(len(every.keys))
    named, rest = every.at(places < MOST_NAMED), every.at(places >= MOST_NAMED)
    beyond: dict[int, int] = {}
    for key, size in zip(rest.keys.tolist(), (rest.lasts - rest.firsts + 1).tolist(), strict=True):
        beyond[key] = beyond.get(key, 0) + size
    return rejoined(named.at(np.lexsort((named.begins.rows, named.keys)))), beyond


def _sums(
    one: Mapping[int, tuple[int, int]], other: Mapping[int, tuple[int, int]]
) -> dict[int, tuple[int, int]]:
    nothing = (0, 0)
    return {
        key: (
            one.get(key, nothing)[0] + other.get(key, nothing)[0],
            one.get(key, nothing)[1] + other.get(key, nothing)[1],
        )
        for key in one.keys() | other.keys()
    }
