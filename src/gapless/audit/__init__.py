"""Did everything arrive, once? Compares promises with what is there, and names every record that is amiss.

report = audit(spark_session(), "127.0.0.1:9092", "orders")
report.verdict              # Verdict.CLEAN
"""

from __future__ import annotations

from typing import Any

from gapless.audit.findings import Counts, Fault, Finding, Hop, Report, Verdict

__all__ = ["Counts", "Fault", "Finding", "Hop", "Report", "Verdict", "audit"]


def __getattr__(name: str) -> Any:
    """Spark's libraries are imported by those who audit, and not by those who read a report."""
    if name != "audit":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gapless.audit.auditing import audit

    return audit
