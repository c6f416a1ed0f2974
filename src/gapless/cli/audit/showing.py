"""An audit's report in the terminal: a table for each hop, the first findings, and the verdict."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from gapless.cli.output import say, say_table, styled

if TYPE_CHECKING:
    from gapless.audit.findings import Counts, Hop, Report

_ALWAYS = ("promised", "present", "lost", "duplicated", "reordered")
_SHOWN_FINDINGS, _SHOWN_SOURCES = 20, 20


def show(report: Report) -> None:
    for hop in report.hops:
        _show_hop(hop)
    say(_verdict(report))


def _show_hop(hop: Hop) -> None:
    totals = asdict(hop.counts)
    columns = [name for name in totals if name in _ALWAYS or totals[name]]
    worst = sorted(hop.sources.items(), key=lambda item: (-item[1].faults, item[0]))
    rows = [(source, *_figures(counts, columns)) for source, counts in worst[:_SHOWN_SOURCES]]
    if len(worst) > _SHOWN_SOURCES:
        rest = [counts for _, counts in worst[_SHOWN_SOURCES:]]
        rows.append((f"{len(rest):,} more", *(sum(getattr(c, name) for c in rest) for name in columns)))
    if len(worst) != 1:
        rows.append(("all", *_figures(hop.counts, columns)))
    say_table(("source", *columns), rows, title=hop.name)
    for finding in hop.findings[:_SHOWN_FINDINGS]:
        say(str(finding))
    more = len(hop.findings) - _SHOWN_FINDINGS
    if more > 0:
        say(f"and {more:,} more findings (--json names them)")
    for fault, count in hop.unnamed_findings.items():
        say(f"and {count:,} {fault} records beyond those that are named")
    for text in [*hop.notes, *hop.doubts]:
        say(text)
    if hop.without_identity:
        say(f"{hop.without_identity:,} records have no identity: nobody promised them")


def _figures(counts: Counts, columns: list[str]) -> list[int]:
    return [getattr(counts, name) for name in columns]


def _verdict(report: Report) -> str:
    totals = report.hops[0].counts
    verdict = report.verdict
    if verdict == "clean":
        good = styled("clean:", "bold green")
        if not totals.promised:
            return f"{good} {totals.present:,} records, and nothing is amiss among them"
        waiting = ", ".join(
            f"{hop.counts.pending:,} ({hop.name})" for hop in report.hops if hop.counts.pending
        )
        also = f"; pending: {waiting}" if waiting else ""
        return f"{good} all {totals.promised_there:,} promised records are there, once{also}"
    if verdict == "findings":
        # A record can be amiss in several hops, so their numbers do not add up.
        told = [
            f"{_faults(hop.counts)}{f' ({hop.name})' if len(report.hops) > 1 else ''}"
            for hop in report.hops
            if hop.counts.faults
        ]
        return f"{styled('not clean:', 'bold red')} {'; '.join(told)}"
    return f"{styled('could not tell', 'bold yellow')} whether all is there"


def _faults(counts: Counts) -> str:
    from gapless.audit.findings import Fault

    found = {fault: getattr(counts, fault) for fault in Fault}
    return ", ".join(f"{count:,} {fault}" for fault, count in found.items() if count or fault in _ALWAYS)
