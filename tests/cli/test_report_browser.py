"""A report in a browser: every page, wide and narrow, light and dark, without a console error; keys; texts of others."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from haotuner.cli.pages.document import document_of, html_of
from haotuner.cli.pages.sources import opened
from haotuner.cli.watch import Server, page_of
from haotuner.records import SqliteStore
from tests.cli.browser import BROWSER, DRIVER, Browser, browser
from tests.cli.test_report import HOSTILE, hostile_store, needs_plotly, race_row
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


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as made:
        yield made


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
