"""A sink's tasks without a server: each slot is one file, with its marker and its rows, replaced as a whole.

It does what the real ones do, judges its marker and writes rows and marker as one, and can be told to fail
around that. Each call is noted, so that a test can see who wrote what how often.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapless.pipeline.slots import Slot, Verdict, judge
from gapless.pipeline.tasks import Done

if TYPE_CHECKING:
    from pyarrow import RecordBatch


@dataclass(frozen=True, slots=True)
class FileWriter:
    """A `TaskWriter`. Rows have a column `value`, which is all that is kept of them."""

    folder: str
    fail_before: frozenset[str] = frozenset()
    """Slots whose task fails before it has written anything."""
    fail_after: frozenset[str] = frozenset()
    """Slots whose task fails when it has written all."""
    fail_establishing: bool = False
    answers: Mapping[str, str] = field(default_factory=dict)
    """Slots whose task answers in another one's name."""
    wait_for: str = ""
    """A file that tasks wait for, in the middle of their work."""

    def establish(self, slots: Sequence[Slot], *, reset: bool) -> None:
        for slot in slots:
            self._note("reset" if reset else "establish", slot)
            if reset or not self._file(slot.name).exists():
                self._put(slot.name, slot.start, self._rows(slot.name))
        if self.fail_establishing:
            raise OSError("the sink is away")

    def write(self, slot: Slot, rows: Iterator[RecordBatch]) -> Done:
        self._note("write", slot)
        began = time.monotonic()
        if judge(slot, self.marker(slot.name)) is Verdict.SKIP:
            return Done(slot.name, 0, skipped=True, seconds=0.0)
        new = [value for batch in rows for value in batch.column("value").to_pylist()]
        self._note("middle", slot)
        while self.wait_for and not Path(self.wait_for).exists():
            time.sleep(0.01)
        if slot.name in self.fail_before:
            raise OSError(f"{slot.name} fails before")
        self._put(slot.name, slot.end, [*self._rows(slot.name), *new])
        if slot.name in self.fail_after:
            raise OSError(f"{slot.name} fails after")
        seconds = time.monotonic() - began
        return Done(self.answers.get(slot.name, slot.name), len(new), skipped=False, seconds=seconds)

    def marker(self, slot: str) -> int | None:
        """Where the slot's marker is."""
        state = self._state(slot)
        return None if state is None else int(state["marker"])

    def markers(self) -> dict[str, int | None]:
        return {name: self.marker(name) for name in self._names()}

    def lose_marker(self, slot: str) -> None:
        self._file(slot).unlink()

    def values(self, *slots: str) -> list[str]:
        """The rows of these slots, or of all, sorted."""
        return sorted(row for name in (slots or self._names()) for row in self._rows(name))

    def calls(self, what: str, batch: int) -> list[str]:
        """The slots for which `what` was called in a batch, sorted: once for each call."""
        notes = Path(self.folder, "calls").read_text().splitlines() if self._names() else []
        split = (note.split(" ") for note in notes)
        return sorted(slot for called, slot, number in split if (called, number) == (what, str(batch)))

    def _names(self) -> list[str]:
        return sorted(path.stem for path in Path(self.folder).glob("*.json"))

    def _file(self, slot: str) -> Path:
        return Path(self.folder, f"{slot}.json")

    def _state(self, slot: str) -> Any:
        file = self._file(slot)
        return json.loads(file.read_text()) if file.exists() else None

    def _rows(self, slot: str) -> list[str]:
        state = self._state(slot)
        return [] if state is None else list(state["rows"])

    def _put(self, slot: str, marker: int, rows: list[str]) -> None:
        new = self._file(slot).with_suffix(f".{os.getpid()}")
        new.write_text(json.dumps({"marker": marker, "rows": rows}))
        new.replace(self._file(slot))

    def _note(self, what: str, slot: Slot) -> None:
        line = f"{what} {slot.name} {slot.batch}\n".encode()
        file = os.open(Path(self.folder, "calls"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(file, line)
        os.close(file)
