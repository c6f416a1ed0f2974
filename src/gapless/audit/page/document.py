"""A report as one HTML page that needs nothing else: no network, no scripts, no fonts.

Path("audit.html").write_text(html(report), encoding="utf-8")
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict

from gapless import __version__
from gapless.audit.findings import Counts, Fault, Finding, Hop, Report, Timeline, Verdict, total
from gapless.audit.page import plots
from gapless.audit.page.plots import Series, Span
from gapless.audit.page.style import STYLE
from gapless.audit.page.text import duration, is_time, listed, many, name, safe, utc, utc_range

_MOST_TOLD = 3
"""Hops whose faults the first sentence tells."""
MOST_SOURCES, MOST_FINDINGS, MOST_PLOTS, MOST_PARTITIONS = 200, 1000, 12, 60

_ALWAYS = ("promised", "present", "lost", "duplicated", "reordered")
_WORDS = {
    "promised": "The ledger says that they were acknowledged.",
    "present": "Different records that are there.",
    "lost": "Acknowledged, and not there.",
    "duplicated": "Copies beyond the first of the same record.",
    "reordered": "Behind a record of the same source that was made later.",
    "aborted": "In a sink, though readers of committed records do not find them in the topic.",
    "torn": "Acknowledged as committed, and in the log only as a part of an aborted transaction.",
    "repaired": "Late, since they were lost and sent again. That is allowed.",
    "unpromised": "There, though nobody says that they were acknowledged. That is allowed.",
    "pending": "Waiting in a spool, or not due in a sink yet.",
    "expired": "Promised, and older than what retention has left.",
    "compacted": "Promised, and gone where compaction has removed as many.",
    "hidden": "Promised, and perhaps behind a transaction that has not ended.",
    "open": "Neither there nor promised, between others that are. They may still come.",
}
# Should a name ever get past the escaping, the browser still loads and runs nothing.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def html(report: Report) -> str:
    """The whole page."""
    words = _columns(total(hop.counts for hop in report.hops))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>Audit of {safe(report.topic)}: {report.verdict}</title>
<style>{STYLE}</style>
</head>
<body>
{plots.shapes()}
{_header(report)}
<main>
{"".join(_hop(hop) for hop in report.hops) or "<p>Nothing was audited.</p>"}
</main>
{_legend(words)}
<footer>Made by <code>gapless audit</code>, version {safe(__version__)}. All times are UTC.</footer>
</body>
</html>
"""


# The answer.


def _header(report: Report) -> str:
    facts = {
        "Topic": name(report.topic),
        "Bootstrap": name(report.bootstrap),
        "When": f"{utc(report.at_ms)} UTC" if is_time(report.at_ms) else "unknown",
        "Took": duration(report.seconds),
    }
    listing = "".join(f"<div><dt>{fact}</dt><dd>{value}</dd></div>" for fact, value in facts.items())
    verdict = report.verdict
    answer = {Verdict.CLEAN: "✓ Clean", Verdict.FINDINGS: "✕ Not clean", Verdict.UNKNOWN: "? Could not tell"}
    return (
        f'<header class="{verdict.name.lower()}"><p class="answer">{answer[verdict]}</p>'
        f"<h1>{_sentence(report)}</h1>{_aside(report)}"
        f'<dl class="facts">{listing}</dl></header>'
    )


def _sentence(report: Report) -> str:
    first = _first(report)
    if report.verdict is Verdict.CLEAN:
        if not first.promised:
            return "Nothing was promised, and nothing is amiss."
        return f"{_all_of(first.promised_there).capitalize()} there, once.{_also_pending(report)}"
    if report.verdict is Verdict.UNKNOWN:
        left = first.promised - first.expired - first.compacted
        if not left:
            return "Nothing is known to be promised, so nobody can tell whether all is there."
        return f"Nothing is known to be amiss, but it is not certain that {_all_of(left)} there."
    # A record can be amiss in several hops, so their numbers do not add up.
    faulty = [hop for hop in report.hops if hop.counts.faults]
    told = [f"{_faults_of(hop.counts)}{_at(hop, report)}" for hop in faulty[:_MOST_TOLD]]
    more = len(faulty) - _MOST_TOLD
    return "; ".join([*told, f"and more in {many(more, 'other hop')}"] if more > 0 else told) + "."


def _faults_of(counts: Counts) -> str:
    worst, *others = [fault for fault in Fault if getattr(counts, fault)]
    first = f"{many(getattr(counts, worst), 'record')} {worst}"
    return listed([first, *(f"{getattr(counts, fault):,} {fault}" for fault in others)])


