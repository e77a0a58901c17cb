"""The file of a saved model: nothing in it reaches LightGBM before its hash and every tree are right.

LightGBM's text of a forest, checked before LightGBM sees it.

LightGBM trusts its text: child numbers that form a ring are followed without end, and a huge count of leaves ends the
process. A feature that is not there is read from beyond the row. So here every tree must be a tree, and every list as long
as it says. A hash in the file tells damage only; this is for files that somebody else made.

Line 1: magic and the sha256 of all that follows. Line 2: the header as JSON: what kind of model, the columns it uses and the
version of each, settings, and the length of each text. The rest: LightGBM's texts, one after the other.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from haotuner.cost.features import NAMES, recorded_versions, versions, why_outdated
from haotuner.cost.forest import Forest
from haotuner.errors import UsageError
from haotuner.host.files import read_regular, written_aside

LEAVES_LIMIT = 4096  # of one tree; haotuner grows at most 47, and LightGBM walks some trees by recursion
_HEAD = {
    "version": r"v[34]",
    "num_class": r"1",
    "num_tree_per_iteration": r"1",
    "label_index": r"0",
    "max_feature_idx": r"[0-9]{1,4}",
    "objective": r"regression[a-z0-9_ ]{0,40}",
    "feature_names": r"[A-Za-z0-9_ ]+",
    "feature_infos": r".*",
    "tree_sizes": r"[0-9 ]*",
}
_INFO = re.compile(r"none|\[[-+.0-9e]+:[-+.0-9e]+\]")
_AFTER = re.compile(  # what LightGBM adds for people: how often a column was used, and what it was trained with
    r"|feature_importances:|[A-Za-z0-9_]{1,100}=[0-9]{1,18}|parameters:|\[[a-z0-9_]{1,100}: .{0,2000}\]|end of parameters"
    r"|pandas_categorical:(null|\[\])"
)
_SPLITS = ("split_feature", "threshold", "decision_type", "left_child", "right_child")  # a value each inner node
_LEAVES = ("leaf_value",)
_COUNTS = {  # of the rows it was trained with: written, but not needed to predict
    **dict.fromkeys(("split_gain", "internal_value", "internal_weight", "internal_count"), "inner node"),
    **dict.fromkeys(("leaf_weight", "leaf_count"), "leaf"),
}
_ALWAYS = {"num_leaves", "num_cat", *_SPLITS, *_LEAVES, "shrinkage"}
_LINES = ("leaf_const", "num_features", "leaf_features", "leaf_coeff")  # of trees with a line in every leaf
_DECISIONS = {2 * default_left + 4 * missing for default_left in (0, 1) for missing in (0, 1, 2)}  # numbers, no categories


def check_trees(text: str) -> None:
    """ValueError unless ``text`` (ASCII) is a whole forest of trees over columns of numbers; the message says where."""
    head, _, rest = text.partition("\n\n")
    features, sizes = _head(head)
    at = 0
    for number, size in enumerate(sizes):
        block = rest[at : at + size]
        first, _, body = block.partition("\n")
        if first != f"Tree={number}" or len(block) < size:
            raise ValueError(f"tree {number} is not where the head says")
        try:
            _tree(_pairs(body.rstrip("\n").split("\n")), features)
        except ValueError as error:
            raise ValueError(f"tree {number}: {error}") from error
        at += size
    end, *after = rest[at:].split("\n")
    if end != "end of trees":
        raise ValueError("the trees do not end where the head says")
    for line in after:
        if not _AFTER.fullmatch(line):
            raise ValueError(f"a line after the trees is {line[:40]!r}")


def _head(head: str) -> tuple[int, list[int]]:
    """Number of columns that the trees split, and the length of each tree's text."""
    first, *lines = head.split("\n")
    if first != "tree":
        raise ValueError(f"it starts with {first[:20]!r}")
    result = _pairs(lines)
    if result.keys() != _HEAD.keys():
        raise ValueError(f"the head differs in {', '.join(sorted(result.keys() ^ _HEAD.keys()))[:80]}")
    for key, right in _HEAD.items():
        if not re.fullmatch(right, result[key]):
            raise ValueError(f"{key} is {result[key][:40]!r}")
    features = int(result["max_feature_idx"]) + 1
    for key in ("feature_names", "feature_infos"):
        if len(result[key].split()) != features:
            raise ValueError(f"{key} has {len(result[key].split())} entries for {features} columns")
    if not all(map(_INFO.fullmatch, result["feature_infos"].split())):
        raise ValueError("feature_infos are not ranges of numbers")
    return features, [int(size) for size in result["tree_sizes"].split()]


