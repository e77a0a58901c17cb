"""Pictures of a report: ``python -m tests.bench.report_picture SOURCE... --tab search --panel 0``; needs Chromium.

A source is what `haotuner report` takes, or a page that it wrote. The picture is a panel of a tab as a browser draws it,
above its table and its source, or without ``--panel`` the top of the tab. Without any option it is the first operator, in
``docs/images/report.png``. ``--recorded OP``: an op in ``tests/bench/records``. Nothing is measured here.
"""

from __future__ import annotations

import argparse
import base64
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from haotuner.cli.pages.document import document_of, html_of
from haotuner.cli.pages.sources import opened
from haotuner.records import SqliteStore
from tests.bench.own_records import all_records
from tests.cli.browser import browser

PICTURE = Path(__file__).parents[2] / "docs" / "images" / "report.png"
HEIGHT = 740  # of the page that is shown
MOST_BYTES = 150_000
_CHOOSE = """
const box = document.querySelector('select');
if (box && arguments[0]) { box.selectedIndex = arguments[0]; box.dispatchEvent(new Event('change')); }
"""
_BOX = """
const panel = document.querySelectorAll('main section')[arguments[0]], box = panel.getBoundingClientRect();
const end = (panel.querySelector('details') || panel.querySelector('.source')).getBoundingClientRect();
return {x: box.x + scrollX, y: box.y + scrollY, width: box.width, height: end.y - box.y, scale: 1};
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shot:
    """View of a report. ``tab``: as its address has it; ``panel``: its number, or None for the top of the tab.

    ``choice``: number of the operator or model in the tab's list; ``width``: of the page, in pixels.
    """

    tab: str = "operators"
    panel: int | None = None
    choice: int = 0
    width: int = 1000
    dark: bool = False


def picture(sources: Sequence[str], out: Path, shot: Shot) -> None:
    """Write the picture. ValueError for one that is too large for a repository."""
    with tempfile.TemporaryDirectory() as folder, browser(Path(folder) / "profile") as chromium:
        page = Path(sources[0]) if sources else Path()
        if page.suffix != ".html":
            page = Path(folder) / "report.html"
            with opened(sources) as own:
                names = ", ".join(Path(name).name for name in sources)
                page.write_text(html_of(document_of(own, names)), encoding="utf-8")
        chromium.resize(shot.width, HEIGHT, dark=shot.dark)
        chromium.open(f"{page.resolve().as_uri()}#{shot.tab}")
        chromium.run(_CHOOSE, shot.choice)
        clip = {"x": 0, "y": 0, "width": shot.width, "height": HEIGHT, "scale": 1}
        if shot.panel is not None:
            clip = chromium.run(_BOX, shot.panel)
        words = {"format": "png", "clip": clip, "captureBeyondViewport": True}
        data = base64.b64decode(chromium.devtools("Page.captureScreenshot", words)["data"])
    if len(data) > MOST_BYTES:
        raise ValueError(f"the picture has {len(data):,} bytes, at most {MOST_BYTES:,} are for the repository")
    out.write_bytes(data)


def recorded(op: str, folder: Path) -> Path:
    """A store of what the devices of ``tests/bench/records`` measured of one op. ValueError for an op of none."""
    path = folder / "recorded.db"
    with closing(SqliteStore(path)) as store:
        for own in all_records():
            store.append([record for record in own.records() if record.trial.op.name == op])
        if not any(store.records()):
            raise ValueError(f"no device of tests/bench/records measured {op!r}; name an op of its files")
    return path


def main() -> int:
    """Write the picture of the sources that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="*", help="what `haotuner report` takes, or a page that it wrote")
    parser.add_argument("--recorded", metavar="OP", help="draw what the devices of tests/bench/records measured of this op")
    parser.add_argument("--out", type=Path, default=PICTURE)
    parser.add_argument("--tab", default="operators")
    parser.add_argument("--panel", type=int, default=None, help="number of the panel in its tab")
    parser.add_argument("--choice", type=int, default=0, help="number of the operator in the page's list")
    parser.add_argument("--width", type=int, default=1000, help="of the page, in pixels")
    parser.add_argument("--dark", action="store_true")
    words = parser.parse_args()
    shot = Shot(tab=words.tab, panel=words.panel, choice=words.choice, width=words.width, dark=words.dark)
    with tempfile.TemporaryDirectory() as folder:
        sources = [*words.sources, *([str(recorded(words.recorded, Path(folder)))] if words.recorded else [])]
        if not sources:
            parser.error("name a source, or --recorded OP")
        picture(sources, words.out, shot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
