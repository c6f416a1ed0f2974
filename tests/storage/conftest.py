"""Both twins of the log behind one handle, so that one suite runs on either."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gapless.core.log import Log, LogConfig
from gapless.storage import FileLogStore, MemoryLogStore, index, segment
from tests.storage.helpers import SMALL, TOPIC, TOPIC_ID


class Medium:
    """A store that can be left and entered again."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self.store: FileLogStore | MemoryLogStore = MemoryLogStore()
        self.restart(clean=False)

    def restart(self, *, clean: bool = True) -> None:
        """The broker ends, in order or not, and another begins."""
        if isinstance(self.store, FileLogStore) and clean:
            self.store.close_cleanly()
        else:
            self.store.close()
        if self._folder is not None:
            self.store = FileLogStore(self._folder)

    def open(self, config: LogConfig = SMALL, topic: str = TOPIC, partition: int = 0) -> Log:
        return self.store.open(topic, TOPIC_ID, partition, config)

    def reopen(self, config: LogConfig = SMALL, *, clean: bool = True) -> Log:
        self.restart(clean=clean)
        return self.open(config)


@pytest.fixture(params=["files", "memory"])
def medium(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Medium]:
    made = Medium(tmp_path / "data" if request.param == "files" else None)
    yield made
    made.store.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FileLogStore]:
    made = FileLogStore(tmp_path / "data")
    yield made
    made.close()


@pytest.fixture
def tiny_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a short log use all levels of its index: groups of 2, blocks of 3, 4 remembered batches."""
    monkeypatch.setattr(segment, "GROUP", 2)
    monkeypatch.setattr(segment, "_RECENT", 4)
    monkeypatch.setattr(segment, "_LONG_WALK_BYTES", 0)
    monkeypatch.setattr(index, "BLOCK_BYTES", 24)
