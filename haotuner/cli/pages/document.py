"""The page as a document, and as one HTML file with all that it needs: data, and Plotly from its own wheel."""

from __future__ import annotations

import base64
import gzip
import html
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from haotuner import __version__
from haotuner.cli.options import facts_of
from haotuner.cli.output import safe
from haotuner.cli.pages.compare_panels import compare_page
from haotuner.cli.pages.figures import Page, cleaned
from haotuner.cli.pages.model_panels import model_page
from haotuner.cli.pages.op_panels import op_page, plans_of
from haotuner.cli.pages.overview_panels import first_page
from haotuner.cli.pages.sources import Sources
from haotuner.cli.pages.store_panels import device_page, failure_page, search_page
from haotuner.errors import EnvironmentMissing
from haotuner.host.extras import how_to_get

_HERE = "haotuner.cli.pages"


def document_of(
    sources: Sources, name: str, other: tuple[Sources, str] | None = None, live: Page | None = None
) -> dict[str, Any]:
    """The pages of a report as JSON. PackInvalid for facts that haotuner does not write.

    ``other``: what ``sources`` are compared with, and its name. ``live``: the first page of a run that goes on; predictions
    of the cost model are left out then, because they take seconds of a core.
    """
    with facts_of(sources.packs[0].path) if sources.packs else nullcontext():
        plans = plans_of(sources)
        of_packs = [first_page(sources), op_page(sources, plans) if plans else None, model_page(sources)]
        compared = None if other is None else compare_page(sources, other[0], name, other[1])
    candidates = [live, compared, *of_packs, search_page(sources, calibrates=live is None), device_page(sources)]
    candidates.append(failure_page(sources))
    return document_of_pages([page for page in candidates if page is not None], name)


def document_of_pages(pages: Sequence[Page], name: str) -> dict[str, Any]:
    """Pages as JSON, under the title of a report of ``name``."""
    documents = [page.document() for page in pages]
    result: dict[str, Any] = cleaned({"title": f"haotuner report: {name}", "haotuner": __version__, "pages": documents})
    return result


def html_of(document: Mapping[str, Any], live: str = "") -> str:
    """One file for a browser. ``live``: path of the stream of newer documents; empty for none.

    Data are JSON in a gzip stream in base64, which no tag can end; they become texts of nodes, never markup. The library
    is packed alike, because that makes 2 MB of its 4.8. EnvironmentMissing without Plotly.
    """
    here = files(_HERE)
    parts = {
        "TITLE": html.escape(safe(str(document["title"]))),
        "LIVE": html.escape(live),
        "STYLE": (here / "page.css").read_text(encoding="utf-8"),
        "SCRIPT": "".join((here / name).read_text(encoding="utf-8") for name in ("ticks.js", "page.js")),
        "DATA": packed(json.dumps(document, separators=(",", ":")).encode()),
        "LIBRARY": packed(plotly_source()),
    }
    page = (here / "page.html").read_text(encoding="utf-8")
    return re.sub("{{([A-Z]+)}}", lambda word: parts[word[1]], page)  # in one pass: what is put in may hold such a word


def packed(data: bytes) -> str:
    """Gzip in base64; the same data give the same text."""
    return base64.b64encode(gzip.compress(data, 9, mtime=0)).decode()


def plotly_source() -> bytes:
    """Plotly's library for browsers, from the package's wheel. EnvironmentMissing where it is not installed."""
    spec = find_spec("plotly")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        with suppress(OSError):
            return (Path(folder) / "package_data" / "plotly.min.js").read_bytes()
    state = "not installed"
    with suppress(PackageNotFoundError):
        state = f"installed in version {version('plotly')}, without its library"
    raise EnvironmentMissing(f"reports are drawn by plotly, which is {state}; run: {how_to_get('report')}")
