"""Options that verbs share, and counts as they are written."""

from __future__ import annotations

from typing import Annotated

import typer

from haotuner.errors import UsageError

Family = Annotated[list[str] | None, typer.Option("--family", help="Only this family of kernels; repeatable.")]
Seeds = Annotated[int, typer.Option("--seeds", help="Random splits and samples to average over.")]


def counts_of(option: str, text: str, *, least: int = 0) -> tuple[int, ...]:
    """Counts such as ``0,16,32``, ascending and each once; UsageError names the option."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdecimal() and len(word) < 7 and int(word) >= least for word in words):
        raise UsageError(f"{option} {text!r}: write counts from {least} up, such as 16,32,64")
    return tuple(sorted({int(word) for word in words}))
