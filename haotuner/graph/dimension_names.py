"""Names of dimensions that a file gives as text, where exporters write arithmetic of other names: ``8*h8``, ``past + 1``."""

from __future__ import annotations

import re

_WORDS = {"//": "over", "*": "times", "+": "plus", " - ": "minus", "%": "mod"}
_SPLIT = re.compile("|".join(re.escape(one) for one in _WORDS))
_ONE_STEP = re.compile(r"_?(.+?)_(times|plus|minus)_(.+)")
LONGEST = 64


def dimension_name(text: str) -> str:
    """The identifier that stands for a dimension's text, ``_8_times_h8`` for ``8*h8``; empty where there is no name in it.

    Arithmetic is said in words, so that ``past + 1`` and ``past - 1`` stay two dimensions.
    """
    spelled = _SPLIT.sub(lambda match: f"_{_WORDS[match.group()]}_", text)
    plain = re.sub(r"\W", "_", spelled, flags=re.ASCII)
    if spelled != text:
        plain = re.sub("_+", "_", plain).strip("_")
        plain = f"_{plain}" if plain[:1].isdigit() else plain
    plain = plain[:LONGEST]
    return plain if re.search(r"[A-Za-z]", plain) and not plain[0].isdigit() else ""


def multiple_of(dimension: str, name: str) -> tuple[int, int] | None:
    """Factor and summand by which a dimension follows from the name inside its text: (8, 0) of ``8*h8`` and ``h8``.

    None where it is other arithmetic, or of other names.
    """
    parts = _ONE_STEP.fullmatch(dimension)
    if parts is None:
        return None
    left, word, right = parts.groups()
    if right == name and left.isdigit() and word != "minus":
        return (int(left), 0) if word == "times" else (1, int(left))
    if left == name and right.isdigit():
        return (int(right), 0) if word == "times" else (1, int(right) if word == "plus" else -int(right))
    return None
