"""Unsupported operators, in words: each of them, how often, and where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from haotuner.errors import UsageError

SHOWN = 3  # places named of each operator


def refuse(where: Mapping[str, Sequence[str]], advice: str) -> None:
    """UsageError if any operator is there, the commonest first. ``where``: of each operator the nodes that call it."""
    if where:
        text = "; ".join(
            f"{name}: {len(places)} ({', '.join(places[:SHOWN])}{', …' if len(places) > SHOWN else ''})"
            for name, places in sorted(where.items(), key=lambda item: -len(item[1]))
        )
        raise UsageError(f"operators without a rule: {text}. {advice}")
