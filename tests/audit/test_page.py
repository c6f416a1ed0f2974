"""The audit's HTML report: what its text says, and what a browser makes of it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from gapless.audit.findings import Counts, Fault, Finding, Hop, Report, Timeline
from gapless.audit.page import document as pages
from gapless.audit.page import html, plots, text
from gapless.audit.page.style import STYLE

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NOON = 1_700_049_600_000
HOSTILE = """<script>document.title='taken'</script>"><img src=http://example.org/x onerror=alert(1)>&amp;'"""
INCARNATION = "0123456789abcdef"
PHONE, DESK = 375, 1200


def finding(fault: Fault, source: str = "till-1", at: int = 0, *, partition: int = 0) -> Finding:
    """One record, `at` percent of the partition and of ten minutes."""
    ms = NOON + at * 6000
    return Finding(
        fault, source, INCARNATION, "orders", partition, at, at, 1, at * 10, at * 10 + 1, ms, ms + 9
    )


def hop_of(findings: list[Finding], *sources: str, records: int = 1000) -> Hop:
    """A hop whose sources have these findings, and records in each minute."""
    slots = {NOON + minute * 60_000: records // 10 for minute in range(10)}
    hop = Hop("producers → topic", findings=findings)
    for source in {*sources, *(each.source for each in findings)}:
        counts = hop.sources[source] = Counts(promised=records, present=records)
        for each in findings:
            if each.source == source:
                setattr(counts, each.fault, getattr(counts, each.fault) + each.records)
    every = dict.fromkeys(hop.sources, slots)
    hop.timeline = Timeline(60_000, dict(every), dict(every))
    hop.offsets = dict.fromkeys(range(3), (0, 1000))
    return hop


def report_of(*hops: Hop, topic: str = "orders") -> Report:
    return Report(topic, "broker-1:9092", NOON + 700_000, list(hops), 12.3)


def clean() -> Report:
    return report_of(hop_of([], "till-1", "till-2"))


def with_faults() -> Report:
    """Each fault in each of three partitions, far enough from each other to be seen."""
    found = [
        finding(fault, f"till-{place % 3}", 5 + 7 * place + number, partition=place % 3)
        for number, fault in enumerate(Fault)
        for place in range(9)
    ]
    hop = hop_of(found)
    hop.notes, hop.doubts, hop.without_identity = ["a note"], ["a doubt"], 12
    hop.sources["till-0"].expired = 77
    return report_of(hop)


def crowd() -> Report:
    found = [
        finding(list(Fault)[n % len(Fault)], f"sensor-{n % 1000:04}", n % 100, partition=n % 3)
        for n in range(5000)
    ]
    hop = hop_of(found)
    hop.unnamed_findings = {Fault.LOST: 1234}
    return report_of(hop)


def extremes() -> Report:
    """Names as long as they get, and numbers as large."""
    long, most = "very-long-name-" * 50, 2**63 - 1
    lost = Finding(Fault.LOST, long, "ab" * 16, "t" * 249, 0, most - 1, most, 2, most - 1, most, most, None)
    nowhere = Finding(Fault.LOST, long, "ab" * 16, "t" * 249, -1, 0, 0, 1, None, None, None, None)
    hop = hop_of([lost, nowhere], records=most)
    hop.sources[long] = Counts(*(most for _ in fields(Counts)))
    hop.timeline.present[long] = {most: 1, NOON: most}
    hop.offsets = {0: (0, most)}
    return report_of(hop, topic="t" * 249)


def hostile() -> Report:
    hop = hop_of([finding(Fault.LOST, HOSTILE)], "till-2")
    hop.name, hop.doubts, hop.notes = HOSTILE, [HOSTILE], [HOSTILE]
    report = report_of(hop, topic=HOSTILE)
    report.bootstrap = HOSTILE
    return report


def sparse() -> dict[str, Report]:
    one_slot = hop_of([], "till-1")
    one_slot.timeline = Timeline(1000, {"till-1": {NOON: 1}}, {"till-1": {NOON: 1}})
    no_timeline = hop_of([finding(Fault.DUPLICATED)])
    no_timeline.timeline = Timeline()
    no_offsets = hop_of([finding(Fault.REORDERED)])
    no_offsets.offsets = {}
    return {
        "no hop": report_of(),
        "empty hop": report_of(Hop("producers → topic")),
        "one slot": report_of(one_slot),
        "no timeline": report_of(no_timeline),
        "no offsets": report_of(no_offsets),
        "only unnamed": report_of(Hop("a", {"b": Counts(lost=3)}, unnamed_findings={Fault.LOST: 3})),
    }


REPORTS = {
    "clean": clean(),
    "faults": with_faults(),
    "crowd": crowd(),
    "extremes": extremes(),
    "hostile": hostile(),
    **sparse(),
}
LIKE_OTHERS = REPORTS.keys() - {"faults", "extremes", "hostile"}
"""These reports can break a page only where one of the others breaks it, too."""


# The text.


@pytest.mark.parametrize("kind", REPORTS)
def test_the_page_needs_nothing_else(kind: str) -> None:
    page = html(REPORTS[kind])
    unescaped = page.replace(text.safe(HOSTILE), "")
    assert not re.search(r"https?://|<script|<img|<iframe|@import|url\(|\bsrc=", unescaped)
    assert set(re.findall(r'href="([^"#]*)', unescaped)) <= {"data:,", ""}  # "" is a place in the page


def test_what_comes_from_data_is_escaped_everywhere() -> None:
    page = html(hostile())
    assert "<script" not in page
    assert "<img" not in page
    assert page.count(text.safe(HOSTILE)) > 8


def test_what_cannot_be_seen_is_spelled_out() -> None:
    assert text.safe("a\u202eb\0c\ud800d\n") == r"a\u202eb\x00c\ud800d\n"
    assert text.safe("Zürich 北京 & co") == "Zürich 北京 &amp; co"
    html(report_of(hop_of([finding(Fault.LOST, "a\ud800")]))).encode()


def test_a_clean_report_says_so_with_its_numbers() -> None:
    page = html(clean())
    assert "✓ Clean" in page
    assert "<h1>All 2,000 promised records are there, once.</h1>" in page
    assert "2023-11-15 12:11:40 UTC" in page
    assert "12 s" in page
    assert "broker-1:9092" in page


@pytest.mark.parametrize(
    ("counts", "doubts", "sentence"),
    [
        (Counts(promised=1, present=1), [], "The one promised record is there, once."),
        (
            Counts(promised=9, present=4, expired=3, compacted=2),
            [],
            "All 4 promised records are there, once.",
        ),
        (Counts(promised=9, lost=1), [], "1 record lost."),
        (Counts(promised=9, lost=1200, reordered=2), ["?"], "1,200 records lost and 2 reordered."),
        (Counts(lost=1, duplicated=2, reordered=3), [], "1 record lost, 2 duplicated and 3 reordered."),
        (Counts(promised=2), ["?"], "not certain that all 2 promised records are there."),
        (Counts(present=2), ["?"], "nobody can tell whether all is there."),
    ],
)
def test_the_verdict_is_a_sentence(counts: Counts, doubts: list[str], sentence: str) -> None:
    page = html(report_of(Hop("a", {"b": counts}, doubts=doubts)))
    assert sentence in re.findall("<h1>(.*)</h1>", page)[0]


def test_what_is_pending_in_a_sink_is_not_said_to_be_there() -> None:
    to_topic = Hop("a", {"b": Counts(promised=9, present=9)})
    to_sink = Hop("a → c", {"b": Counts(promised=9, present=5, pending=4)})
    page = html(report_of(to_topic, to_sink))
    assert "<h1>All 9 promised records are there, once. 4 are pending (a → c).</h1>" in page
    assert "a → c: 9 promised, 5 present, 4 pending" in page
    assert "<h1>All 5 promised records are there, once. 4 are pending.</h1>" in html(report_of(to_sink))


def test_faults_of_several_hops_are_not_added_up() -> None:
    hops = [Hop(name, {"b": Counts(promised=9, lost=2, duplicated=1)}) for name in "abcde"]
    two = html(report_of(*hops[:2], Hop("c", {"b": Counts(promised=9, present=9)})))
    assert "<h1>2 records lost and 1 duplicated (a); 2 records lost and 1 duplicated (b).</h1>" in two
    told = "2 records lost and 1 duplicated"
    assert f"{told} (c); and more in 2 other hops.</h1>" in html(report_of(*hops))


def test_of_a_sink_the_plot_is_by_the_records_own_time() -> None:
    to_topic, to_sink = hop_of([], "till-1"), hop_of([], "till-1")
    to_sink.timeline.is_sealed = False
    both = html(report_of(to_topic, to_sink)).split("<section>")[1:3]
    assert all(page.count('class="plot time"') == 1 for page in both)
    assert ["when it was sealed" in page for page in both] == [True, False]
    assert "by their own time. What is promised of a sink is what the topic holds." in both[1]


def test_where_nothing_is_counted_by_time_nothing_is_said_of_times() -> None:
    hop = hop_of([], "till-1")
    hop.timeline = Timeline()
    page = html(report_of(hop))
    assert "By time" not in page
    assert "times are known" not in page


def test_some_figures_are_always_there_and_others_when_they_are_not_zero() -> None:
    page = html(with_faults())
    for word in ("promised", "present", "lost", "duplicated", "reordered", "expired"):
        assert f"<dt>{word}</dt>" in page  # in the legend
        assert re.search(f'<dt><abbr title="[^"]+">{word}</abbr></dt>', page)
    assert "<dt>pending</dt>" not in page
    assert "<dt>expired</dt>" not in html(clean())


def test_every_count_has_its_word_and_every_fault_its_own_shape_and_colour() -> None:
    counts = {each.name: 1001 + number for number, each in enumerate(fields(Counts))}
    page = html(report_of(Hop("a", {"b": Counts(**counts)})))
    for word, count in counts.items():
        assert re.search(f"<dt>{word}</dt><dd>[^<]+</dd>", page), "the legend explains it"
        assert f"{count:,}</dd>" in page
    shapes = dict(re.findall(r'<path id="([^"]+)" d="([^"]+)"', html(with_faults())))
    assert shapes.keys() == set(Fault)
    assert len(set(shapes.values())) == len(Fault)
    colours = {re.search(rf"--{fault}: (#\w+)", STYLE) for fault in Fault}
    assert len({colour and colour[1] for colour in colours} - {None}) == len(Fault)


def test_a_finding_is_named_by_all_that_it_has() -> None:
    lost = Finding(Fault.LOST, "till-7", INCARNATION, "orders", 2, 41, 43, 3, 100, 101, NOON, NOON + 5000)
    page = html(report_of(hop_of([lost])))
    row = next(row for row in page.split("<tr>") if INCARNATION in row)
    shown = re.sub(r"<[^>]*>", "|", row)
    for part in ("lost", "till-7", "orders-2", "41 to 43", "|3|", "between 100 and 101"):
        assert part in shown
    assert "2023-11-15 12:00:00 to 12:00:05" in shown


def test_what_is_left_out_is_said() -> None:
    page = html(crowd())
    assert page.count("<tr>") == 1 + pages.MOST_SOURCES + 1 + pages.MOST_FINDINGS
    assert "800 more sources with" in page
    assert "988 more sources with faults: the plots are of the worst 12." in page
    assert "4,000 more findings: <code>gapless audit --json</code> names them." in page
    assert "Besides, 1,234 lost records are counted, and not named one by one." in page


def test_many_partitions_are_cut_to_those_with_the_most_findings() -> None:
    hop = hop_of([finding(Fault.LOST, partition=499)])
    hop.offsets = dict.fromkeys(range(500), (0, 1000))
    page = html(report_of(hop))
    assert page.count('class="partition"') == pages.MOST_PARTITIONS
    assert "Partition 499" in page
    assert "440 more partitions" in page


def test_the_worst_sources_come_first() -> None:
    hop = hop_of([finding(Fault.LOST, "b", 1), finding(Fault.LOST, "b", 2), finding(Fault.LOST, "c", 3)], "a")
    table = html(report_of(hop)).partition("<h3>Sources</h3>")[2].partition("<h3>")[0]
    assert re.findall('<bdi class="name">(.)</bdi>', table) == ["b", "c", "a"]


def test_a_page_stays_small_however_much_there_is_to_say() -> None:
    assert len(html(crowd())) < 2_000_000


@pytest.mark.parametrize("seconds", [1, 7, 60, 599, 3600, 86_400, 10**6, 10**8, 2 * 10**9])
@pytest.mark.parametrize("first", [0, 1, NOON + 1234])
def test_a_time_axis_has_a_few_ticks(seconds: int, first: int) -> None:
    span = plots.Span(first, first + seconds * 1000)
    plot = plots.by_time("a", plots.Series({}, {}, 1000), [], span, {})
    assert 1 <= plot.count('<text class="tick') <= 9


@pytest.mark.parametrize("number", [0, 1, 2, 3, 9, 10, 11, 99, 101, 1100, 16_001, 2**63 - 1])
def test_the_highest_level_is_not_far_above_the_counts(number: int) -> None:
    plot = plots.by_time("a", plots.Series({NOON: number}, {}, 1000), [], plots.Span(NOON, NOON + 1000), {})
    shown = re.findall(r'<text class="level" y="[^"]+">([\d,]+)</text>', plot)
    level = max(int(each.replace(",", "")) for each in shown)
    assert max(number, 1) <= level <= max(number * 1.7, number + 1)


# In a browser.


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield started
        started.close()


class Opener:
    """Opens reports as files, and notes all that a page asks for or complains about."""

    def __init__(self, browser: Browser, folder: Path) -> None:
        self._browser = browser
        self._file = folder / "report.html"
        self.complaints: list[str] = []

    def __call__(
        self, report: Report, *, width: int = DESK, scheme: Literal["light", "dark"] = "light"
    ) -> Page:
        self._file.write_text(html(report), encoding="utf-8")
        page = self._browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self._note(request.url))
        page.goto(self._file.as_uri())
        return page

    def _note(self, url: str) -> None:
        if url not in {self._file.as_uri(), "data:,"}:
            self.complaints.append(url)


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Opener]:
    opener = Opener(browser, tmp_path)
    yield opener
    for context in browser.contexts:
        context.close()
    assert not opener.complaints


