"""Counters of what a log does to the disk, cheap enough to be always on.

They are how it is shown that an operation costs the same on a small and on a huge log: times are noisy,
reads and bytes are not.
"""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(slots=True)
class Probes:
    """Totals since the log was opened."""

    log_reads: int = 0
    log_bytes: int = 0
    index_reads: int = 0
    index_bytes: int = 0
    index_loads: int = 0
    """How often the table of an index's blocks had to be read: once per segment that is kept in memory."""

    def snapshot(self) -> dict[str, int]:
        """All counters by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def since(self, earlier: dict[str, int]) -> dict[str, int]:
        """What was counted after `earlier` was taken."""
        return {name: count - earlier[name] for name, count in self.snapshot().items()}
