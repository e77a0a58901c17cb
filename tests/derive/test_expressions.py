"""Expressions: text that reads back, a hash of structure alone, and an interpreter that is numpy's einsum where that is."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from haotuner.derive.affine import divided, iterator, number, remainder
from haotuner.derive.canonical import canonical_form, structural_hash
from haotuner.derive.expression import Apply, Body, Loop, Number, Read, Scope, Tensor, apply
from haotuner.derive.interpret import interpret
from haotuner.derive.search import Check
from haotuner.derive.text import lines, parse, text
from haotuner.errors import UsageError
from haotuner.graph.extents import dimension
from tests.derive.expressions import band, conv, other_names, transposed_conv

PLAIN = [conv(), conv(5, 2), transposed_conv(), band()]


@st.composite
def nests(draw: st.DrawFn, depth: int = 2) -> Scope:
    """Any nest, none of whose iterators has the name of another one."""
    counter = iter(range(1000))

    def loops(least: int) -> tuple[Loop, ...]:
        count = draw(st.integers(least, 3))
        high = [draw(st.sampled_from([2, 3, dimension("n"), dimension("n") + 1])) for _ in range(count)]
        return tuple(Loop(f"i{next(counter)}", draw(st.integers(-1, 1)), extent) for extent in high)

    def index(ranges: dict[str, tuple[object, object]]):
        e = number(draw(st.integers(-2, 2)))
        for name in draw(st.lists(st.sampled_from(sorted(ranges)), max_size=2, unique=True)):
            e += iterator(name) * draw(st.sampled_from([-2, -1, 1, 2, 3]))
        size = draw(st.sampled_from([1, 1, 2, 4]))
        return draw(st.sampled_from([divided, remainder]))(e, size, ranges) if size > 1 else e

    def body(ranges, left: int) -> Body:
        kind = draw(st.sampled_from(["read", "number", *["mul", "add", "nest", "exp"] * (left > 0)]))
        if kind == "number":
            return Number(draw(st.sampled_from([0.5, 2.0, -1.0])))
        if kind == "exp":
            return Apply("exp", (body(ranges, left - 1),))
        if kind in ("mul", "add"):
            return apply(kind, *(body(ranges, left - 1) for _ in range(2)))
        if kind == "nest":
            inner = scope(left - 1)
            return Read(inner, tuple(index(ranges) for _ in inner.spatial))
        name = draw(st.sampled_from(["A", "B"]))
        shape = {"A": (3, dimension("n")), "B": (4,)}[name]
        return Read(Tensor(name, shape, name == "B"), tuple(index(ranges) for _ in shape))

    def scope(left: int) -> Scope:
        spatial, sums = loops(1), loops(0)
        result = Scope(spatial, sums, Number(1.0))
        return Scope(spatial, sums, body(result.ranges, left))

    return scope(depth)


@given(nests())
def test_text_reads_back(scope):
    assert parse(text(scope)) == scope


@given(nests(), st.integers(0, 1000))
def test_a_hash_hangs_on_no_name_and_no_order(scope, seed):
    other = shuffled(other_names(scope, seed), random.Random(seed))
    assert structural_hash(other) == structural_hash(scope)
    assert Check(scope).holds(other)


@given(nests())
def test_the_canonical_form_computes_the_same(scope):
    assert Check(scope).holds(canonical_form(scope))


def shuffled(scope: Scope, draw: random.Random, *, root: bool = True) -> Scope:
    """Copy with sums, factors and axes of inner nests in another order."""

    def shuffled_body(body: Body) -> Body:
        if isinstance(body, Apply):
            operands = [shuffled_body(operand) for operand in body.operands]
            if body.function in ("mul", "add"):
                draw.shuffle(operands)
            return Apply(body.function, tuple(operands))
        if isinstance(body, Read) and isinstance(body.source, Scope):
            inner = shuffled(body.source, draw, root=False)
            order = {loop.name: e for loop, e in zip(body.source.spatial, body.index, strict=True)}
            return Read(inner, tuple(order[loop.name] for loop in inner.spatial))
        return body

    spatial, sums = list(scope.spatial), list(scope.sums)
    draw.shuffle(sums)
    if not root:
        draw.shuffle(spatial)
    return Scope(tuple(spatial), tuple(sums), shuffled_body(scope.body))


def test_hashes_of_different_expressions_differ():
    scopes = [*PLAIN, conv(3, 1, 3), conv(3, 2), conv(5), band(4, 3)]
    turned = text(conv()).replace("K[r, s, o, i]", "K[s, r, o, i]")
    assert len({structural_hash(scope) for scope in [*scopes, parse(turned)]}) == len(scopes) + 1
    assert all(structural_hash(scope) < 1 << 64 for scope in scopes)


def test_a_convolution_is_what_einsum_says():
    draw = np.random.default_rng(0)
    image, weight = draw.normal(size=(2, 5, 4, 3)), draw.normal(size=(3, 3, 2, 3))
    padded = np.pad(image, ((0, 0), (1, 1), (1, 1), (0, 0)))
    views = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    answer = interpret(conv(), {"A": image, "K": weight}, {"n": 2, "h": 5, "w": 4, "c": 3, "f": 2})
    np.testing.assert_allclose(answer, np.einsum("nhwcrs,rsfc->nhwf", views, weight))


def test_a_tensor_is_zero_outside():
    scope = parse("A(3); L[i:-2..5] A[i] * 2.0")
    np.testing.assert_array_equal(interpret(scope, {"A": np.ones(3)}, {}), [0, 0, 2, 2, 2, 0, 0])


def test_people_read_nests_by_names():
    scope = parse("A(n); L[i:0..n] ({L[j:0..n] A[j] * 2.0}[i] + 1.0)")
    assert lines(scope) == ["T1 = L[j:0..n] A[j] * 2.0", "T2 = L[i:0..n] (T1[i] + 1.0)"]


@pytest.mark.parametrize(
    "source, words",
    [
        ("A(3); L[i:0..3] B[i]", "tensor B has no shape"),
        ("A(3); L[i:0..3] A[i, i]", "2 indices for 1 axes"),
        ("A(3); L[i:3..3] A[i]", "iterator i has the empty range 3..3"),
        ("A(3); L[i:0..3] A[i*i]", "index 'i*i' cannot be read"),
        ("A(3); L[i:0..3, i:0..3] A[i]", "iterator i is there twice"),
        ("A(3); L[i:0..3] swish(A[i])", "unknown function swish"),
        ("A(3); L[i:0..3] A[i", "expected"),
        ("A(3); L[i:0..3] A[i] A[i]", "expected the end"),
        ("A(3), A(4); L[i:0..3] A[i]", "tensor A has two shapes"),
        ("A(3); L[i:0..m*] A[i]", "cannot be read"),
        ("A(3); L[0..3] A[0]", "expected an iterator such as i:0..n"),
        ("x" * 30_000, "at most"),
        ("A(3); L[i:0..3] " + "(" * 5_000, "too deep"),
    ],
)
def test_a_text_that_says_no_expression_is_refused_in_words(source, words):
    with pytest.raises(UsageError, match=words.replace("*", r"\*").replace("(", r"\(")):
        parse(source)


def test_what_is_too_large_to_interpret_is_refused():
    with pytest.raises(UsageError, match="at most"):
        interpret(parse("A(n); L[i:0..n] S[j:0..n] A[i]"), {"A": np.ones(10_000)}, {"n": 10_000})
    with pytest.raises(UsageError, match="tensor A is missing"):
        interpret(parse("A(n); L[i:0..n] A[i]"), {}, {"n": 3})
