"""What `gapless audit --repair` does: sends lost records again from the spools that still have them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapless.cli.output import note
from gapless.client.formats import Interval
from gapless.client.producing.resending import Resending

if TYPE_CHECKING:
    from gapless.audit.findings import Finding, Report


def audit_and_repair(
    audit: Callable[[], Report], spools: Iterable[Path], properties: Mapping[str, Any]
) -> Report:
    """Audit, send what is missing, and audit again if anything was sent.

    The spools are claimed before anything is read: of two who repair at a time only one sends.
    """
    from gapless.audit.findings import Fault

    with ExitStack() as stack:
        repairing = [stack.enter_context(Resending(folder, properties)) for folder in spools]
        report = audit()
        # What is torn is in the log, but no reader of committed records will ever see it.
        lost = [each for each in report.hops[0].findings if each.fault in (Fault.LOST, Fault.TORN)]
        sent = sum(_send(resending, lost) for resending in repairing)
    missing = sum(each.records for each in lost) - sent
    if lost:
        note(f"sent {sent:,} lost records again" + (f"; {missing:,} are in no spool" if missing else ""))
    return audit() if sent else report


def _send(resending: Resending, lost: Iterable[Finding]) -> int:
    wanted: dict[bytes, list[Interval]] = {}
    for each in lost:
        # Where compaction may have removed some of them, nobody knows which are missing.
        if each.source == resending.source and each.records == each.last - each.first + 1:
            interval = Interval(each.topic, each.partition, each.first, each.last)
            wanted.setdefault(bytes.fromhex(each.incarnation), []).append(interval)
    return resending.send(wanted).records
