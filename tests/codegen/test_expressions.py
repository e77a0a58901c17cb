"""What an expression depends on and whether it holds a reduction: known since it was made, as a walk would find it."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from haotuner.codegen.expressions import (
    Apply,
    Expression,
    Fold,
    Load,
    Number,
    Size,
    Variable,
    children,
    free_variables,
    has_folds,
)
from haotuner.graph.extents import dimension

NAMES = ("i", "j", "k")
LEAVES = st.one_of(st.sampled_from([Number(1.0, "fp32"), Size(dimension("n"))]), st.sampled_from(NAMES).map(Variable))


def _larger(inside: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    some = st.lists(inside, min_size=1, max_size=3).map(tuple)
    axes = st.lists(st.sampled_from(NAMES), min_size=1, max_size=2, unique=True)
    return st.one_of(
        some.map(lambda parts: Apply("add", parts, "fp32")),
        some.map(lambda parts: Load("x", parts, "fp32")),
        st.builds(lambda names, value: Fold("sum", tuple((Variable(n), 4) for n in names), value, "fp32"), axes, inside),
    )


def _below(e: Expression) -> Iterator[Expression]:
    yield e
    for child in children(e):
        yield from _below(child)


def _walked(e: Expression) -> set[str]:
    if isinstance(e, Variable):
        return {e.name}
    names = {name for child in children(e) for name in _walked(child)}
    return names - {variable.name for variable, _ in e.axes} if isinstance(e, Fold) else names


@given(st.recursive(LEAVES, _larger, max_leaves=12))
def test_an_expression_knows_what_a_walk_finds(e):
    assert free_variables(e) == _walked(e)
    assert has_folds(e) == any(isinstance(part, Fold) for part in _below(e))


def test_what_is_known_is_no_part_of_the_value():
    first, second = (Load("x", (Variable("i"),), "fp32") for _ in range(2))
    assert first == second and hash(first) == hash(second)
    assert repr(first) == "Load(tensor='x', indices=(Variable(name='i'),), dtype='fp32', nonempty=())"
    assert free_variables(first) is first.free and not has_folds(first)
