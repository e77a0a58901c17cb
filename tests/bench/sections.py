"""Pages that several commands write: each owns the sections that begin with its headings."""

from __future__ import annotations

import re
from pathlib import Path


def section_written(page: Path, heading: str, body: str) -> None:
    """Put a section, ``## heading`` and its body, in the place of the one of that heading, else at the end of the page."""
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    parts = re.split(r"(?m)^(?=## )", text)
    others = [part.rstrip("\n") for part in parts if part.strip() and not part.startswith(f"## {heading}\n")]
    page.write_text("\n\n".join([*others, f"## {heading}\n\n{body.strip()}"]) + "\n", encoding="utf-8")


def sections_of_others(page: Path) -> str:
    """The page's sections, for a command that writes what stands before them."""
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    return "".join(f"\n{part.rstrip()}\n" for part in re.split(r"(?m)^(?=## )", text)[1:])
