"""The journal: compare-and-set, durable, readable again, and honest about damage."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from gapless.broker.journal import COMPACT_AFTER_ROWS, Journal, JournalFailed, JournalMoved
from gapless.core.records import (
    ConfigSet,
    MetadataRecord,
    PartitionChanged,
    ProducerIdsReserved,
    TopicCreated,
    TopicDeleted,
)

ID = UUID(int=7, version=4)


def test_what_was_appended_is_read_back(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    records: list[MetadataRecord] = [
        TopicCreated("t", ID),
        PartitionChanged(ID, 0, 0, 3, (0, 1), (0,)),
        ConfigSet(2, "t", "a", None),
    ]
    assert journal.append(0, records) == 1
    assert journal.append(1, [TopicDeleted(ID), ProducerIdsReserved(1000)]) == 2
    journal.close()
    again = Journal(tmp_path / "j")
    assert again.read() == (2, [*records, TopicDeleted(ID), ProducerIdsReserved(1000)])
    again.close()


def test_only_the_first_of_two_writers_wins(tmp_path: Path) -> None:
    one, two = Journal(tmp_path / "j"), Journal(tmp_path / "j")
    one.append(0, [ProducerIdsReserved(1000)])
    with pytest.raises(JournalMoved):
        two.append(0, [ProducerIdsReserved(2000)])
    assert two.append(1, [ProducerIdsReserved(2000)]) == 2
    one.close()
    two.close()


def test_a_long_history_is_compacted_and_keeps_its_version(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    for version in range(COMPACT_AFTER_ROWS):
        journal.append(version, [ProducerIdsReserved(version)])
    journal.compact(COMPACT_AFTER_ROWS, [ProducerIdsReserved(9)])
    assert journal.read() == (COMPACT_AFTER_ROWS, [ProducerIdsReserved(9)])
    assert journal.append(COMPACT_AFTER_ROWS, [ProducerIdsReserved(10)]) == COMPACT_AFTER_ROWS + 1
    journal.close()


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "j"
    path.write_bytes(b"this is no database" * 100)
    with pytest.raises(JournalFailed, match="j"):
        Journal(path)
