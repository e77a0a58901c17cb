"""Layers whose weight a module's forward reads, as ``F.linear(x, self.qkv.weight)`` does, by its source."""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch

_HARMLESS = {"dtype", "device", "shape", "size", "dim", "ndim", "numel", "requires_grad", "is_cuda", "is_meta", "itemsize"}


@dataclass(frozen=True, slots=True)
class WeightReads:
    """A layer whose weight is read."""

    method: str  # that reads it: Block.forward
    called: bool  # whether the layer is used in another way, too


def weight_reads(parent: torch.nn.Module, key: str) -> WeightReads | None:
    """Reads of the weight of child ``key`` by the methods that a module's forward calls; None where they do not.

    Reads of its type, device and sizes do not count. Who is left out: methods whose source cannot be read.
    """
    kind, waiting, seen = type(parent), ["forward"], {"forward"}
    reader, called = "", False
    while waiting:
        name = waiting.pop()
        owner = next((cls for cls in kind.__mro__ if name in vars(cls)), torch.nn.Module)
        function = vars(owner).get(name)
        if owner is torch.nn.Module or not isinstance(function, FunctionType):
            continue
        names = {*function.__code__.co_names}
        waiting += [cls for cls in names - seen if isinstance(getattr(kind, cls, None), FunctionType)]
        seen |= names
        if key in names:
            read, used = _uses(function, key)
            reader, called = reader or (f"{owner.__name__}.{name}" if read else ""), called or used
    return WeightReads(reader, called) if reader else None


def _uses(function: FunctionType, key: str) -> tuple[bool, bool]:
    """Two flags: a method reads the weight of ``self.key``; it uses ``self.key`` in another way."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function.__code__)))
    except (OSError, TypeError, SyntaxError):
        return False, True
    above: dict[ast.AST, ast.AST] = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    read = used = False
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Attribute) and node.attr == key and _is_self(node.value, function)):
            continue
        outer: Any = above.get(node)
        if not isinstance(outer, ast.Attribute):
            used = True
        elif outer.attr == "weight":
            read = read or not _harmless(above.get(outer))
    return read, used


def _is_self(node: ast.AST, function: FunctionType) -> bool:
    return isinstance(node, ast.Name) and node.id == function.__code__.co_varnames[0]


def _harmless(node: Any) -> bool:
    """True if what stands around ``layer.weight`` reads no numbers."""
    if isinstance(node, ast.Attribute):
        return node.attr in _HARMLESS
    if isinstance(node, ast.Compare):
        return all(isinstance(op, ast.Is | ast.IsNot) for op in node.ops)
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("isinstance", "hasattr")
