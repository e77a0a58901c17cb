"""Guards of torch.export on a request's sizes: a module's ``if`` over sizes was traced on one side alone."""

from __future__ import annotations

import ast
import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence

import sympy

from haotuner.frontends.onnx.branches import compared
from haotuner.graph.extents import Extent, canonical, dimensions, evaluate, floor_division
from haotuner.graph.graph import Required

# Sizes that tell a choice of the module from what torch assumes of 0 and 1 alone, which such a module serves, too.
SIZES = (2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 17, 31, 33, 64, 100, 127, 129, 224, 513, 1000, 1025, 5000, 100_000)
DRAWS = 200
OWN = {"cdist": 25}  # of operators that choose between ways to one result: the size that torch compares with
_SIGNS = {ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
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
            sides = (_number(item, shapes) for item in (guard.left, guard.comparators[0]))
            condition = compared(_SIGNS[type(guard.ops[0])], *sides)
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
    sides = [_number(item, shapes) for item in (guard.left, guard.comparators[0])]
    inner = [atom for side in sides if not isinstance(side, int) for atom in side.atoms(sympy.floor)]
    if not isinstance(guard.ops[0], ast.Eq):  # remainders are compared with 0
        inner += [side for side in sides if not isinstance(side, int)]
    draw = random.Random(0)  # noqa: S311  no secret
    alike: Iterator[Sequence[int]] = ([size] * len(names) for size in SIZES)
    drawn = ([draw.choice(SIZES) for _ in names] for _ in range(DRAWS if len(names) > 1 else 0))
    for sizes in itertools.chain(alike, drawn):
        known = dict(zip(names, sizes, strict=True))
        if not evaluate(holds, known) and all(abs(evaluate(item, known)) > 1 for item in inner):
            return False
    return True


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
    return _size(node, shapes)


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