def _also_pending(report: Report) -> str:
    """A record that is pending in two sinks is still one."""
    waiting = [(hop.counts.pending, _at(hop, report)) for hop in report.hops if hop.counts.pending]
    return "".join(f" {count:,} {'is' if count == 1 else 'are'} pending{where}." for count, where in waiting)


def _at(hop: Hop, report: Report) -> str:
    """Which hop, if there are several."""
    return f" ({safe(hop.name)})" if len(report.hops) > 1 else ""


def _all_of(count: int) -> str:
    return "the one promised record is" if count == 1 else f"all {count:,} promised records are"


def _aside(report: Report) -> str:
    first = _first(report)
    gone = [f"{getattr(first, word):,} {word}" for word in ("expired", "compacted") if getattr(first, word)]
    several = len(report.hops) > 1
    said = [
        f"{f'{safe(hop.name)}: ' if several else ''}"
        f"{hop.counts.promised:,} promised, {hop.counts.present:,} present"
        f"{f', {hop.counts.pending:,} pending' if hop.counts.pending else ''}"
        for hop in report.hops
    ] or ["0 promised, 0 present"]
    if report.verdict is not Verdict.FINDINGS:
        said.append("0 lost, 0 duplicated, 0 reordered")
    if gone:
        said.append(f"{listed(gone)}, and so not expected")
    if not several:
        return f'<p class="quiet">{"; ".join(said)}.</p>'
    return f'<ul class="quiet">{"".join(f"<li>{each}</li>" for each in said)}</ul>'


def _first(report: Report) -> Counts:
    return report.hops[0].counts if report.hops else Counts()


# One hop.


def _hop(hop: Hop) -> str:
    return f"""
<section>
<h2>{safe(hop.name)}</h2>
{_figures(hop.counts)}
{_remarks("Why it is not certain", "doubts", hop.doubts)}
{_remarks("Notes", "notes", _notes(hop))}
{_times(hop)}
{_places(hop)}
{_sources(hop)}
{_findings(hop)}
</section>
"""


def _columns(counts: Counts) -> list[str]:
    return [word for word, count in asdict(counts).items() if word in _ALWAYS or count]


def _abbr(word: str) -> str:
    return f'<abbr title="{safe(_WORDS[word])}">{word}</abbr>'


def _figures(counts: Counts) -> str:
    return f'<dl class="figures">{"".join(_figure(word, counts) for word in _columns(counts))}</dl>'


def _figure(word: str, counts: Counts) -> str:
    count = getattr(counts, word)
    is_fault = word in {fault.value for fault in Fault} and count
    mark = f"{plots.icon(Fault(word))} " if is_fault else ""
    colour = f' class="{word}"' if is_fault else ""
    return f"<div><dt>{_abbr(word)}</dt><dd{colour}>{mark}{count:,}</dd></div>"


def _notes(hop: Hop) -> list[str]:
    if not hop.without_identity:
        return hop.notes
    which = "has no identity: nobody promised it"
    if hop.without_identity > 1:
        which = "have no identity: nobody promised them"
    return [*hop.notes, f"{many(hop.without_identity, 'record')} {which}"]


def _remarks(title: str, kind: str, texts: list[str]) -> str:
    if not texts:
        return ""
    items = "".join(f"<li>{safe(text)}</li>" for text in texts)
    return f'<div class="remarks {kind}"><strong>{title}</strong><ul>{items}</ul></div>'


def _legend(words: Iterable[str]) -> str:
    items = "".join(f"<div><dt>{word}</dt><dd>{safe(_WORDS[word])}</dd></div>" for word in words)
    return f'<section><h2>What the words mean</h2><dl class="words">{items}</dl></section>'


# When.


def _times(hop: Hop) -> str:
    everything = _series(hop.timeline, [*hop.timeline.promised, *hop.timeline.present])
    span = plots.time_span(everything, hop.findings)
    if span is None:
        return ""
    faulty = [source for source, counts in _worst_first(hop) if counts.faults]
    shown = faulty[:MOST_PLOTS] if len(hop.sources) > 1 else []
    found = _by_source(hop.findings)
    lanes = plots.lanes_for(hop.findings)
    each = "".join(
        _figure_of(name(source), plots.by_time(source, series, found.get(source, []), span, lanes))
        for source in shown
        for series in [_series(hop.timeline, [source])]
    )
    when = f"<small>{utc_range(span.first, span.end)} UTC</small>"
    together = plots.by_time("all sources", everything, hop.findings, span, lanes)
    has_counts = bool(everything.promised or everything.present)
    unshown = len(faulty) - len(shown) if shown else 0
    return f"""<h3>By time</h3>
<p class="quiet">{_about_times(hop, has_counts=has_counts)}</p>
{_key(hop.findings, with_counts=has_counts)}
{_figure_of(f"<span>All sources</span>{when}", together)}
{f'<div class="each">{each}</div>' if each else ""}
{_said_if(unshown, f"{many(unshown, 'more source')} with faults: the plots are of the worst {MOST_PLOTS}.")}
{_unmarked(plots.moment(finding) is None for finding in hop.findings)}"""


