"""The facts of a manifest that people read, checked when present; those of ops of whole models lie in facts.json.

A form is a type, a tuple of types, ``[form]`` for a list, ``{"key": form}`` for an object with optional keys, or
``{str: form}`` for an object whose every value has that form.

facts.json: the facts of the ops of a pack of whole models. No call needs them, so that opening such a pack reads none.

The manifest has the file's hash. It is compared when the first fact is asked for, and by ``verify``.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from haotuner.errors import PackInvalid
from haotuner.pack.folder import FACTS, SIZE_LIMIT_BYTES, Folder, parse, steadily

NUMBER = (int, float)
PAIR = "two numbers"
_NUMBERS = frozenset(NUMBER)
_ESCAPES = re.compile(rb"\\(u....|[^nt\"/\\])")  # but those that print: new line, tabulator, quotes, slashes
L3_LIMIT_BYTES = 1 << 36

_KERNEL: dict[str, Any] = {"output": str, "primitives": [str], "us": NUMBER, "beside": [str]}
MODEL_PLAN: dict[str, Any] = {
    "status": str,
    "measured": NUMBER,
    "us": {str: NUMBER},  # of all groups: the bound under every plan, the chosen plan, greedy fusion's
    "requests": NUMBER,
    "predicted_us": {str: {str: {str: NUMBER}}},  # by threads, request and kind of step
    "regions": [{"outputs": [str], "chosen": [_KERNEL], "greedy": [_KERNEL]}],
    "ways": [{"where": str, "us": NUMBER, "requests": [{str: NUMBER}], "one_plan_us": NUMBER, "own_kernels": NUMBER}],
    "rewrites": [{"rule": str, "tensor": str, "us": NUMBER, "without_us": NUMBER}],
}
DOCUMENT: dict[str, Any] = {
    "haotuner": str,
    "toolchain": {str: str},
    "verification": {"numbers": bool, "why": str},
    "tuning": {
        "shapes": str,
        "weights": str,
        "seconds": NUMBER,
        "stopped": str,
        "model_ranges": {str: {str: PAIR}},  # of each dimension, the first and the last size that was tuned
        "models": {str: MODEL_PLAN},
    },
    "driver": {"version": int},  # the oldest CUDA whose driver takes the code; packs of earlier versions do not say
    "device": {"name": str, "kind": str, "l3_bytes": (*NUMBER, type(None))},
}
PLAN: dict[str, Any] = {
    "predicted_us": [NUMBER],
    "measured_us": {str: {str: NUMBER}},
    "expected_us": {str: {str: NUMBER}},
    "curves": {str: [{"kernel": str, "lead_us": [PAIR], "follow_us": NUMBER}]},
    "cells": {
        "bounds": {str: [int]},
        "entries": [str],
        "considered": [[{"way": str, "composition": str, "us": NUMBER, "from": str}]],
    },
}
REGRET = (*NUMBER, type(None))  # null: not known, for nothing was measured
OP: dict[Any, Any] = {"packed_ratio": NUMBER, "regret_mean": REGRET, "regret_max": REGRET, "plans": {str: PLAN}}


def check_facts(value: Any, form: Any, where: str) -> None:
    """ValueError names the first fact of another type than ``form`` says."""
    if isinstance(form, dict):
        if not isinstance(value, dict):
            raise ValueError(f"{where} must be an object")
        for key, item in value.items():
            inner = form.get(str, form.get(key))
            if inner is not None:
                check_facts(item, inner, f"{where}.{key}")
    elif form == PAIR:
        check_facts(value, [NUMBER], where)
        if len(value) != 2:
            raise ValueError(f"{where} must hold pairs of numbers")
    elif isinstance(form, list):
        if not isinstance(value, list):
            raise ValueError(f"{where} must be a list")
        if form[0] is NUMBER and _NUMBERS.issuperset(map(type, value)):
            return  # plans have thousands
        for entry in value:
            check_facts(entry, form[0], where)
    elif not isinstance(value, form) or (isinstance(value, bool) and form is not bool):
        raise ValueError(f"{where} is {value!r:.50}, of another type than that fact has")


def check_texts(document: Any, raw: bytes) -> None:
    """ValueError for a text, key or value, that would steer a terminal or cannot be printed. ``raw``: the document's JSON.

    JSON without such letters among its escapes has none, which is seen at once; the manifest of a model has 40,000 texts.
    """
    if not raw.isascii() or b"\x7f" in raw or any(map(_may_steer, set(_ESCAPES.findall(raw)))):
        _check_each(document)


def _may_steer(escape: bytes) -> bool:
    try:
        return _steers(chr(int(escape[1:], 16)))
    except ValueError:  # no number: \\b, \\f, \\r, or a letter behind an escaped backslash
        return True


def _check_each(value: Any) -> None:
    if isinstance(value, str):
        if not value.isprintable() and any(_steers(letter) for letter in value):
            raise ValueError(f"the text {ascii(value[:50])} holds control characters")
    elif isinstance(value, dict):
        for key, item in value.items():
            _check_each(key)
            _check_each(item)
    elif isinstance(value, list):
        for entry in value:
            _check_each(entry)


def _steers(letter: str) -> bool:
    return letter not in "\n\t" and unicodedata.category(letter) in ("Cc", "Cs", "Cf")  # also marks that turn the writing


_SHA = re.compile(r"[0-9a-f]{64}")


class FactsFile:
    """The file of one pack. ValueError for a hash that is none."""

    def __init__(self, pack: Path, sha256: Any) -> None:
        if not isinstance(sha256, str) or not _SHA.fullmatch(sha256):
            raise ValueError(f"facts_sha256 is {sha256!r:.80}, not a sha256")
        self._pack, self._sha256 = pack, sha256

    def of(self, op: str) -> Mapping[str, Any]:
        """Facts of an op, none where the file has none. PackInvalid where it is missing, damaged or not sound."""
        result: Mapping[str, Any] = self._ops.get(op, {})
        return result

    @cached_property
    def _ops(self) -> Mapping[str, Any]:
        return steadily(self._pack, self._read)

    def _read(self, folder: Folder) -> Mapping[str, Any]:
        path = folder.path / FACTS
        try:
            raw = folder.read(FACTS, SIZE_LIMIT_BYTES)
        except (OSError, ValueError) as error:
            words = getattr(error, "strerror", None) or error
            raise PackInvalid(f"{path} cannot be read ({words}); restore the pack or tune again") from error
        if hashlib.sha256(raw).hexdigest() != self._sha256:
            raise PackInvalid(f"{path}: its sha256 is not the one in the manifest; load the pack again, or restore it")
        document = parse(path, raw)
        try:
            check_texts(document, raw)
            check_facts(document, {str: OP}, "the file of facts")
        except ValueError as error:
            raise PackInvalid(f"{path}: {error}; tune again or restore the pack from where it came") from error
        result: Mapping[str, Any] = document
        return result


class OpFacts(Mapping[str, Any]):
    """Facts of one op, read when the first is asked for. PackInvalid as of the file."""

    __slots__ = ("_file", "_op")

    def __init__(self, file: FactsFile, op: str) -> None:
        self._file, self._op = file, op

    def __getitem__(self, key: str) -> Any:
        return self._file.of(self._op)[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._file.of(self._op))

    def __len__(self) -> int:
        return len(self._file.of(self._op))
