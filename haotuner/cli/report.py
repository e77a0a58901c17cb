"""`haotuner report`: one HTML file that shows a pack, a record store or a race."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from haotuner.cli.options import Json, Quiet
from haotuner.cli.output import check_output_path, say
from haotuner.errors import UsageError
from haotuner.host.files import written_aside
from haotuner.records.address import POSTGRES, without_password

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
    check_report_path(out)
    document, size = write_report(names, out, compare or (), session)
    missing = [{"page": page["title"], "panel": panel["title"], "why": why}
               for page in document["pages"] for panel in page["panels"]
               for why in dict.fromkeys(panel["missing"].values())]  # fmt: skip
    if json_output:
        pages = [page["title"] for page in document["pages"]]
        say(json.dumps({"out": str(out), "bytes": size, "pages": pages, "missing": missing}, indent=1))
    elif quiet:
        say(str(out))
    else:
        say(f"{out}: {', '.join(page['title'].lower() for page in document['pages'])}; {size / 1e6:.1f} MB")
        for row in missing:
            say(f"  without data: {row['page']}, {row['panel']}: {row['why']}")


def check_report_path(out: Path, option: str = "--out") -> None:
    """Before an hour is spent: can a report be drawn and written there? UsageError or EnvironmentMissing if not."""
    from haotuner.cli.pages.document import plotly_source

    check_output_path(out, option)
    plotly_source()


def write_report(
    names: Sequence[str], out: Path, compare: Sequence[str] = (), session: str = ""
) -> tuple[dict[str, Any], int]:
    """The document of a report that was written to a file, and the file's bytes.

    Raises:
        UsageError, PackInvalid, RecordsUnusable: a source is none, or the file is too large or cannot be written.
    """
    from haotuner.cli.pages.document import document_of
    from haotuner.cli.pages.sources import opened

    with ExitStack() as stack:
        own = stack.enter_context(opened(names, session))
        other = (stack.enter_context(opened(compare)), _title(compare)) if compare else None
        document = document_of(own, _title(names), other)
    return document, write_document(document, out)


def write_document(document: Mapping[str, Any], out: Path) -> int:
    """Write a report's document as one HTML file; its bytes. UsageError as of ``write_report``."""
    from haotuner.cli.pages.document import html_of

    text = html_of(document)
    if len(text) > LIMIT_BYTES:
        raise UsageError(f"{document['title']} has {len(text) / 1e6:.1f} MB; name fewer sources, or one --session")
    try:
        with written_aside(out) as aside:
            aside.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--out {out} cannot be written: {error.strerror}; name another file") from error
    return len(text)


def report_race(pack: Path, race: Mapping[str, Any], out: Path) -> None:
    """Write the report of a pack and of a race of it, a document of ``haotuner bench``."""
    from haotuner.cli.pages.document import document_of
    from haotuner.cli.pages.sources import documents_in, opened

    with opened([str(pack)]) as own:
        raced = replace(own, documents=documents_in(json.loads(json.dumps(race)), "haotuner bench"))
        write_document(document_of(raced, f"{_title([str(pack)])}, raced"), out)


def _title(names: Sequence[str]) -> str:
    """Sources by their last names where these differ, a database of a server by its whole address."""
    texts = [without_password(name) for name in names]
    short = [text if text.startswith(POSTGRES) else Path(text).name or text for text in texts]
    return " + ".join(short if len(set(short)) == len(short) else texts)
