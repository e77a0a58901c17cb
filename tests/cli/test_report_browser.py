"""A report in a browser: every page, wide and narrow, light and dark, without a console error; keys; texts of others."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from haotuner.cli.pages.document import document_of, document_of_pages, html_of
from haotuner.cli.pages.figures import COLOURS, EVERY, US, Page, Panel, figure, line
from haotuner.cli.pages.model_panels import graph
from haotuner.cli.pages.sources import opened
from haotuner.cli.watch import Server, page_of
from haotuner.records import SqliteStore
from tests.cli.browser import BROWSER, DRIVER, Browser, browser
from tests.cli.test_report import HOSTILE, hostile_store, needs_plotly, race_row
from tests.cli.test_report_panels import schedule
from tests.contract.record_examples import record

pytestmark = [
    needs_plotly,
    pytest.mark.skipif(not (BROWSER and DRIVER), reason="chromium: apt-get install chromium chromium-driver"),
]
ARROW_LEFT, ARROW_RIGHT, HOME, ENTER = "\ue012", "\ue014", "\ue011", "\ue007"  # as WebDriver names keys
PLOTS = """return [...document.querySelectorAll('.plot')].map((plot) => ({
    name: plot.getAttribute('aria-label'), width: plot.getBoundingClientRect().width,
    marks: plot.querySelectorAll('.point, .js-line, .hm, .js-fill, image').length}))"""
NAMELESS = """return [...document.querySelectorAll('button, select, [role], section, table')].filter((node) =>
    !(['aria-label', 'aria-labelledby'].some((name) => node.getAttribute(name)) || node.textContent.trim())
    && !node.labels?.length
).map((node) => node.outerHTML)"""

# Labels of ticks that lie over one another or beyond the edge of their figure.
CROWDED = """const found = [];
const overlap = (one, other) => one.left < other.right && other.left < one.right
    && one.top < other.bottom - 2 && other.top < one.bottom - 2;