def _about_times(hop: Hop, *, has_counts: bool) -> str:
    slot = duration(hop.timeline.width_ms / 1000)
    counts = f"Records per {slot}, by their own time. What is promised of a sink is what the topic holds."
    if hop.timeline.is_sealed:
        counts = (
            f"Records per {slot}. What is promised counts when it was sealed, a little after the records' "
            "own time, so the line and the area need not agree at each moment."
        )
    marks = "Marks are where findings begin."
    return " ".join([counts] * has_counts + [marks] * bool(hop.findings))


def _figure_of(caption: str, plot: str) -> str:
    return f"<figure><figcaption>{caption}</figcaption>{plot}</figure>"


def _series(timeline: Timeline, sources: Iterable[str]) -> Series:
    promised: Counter[int] = Counter()
    present: Counter[int] = Counter()
    for source in set(sources):
        promised.update(timeline.promised.get(source, {}))
        present.update(timeline.present.get(source, {}))
    known = [{at: n for at, n in counts.items() if is_time(at)} for counts in (promised, present)]
    return Series(known[0], known[1], timeline.width_ms)


def _by_source(findings: Iterable[Finding]) -> dict[str, list[Finding]]:
    found: dict[str, list[Finding]] = {}
    for finding in findings:
        found.setdefault(finding.source, []).append(finding)
    return found


def _key(findings: Iterable[Finding], *, with_counts: bool) -> str:
    faults = {finding.fault for finding in findings}
    marks = "".join(f"<span>{plots.icon(fault)} {fault}</span>" for fault in Fault if fault in faults)
    box = '<svg class="swatch" viewBox="0 0 20 12" aria-hidden="true">'
    counts = (
        f'<span>{box}<path class="present" d="M0 0H20V12H0Z"/></svg> present</span>'
        f'<span>{box}<path class="promised" d="M0 6H20"/></svg> promised</span>'
    )
    return f'<div class="key">{counts if with_counts else ""}{marks}</div>'


def _unmarked(flags: Iterable[bool]) -> str:
    without = sum(flags)
    verb = "is" if without == 1 else "are"
    return _said_if(without, f"{many(without, 'finding')} {verb} not marked: nothing tells where.")


def _said_if(count: int, text: str) -> str:
    return f'<p class="quiet">{text}</p>' if count else ""


# Where.


def _places(hop: Hop) -> str:
    found: dict[int, list[Finding]] = {}
    for finding in hop.findings:
        if finding.partition >= 0:
            found.setdefault(finding.partition, []).append(finding)
    if not found:
        return ""
    partitions = sorted({*hop.offsets, *found}, key=lambda each: (-len(found.get(each, [])), each))
    lanes = plots.lanes_for(hop.findings)
    strips = []
    for partition in sorted(partitions[:MOST_PARTITIONS]):
        here = found.get(partition, [])
        span = _offset_span(hop, partition, here)
        ends = f'<div class="ends"><span>{span.first:,}</span><span>{span.end:,}</span></div>'
        plot = plots.by_offset(partition, span, here, lanes)
        strips.append(f'<div class="partition"><h4>Partition {partition}</h4><div>{plot}{ends}</div></div>')
    more = max(len(partitions) - MOST_PARTITIONS, 0)
    return f"""<h3>Where in the partition's life</h3>
<p class="quiet">From the first offset that is left to the end of what was read. One moment, or all along?</p>
{_key(hop.findings, with_counts=False)}
{"".join(strips)}
{_said_if(more, f"{many(more, 'more partition')}: those with the most findings are shown.")}
{_unmarked(plots.place(finding) is None for finding in hop.findings)}"""


def _offset_span(hop: Hop, partition: int, found: Iterable[Finding]) -> Span:
    if partition in hop.offsets:
        return Span(*hop.offsets[partition])
    known = [at for each in found for at in (each.first_offset, each.last_offset) if at is not None]
    return Span(min(known, default=0), max(known, default=0) + 1)