def _tree(result: Mapping[str, str], features: int) -> None:
    linear = result.get("is_linear", "0")
    if linear not in ("0", "1") or result.get("num_cat", "0") != "0":
        raise ValueError(
            f"is_linear {linear[:20]!r}, num_cat {result.get('num_cat', '')[:20]!r}: they must be 0 or 1, and 0"
        )
    allowed = {*_ALWAYS, *_COUNTS, "is_linear", *(_LINES if linear == "1" else ())}
    if odd := sorted((_ALWAYS - result.keys()) | (result.keys() - allowed)):
        raise ValueError(f"{', '.join(odd)[:80]} is missing or should not be there")
    (leaves,) = _wholes(result, "num_leaves", 1, 1, LEAVES_LIMIT + 1)
    inner = leaves - 1
    _wholes(result, "split_feature", inner, 0, features)
    _finite(result, "threshold", inner)
    if set(_wholes(result, "decision_type", inner, 0, 16)) - _DECISIONS:
        raise ValueError("decision_type is not that of a number")
    _check_children(
        _wholes(result, "left_child", inner, -leaves, inner), _wholes(result, "right_child", inner, -leaves, inner)
    )
    _finite(result, "leaf_value", leaves)
    _finite(result, "shrinkage", 1)
    for key in _COUNTS.keys() & result.keys():
        _finite(result, key, inner if _COUNTS[key] == "inner node" else leaves)
    if linear == "1":
        _check_lines(result, leaves, features)


def _check_children(left: Sequence[int], right: Sequence[int]) -> None:
    """Every node and leaf but the root has one parent, of a smaller number: so there is no ring, and the root leads to all.

    A leaf is written as minus its number less one. A node is made by splitting a leaf, after its parent.
    """
    seen: set[int] = set()
    for node, children in enumerate(zip(left, right, strict=True)):
        for child in children:
            if child in seen or 0 <= child <= node:
                raise ValueError(f"node {node} has the child {child}, which has another parent or is above it: no tree")
            seen.add(child)


def _check_lines(result: Mapping[str, str], leaves: int, features: int) -> None:
    if lacking := sorted(set(_LINES) - result.keys()):
        raise ValueError(f"{', '.join(lacking)} is missing")
    _finite(result, "leaf_const", leaves)
    terms = sum(_wholes(result, "num_features", leaves, 0, features + 1))
    _wholes(result, "leaf_features", terms, 0, features)
    _finite(result, "leaf_coeff", terms)


def _pairs(lines: Sequence[str]) -> dict[str, str]:
    """``key=value`` lines; ValueError if a line is none, or a key is there twice."""
    result: dict[str, str] = {}
    for line in lines:
        key, equals, value = line.partition("=")
        if not equals or key in result:
            raise ValueError(f"{line[:40]!r} is no KEY=VALUE, or a second one of its key")
        result[key] = value
    return result


def _wholes(result: Mapping[str, str], key: str, count: int, least: int, beyond: int) -> list[int]:
    """``count`` whole numbers from ``least`` up, all under ``beyond``."""
    words = list(_words(result, key, count))
    numbers = [int(word) for word in words if re.fullmatch(r"-?[0-9]{1,9}", word)]
    if len(numbers) < count or not all(least <= number < beyond for number in numbers):
        odd = next(word for word in words if not (re.fullmatch(r"-?[0-9]{1,9}", word) and least <= int(word) < beyond))
        raise ValueError(f"{key} holds {odd[:20]}, expected a whole number in {least}..{beyond - 1}")
    return numbers


def _finite(result: Mapping[str, str], key: str, count: int) -> None:
    for word in _words(result, key, count):
        try:
            number = float(word)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise ValueError(f"{key} holds {word[:20]}, expected a finite number")


def _words(result: Mapping[str, str], key: str, count: int) -> Iterator[str]:
    words = result[key].split()
    if len(words) != count:
        raise ValueError(f"{key} has {len(words)} values, expected {count}")
    return iter(words)


