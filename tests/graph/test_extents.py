"""Extents: arithmetic of dimensions, and text that reads back."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from haotuner.errors import UsageError
from haotuner.graph.extents import (
    canonical,
    ceiling_division,
    dimension,
    evaluate,
    floor_division,
    largest,
    parse,
    product,
    same,
    smallest,
    text,
)

M, N = dimension("m"), dimension("n")
SIZES = st.fixed_dictionaries({"m": st.integers(1, 40), "n": st.integers(1, 40)})


@st.composite
def extents(draw, depth=3):
    """An extent and what it is, as a function of the sizes."""
    kind = draw(st.sampled_from(["number", "m", "n"] + ["add", "mul", "div", "up", "max", "min"] * (depth > 0)))
    if kind == "number":
        value = draw(st.integers(0, 9))
        return value, lambda s: value
    if kind in "mn":
        return dimension(kind), lambda s: s[kind]
    (left, f), (right, g) = draw(extents(depth - 1)), draw(extents(depth - 1))
    divisor = draw(st.integers(1, 5))
    return {
        "add": (canonical(left + right), lambda s: f(s) + g(s)),
        "mul": (canonical(left * right), lambda s: f(s) * g(s)),
        "div": (floor_division(left, divisor), lambda s: f(s) // divisor),
        "up": (ceiling_division(left, divisor), lambda s: -(-f(s) // divisor)),
        "max": (largest([left, right]), lambda s: max(f(s), g(s))),
        "min": (smallest([left, right]), lambda s: min(f(s), g(s))),
    }[kind]


@settings(max_examples=30)
@given(extents(), SIZES)
def test_values_are_those_of_whole_numbers_and_text_reads_back(pair, sizes):
    extent, value = pair
    assert evaluate(extent, sizes) == value(sizes)
    again = parse(text(extent))
    assert evaluate(again, sizes) == value(sizes)


def test_divisions_that_are_exact_leave_no_floor():
    assert floor_division(M * N * 4, N) == 4 * M
    assert same(product([M, N, 2]), 2 * N * M)
    assert floor_division(canonical(2 * M + 2), 2) == M + 1


@pytest.mark.parametrize(
    "source", ["", "m +", "__import__('os')", "m ** 9", "m.n", "m[0]", "lambda: 1", "1.5", "(" * 300, "1" * 3000, "m // 0"]
)
def test_text_that_is_no_extent_is_refused(source):
    with pytest.raises(UsageError, match="extent"):
        parse(source)


def test_a_size_that_is_missing_is_named():
    with pytest.raises(UsageError, match=r"extent .*: the size of n is not known"):
        evaluate(M + N, {"m": 3})


def test_a_division_by_a_size_of_0_is_refused_with_the_request():
    with pytest.raises(UsageError, match=r"extent .* of a request of m=3, n=0: a division by 0"):
        evaluate(floor_division(M, N), {"m": 3, "n": 0})


def test_a_share_of_a_size_is_rounded_down_also_by_1():
    import sympy

    for share in (sympy.Rational(3, 2), sympy.Rational(0.6), sympy.Rational(1, 2)):
        wide = floor_division(share * dimension("h"), 1)
        assert [evaluate(wide, {"h": h}) for h in (4, 7)] == [int(share * 4), int(share * 7)]
    assert floor_division(sympy.Rational(12, 5), 1) == 2


def test_what_has_a_program_is_evaluated_without_sympy_and_the_rest_by_it(monkeypatch):
    import sympy

    plain, other = canonical(M * N + floor_division(M + 3, 2) - largest([M, 2 * N])), parse("abs(m - n) % 7")
    assert [evaluate(other, {"m": m, "n": 9}) for m in (1, 30)] == [8 % 7, 21 % 7]

    def no(*_):
        raise AssertionError("sympy was asked to replace symbols")

    monkeypatch.setattr(sympy.Basic, "subs", no)
    assert evaluate(plain, {"m": 5, "n": 3, "more": 1}) == 15 + 4 - 6
