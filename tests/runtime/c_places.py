"""Places of C code that a change may forget: checks and their parts, waits, contexts, frees; each can be left out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

# Statements whose absence must show: what is given back, published, waited for, recorded or cleared.
_CALL = re.compile(
    r"^[ \t]+(?:if \([^;{}()]*\) )?(?:TRY|ht_cuda_leave|ht_cuda_workspace_done|ht_cuda_enter|atomic_\w+|free|drop|count|"
    r"memset|sched_yield|dlclose|close|ht_\w+_free|ht_\w+_release|TVMFFI\w+(?:DecRef|MoveFromRaised)|"
    r"[\w.]+->\w*(?:Unload|Destroy|PopCurrent|Synchronize))\([^;]*\);",
    re.MULTILINE,
)
_SET = re.compile(r"^[ \t]+[\w>.*\[\]-]+(?:->|\.)(?:mark|fallback|pushed|closed|lost) \|?= [^;]+;", re.MULTILINE)
_WAIT = re.compile(r"\breturn (waited\(\));")
_ANSWER = re.compile(r"\breturn ([^;?{}]+ \? 0 : [^;]+);")
_HEAD = re.compile(r"\b(if|while|for) \(")
_DEFINITION = re.compile(r"^\w[\w \t*]*?\b(\w+)\([^;{}]*\)\s*\{", re.MULTILINE)
_OUTSIDE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*|//[^\n]*|/\*[\s\S]*?\*/", re.MULTILINE)
_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')


@dataclass(frozen=True, slots=True)
class Place:
    """One text of a file, from ``start`` to ``end``, and what stands there when it is left out."""

    file: str
    start: int
    end: int
    instead: str
    function: str
    around: str  # the function's text
    name: str  # "driver.c open_device: result != CUDA_SUCCESS -> 0 #2", true as long as the text is

    def without(self, text: str) -> str:
        """The file's text with this place left out."""
        return self.instead.join((text[: self.start], text[self.end :]))


def places(file: str, text: str) -> list[Place]:
    """Every place of a file's text, in order: conditions, operands of conditions, answers, waits and the calls above."""
    code = masked(text)
    spans = sorted(set(_found(code)))
    seen: dict[str, int] = {}
    named: list[Place] = []
    for start, end, instead in spans:
        function, around = _function(code, text, start)
        label = f"{file} {function}: {' '.join(text[start:end].split())} -> {instead}"
        seen[label] = seen.get(label, 0) + 1
        named.append(
            Place(file, start, end, instead, function, around, label + (f" #{seen[label]}" if seen[label] > 1 else ""))
        )
    return named


def masked(text: str) -> str:
    """The same text, as long, with comments, preprocessor lines and strings blanked out."""

    def blank(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", match[0])

    return _OUTSIDE.sub(blank, _STRING.sub(lambda match: '"' + "_" * (len(match[0]) - 2) + '"', text))


def _found(code: str) -> Iterator[tuple[int, int, str]]:
    for pattern in (_CALL, _SET):
        for call in pattern.finditer(code):
            first = call.start() + len(call[0]) - len(call[0].lstrip())
            yield first, call.end(), ";"
            if code.startswith("TRY(", first):  # the call alone, whatever it answers
                yield first, call.end(), f"(void)({code[first + 4 : code.rindex(', ', first, call.end())]});"
    for group in (_WAIT, _ANSWER):
        for answer in group.finditer(code):
            yield answer.start(1), answer.end(1), "0"
    for head in _HEAD.finditer(code):
        start, end = head.end(), closing(code, head.end() - 1)
        if head[1] == "for":
            parts = _split(code, start, end, ";")
            if len(parts) != 3:
                continue
            start, end = parts[1]
        else:
            yield start, end, "0"
        yield from _operands(code, start, end)


def _operands(code: str, start: int, end: int) -> Iterator[tuple[int, int, str]]:
    """Each operand of the outermost || of a condition, else of &&, and those inside parentheses around the whole."""
    for sign, neutral in (("||", "0"), ("&&", "1")):
        parts = _split(code, start, end, sign)
        if len(parts) == 1:
            continue
        for first, last in parts:
            yield first, last, neutral
            if code[first] == "(" and closing(code, first) == last - 1:
                yield from _operands(code, first + 1, last - 1)
        return


def closing(code: str, at: int) -> int:
    """The place of the parenthesis that closes the one at ``at``."""
    depth = 0
    for position in range(at, len(code)):
        depth += {"(": 1, ")": -1}.get(code[position], 0)
        if depth == 0:
            return position
    raise ValueError(f"no closing parenthesis after {code[at : at + 40]!r}")


def _split(code: str, start: int, end: int, sign: str) -> list[tuple[int, int]]:
    """The parts of code[start:end] between a sign that stands outside of all brackets, without spaces around them."""
    cuts, depth, at = [start - len(sign)], 0, start
    while at < end:
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(code[at], 0)
        if depth == 0 and code.startswith(sign, at):
            cuts.append(at)
        at += 1
    cuts.append(end)
    parts = []
    for cut, last in zip(cuts, cuts[1:], strict=False):
        first = cut + len(sign)
        part = code[first:last]
        start = first + len(part) - len(part.lstrip())
        parts.append((start, max(start, first + len(part.rstrip()))))
    return parts


def _function(code: str, text: str, at: int) -> tuple[str, str]:
    """Name and text of the function around a place: the last definition that begins in the first column before it."""
    *_, head = _DEFINITION.finditer(code, 0, at)
    return head[1], text[head.start() : code.index("\n}\n", at)]
