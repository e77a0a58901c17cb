"""Sentences of a page for people: what its text is without code, and what in it is against the rules of words.

Read by ``test_docs``. A sentence has at most ``LONGEST`` words. Speed is said as "1.3x faster". Words that only insiders
know have a standard one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

LONGEST = 30
# Words of the house that a reader of TVM, oneDNN or ONNX Runtime does not know, and what to say.
INSIDERS = {
    "woven": "interleaved",
    "weave": "interleave",
    "strands": "interleaved sequences",
    "twins": "windows that differ in names alone",
    "leavers": "candidates that leave the race",
    "elbowroom": "slack",
    "ballast": "padding",
    "laboratory": "measurer",
    "lab": "measurer",
    "misfortunes": "faults",
    "traveller": "bundle",
    "doors": "entry points",
}
_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_CODE = re.compile(r"`[^`]*`")
_ITEM = re.compile(r"^\s*(?:[-*]|\d+\.)\s+")
_ENDS = re.compile(r"(?<=[.!?])[\"')*]*\s+(?=[\"'(*]*[A-Z0-9`X])")
_SPEED = re.compile(
    r"\b0\.\d+ (?:to 0\.\d+ )?(?:of|times) (?:the|its|our|their|torch's|ONNX Runtime's) (?:time|p50|latency)\b"
)
_TAKES = re.compile(r"\btakes? 0\.\d+ (?:to 0\.\d+ )?of\b")


def texts(page: str) -> Iterator[str]:
    """Paragraphs, list items and cells of tables, each on one line, without code, links' targets and comments."""
    page = _COMMENT.sub("", _FENCED.sub("", page))
    block: list[str] = []
    for line in [*page.splitlines(), ""]:
        breaks = not line.strip() or line.startswith(("#", "|", "    ", ":::")) or _ITEM.match(line)
        if breaks and block:
            yield plain(" ".join(block))
            block = []
        if line.startswith("|"):
            yield from (plain(cell) for cell in line.strip("| ").split(" | "))
        elif line.strip() and not line.startswith(("#", "    ", ":::")):
            block.append(_ITEM.sub("", line).strip())


def plain(text: str) -> str:
    """A line as it is read aloud: a link is its text, and a piece of code one word."""
    return _LINK.sub(r"\1", _CODE.sub("X", text)).strip()


def sentences(page: str) -> Iterator[str]:
    """The sentences of a page, in order."""
    for text in texts(page):
        yield from (sentence for sentence in _ENDS.split(text) if sentence)


def words(sentence: str) -> int:
    """How many words a sentence has: runs of characters with a letter in them."""
    return sum(any(character.isalpha() for character in word) for word in sentence.split())


def faults(page: str) -> list[str]:
    """What in a page is against the rules, each with the sentence."""
    lines = []
    for sentence in sentences(page):
        if words(sentence) > LONGEST:
            lines.append(f"{words(sentence)} words: {sentence}")
        if _SPEED.search(sentence) or _TAKES.search(sentence):
            lines.append(f'say "1.3x faster", not a share of a time: {sentence}')
        for word, better in INSIDERS.items():
            if re.search(rf"\b{word}\b", sentence, re.IGNORECASE):
                lines.append(f"{word!r}: say {better!r}: {sentence}")
    return lines
