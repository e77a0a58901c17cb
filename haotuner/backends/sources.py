"""Fingerprints of code by what it means: a reworded comment or docstring changes nothing, a changed number does."""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path

from haotuner.backends.policy import Policy
from haotuner.words.device import Device

# Strings and character constants are kept as they are, so that "/*" inside one begins no comment.
_C_TOKEN = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'", re.DOTALL)


def fingerprint(device: Device, policy: Policy, words: Mapping[str, str], sources: Iterable[Path]) -> str:
    """Hash of all that makes two times comparable: device, toolchain (``words``), code that is timed, policy."""
    seen = {
        "device": [device.id, device.arch, device.compute_units, device.l2_bytes, device.l3_bytes],
        "policy": asdict(policy),
    }
    digest = hashlib.sha256(json.dumps([seen, dict(words)], sort_keys=True).encode())
    for source in sorted(sources, key=lambda path: path.name):
        digest.update(meaning(source).encode() + b"\0")
    return digest.hexdigest()[:16]


def meaning(source: Path) -> str:
    """Text of a Python or C source without comments, docstrings and layout."""
    return _meaning(source.read_text(encoding="utf-8"), source.suffix)


@lru_cache(maxsize=1024)  # every lab, store and pack of a process asks for the same few files, 0.3 s of a core together
def _meaning(text: str, suffix: str) -> str:
    return _python(text) if suffix == ".py" else _c(text)


def _python(text: str) -> str:
    tree = ast.parse(text)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and ast.get_docstring(node):
            assert isinstance(body, list)
            node.body = body[1:]
    return ast.dump(tree)  # without places


def _c(text: str) -> str:
    kept = _C_TOKEN.sub(lambda match: " " if match[0].startswith("/") else match[0], text)
    lines = (" ".join(line.split()) for line in kept.splitlines())
    return "\n".join(line for line in lines if line)
