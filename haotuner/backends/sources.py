"""Fingerprints of measurements, and C text by what it means: comments, layout and names of locals change nothing."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from haotuner.backends.policy import MEASURING, Policy
from haotuner.spec.device import Device

_TOKEN = re.compile(
    r"""//[^\n]*|/\*.*?\*/                          # comments
    |"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'            # texts, in which "/*" begins no comment
    |^[ \t]*\#(?:\\\n|[^\n])*                       # a directive with its continued lines
    |\.?[0-9](?:[eEpP][+-]|[\w.'])*                 # numbers
    |[A-Za-z_]\w*|->|::|\.\.\.|[^\s\w]""",
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_]\w*")
# A name right behind one of these is no declared one.
_NO_TYPE = frozenset(
    ("return", "else", "case", "goto", "sizeof", "typedef", "struct", "union", "enum", "class", "typename", "namespace")
    + ("using", "operator", "new", "delete", "throw", "do", "template", "extern", "static", "inline", "const", "volatile")
    + ("restrict", "__restrict__", "if", "while", "for", "switch", "alignas", "asm", "__asm__")
)
_POINTED = re.compile(r"(void|bool|char|short|int|long|float|double|unsigned|signed|half|auto|ht_\w+|\w+_t)")
_ENDS = frozenset("=;,)[:{")


def fingerprint(device: Device, policy: Policy, words: Mapping[str, str]) -> str:
    """Hash of what makes times comparable whatever is timed: the device, the toolchain (``words``), how times are taken."""
    seen = {
        "device": [device.id, device.arch, device.compute_units, device.l2_bytes, device.l3_bytes],
        "policy": asdict(policy),
        "measuring": MEASURING,
    }
    return _short(json.dumps([seen, dict(words)], sort_keys=True))


def fingerprint_with(common: str, code: Sequence[str]) -> str:
    """Fingerprint of a measurement: the common one with the code of the kernels that ran (``Backend.code_request``)."""
    return _short(json.dumps([common, *code]))


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def meaning(text: str) -> str:
    """C, C++ or CUDA text of which comments, layout and the names of parameters and locals are taken away.

    Declarations are recognised by their form alone. A name that is not recognised stays as it is, so that a renamed one
    makes another text; two texts of different meaning never become one.
    """
    lines = (" ".join(_numbered(item)) for item in _items(list(_tokens(text))))
    return "\n".join(lines)


def _tokens(text: str) -> Iterator[str]:
    for match in _TOKEN.finditer(text):
        token = match[0]
        if token.startswith(("//", "/*")):
            continue
        if token.lstrip().startswith("#"):
            token = _COMMENT.sub(lambda part: " " if part[0].startswith("/") else part[0], token.replace("\\\n", " "))
            yield "#" + " ".join(token.lstrip()[1:].split())
        else:
            yield token


def _items(tokens: Sequence[str]) -> Iterator[list[str]]:
    """Directives, declarations and functions of a file, one by one."""
    item: list[str] = []
    depth = 0
    for token in tokens:
        if token.startswith("#") and depth == 0 and not item:
            yield [token]
            continue
        item.append(token)
        depth += (token in "{(") - (token in "})") if len(token) == 1 else 0
        if depth == 0 and token in (";", "}"):
            yield item
            item = []
    if item:
        yield item


def _numbered(item: Sequence[str]) -> list[str]:
    """Tokens of an item; of a function its parameters and locals become numbers in the order of their declarations."""
    if "{" not in item or item[max(0, item.index("{") - 1)] != ")":
        return list(item)
    names: dict[str, str] = {}
    depth = 0
    fields = {name for before, name in zip(item, item[1:], strict=False) if before in (".", "->", "::")}
    for at, token in enumerate(item):
        depth += (token in "{(") - (token in "})") if len(token) == 1 else 0
        declared = depth > 0 and _NAME.fullmatch(token) and token not in fields and _is_declared(item, at)
        if declared and token not in names:
            names[token] = f"${len(names)}"
    return [names.get(token, token) for token in item]


def _is_declared(item: Sequence[str], at: int) -> bool:
    """True if a name stands behind a type, by its form, and before what may follow a declared name."""
    if at == 0 or at + 1 >= len(item) or item[at + 1] not in _ENDS:
        return False
    before = at - 1
    while before > 0 and item[before] in ("*", "&", "const", "restrict", "__restrict__"):
        before -= 1
    word = item[before]
    if not _NAME.fullmatch(word) or word in _NO_TYPE:
        return False
    return before == at - 1 or _POINTED.fullmatch(word) is not None
