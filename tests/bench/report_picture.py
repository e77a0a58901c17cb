"""The picture of a report in the guide: ``python -m tests.bench.report_picture PACK BENCH.json``; needs Chromium.

It writes ``docs/images/report.png``: the page of the first operator as a browser draws it. Nothing is measured here.
"""

from __future__ import annotations

import argparse
import base64
import sys
import tempfile
from pathlib import Path

from haotuner.cli.pages.document import document_of, html_of
from haotuner.cli.pages.sources import opened
from tests.cli.browser import browser

PICTURE = Path(__file__).parents[2] / "docs" / "images" / "report.png"
WIDTH, HEIGHT, SCALE = 1000, 740, 1.0  # of the part that is shown, in pixels of the page
MOST_BYTES = 150_000


def picture(sources: list[str], out: Path, choice: int) -> None:
    """Write the picture. ValueError for one that is too large for a repository."""
    with tempfile.TemporaryDirectory() as folder, browser(Path(folder) / "profile") as chromium:
        page = Path(folder) / "report.html"
        with opened(sources) as own:
            page.write_text(html_of(document_of(own, ", ".join(Path(name).name for name in sources))), encoding="utf-8")
        chromium.resize(WIDTH, HEIGHT, dark=False)
        chromium.open(f"{page.as_uri()}#operators")
        script = "const box = document.querySelector('select'); box.selectedIndex = arguments[0]; "
        chromium.run(script + "box.dispatchEvent(new Event('change'))", choice)
        clip = {"x": 0, "y": 0, "width": WIDTH, "height": HEIGHT, "scale": SCALE}
        shot = chromium.devtools("Page.captureScreenshot", {"format": "png", "clip": clip})
    data = base64.b64decode(shot["data"])
    if len(data) > MOST_BYTES:
        raise ValueError(f"the picture has {len(data):,} bytes, at most {MOST_BYTES:,} are for the repository")
    out.write_bytes(data)


def main() -> int:
    """Write the picture of the sources that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="+", help="what `haotuner report` takes")
    parser.add_argument("--out", type=Path, default=PICTURE)
    parser.add_argument("--choice", type=int, default=0, help="number of the operator in the page's list")
    arguments = parser.parse_args()
    picture(arguments.sources, arguments.out, arguments.choice)
    return 0


if __name__ == "__main__":
    sys.exit(main())