for (const plot of document.querySelectorAll('.plot')) for (const kind of ['.xtick text', '.ytick text']) {
    const edge = plot.getBoundingClientRect();
    const labels = [...plot.querySelectorAll(kind)].map((node) => [node.textContent, node.getBoundingClientRect()]);
    labels.forEach(([text, box], at) => {
        if (box.left < edge.left - 1 || box.right > edge.right + 1) found.push(`${text} is cut`);
        for (const [other, beside] of labels.slice(at + 1)) if (overlap(box, beside)) found.push(`${text} over ${other}`);
    });
}
return found;"""
LABELS = (
    "return [...document.querySelectorAll('.plot')[arguments[0]].querySelectorAll('.ytick text')].map((n) => n.textContent)"
)


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture(scope="module")
def report(tuned: tuple[Path, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a real run, with races by hand; compared with itself."""
    folder = tmp_path_factory.mktemp("report")
    (folder / "bench.json").write_text(json.dumps({"rows": [race_row(4, 2.0), race_row(16, 5.0)]}))
    names = [str(tuned[0] / "pack"), str(folder / "bench.json")]
    with opened(names) as own, opened(names[:1]) as other:
        (folder / "report.html").write_text(html_of(document_of(own, "new", (other, "old"))))
    return folder / "report.html"


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_every_page_is_drawn(chromium: Browser, report: Path, width: int, dark: bool) -> None:
    chromium.resize(width, 900, dark=dark)
    chromium.open(report.as_uri())
    titles = chromium.run("return [...document.querySelectorAll('[role=tab]')].map((tab) => tab.textContent)")
    assert {"Compare", "Overview", "Operators", "Search", "Failures"} <= set(titles)
    drawn = 0
    for index, title in enumerate(titles):
        chromium.run("document.querySelectorAll('[role=tab]')[arguments[0]].click()", index)
        for plot in chromium.run(PLOTS):
            assert plot["name"] and plot["marks"] >= 1 and plot["width"] > 200, (title, plot)
            drawn += 1
        assert chromium.run("return document.documentElement.scrollWidth <= innerWidth"), f"{title} is wider than the page"
        assert chromium.run(NAMELESS) == [], title
        assert chromium.run(CROWDED) == [], title
        assert chromium.run(
            "return [...document.querySelectorAll('section')].every((part) => part.innerText.includes('Source: '))"
        )
    assert drawn >= 6
    assert chromium.console() == []
    back = chromium.run("return getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, back[4:-1].split(","))) < 200) == dark


def test_keys_reach_everything(chromium: Browser, report: Path) -> None:
    chromium.resize(1280, 900, dark=False)
    chromium.open(report.as_uri())
    selected = "return document.querySelector('[aria-selected=true]').textContent"
    first = chromium.run(selected)
    chromium.run("document.querySelector('[role=tab]').focus()")
    chromium.press(ARROW_RIGHT)
    assert chromium.run(selected) != first and chromium.run("return document.activeElement.getAttribute('role')") == "tab"
    chromium.press(HOME)
    assert chromium.run(selected) == first
    chromium.open(f"{report.as_uri()}#operators")
    assert chromium.run(selected) == "Operators", "a page has an address"
    ranges = "return document.querySelector('.plot')._fullLayout.xaxis.range.map(Number)"
    whole = chromium.run(ranges)
    chromium.run("document.querySelector('.plot').focus()")
    chromium.press("+")
    low, high = chromium.run(ranges)
    assert high - low < 0.8 * (whole[1] - whole[0])
    chromium.press(ARROW_LEFT)
    assert chromium.run(ranges)[0] < low
    chromium.press("0")
    assert chromium.run(ranges) == pytest.approx(whole)
    chromium.run("document.querySelector('.legend button').focus()")
    chromium.press(ENTER)
    assert chromium.run("return document.querySelector('.plot').data[0].visible") == "legendonly"
    chromium.run("document.querySelector('summary').focus()")
    chromium.press(ENTER)
    assert chromium.wait("return document.querySelectorAll('details table tbody tr').length > 3")
    assert chromium.console() == []


def test_ticks_are_whole_numbers_with_units_at_every_zoom(chromium: Browser, tmp_path: Path) -> None:
    rows = ((1.0, 1_000.0), (3.0, 200.0), (1e5, 3e6))
    xs, ys = [x for x, _ in rows], [y for _, y in rows]
    lines = [line("a", xs, ys, ["", "", ""], COLOURS[0])]
    nodes = graph(schedule([("y", "x"), ("z", "y")]), {})
    figures = (figure(lines, "m", "time", y_unit=US), figure(lines, "m", "time", y_type="linear", y_unit=US), nodes)
    panels = [Panel(title=f"panel {at}", about="", source="", figures={EVERY: drawn}) for at, drawn in enumerate(figures)]
    (tmp_path / "r.html").write_text(html_of(document_of_pages([Page(title="One", panels=panels)], "r")))
    chromium.resize(1280, 900, dark=False)
    chromium.open((tmp_path / "r.html").as_uri())
    assert chromium.run(LABELS, 0) == ["1 ms", "10 ms", "100 ms", "1 s"]
    assert chromium.run(LABELS, 1) == ["0", "500 ms", "1 s", "1.5 s", "2 s", "2.5 s", "3 s"]
    chromium.run("Plotly.relayout(document.querySelector('.plot'), {'yaxis.range': [2.30103, 3.5]})")
    assert chromium.run(LABELS, 0) == ["200 µs", "500 µs", "1 ms", "2 ms"]
    chromium.run("Plotly.relayout(document.querySelector('.plot'), {'yaxis.range': [2.3, 2.47712]})")
    assert chromium.run(LABELS, 0)[:3] == ["200 µs", "220 µs", "240 µs"]
    chromium.run("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    assert chromium.wait("return document.querySelectorAll('details table').length === 3"), "a graph has a table, too"
    assert chromium.console() == []


def test_texts_of_others_stay_texts(chromium: Browser, tmp_path: Path) -> None:
    with opened([str(hostile_store(tmp_path))]) as sources:
        (tmp_path / "r.html").write_text(html_of(document_of(sources, f"{HOSTILE}.db")))
    chromium.open((tmp_path / "r.html").as_uri())
    for index in range(chromium.run("return document.querySelectorAll('[role=tab]').length")):
        chromium.run("document.querySelectorAll('[role=tab]')[arguments[0]].click()", index)
        chromium.run("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
        assert chromium.run("return document.querySelectorAll('img, script[src], iframe').length") == 0
    shown = chromium.run("return document.querySelector('main').textContent")
    assert "</script><img src=x onerror=alert(1)>\"'&amp;{{DATA}}" in shown, "as it was written"
    assert chromium.console() == []


def test_a_watched_page_refreshes_itself(chromium: Browser, tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / "pack.records.db")) as store:
        store.append([record(1, us=8.0)])
        page = page_of(str(tmp_path / "pack"))
        page.refresh()
        with Server("127.0.0.1", 0, page) as server:
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
            chromium.open(f"http://127.0.0.1:{server.server_address[1]}/")
            cells = "return [...document.querySelectorAll('td')].map((cell) => cell.textContent)"
            assert "1" in chromium.run(cells)
            store.append([record(m) for m in range(2, 42)])
            page.refresh()
            chromium.wait("return [...document.querySelectorAll('td')].some((cell) => cell.textContent === '41')")
            assert chromium.run("return document.querySelector('.plot').data[0].x") == [41]
            assert chromium.console() == []
            chromium.call("POST", "url", {"url": "about:blank"})
            server.shutdown()