@pytest.mark.slow_variants(*LIKE_OTHERS)
@pytest.mark.parametrize("width", [PHONE, DESK])
@pytest.mark.parametrize("kind", REPORTS)
def test_a_page_is_as_wide_as_its_window_and_its_answer_is_seen(
    opened: Opener, kind: str, width: int
) -> None:
    page = opened(REPORTS[kind], width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    answer = page.locator("h1").bounding_box()
    assert answer is not None
    assert answer["height"] > 20
    assert answer["y"] + answer["height"] < 800
    right_edges = "texts => texts.map(text => text.getBoundingClientRect().right)"
    assert max(page.locator("h1, h2, h3, p, dd, li, figcaption").evaluate_all(right_edges)) <= width


def test_a_hostile_name_is_text_and_nothing_else(opened: Opener) -> None:
    page = opened(hostile())
    assert page.locator("script, img").count() == 0
    assert page.title() == f"Audit of {HOSTILE}: findings"
    assert page.locator("tbody th .name").all_inner_texts().count(HOSTILE) == 2


def test_there_is_a_mark_for_each_finding_in_both_plots(opened: Opener) -> None:
    report = with_faults()
    page = opened(report)
    for plot in (page.locator(".time").first, page.locator(".offsets")):
        assert plot.locator(".mark").count() == len(report.hops[0].findings)
    for fault in Fault:
        assert page.locator(f".offsets .mark.{fault}").count() == 9
    for plot in page.locator(".plot").all():
        box = plot.bounding_box()
        assert box is not None
        assert box["width"] > 400
        assert box["height"] > 20
    for mark in page.locator(".time").first.locator(".mark").all():
        box = mark.bounding_box()
        assert box is not None
        assert 8 < box["width"] < 20
        assert 0 <= box["x"] <= DESK - 20


def test_where_marks_would_cover_each_other_one_stands_for_several(opened: Opener) -> None:
    page = opened(crowd())
    count = "marks => marks.reduce((sum, mark) => sum + Number(mark.dataset.findings), 0)"
    for marks in (page.locator(".time").first.locator(".mark"), page.locator(".offsets .mark")):
        assert marks.evaluate_all(count) == 5000
        assert marks.count() < 2000


def test_counts_are_drawn_as_high_as_they_are(opened: Opener) -> None:
    page = opened(clean())
    area, plot = (page.locator(each).first.bounding_box() for each in (".time .present", ".time"))
    assert area is not None
    assert plot is not None
    assert area["width"] == pytest.approx(plot["width"], abs=2)
    top, ground = (
        page.locator(f".time {each}").first.evaluate("line => line.getBoundingClientRect().y")
        for each in (".grid", ".ground")
    )
    assert ground - top > 50
    # 200 in each slot, and 200 is the highest level.
    assert (area["y"], area["height"]) == pytest.approx((top, ground - top), abs=2)


@pytest.mark.slow_variants(10, 60 * 24 * 3)
@pytest.mark.parametrize("width", [PHONE, DESK])
@pytest.mark.parametrize("minutes", [1, 10, 60 * 5, 60 * 24 * 3, 60 * 24 * 900])
def test_labels_of_times_do_not_touch(opened: Opener, width: int, minutes: int) -> None:
    report = with_faults()
    slots = {NOON: 5, NOON + minutes * 60_000: 7}
    report.hops[0].timeline.present = {"till-0": slots}
    report.hops[0].timeline.promised = {}
    page = opened(report, width=width)
    plots_of_times = page.locator(".time").all()[:2]
    assert plots_of_times
    for plot in plots_of_times:
        boxes = [tick.bounding_box() for tick in plot.locator(".tick:visible").all()]
        spans = sorted((box["x"], box["x"] + box["width"]) for box in boxes if box is not None)
        assert spans
        assert all(left[1] + 4 < right[0] for left, right in pairwise(spans))
        assert spans[0][0] >= 0
        assert spans[-1][1] <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast_in_light_and_dark(opened: Opener, scheme: Literal["light", "dark"]) -> None:
    page = opened(with_faults(), scheme=scheme)
    ground = colour_of(page, "body", "backgroundColor")
    assert (luminance(ground) > 0.5) == (scheme == "light")
    assert contrast(colour_of(page, "body"), ground) > 10
    for selector in (".quiet", ".answer", *(f".figures .{fault}" for fault in Fault)):
        assert contrast(colour_of(page, selector), ground) > 4.5
    assert contrast(colour_of(page, ".plot text", "fill"), ground) > 4.5
    assert contrast(colour_of(page, ".plot path.promised", "stroke"), ground) > 4.5


def test_on_paper_all_is_there_in_black_on_white(opened: Opener) -> None:
    page = opened(with_faults(), scheme="dark", width=700)
    on_screen = page.locator("body *:visible").count()
    page.emulate_media(media="print", color_scheme="dark")
    assert colour_of(page, "body") == (0, 0, 0)
    assert colour_of(page, "body", "backgroundColor") == (255, 255, 255)
    assert page.locator("body *:visible").count() >= on_screen
    for selector in ("h1", ".facts", ".figures", ".remarks", ".key", ".plot", ".mark", "table", ".words"):
        assert page.locator(selector).first.is_visible()
    # Who sees no colours reads the fault's name, and its shape in the plots.
    named = [each.strip() for each in page.locator("td.fault").all_inner_texts()]
    assert named == [fault.value for fault in Fault for _ in range(9)]


@pytest.mark.parametrize("kind", ["faults", "extremes", "hostile"])
def test_no_table_is_cut_off_on_paper(opened: Opener, kind: str) -> None:
    page = opened(REPORTS[kind], width=700)
    page.emulate_media(media="print")
    tables = page.locator(".table").all()
    assert bool(tables) == any(hop.sources for hop in REPORTS[kind].hops)
    for table in tables:
        assert table.evaluate("box => box.scrollWidth <= box.clientWidth + 1")


@pytest.mark.parametrize("kind", ["clean", "faults", "extremes", "empty hop"])
def test_a_pdf_can_be_made(opened: Opener, kind: str) -> None:
    pdf = opened(REPORTS[kind]).pdf(format="A4")
    assert pdf.startswith(b"%PDF-")
    assert len(pdf) > 5000


@pytest.mark.slow_variants(*LIKE_OTHERS)
@pytest.mark.parametrize("table", ["Sources", "Findings"])
@pytest.mark.parametrize("kind", REPORTS)
def test_on_a_phone_all_of_a_table_is_seen_without_scrolling_aside(
    opened: Opener, kind: str, table: str
) -> None:
    page = opened(REPORTS[kind], width=PHONE)
    right_edges = "parts => parts.map(part => part.getBoundingClientRect().right)"
    box = page.get_by_role("region", name=table)
    is_shown = any(hop.sources if table == "Sources" else hop.findings for hop in REPORTS[kind].hops)
    assert box.count() == (1 if is_shown else 0)
    if is_shown:
        parts = box.locator("tbody :is(td, th), tbody :is(td, th) *")
        assert 0 < max(parts.evaluate_all(right_edges)) <= PHONE
        assert box.evaluate("box => box.scrollWidth <= box.clientWidth")


def test_on_a_phone_a_source_is_a_card_of_what_it_has(opened: Opener) -> None:
    rows = opened(with_faults(), width=PHONE).get_by_role("region", name="Sources").locator("tbody tr")
    shown = "cells => cells.filter(cell => cell.checkVisibility()).map(cell => cell.dataset.label)"
    faults = [fault.value for fault in Fault]
    told = {*faults, "promised", "present"}
    assert set(rows.nth(0).locator("td").evaluate_all(shown)) == told | {"expired"}
    assert set(rows.nth(1).locator("td").evaluate_all(shown)) == told | {"expired"}
    assert set(rows.nth(2).locator("td").evaluate_all(shown)) == told


def test_a_wide_table_scrolls_in_its_own_box(opened: Opener) -> None:
    page = opened(with_faults(), width=660)
    box = page.get_by_role("region", name="Sources")
    assert box.evaluate("box => box.scrollWidth > box.clientWidth")
    box.focus()
    page.keyboard.press("ArrowRight")
    box.evaluate("box => new Promise(done => box.scrollLeft ? done() : box.addEventListener('scroll', done))")


Colour = tuple[int, ...]


def colour_of(page: Page, selector: str, kind: str = "color") -> Colour:
    shown = page.locator(selector).first.evaluate(f"element => getComputedStyle(element).{kind}")
    return tuple(int(part) for part in re.findall(r"\d+", shown)[:3])


def luminance(colour: Colour) -> float:
    """As the Web Content Accessibility Guidelines compute it."""
    parts = [value / 255 for value in colour]
    red, green, blue = (p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: Colour, other: Colour) -> float:
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)
