"""Records that come again are taken out: by identity for ever, or by what they contain for a while."""

from __future__ import annotations

from gapless.pipeline.dedup.by_identity import IntervalDedup, Sifting
from gapless.pipeline.dedup.within import bring_up_to_date, drop_within

__all__ = ["IntervalDedup", "Sifting", "bring_up_to_date", "drop_within"]
