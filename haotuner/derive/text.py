"""Text of expressions, as people read it and ``parse`` reads it back.

``A(n, 4), K(3, 4)!; L[i:0..n] S[r:0..3, c:0..4] A[i + r - 1, c] * K[r, c]``: tensors with their shapes, ``!`` behind
constants; then the nest. A nest in another one stands in braces with the indices behind it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from haotuner.derive.affine import Affine, Ranges, divided, iterator, number, remainder
from haotuner.derive.expression import Apply, Body, Loop, Number, Read, Scope, Tensor, apply, tensors
from haotuner.errors import UsageError
from haotuner.graph import extents
from haotuner.ops.formula import FUNCTIONS

_INFIX = {"add": " + ", "mul": " * "}
_LONGEST = 20_000
_NAME = re.compile(r"[A-Za-z_]\w*")
_NUMBER = re.compile(r"-?\d+(\.\d+)?(e-?\d+)?")


def text(scope: Scope) -> str:
    """The whole text, with the tensors before it."""
    heads = [
        f"{name}({', '.join(map(extents.text, tensor.shape))}){'!' if tensor.constant else ''}"
        for name, tensor in sorted(tensors(scope).items())
    ]
    return f"{', '.join(heads)}; {nest(scope)}"


def nest(scope: Scope) -> str:
    """The nest alone."""
    sums = f" S[{_loops(scope.sums)}]" if scope.sums else ""
    return f"L[{_loops(scope.spatial)}]{sums} {body_text(scope.body)}"


def _loops(loops: Sequence[Loop]) -> str:
    return ", ".join(f"{loop.name}:{extents.text(loop.low)}..{extents.text(loop.high)}" for loop in loops)


def body_text(body: Body) -> str:
    """A body, as it stands behind the iterators of its nest."""
    if isinstance(body, Number):
        return repr(float(body.value))
    if isinstance(body, Read):
        source = body.source.name if isinstance(body.source, Tensor) else f"{{{nest(body.source)}}}"
        return f"{source}[{', '.join(map(str, body.index))}]"
    parts = [body_text(operand) for operand in body.operands]
    if body.function == "add":
        return f"({' + '.join(parts)})"
    return _INFIX[body.function].join(parts) if body.function in _INFIX else f"{body.function}({', '.join(parts)})"


def lines(scope: Scope, stem: str = "T") -> list[str]:
    """The nest for people: nests that it reads first, each under a name of its own."""
    result: list[str] = []

    def named(part: Scope) -> str:
        def shown(body: Body) -> str:
            if isinstance(body, Read) and isinstance(body.source, Scope):
                return f"{named(body.source)}[{', '.join(map(str, body.index))}]"
            if isinstance(body, Apply):
                parts = [shown(operand) for operand in body.operands]
                joined = _INFIX[body.function].join(parts) if body.function in _INFIX else ", ".join(parts)
                return (
                    f"({joined})"
                    if body.function == "add"
                    else joined
                    if body.function == "mul"
                    else f"{body.function}({joined})"
                )
            return body_text(body)

        inner = shown(part.body)
        sums = f" S[{_loops(part.sums)}]" if part.sums else ""
        line = f"L[{_loops(part.spatial)}]{sums} {inner}"
        for index, known in enumerate(result):
            if known.partition(" = ")[2] == line:
                return f"{stem}{index + 1}"
        result.append(f"{stem}{len(result) + 1} = {line}")
        return f"{stem}{len(result)}"

    named(scope)
    return result


def parse(source: str) -> Scope:
    """The expression of a text. UsageError with the position where it cannot be read."""
    if len(source) > _LONGEST:
        raise UsageError(f"expression of {len(source)} characters; at most {_LONGEST} are read")
    try:
        return _Parser(source).expression()
    except RecursionError as error:
        raise UsageError("expression: its nests lie too deep in each other") from error


class _Parser:
    """Recursive descent over one text."""

    def __init__(self, source: str) -> None:
        self.source, self.at = source, 0
        self.tensors: dict[str, Tensor] = {}
        self.iterator_names: set[str] = set()

    def bad(self, what: str) -> UsageError:
        rest = self.source[self.at : self.at + 30]
        return UsageError(f"expression: {what} at letter {self.at + 1}, before {rest!r}")

    def skip(self) -> None:
        while self.at < len(self.source) and self.source[self.at].isspace():
            self.at += 1

    def has(self, token: str) -> bool:
        self.skip()
        if not self.source.startswith(token, self.at):
            return False
        self.at += len(token)
        return True

    def need(self, token: str) -> None:
        if not self.has(token):
            raise self.bad(f"expected {token!r}")

    def name(self) -> str:
        self.skip()
        match = _NAME.match(self.source, self.at)
        if match is None:
            raise self.bad("expected a name")
        self.at = match.end()
        return match.group()

    def until(self, *ends: str) -> str:
        """The text before one of some tokens, outside of brackets."""
        begin, depth = self.at, 0
        while self.at < len(self.source):
            if depth == 0 and any(self.source.startswith(end, self.at) for end in ends):
                return self.source[begin : self.at].strip()
            depth += (self.source[self.at] in "([{") - (self.source[self.at] in ")]}")
            self.at += 1
        raise self.bad(f"expected {' or '.join(map(repr, ends))}")

    def list_of(self, end: str) -> list[str]:
        """Texts between commas, up to and with the end."""
        if self.has(end):
            return []
        parts = []
        while True:
            parts.append(self.until(",", end))
            if self.has(end):
                return parts
            self.need(",")

    def expression(self) -> Scope:
        while not self.has(";"):
            name = self.name()
            if name in self.tensors:
                raise self.bad(f"tensor {name} has two shapes")
            self.need("(")
            shape = tuple(map(extents.parse, self.list_of(")")))
            self.tensors[name] = Tensor(name, shape, self.has("!"))
            self.has(",")
        result = self.scope({})
        self.skip()
        if self.at < len(self.source):
            raise self.bad("expected the end")
        return result

    def scope(self, around: Ranges) -> Scope:
        self.need("L[")
        spatial = self.loops()
        sums = self.loops() if self.has("S[") else ()
        ranges = {loop.name: (loop.low, loop.high) for loop in (*spatial, *sums)}
        return Scope(spatial, sums, self.product(ranges))

    def loops(self) -> tuple[Loop, ...]:
        result = []
        for part in self.list_of("]"):
            match = re.fullmatch(r"([A-Za-z_]\w*)\s*:\s*(.+)\.\.(.+)", part)
            if match is None:
                raise self.bad(f"expected an iterator such as i:0..n, not {part!r}")
            low, high = extents.parse(match[2]), extents.parse(match[3])
            if isinstance(low, int) and isinstance(high, int) and high <= low:
                raise self.bad(f"iterator {match[1]} has the empty range {low}..{high}")
            if match[1] in self.iterator_names:
                raise self.bad(f"iterator {match[1]} is there twice")
            self.iterator_names.add(match[1])
            result.append(Loop(match[1], low, high))
        return tuple(result)

    def product(self, ranges: Ranges) -> Body:
        parts = [self.operand(ranges)]
        while self.has("*"):
            parts.append(self.operand(ranges))
        return apply("mul", *parts)

    def operand(self, ranges: Ranges) -> Body:
        if self.has("("):
            parts = [self.product(ranges)]
            while self.has("+"):
                parts.append(self.product(ranges))
            self.need(")")
            return apply("add", *parts)
        if self.has("{"):
            inner = self.scope(ranges)
            self.need("}")
            self.need("[")
            return self.read(inner, ranges)
        self.skip()
        if match := _NUMBER.match(self.source, self.at):
            self.at = match.end()
            return Number(float(match.group()))
        name = self.name()
        if self.has("["):
            if name not in self.tensors:
                raise self.bad(f"tensor {name} has no shape")
            return self.read(self.tensors[name], ranges)
        if name not in FUNCTIONS:
            raise self.bad(f"unknown function {name}")
        self.need("(")
        operands = [self.product(ranges)]
        while self.has(","):
            operands.append(self.product(ranges))
        self.need(")")
        return apply(name, *operands)

    def read(self, source: Tensor | Scope, ranges: Ranges) -> Read:
        index = tuple(self.index(part, ranges) for part in self.list_of("]"))
        rank = len(source.spatial if isinstance(source, Scope) else source.shape)
        if len(index) != rank:
            raise self.bad(f"{len(index)} indices for {rank} axes")
        return Read(source, index)

    def index(self, part: str, ranges: Ranges) -> Affine:
        try:
            return _index(ast.parse(part, mode="eval").body, ranges)
        except (SyntaxError, ValueError) as error:
            raise self.bad(f"index {part!r} cannot be read: {error}") from error


def _index(tree: ast.AST, ranges: Ranges) -> Affine:
    if not any(isinstance(node, ast.Name) and node.id in ranges for node in ast.walk(tree)):
        return number(extents.parse(ast.unparse(tree)))
    if isinstance(tree, ast.Name):
        return iterator(tree.id)
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub):
        return _index(tree.operand, ranges) * -1
    if isinstance(tree, ast.BinOp):
        if isinstance(tree.op, (ast.Add, ast.Sub)):
            left, right = _index(tree.left, ranges), _index(tree.right, ranges)
            return left + right if isinstance(tree.op, ast.Add) else left - right
        first, size = tree.left, _whole_number(tree.right)
        if isinstance(tree.op, ast.Mult) and size is None:
            first, size = tree.right, _whole_number(tree.left)
        if size is not None and isinstance(tree.op, ast.Mult):
            return _index(first, ranges) * size
        if size is not None and size > 0 and isinstance(tree.op, (ast.FloorDiv, ast.Mod)):
            make = divided if isinstance(tree.op, ast.FloorDiv) else remainder
            return make(_index(first, ranges), size, ranges)
    raise ValueError("it is no sum of iterators times numbers, of their // and %")


def _whole_number(tree: ast.AST) -> int | None:
    """The number that a tree is; None for another one."""
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub):
        size = _whole_number(tree.operand)
        return None if size is None else -size
    return tree.value if isinstance(tree, ast.Constant) and type(tree.value) is int else None
