"""Online reductions: sums of exp(x - max x) over the axis of that maximum, taken in one pass with the maximum so far.

A rule of algebra, on any graph. It applies where a maximum over an axis is read by nothing but exponentials inside sums over
the same axis. There the sum of exp(x - max) * w is kept for the maximum so far and multiplied by exp(old - new) when it
grows (Milakov and Gimelshein 2018; Dao et al. 2022). What does not depend on the axis is taken out of the sums first. The
rule is of use where x is itself a sum of products and some w brings an axis of its own: then x is never stored, as between
attention's products.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from haotuner.codegen.access import Accesses
from haotuner.codegen.expressions import (
    Apply,
    Expression,
    Fold,
    Load,
    Merged,
    Number,
    Variable,
    arithmetic,
    free_variables,
    index,
    parts,
    slope,
)
from haotuner.errors import UsageError
from haotuner.graph.extents import Extent, same
from haotuner.graph.graph import Graph, Node

Axis: TypeAlias = tuple[Variable, Extent]


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineSoftmax:
    """Graph whose output is made by online softmax, by the roles that its axes have.

    ``score`` is x at (outer, row, key); ``product`` the sum in it, of ``left`` (row, depth) times ``right`` (key, depth).
    ``total`` stands in ``value`` for the sum of the exponentials, ``weighted`` for that of exponentials times ``weight``
    (key, column). ``last``: the last key that a row sees, grows with the row; ``seen``: the score of keys up to it.
    """

    graph: Graph
    maximum: str  # the tensor
    outer: tuple[Axis, ...]
    row: Axis
    key: Axis
    depth: Axis
    column: Axis
    score: Expression
    product: Fold
    left: Expression
    right: Expression
    weight: Expression
    total: Fold
    weighted: Fold
    value: Expression
    indices: tuple[Expression, ...]  # of the output's element
    last: Expression | None
    seen: Expression


def match_online_softmax(graph: Graph) -> OnlineSoftmax | None:
    """Online softmax of a graph; None where it has none, or none with products on both sides."""
    if len(graph.outputs) != 1:
        return None
    for node in graph.nodes:
        if node.primitive == "reduce" and node.attributes["how"] == "max" and len(node.attributes["axes"]) == 1:
            try:
                result = _Matcher(graph, node).match()
            except UsageError:  # a primitive that no program is made of
                continue
            if result is not None:
                return result
    return None


class _Matcher:
    """One maximum, and the sums that read it."""

    def __init__(self, graph: Graph, node: Node) -> None:
        self.graph, self.node = graph, node
        self.accesses = Accesses(graph, stored={node.output: node.output})
        shape = graph.types[node.inputs[0]].shape
        self.axis = node.attributes["axes"][0] % len(shape)
        self.key: Axis = (self.accesses.variable("k"), shape[self.axis])
        self.merged = Merged()
        self.sums: dict[Fold, tuple[Fold, Expression | None]] = {}  # by what they become: the weight, None for 1
        self.known: dict[Fold, Expression] = {}
        self.score: Expression | None = None

    def match(self) -> OnlineSoftmax | None:
        graph = self.graph
        out = graph.outputs[0]
        axes = tuple((self.accesses.variable("i"), extent) for extent in graph.types[out].shape)
        indices = tuple(variable for variable, _ in axes)
        value = self._rewritten(self.accesses.computed(out, indices))
        if value is None or self.score is None or any(self._reads(part) for part in parts(value, into_folds=False)):
            return None
        totals = [new for new, weight in self.sums.values() if weight is None]
        weighed = [(new, weight) for new, weight in self.sums.values() if weight is not None]
        if len(weighed) != 1 or len(totals) != 1:
            return None
        return self._with_roles(axes, value, totals[0], *weighed[0])

    def _with_roles(
        self, axes: tuple[Axis, ...], value: Expression, total: Fold, weighted: Fold, weight: Expression
    ) -> OnlineSoftmax | None:
        score, (key, _) = self.score, self.key
        assert score is not None
        inner = [part for part in parts(score) if isinstance(part, Fold)]
        if len(inner) != 1 or inner[0].how != "sum" or len(inner[0].axes) != 1:
            return None
        product, depth = inner[0], inner[0].axes[0]
        inside, outside = _factors(product.value, depth[0].name)
        sides = {True: [item for item in inside if key.name in free_variables(item)],
                 False: [item for item in inside if key.name not in free_variables(item)]}  # fmt: skip
        if outside or len(sides[True]) != 1 or len(sides[False]) != 1:
            return None
        right, left = sides[True][0], sides[False][0]
        column = axes[-1]
        others = free_variables(score) | free_variables(right)
        if column[0].name not in free_variables(weight) or column[0].name in others:
            return None
        fixed = free_variables(right) | free_variables(weight)
        rows = [axis for axis in axes[:-1] if axis[0].name in free_variables(left) - fixed]
        if not rows:
            return None
        row = rows[-1]
        if any(isinstance(part, Fold) for part in parts(weight)):
            return None
        last, seen = _bounded(score, key.name, row[0].name)
        return OnlineSoftmax(
            graph=self.graph, maximum=self.node.output, outer=tuple(axis for axis in axes[:-1] if axis is not row), row=row,
            key=self.key, depth=depth, column=column, score=score, product=product, left=left, right=right, weight=weight,
            total=total, weighted=weighted, value=value, indices=tuple(variable for variable, _ in axes), last=last,
            seen=seen,
        )  # fmt: skip

    def _rewritten(self, e: Expression) -> Expression | None:
        """The expression with sums that read the maximum made online; None where one of them cannot be."""
        if isinstance(e, Apply):
            arguments = [self._rewritten(argument) for argument in e.arguments]
            if None in arguments:
                return None
            return Apply(e.function, tuple(argument for argument in arguments if argument is not None), e.dtype)
        if not isinstance(e, Fold) or not any(self._reads(part) for part in parts(e)):
            return e
        if e not in self.known:
            made = self._online(e)
            if made is None:
                return None
            self.known[e] = made
        return self.known[e]

    def _online(self, fold: Fold) -> Expression | None:
        if fold.how != "sum" or len(fold.axes) != 1 or not same(fold.axes[0][1], self.key[1]):
            return None
        own = fold.axes[0][0]
        inside, outside = _factors(fold.value, own.name)
        powers = [item for item in inside if isinstance(item, Apply) and item.function == "exp"]
        rest = [item for item in inside if item not in powers]
        if (
            len(powers) != 1
            or not self._is_power(powers[0], own)
            or any(self._reads(p) for item in rest for p in parts(item))
        ):
            return None
        weight: Expression | None = None
        for item in rest:
            other = self.merged.renamed(item, {own.name: self.key[0]})
            weight = other if weight is None else Apply("mul", (weight, other), fold.dtype)
        key = next((old for old, (_, known) in self.sums.items() if known is weight), fold)
        new = self.sums.setdefault(
            key, (Fold("sum", (self.key,), weight or Number(1, fold.dtype), fold.dtype, fold.tensor), weight)
        )[0]
        value: Expression = new
        for entry, inverse in outside:
            factor = self._rewritten(entry)
            if factor is None:
                return None
            value = Apply("div" if inverse else "mul", (value, factor), fold.dtype)
        return value

    def _is_power(self, power: Apply, own: Variable) -> bool:
        """True if an exponential is that of x - max x, of the x that the maximum is of."""
        moved = power.arguments[0]
        if not (isinstance(moved, Apply) and moved.function == "sub" and isinstance(moved.arguments[1], Load)):
            return False
        x, most = moved.arguments
        assert isinstance(most, Load)
        if most.tensor != self.node.output:
            return False
        places = list(most.indices)
        if self.node.attributes.get("keepdims", False):
            del places[self.axis]
        operand = self.node.inputs[0]
        if self.accesses.element(operand, (*places[: self.axis], own, *places[self.axis :])) is not x:
            return False
        score = self.accesses.element(operand, (*places[: self.axis], self.key[0], *places[self.axis :]))
        if self.score is not None and self.score is not score:
            return False
        self.score = score
        return True

    def _reads(self, part: Expression) -> bool:
        return isinstance(part, Load) and part.tensor == self.node.output


def _factors(e: Expression, variable: str) -> tuple[list[Expression], list[tuple[Expression, bool]]]:
    """A product's factors that depend on a variable, and the others with whether they divide."""
    if variable not in free_variables(e):
        return [], [(e, False)]
    if isinstance(e, Apply) and e.function == "mul":
        first, other = (_factors(argument, variable) for argument in e.arguments)
        return first[0] + other[0], first[1] + other[1]
    if isinstance(e, Apply) and e.function == "div" and variable not in free_variables(e.arguments[1]):
        inside, outside = _factors(e.arguments[0], variable)
        return inside, [*outside, (e.arguments[1], True)]
    return [e], []


_TURNED: Mapping[str, str] = {"greater_equal": "less_equal", "greater": "less"}


def _bounded(score: Expression, key: str, row: str) -> tuple[Expression | None, Expression]:
    """The last key that a row sees, where all beyond it score minus infinity, and the score of those it sees."""
    none = (None, score)
    if not (isinstance(score, Apply) and score.function == "select"):
        return none
    condition, seen, unseen = score.arguments
    if not (isinstance(condition, Apply) and isinstance(unseen, Number) and unseen.value == float("-inf")):
        return none
    function, (item, other) = condition.function, condition.arguments[:2]
    if function in _TURNED:
        function, item, other = _TURNED[function], other, item
    if function not in ("less", "less_equal") or not (isinstance(item, Variable) and item.name == key):
        return none
    growth = slope(other, row)
    if key in free_variables(other) or growth is None or growth < 0:
        return none
    return (other if function == "less_equal" else arithmetic("sub", other, index(1))), seen
