"""Figures of a report that is interrupted: a file from which a later run goes on."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from haotuner.cli.output import check_output_path
from haotuner.errors import UsageError
from haotuner.host.files import read_regular

MOST_FIGURES = 64 << 20  # bytes of a file of figures of a report


@contextlib.contextmanager
def keep_partial_results(path: Path | None) -> Iterator[tuple[dict[str, Any], Callable[[str, Any], None]]]:
    """What an earlier run left in a file of JSON Lines, and a function that adds to it; without a file nothing is kept."""
    if path is None:
        yield {}, lambda _key, _answer: None
        return
    check_output_path(path, "--numbers")
    selected = {}
    try:
        for line in read_regular(path, MOST_FIGURES).decode().splitlines() if path.exists() else ():
            entry = json.loads(line)
            selected[entry["key"]] = {"found": entry["found"], "seconds": float(entry["seconds"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"--numbers {path} does not hold figures of a report ({error}); remove it or name another"
        ) from error
    with path.open("a", encoding="utf-8") as lines:

        def keep(key: str, answer: Any) -> None:
            lines.write(json.dumps({"key": key, **answer}) + "\n")
            lines.flush()

        yield selected, keep
