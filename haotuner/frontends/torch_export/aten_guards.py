"""Guards of torch.export on a request's sizes: a module's ``if`` over sizes was traced on one side alone."""

from __future__ import annotations

import ast
import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import sympy

from haotuner.frontends.onnx.branches import compared
from haotuner.graph.extents import Extent, canonical, dimensions, evaluate, floor_division
from haotuner.graph.graph import Required
from haotuner.graph.typed_extents import typed

# Sizes that tell a choice of the module from what torch assumes of 0 and 1 alone, which such a module serves, too.
SIZES = (2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 17, 31, 33, 64, 100, 127, 129, 224, 513, 1000, 1025, 5000, 100_000)
DRAWS = 200
OWN = {"cdist": 25}  # of operators that choose between ways to one result: the size that torch compares with
_SIGNS = {ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
_ROUNDED = {"math.trunc": "", "math.floor": "real_floor", "math.ceil": "real_ceil"}
_OF_REALS = {ast.Add: "real_add", ast.Sub: "real_sub", ast.Mult: "real_mul", ast.Div: "real_div"}
Shapes = Mapping[str, Sequence[Extent]]


class _Unknown(Exception):
    """A guard that says something else than sizes of inputs."""


def required(guards: Sequence[str], shapes: Shapes, operators: Iterable[str]) -> Iterator[Required]:
    """Conditions that requests must fulfil; ``guards``: torch's, as text, of which others than of sizes are left out.

    ``shapes``: of the inputs. ``operators``: names of those that the program calls.
    """
    own = {size for name, size in OWN.items() if any(name in operator for operator in operators)}
    for text in guards:
        try:
            guard = _compared(ast.parse(text, mode="eval").body)
            condition = compared(_SIGNS[type(guard.ops[0])], *_sides(guard, shapes))
            taken = any(isinstance(item, ast.Constant) and item.value in own for item in (guard.left, guard.comparators[0]))
            taken = taken or condition is None or _always(guard, condition.extent, shapes)
        except (_Unknown, SyntaxError, ZeroDivisionError):
            continue
        if condition is not None and not taken:
            yield Required(condition.extent, f"torch.export traced the module for sizes where {condition.summary}; "
                           "export it once for each side of its condition")  # fmt: skip


def _always(guard: ast.Compare, holds: Extent, shapes: Shapes) -> bool:
    """True if a guard holds wherever nothing in it is 0 or 1."""
    names = sorted(dimensions(holds))
    sides = _sides(guard, shapes)
    inner = [atom for side in sides if not isinstance(side, int) for atom in side.atoms(sympy.floor)]
    if not isinstance(guard.ops[0], ast.Eq):  # a remainder of 0 or 1 is the module's own question
        pairs = zip((guard.left, guard.comparators[0]), sides, strict=True)
        others = (side for node, side in pairs if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod)))
        inner += [side for side in others if not isinstance(side, int)]
    draw = random.Random(0)  # noqa: S311  no secret
    alike: Iterator[Sequence[int]] = ([size] * len(names) for size in SIZES)
    drawn = ([draw.choice(SIZES) for _ in names] for _ in range(DRAWS if len(names) > 1 else 0))
    for sizes in itertools.chain(alike, drawn):
        known = dict(zip(names, sizes, strict=True))
        if not evaluate(holds, known) and all(abs(evaluate(item, known)) > 1 for item in inner):
            return False
    return True


def _sides(guard: ast.Compare, shapes: Shapes) -> tuple[Extent, Extent]:
    """Sides of a guard as whole numbers: of real ones the sign of their difference, and 0."""
    left, right = guard.left, guard.comparators[0]
    try:
        return _number(left, shapes), _number(right, shapes)
    except _Unknown:
        difference = typed("real_sub", _real(left, shapes), _real(right, shapes))
        near = typed("real_max", typed("real_min", difference, 1.0), -1.0)
        return canonical(sum(typed("whole", typed(rounding, near)) for rounding in ("real_floor", "real_ceil"))), 0


def _compared(node: ast.AST) -> ast.Compare:
    if not isinstance(node, ast.Compare) or len(node.ops) != 1 or type(node.ops[0]) not in _SIGNS:
        raise _Unknown
    return node


def _number(node: ast.AST, shapes: Shapes) -> Extent:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return canonical(-_number(node.operand, shapes))
    if isinstance(node, ast.BinOp):
        first, other = _number(node.left, shapes), _number(node.right, shapes)
        if isinstance(node.op, (ast.Add, ast.Sub, ast.Mult)):
            return canonical({ast.Add: first + other, ast.Sub: first - other, ast.Mult: first * other}[type(node.op)])
        if isinstance(node.op, (ast.FloorDiv, ast.Mod)):
            whole = floor_division(first, other)
            return whole if isinstance(node.op, ast.FloorDiv) else canonical(first - other * whole)
    if isinstance(node, ast.Call) and ast.unparse(node.func) in _ROUNDED and len(node.args) == 1:
        rounding = _ROUNDED[ast.unparse(node.func)]
        real = _real(node.args[0], shapes)
        return typed("whole", typed(rounding, real) if rounding else real)
    return _size(node, shapes)


def _real(node: ast.AST, shapes: Shapes) -> Any:
    """A double of Python's that is made of sizes: each step is rounded."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return float(node.value)
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("torch.sym_float", "float") and len(node.args) == 1:
        return _real(node.args[0], shapes)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        if not (isinstance(node.right, ast.Constant) and node.right.value == 0.5):
            raise _Unknown
        return typed("real_sqrt", _real(node.left, shapes))
    if isinstance(node, ast.BinOp) and type(node.op) in _OF_REALS:
        return typed(_OF_REALS[type(node.op)], _real(node.left, shapes), _real(node.right, shapes))
    return typed("real", _number(node, shapes))


def _size(node: ast.AST, shapes: Shapes) -> Extent:
    """``L['name'].size()[axis]``."""
    match node:
        case ast.Subscript(
            value=ast.Call(
                func=ast.Attribute(value=ast.Subscript(slice=ast.Constant(value=str(name))), attr="size"), args=[]
            ),
            slice=ast.Constant(value=int(axis)),
        ) if name in shapes and axis < len(shapes[name]):
            return shapes[name][axis]
    raise _Unknown