# Which.


def _worst_first(hop: Hop) -> list[tuple[str, Counts]]:
    return sorted(hop.sources.items(), key=lambda item: (-item[1].faults, item[0]))


def _sources(hop: Hop) -> str:
    if not hop.sources:
        return '<h3>Sources</h3><p class="quiet">There are none.</p>'
    worst = _worst_first(hop)
    columns = _columns(hop.counts)
    rows = [_source_row(name(source), counts, columns) for source, counts in worst[:MOST_SOURCES]]
    if len(worst) > 1:
        rows.insert(0, _source_row(f"all {len(worst):,}", hop.counts, columns, ' class="all"'))
    figures = "".join(f'<th scope="col" class="number">{_abbr(word)}</th>' for word in columns)
    head = f'<th scope="col">source</th>{figures}'
    rest = total(counts for _, counts in worst[MOST_SOURCES:])
    more = max(len(worst) - MOST_SOURCES, 0)
    said = f"{many(more, 'more source')} with {many(rest.faults, 'fault')}: <code>--json</code> names them."
    return f"<h3>Sources</h3>{_table('Sources', head, rows)}{_said_if(more, said)}"


def _source_row(title: str, counts: Counts, columns: Iterable[str], attributes: str = "") -> str:
    cells = "".join(_source_cell(word, getattr(counts, word)) for word in columns)
    return f'<tr{attributes}><th scope="row">{title}</th>{cells}</tr>'


def _source_cell(word: str, count: int) -> str:
    is_fault = word in {fault.value for fault in Fault} and count
    kind = word if is_fault else "" if count else "zero"
    mark = f"{plots.icon(Fault(word))}&nbsp;" if is_fault else ""
    return f'<td class="number {kind}" data-label="{word}"><span>{mark}{count:,}</span></td>'


def _findings(hop: Hop) -> str:
    unnamed = listed([f"{count:,} {fault}" for fault, count in hop.unnamed_findings.items() if count] or [""])
    besides = _said_if(len(unnamed), f"Besides, {unnamed} records are counted, and not named one by one.")
    if not hop.findings:
        return f'<h3>Findings</h3><p class="quiet">{"None is named." if unnamed else "None."}</p>{besides}'
    heads = ("fault", "source, incarnation", "partition", "sequences", "records", "offsets", "time (UTC)")
    head = "".join(f'<th scope="col" class="of-{each.split()[0].strip(",")}">{each}</th>' for each in heads)
    rows = [_finding_row(finding) for finding in hop.findings[:MOST_FINDINGS]]
    more = max(len(hop.findings) - MOST_FINDINGS, 0)
    said = _said_if(more, f"{many(more, 'more finding')}: <code>gapless audit --json</code> names them.")
    return f"<h3>Findings</h3>{_table('Findings', head, rows)}{said}{besides}"


def _finding_row(finding: Finding) -> str:
    # The labels are shown where a row becomes a card.
    cells = (
        f'<td class="fault {finding.fault}">{plots.icon(finding.fault)}&nbsp;{finding.fault}</td>',
        f'<th scope="row">{name(finding.source)}<br><code>{safe(finding.incarnation)}</code></th>',
        f'<td class="place" data-label="partition">{name(finding.place)}</td>',
        f'<td data-label="sequences">{finding.which}</td>',
        f'<td class="number" data-label="records">{finding.records:,}</td>',
        f'<td data-label="offsets">{_offsets(finding)}</td>',
        f'<td data-label="time (UTC)">{utc_range(finding.first_ms, finding.last_ms)}</td>',
    )
    return f"<tr>{''.join(cells)}</tr>"


def _numbers(first: int | None, last: int | None) -> str:
    """Plain digits: they are for looking up, not for reading."""
    return f"{first}" if first == last else f"{first} to {last}"


def _offsets(finding: Finding) -> str:
    first, last = finding.first_offset, finding.last_offset
    if finding.fault is not Fault.LOST or finding.in_sink:
        return _numbers(first, last) if first is not None else ""
    if first is None and last is None:
        return "nothing else is there"
    if first is None:
        return f"before {last}"
    return f"after {first}" if last is None else f"between {first} and {last}"


def _table(title: str, head: str, rows: Iterable[str]) -> str:
    """In a box of its own, which scrolls (also by keys) where the page is narrower."""
    return (
        f'<div class="table {title.lower()}" role="region" aria-label="{title}" tabindex="0"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )
