"""A report as Prometheus reads it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from gapless.audit.findings import Report


def metrics(report: Report) -> str:
    """The text that a scraper gets: totals of each hop, and the faults of each source that has any."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Report) -> Iterator[str]:
    topic = _quoted(report.topic)
    yield "# HELP gapless_audit_verdict 0 clean, 1 findings, 2 could not tell: the command's exit code."
    yield "# TYPE gapless_audit_verdict gauge"
    yield f"gapless_audit_verdict{{topic={topic}}} {report.verdict.exit_code}"
    yield "# HELP gapless_audit_time_seconds When the last look began, since 1970."
    yield "# TYPE gapless_audit_time_seconds gauge"
    yield f"gapless_audit_time_seconds{{topic={topic}}} {report.at_ms / 1000}"
    yield "# HELP gapless_audit_duration_seconds How long the last look took."
    yield "# TYPE gapless_audit_duration_seconds gauge"
    yield f"gapless_audit_duration_seconds{{topic={topic}}} {report.seconds:.3f}"
    yield "# HELP gapless_audit_records Records by what is true of them."
    yield "# TYPE gapless_audit_records gauge"
    for hop in report.hops:
        for state, count in asdict(hop.counts).items():
            labels = f"topic={topic},hop={_quoted(hop.name)},state={_quoted(state)}"
            yield f"gapless_audit_records{{{labels}}} {count}"
    yield "# HELP gapless_audit_faults Records with a fault, of sources that have any."
    yield "# TYPE gapless_audit_faults gauge"
    for hop in report.hops:
        for source, counts in sorted(hop.sources.items()):
            if counts.faults:
                labels = f"topic={topic},hop={_quoted(hop.name)},source={_quoted(source)}"
                yield f"gapless_audit_faults{{{labels}}} {counts.faults}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return f'"{escaped}"'
