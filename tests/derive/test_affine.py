"""Indices: sums, whole parts and remainders are what they are for every value, and bounds hold."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from haotuner.derive.affine import (
    Affine,
    Quotient,
    at_most,
    bounds,
    divided,
    inside,
    iterator,
    number,
    remainder,
    substituted,
)
from haotuner.graph.extents import dimension

RANGES = {"x": (0, 7), "y": (-2, 5), "z": (0, 3)}
VALUES = st.fixed_dictionaries({name: st.integers(low, high - 1) for name, (low, high) in RANGES.items()})


def value(e: Affine, at: dict[str, int]) -> int:
    """Number that an index is."""
    result = int(e.const)
    for atom, factor in e.terms:
        if isinstance(atom, str):
            part = at[atom]
        else:
            part = (
                value(atom.dividend, at) // atom.divisor
                if isinstance(atom, Quotient)
                else value(atom.dividend, at) % atom.divisor
            )
        result += factor * part
    return result


@st.composite
def indices(draw: st.DrawFn, depth: int = 3) -> tuple[Affine, Callable[[dict[str, int]], int]]:
    """An index, and its expected value as a function of the iterators."""
    kind = draw(st.sampled_from(["name", "number", *["add", "mul", "div", "mod", "put"] * (depth > 0)]))
    if kind == "name":
        name = draw(st.sampled_from(sorted(RANGES)))
        return iterator(name), lambda at: at[name]
    if kind == "number":
        size = draw(st.integers(-5, 5))
        return number(size), lambda at: size
    e, expected = draw(indices(depth - 1))
    if kind == "add":
        other, expected_other = draw(indices(depth - 1))
        return e + other, lambda at: expected(at) + expected_other(at)
    size = draw(st.integers(1, 4))
    if kind == "mul":
        return e * size, lambda at: expected(at) * size
    if kind == "put":
        other, expected_other = draw(indices(depth - 1))
        return substituted(e, {"x": other}, RANGES), lambda at: expected({**at, "x": expected_other(at)})
    make = divided if kind == "div" else remainder
    return make(e, size, RANGES), (lambda at: expected(at) // size) if kind == "div" else (lambda at: expected(at) % size)


@given(indices(), VALUES)
def test_an_index_is_what_its_arithmetic_says(pair, at):
    e, expected = pair
    assert value(e, at) == expected(at)
    extent = bounds(e, RANGES)
    assert extent is not None and extent[0] <= value(e, at) < extent[1]


def test_whole_parts_become_simple_where_ranges_show_it():
    x, z = iterator("x"), iterator("z")
    assert divided(x * 3 + z, 3, RANGES) == x
    assert remainder(x * 3 + z, 3, RANGES) == z
    assert divided(x, 4, RANGES) * 4 + remainder(x, 4, RANGES) == x
    assert x - divided(x, 4, RANGES) * 4 == remainder(x, 4, RANGES)
    assert divided(x * 3 + z + number(1), 3, RANGES) != x


def test_bounds_of_dimensions_hold_for_all_sizes_of_at_least_one():
    h = dimension("h")
    assert at_most(1, h) and at_most(h, 2 * h) and not at_most(2, h) and not at_most(h, 5)
    assert inside(iterator("x"), 0, h + 6, RANGES) and not inside(iterator("x"), 0, h, RANGES)
    assert bounds(iterator("x"), {}) is None