_MAGIC, _OLD_MAGIC = "haotuner-model-2", "haotuner-model-1"  # the old one named a version of all columns together
SIZE_LIMIT_BYTES = 256 << 20  # the shipped ones have 0.2 MB
_KEYS = {"kind", "columns", "lengths", "state"}
_OLD_KEYS = {"kind", "features_version", "features", "lengths", "state"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A model's file taken apart: its kind, its own state, LightGBM's texts, all undamaged; and the columns it uses."""

    kind: str
    state: Mapping[str, Any]
    texts: tuple[str, ...]
    columns: tuple[str, ...] = NAMES


def save(forest: Forest, path: Path) -> None:
    """Write a forest; see ``write``."""
    state, texts = forest.state()
    write(path, Saved(kind="forest", state=state, texts=tuple(texts), columns=forest.uses))


def write(path: Path, saved: Saved) -> None:
    """Write the file beside its place, then rename, so a reader never sees half of it."""
    header = {
        "kind": saved.kind,
        "columns": versions(saved.columns),
        "lengths": [len(text.encode()) for text in saved.texts],
        "state": saved.state,
    }
    body = json.dumps(header, sort_keys=True) + "\n" + "".join(saved.texts)
    digest = hashlib.sha256(body.encode()).hexdigest()
    if not path.name:
        raise UsageError(f"cannot write the model {str(path)!r}: that names no file; name the file to write")
    try:
        with written_aside(path) as aside:
            aside.write_text(f"{_MAGIC} {digest}\n{body}", encoding="utf-8", newline="\n")
    except OSError as error:
        raise UsageError(
            f"cannot write the model {path}: {error.strerror}; name a new file in a folder that exists, or one to replace"
        ) from error


def damaged(path: Path, what: str) -> UsageError:
    """The error of a file that holds what no ``write`` put there; ``what`` completes a sentence."""
    return UsageError(f"the model {path} is damaged: {what}; make it again with: haotuner transfer fit")


def read(path: Path) -> Saved:
    """The file taken apart, after magic, hash, header and features were found right, in this order.

    Raises:
        UsageError: the file cannot be read, is damaged, or is of another version; the text says which.
    """
    try:
        raw = read_regular(path, SIZE_LIMIT_BYTES)
    except OSError as error:
        raise UsageError(f"cannot read the model {path}: {error.strerror}; make one with: haotuner transfer fit") from error
    first, _, body = raw.partition(b"\n")
    magic, _, digest = first.decode("ascii", "replace").partition(" ")
    if magic not in (_MAGIC, _OLD_MAGIC):
        raise UsageError(f"{path} is not a saved cost model: it starts with {magic[:40]!r}, expected {_MAGIC!r}")
    result = hashlib.sha256(body).hexdigest()
    if result != digest:
        raise UsageError(
            f"the model {path} is damaged: its hash is {result[:12]}, it was saved with {digest[:12]}; copy it again"
        )
    head, _, rest = body.partition(b"\n")
    header = _header(path, head, _KEYS if magic == _MAGIC else _OLD_KEYS)
    _check_types(path, header)
    columns = recorded_versions(header)
    if why := why_outdated(columns):
        raise UsageError(f"the model {path} {why}; train it again with: haotuner transfer fit")
    return Saved(
        kind=header["kind"],
        state=header["state"],
        texts=_cut(path, rest, header["lengths"]),
        columns=tuple(columns),
    )


def _header(path: Path, head: bytes, keys: set[str]) -> dict[str, Any]:
    try:
        header = json.loads(head, parse_constant=_finite_number, parse_float=_finite_number)
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"its header cannot be read ({error})") from error
    if not isinstance(header, dict) or keys - header.keys():
        raise damaged(path, f"its header lacks some of {', '.join(sorted(keys))}")
    return header


def _finite_number(text: str) -> float:
    """A number of the header; JSON as Python reads it also has NaN and infinity, which would rank nothing."""
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is no finite number")
    return number


def _check_types(path: Path, header: Mapping[str, Any]) -> None:
    right = {
        "kind": isinstance(header["kind"], str),
        "state": isinstance(header["state"], dict),
        "columns": _versions_by_name(header["columns"]) if "columns" in header else True,
        "features": _all_of(header.get("features", []), lambda item: isinstance(item, str)),
        "lengths": _all_of(header["lengths"], lambda item: type(item) is int and item > 0),
    }
    for key, fine in right.items():
        if not fine:
            raise damaged(path, f"{key!r} of its header is {str(header[key])[:40]!r}")


def _versions_by_name(columns: object) -> bool:
    return isinstance(columns, dict) and bool(columns) and all(type(version) is int for version in columns.values())


def _all_of(values: object, right: Callable[[object], bool]) -> bool:
    return isinstance(values, list) and all(map(right, values))


def _cut(path: Path, rest: bytes, lengths: Sequence[int]) -> tuple[str, ...]:
    if sum(lengths) != len(rest):
        raise damaged(path, f"it has {len(rest)} bytes of trees, its header says {sum(lengths)}")
    texts, at = [], 0
    for length in lengths:
        text = rest[at : at + length]
        try:
            texts.append(text.decode("ascii"))
            check_trees(texts[-1])
        except ValueError as error:
            raise damaged(path, f"bytes {at} to {at + length} of its trees are no whole forest: {error}") from error
        at += length
    return tuple(texts)
