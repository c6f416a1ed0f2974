"""How the HTML report looks: on a screen in light and dark, on a phone, and on paper."""

from __future__ import annotations

_LIGHT = """
  --page: #ffffff; --ink: #1b2330; --quiet: #566070; --rule: #dde2e9; --panel: #f6f8fa;
  --lost: #c4261d; --duplicated: #a86400; --reordered: #1c62b9; --aborted: #7a3fb0; --torn: #0d7468;
  --good: #1a7a3c; --unsure: #a86400;
  --present: #bfd0e2; --promised: #3c4a5e;
"""
_DARK = """
  --page: #12161c; --ink: #e4e9f0; --quiet: #9aa5b4; --rule: #2c343f; --panel: #1a2029;
  --lost: #ff8077; --duplicated: #f0b03f; --reordered: #76b3ff; --aborted: #c79bf2; --torn: #4ecab9;
  --good: #5fce86; --unsure: #f0b03f;
  --present: #35506d; --promised: #c3cedc;
"""
_PAPER = """
  --page: #fff; --ink: #000; --quiet: #333; --rule: #999; --panel: #fff;
  --lost: #b3150d; --duplicated: #8a5200; --reordered: #1554a3; --aborted: #64309a; --torn: #0a5c52;
  --good: #000; --unsure: #000;
  --present: #ccd6e0; --promised: #000;
"""
_RULES = """
* { box-sizing: border-box; }
html { color-scheme: light dark; -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body { margin: 0 auto; max-width: 72rem; padding: 2.5rem 1.5rem 4rem; background: var(--page);
  color: var(--ink);
  font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  font-variant-numeric: tabular-nums; }
h1 { margin: 0 0 .75rem; font-size: clamp(1.5rem, 1.1rem + 2vw, 2.25rem); line-height: 1.2; font-weight: 650;
  letter-spacing: -.015em; text-wrap: balance; overflow-wrap: anywhere; }
h2 { margin: 3rem 0 1rem; padding-top: 1.25rem; border-top: 2px solid var(--ink); font-size: 1.375rem;
  line-height: 1.25; overflow-wrap: anywhere; }
h3 { margin: 2.5rem 0 .25rem; font-size: 1.0625rem; }
p { margin: .25rem 0 .75rem; max-width: 44rem; }
ul { margin: .25rem 0; padding-left: 1.25rem; }
li { overflow-wrap: anywhere; }
dl, dd, figure { margin: 0; }
main > p { margin-top: 2rem; }
code { font: .9em ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
abbr { text-decoration: underline dotted var(--quiet) 1px; text-underline-offset: .2em; cursor: help; }
.name { overflow-wrap: anywhere; white-space: pre-wrap; }
.quiet, figcaption small { color: var(--quiet); font-size: .875rem; }
.lost { color: var(--lost); } .duplicated { color: var(--duplicated); }
.reordered { color: var(--reordered); } .aborted { color: var(--aborted); }
.torn { color: var(--torn); }

.answer { margin: 0 0 .5rem; font-size: .875rem; font-weight: 650; letter-spacing: .06em;
  text-transform: uppercase; }
.clean .answer { color: var(--good); } .findings .answer { color: var(--lost); }
.unknown .answer { color: var(--unsure); }
.facts { display: flex; flex-wrap: wrap; gap: .75rem 2.5rem; margin-top: 1.5rem; }
.facts dt { color: var(--quiet); font-size: .8125rem; } .facts dd { overflow-wrap: anywhere; }

.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.5rem, 1fr)); gap: 1px;
  border: 1px solid var(--rule); border-radius: 6px; overflow: hidden; background: var(--rule); }
.figures div { padding: .75rem 1rem; background: var(--page); }
.figures dt { color: var(--quiet); font-size: .8125rem; }
.figures dd { font-size: 1.375rem; line-height: 1.3; font-weight: 600; overflow-wrap: anywhere; }
.remarks { margin: 1.25rem 0; padding: .75rem 1rem; border-left: 3px solid var(--rule);
  background: var(--panel); }
.remarks.doubts { border-color: var(--unsure); }
.remarks strong { display: block; font-size: .875rem; }

.key { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; margin: .5rem 0 1rem; color: var(--quiet);
  font-size: .8125rem; }
.key span { display: inline-flex; align-items: center; gap: .4rem; }
.shapes { position: absolute; }
.icon { width: .75em; height: .75em; flex: none; }
.swatch { width: 1.25rem; height: .75rem; flex: none; }
figure { margin-bottom: 1.5rem; min-width: 0; break-inside: avoid; }
figcaption { display: flex; flex-wrap: wrap; justify-content: space-between; gap: 0 1rem; font-weight: 600;
  font-size: .9375rem; }
figcaption small { font-weight: 400; }
figcaption .name { display: -webkit-box; -webkit-box-orient: vertical; -webkit-line-clamp: 2;
  overflow: hidden; }
.each { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(24rem, 100%), 1fr));
  gap: .5rem 2.5rem; margin-top: 1.5rem; }
.plot { display: block; overflow: visible; }
.plot text { fill: var(--quiet); font-size: 11px; }
.plot .level { paint-order: stroke; stroke: var(--page); stroke-width: 3px; stroke-linejoin: round; }
.plot .present, .swatch .present { fill: var(--present); }
.plot .promised, .swatch .promised { fill: none; stroke: var(--promised); stroke-width: 1.25;
  vector-effect: non-scaling-stroke; }
.plot .grid { stroke: var(--rule); } .plot .ground { stroke: var(--quiet); }
.plot .mark { stroke: var(--page); stroke-width: 1px; }
.plot .strip { fill: var(--panel); stroke: var(--rule); }
.plot .stretch { stroke: currentColor; stroke-width: 4; opacity: .45; }
.each .more { display: none; }
.partition { display: grid; grid-template-columns: 8rem 1fr; align-items: start; gap: 0 1rem;
  margin-bottom: .75rem; break-inside: avoid; }
.partition h4 { margin: 0; font-size: .875rem; line-height: 1.4; }
.partition > div { min-width: 0; }
.ends { display: flex; justify-content: space-between; gap: 1rem; color: var(--quiet); font-size: .75rem; }

.table { overflow-x: auto; border: 1px solid var(--rule); border-radius: 6px; margin: .75rem 0; }
.table:focus-visible { outline: 2px solid var(--reordered); outline-offset: 2px; }
table { border-collapse: collapse; width: 100%; font-size: .875rem; line-height: 1.4; }
th, td { padding: .45rem .75rem; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--rule); }
tbody tr:last-child > * { border-bottom: 0; }
thead th { color: var(--quiet); font-size: .8125rem; font-weight: 500; white-space: nowrap;
  background: var(--panel); }
tbody th { font-weight: 500; min-width: 9rem; max-width: 26rem; }
td code { color: var(--quiet); font-size: .75rem; overflow-wrap: anywhere; }
.number, .of-records { text-align: right; }
td { white-space: nowrap; } .place { min-width: 8rem; max-width: 18rem; }
.fault { white-space: nowrap; font-weight: 600; }
.zero { color: var(--quiet); }
.all > * { font-weight: 650; border-bottom: 2px solid var(--rule); }
.words { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(22rem, 100%), 1fr));
  gap: .35rem 2.5rem; font-size: .875rem; }
.words div { display: flex; gap: .75rem; break-inside: avoid; }
.words dt { flex: 0 0 6rem; font-weight: 600; } .words dd { color: var(--quiet); }
footer { margin-top: 3rem; color: var(--quiet); font-size: .8125rem; }
"""
_PHONE = """
  body { padding: 1.5rem 1rem 3rem; }
  .facts { display: grid; grid-template-columns: auto 1fr; gap: .25rem 1rem; }
  .facts div { display: contents; }
  .facts dt { line-height: 1.85; }
  .figures { grid-template-columns: 1fr 1fr; }
  .figures div:first-child:nth-last-child(odd) { grid-column: 1 / -1; }
  .figures div { padding: .5rem .75rem; } .figures dd { font-size: 1.125rem; }
  .partition { grid-template-columns: 1fr; }
  .plot .more { display: none; }
  .table thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
  .table tr { display: block; padding: .5rem .75rem; border-bottom: 1px solid var(--rule); }
  .table tbody tr:last-child { border-bottom: 0; }
  .table th, .table td { display: block; max-width: none; padding: 0; border: 0; text-align: left;
    white-space: normal; overflow-wrap: anywhere; }
  .table td[data-label] { display: grid; grid-template-columns: 6rem 1fr; }
  .table td[data-label]::before { content: attr(data-label); color: var(--quiet); font-weight: 400; }
  .table td[data-label]:empty, .sources.table tr:not(.all) .zero { display: none; }
  .sources.table tr { display: grid; grid-template-columns: 1fr 1fr; gap: 0 1.5rem; }
  .sources.table th { grid-column: 1 / -1; font-weight: 600; }
  .sources.table td { grid-template-columns: auto 1fr; gap: .5rem; text-align: right; }
"""
_PRINT = """
  @page { margin: 14mm 12mm; }
  html { color-scheme: light; font-size: 9.5pt; }
  body { max-width: none; padding: 0 8px; }
  h2, h3, figcaption, thead { break-after: avoid; }
  thead { display: table-header-group; } tr { break-inside: avoid; }
  .table { overflow: visible; border-radius: 0; }
  table { font-size: 7.5pt; } th, td { padding: 2pt 4pt; }
  thead th, td { white-space: normal; } .number { overflow-wrap: anywhere; } thead th { font-size: 7pt; }
  tbody th, .place { min-width: 0; }
  abbr { text-decoration: none; }
  .each { grid-template-columns: 1fr 1fr; }
"""

STYLE = f"""
:root {{{_LIGHT}}}
@media (prefers-color-scheme: dark) {{ :root {{{_DARK}}} }}
{_RULES}
@media screen and (max-width: 40rem) {{{_PHONE}}}
@media print {{ :root {{{_PAPER}}} {_PRINT} }}
"""
