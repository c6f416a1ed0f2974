"""What can be wrong with a spool, each with one line that says what to do."""

from __future__ import annotations

from gapless.errors import GaplessError, UsageError


class SpoolError(GaplessError):
    """Something is wrong with a spool."""


class SpoolInUse(SpoolError):
    """Another producer has the folder open."""


class SpoolOfAnother(SpoolError, UsageError):
    """The folder belongs to another source, is of another version, or is no spool."""


class SpoolDamaged(SpoolError):
    """Bytes that were on disk are not what they were. Nothing has been changed or deleted."""


class SpoolRestored(SpoolError):
    """The cluster has records that this spool does not: the folder is an old copy."""


class SpoolFull(SpoolError):
    """The bound on the spool's size leaves no room, and nothing more can be given up."""


class SpoolFailed(SpoolError):
    """The disk refused a write or a sync: the record is not stored."""


class SpoolClosed(SpoolError):
    """The spool has been closed."""


class NotKept(SpoolError):
    """The position asked for has been sent and deleted since."""
