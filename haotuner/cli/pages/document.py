"""The page as a document, and as one HTML file with all that it needs: data, and Plotly from its own wheel."""

from __future__ import annotations

import base64
import gzip
import html
import json
import re
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from haotuner import __version__
from haotuner.cli.options import facts_of
from haotuner.cli.output import counted, safe
from haotuner.cli.pages.compare_panels import compare_page
from haotuner.cli.pages.figures import EVERY, Page, Panel, Table, cleaned
from haotuner.cli.pages.model_panels import model_page
from haotuner.cli.pages.op_panels import op_page, overview, plans_of
from haotuner.cli.pages.sources import HOW, Sources
from haotuner.cli.pages.store_panels import device_page, failure_page, search_page
from haotuner.errors import EnvironmentMissing
from haotuner.extras import how_to_get

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
        of_packs = [_first_page(sources), op_page(sources, plans) if plans else None, model_page(sources)]
        compared = None if other is None else compare_page(sources, other[0], name, other[1])
    candidates = [live, compared, *of_packs, search_page(sources, calibrates=live is None), device_page(sources)]
    candidates.append(failure_page(sources))
    pages = [page.document() for page in candidates if page is not None]
    result: dict[str, Any] = cleaned({"title": f"haotuner report: {name}", "haotuner": __version__, "pages": pages})
    return result


def _first_page(sources: Sources) -> Page:
    facts = [(label, text) for source in sources.packs for label, text in _pack_facts(source.name, source.manifest)]
    for store in sources.stores:
        sessions, shown = store.statistics.store.sessions(), store.statistics.session
        facts.append(("records", f"{store.url}, {f'session {shown}' if shown else counted(len(sessions), 'session')}"))
    facts += [(kind, file) for kind, file, _ in sources.documents]
    facts += [("not read", note) for note in sources.notes]
    ops = overview(sources)
    return Page(
        title="Overview",
        panels=(
            Panel(
                title="Sources",
                about="What this page was made of.",
                source="the sources themselves",
                tables={EVERY: Table(("what", "value"), facts)} if facts else {},
                missing={} if facts else {EVERY: f"a report of nothing; {HOW}"},
            ),
            Panel(
                title="Operators of the pack",
                about="Measured: kernels that were timed, of those that selection left. Regret: loss against the best.",
                source="the pack's manifest",
                tables={EVERY: ops} if ops.rows else {},
                missing={} if ops.rows else {EVERY: "no pack was named: haotuner report PACK"},
            ),
        ),
    )


def _pack_facts(name: str, manifest: Any) -> list[tuple[str, str]]:
    tuning, device = manifest.tuning, manifest.document["device"]
    facts = [
        ("pack", name),
        ("device", f"{device.get('name', '')} ({manifest.device_id}), built for {manifest.arch}"),
        ("tuned", f"{tuning['shapes']}, weights {tuning['weights']}, {tuning['seconds']:.0f} s, {tuning['stopped']}"),
        ("built by", f"haotuner {manifest.document.get('haotuner', '?')}"),
    ]
    start = tuning.get("started_from", {})
    if isinstance(start, Mapping) and start:
        facts.append(("cost model", ", ".join(f"{key} {value}" for key, value in start.items())))
    if manifest.unverified:
        facts.append(("unverified", "nothing was measured on the device: plans and times are predictions"))
    return facts


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
        "SCRIPT": (here / "page.js").read_text(encoding="utf-8"),
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
