"""What torch.export took for granted of a request's sizes: a module's ``if`` over sizes was traced on one side alone."""

from __future__ import annotations

import ast
import random
from collections.abc import Collection, Iterator, Mapping, Sequence

from haotuner.graph.extents import Extent, canonical, dimensions, evaluate, floor_division
from haotuner.graph.graph import Required
from haotuner.importing.conditions import Condition, compared

# Sizes that tell a choice of the module from what torch assumes of 0 and 1 alone, which such a module serves, too.
SIZES = (2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 17, 31, 33, 64, 100, 127, 129, 224, 513, 1000, 1025, 5000, 100_000)
DRAWS = 200
# Sizes at which torch changes how it computes an operator, not what: rows of distances that it makes of a product.
OWN_CHOICES = {"_cdist_forward.default": 25}
_SIGNS = {ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
Shapes = Mapping[str, Sequence[Extent]]


class _Unknown(Exception):
    """A guard that says something else than sizes of inputs."""


def required(guards: Sequence[str], shapes: Shapes, operators: Collection[str] = ()) -> Iterator[Required]:
    """What requests must fulfil. ``guards``: torch's, as text; ``shapes``: of inputs. Others than of sizes are left out.

    ``operators``: ATen's that the program calls.
    """
    own = {size for name, size in OWN_CHOICES.items() if name in operators}
    for text in guards:
        try:
            condition = _condition(ast.parse(text, mode="eval").body, shapes, own)
            taken = condition is None or _always(condition.extent)
        except (_Unknown, SyntaxError, ZeroDivisionError):
            continue
        if condition is not None and not taken:
            yield Required(condition.extent, f"torch.export traced the module for sizes where {condition.words}; "
                           "export it once for each side of its condition")  # fmt: skip


def _always(extent: Extent) -> bool:
    names = sorted(dimensions(extent))
    if not names:
        return bool(evaluate(extent, {}))
    draw = random.Random(0)  # noqa: S311  no secret
    alike: Iterator[Sequence[int]] = ([size] * len(names) for size in SIZES)
    drawn = ([draw.choice(SIZES) for _ in names] for _ in range(DRAWS if len(names) > 1 else 0))
    return all(evaluate(extent, dict(zip(names, sizes, strict=True))) for many in (alike, drawn) for sizes in many)


def _condition(node: ast.AST, shapes: Shapes, own: Collection[int]) -> Condition | None:
    """What a guard asks; None where torch asks for itself."""
    if not isinstance(node, ast.Compare) or len(node.ops) != 1 or type(node.ops[0]) not in _SIGNS:
        raise _Unknown
    one, other = _number(node.left, shapes), _number(node.comparators[0], shapes)
    against = [each for each in (one, other) if isinstance(each, int)]
    if any(each in own for each in against):
        return None
    if isinstance(node.ops[0], ast.NotEq) and any(each in (0, 1) for each in against):
        return None  # torch says so of every size that it asks whether it is spread over another
    return compared(_SIGNS[type(node.ops[0])], one, other)


def _number(node: ast.AST, shapes: Shapes) -> Extent:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return canonical(-_number(node.operand, shapes))
    if isinstance(node, ast.BinOp):
        one, other = _number(node.left, shapes), _number(node.right, shapes)
        if isinstance(node.op, (ast.Add, ast.Sub, ast.Mult)):
            return canonical({ast.Add: one + other, ast.Sub: one - other, ast.Mult: one * other}[type(node.op)])
        if isinstance(node.op, (ast.FloorDiv, ast.Mod)):
            whole = floor_division(one, other)
            return whole if isinstance(node.op, ast.FloorDiv) else canonical(one - other * whole)
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
