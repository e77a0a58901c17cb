"""Arithmetic of extents from a text, such as ``(w - 1)//2 + n``: over whole numbers, or columns of them. Never evaluated."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any, TypeAlias

import numpy as np

LONGEST = 2_000  # characters: far more than shape arithmetic writes
DEEPEST = 40
Of: TypeAlias = Callable[[Mapping[str, Any]], Any]  # extents by axis -> the extent
_OPERATORS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "max": lambda *inputs: reduce(np.maximum, inputs),
    "min": lambda *inputs: reduce(np.minimum, inputs),
    "abs": np.abs,
}


def arithmetic_of(text: str) -> Of:
    """Arithmetic of a text: numbers, names, ``+ - * // %``, ``max``, ``min``, ``abs``. ValueError for anything else."""
    try:
        if len(text) > LONGEST:
            raise ValueError(f"{len(text)} characters, at most {LONGEST} are read")
        return _read(ast.parse(text.strip(), mode="eval").body, 0)
    except (SyntaxError, RecursionError, MemoryError, ValueError) as error:
        raise ValueError(f"extent {text[:80]!r} cannot be read: {error}") from error


def _read(tree: ast.AST, depth: int) -> Of:
    if depth > DEEPEST:
        raise ValueError(f"more than {DEEPEST} steps inside each other")
    if isinstance(tree, ast.Constant) and type(tree.value) is int:
        value = tree.value
        return lambda extents: value
    if isinstance(tree, ast.Name):
        name = tree.id
        return lambda extents: extents[name]
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub):
        inner = _read(tree.operand, depth + 1)
        return lambda extents: -inner(extents)
    if isinstance(tree, ast.BinOp) and type(tree.op) in _OPERATORS:
        function, left, right = _OPERATORS[type(tree.op)], _read(tree.left, depth + 1), _read(tree.right, depth + 1)
        return lambda extents: function(left(extents), right(extents))
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id in _FUNCTIONS and not tree.keywords:
        called, inputs = _FUNCTIONS[tree.func.id], [_read(argument, depth + 1) for argument in tree.args]
        if not inputs:
            raise ValueError(f"{tree.func.id} of nothing")
        return lambda extents: called(*(item(extents) for item in inputs))
    raise ValueError(f"{ast.unparse(tree)} is not arithmetic of extents")
