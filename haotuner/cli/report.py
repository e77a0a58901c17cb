"""`haotuner report`: one HTML file that shows a pack, a record store or a race."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from haotuner.cli.options import Json, Quiet
from haotuner.cli.output import check_output_path, say
from haotuner.errors import UsageError
from haotuner.host.files import written_aside
from haotuner.records.address import without_password

LIMIT_BYTES = 5 << 20  # what mail and reviews take


def report(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="PACK|DB|JSON...", help="Packs, record stores, JSON of tune, bench or explain; shown together."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE.html", help="The file to write.")] = Path("report.html"),
    compare: Annotated[
        list[str] | None,
        typer.Option("--compare", metavar="OTHER", help="What to compare with: gains and losses by shape; repeatable."),
    ] = None,
    session: Annotated[str, typer.Option("--session", help="Of record stores: only records of this session.")] = "",
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write one HTML file, which opens without a network: times, kernels, search, failures, models."""
    from haotuner.cli.pages.document import document_of, html_of, plotly_source
    from haotuner.cli.pages.sources import opened

    check_output_path(out)
    plotly_source()  # before a large store is read
    with ExitStack() as stack:
        own = stack.enter_context(opened(names, session))
        other = (stack.enter_context(opened(compare)), _title(compare)) if compare else None
        document = document_of(own, _title(names), other)
    text = html_of(document)
    if len(text) > LIMIT_BYTES:
        raise UsageError(f"the report of {_title(names)} has {len(text) / 1e6:.1f} MB; name fewer sources, or one --session")
    try:
        with written_aside(out) as aside:
            aside.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--out {out} cannot be written: {error.strerror}; name another file") from error
    missing = [{"page": page["title"], "panel": panel["title"], "why": why}
               for page in document["pages"] for panel in page["panels"]
               for why in dict.fromkeys(panel["missing"].values())]  # fmt: skip
    if json_output:
        pages = [page["title"] for page in document["pages"]]
        say(json.dumps({"out": str(out), "bytes": len(text), "pages": pages, "missing": missing}, indent=1))
    elif quiet:
        say(str(out))
    else:
        say(f"{out}: {', '.join(page['title'].lower() for page in document['pages'])}; {len(text) / 1e6:.1f} MB")
        for row in missing:
            say(f"  without data: {row['page']}, {row['panel']}: {row['why']}")


def _title(names: list[str]) -> str:
    return ", ".join(map(without_password, names))
