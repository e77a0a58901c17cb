"""Error bounds of derived forms: those above the original's are refused, and counted."""

from __future__ import annotations

import numpy as np
import pytest

from haotuner.derive.bounds import Bounds, bounds_of
from haotuner.derive.expression import Scope, tensors
from haotuner.derive.general_extents import concrete
from haotuner.derive.model import Derivation
from haotuner.derive.price import kernel_of
from haotuner.derive.search import Limits, search
from haotuner.derive.text import parse
from haotuner.derive.to_graph import graph_of
from haotuner.graph.extents import evaluate
from haotuner.graph.graph import GraphBuilder
from tests.derive.expressions import conv
from tests.derive.test_graphs import SIZES, H, N, W, convolution

SUMS = {**SIZES, "c": 8, "f": 4}


def test_a_product_and_a_shifted_sum_has_a_smaller_bound():
    result = search(conv(3), [SUMS], Limits(explorative=1, states=20))
    (form,) = [state for state in result.states if state.steps and state.steps[0][0] == "summation splitting"][:1]
    bounds = Bounds(result.original.scope)
    assert bounds.hold(result.original.scope, SUMS) and bounds.hold(form.scope, SUMS)
    assert bounds.largest(form.scope, SUMS) < bounds.largest(result.original.scope, SUMS)


def test_a_form_with_a_larger_bound_does_not_hold():
    whole = parse("A(n, 64), K(f, 64)!; L[i:0..n, o:0..f] S[k:0..64] A[i, k] * K[o, k]")
    terms = "L[i:0..n, o:0..f] A[i, 0] * K[o, 0]"
    assert not Bounds(parse(f"A(n, 64), K(f, 64)!; {terms}")).hold(whole, {"n": 9, "f": 9}), (
        "64 terms round more often than one"
    )


def test_refused_forms_of_a_model_are_counted():
    g = GraphBuilder()
    graph = g.finish(convolution(g, g.input("x", (N, 32, H, W)), 1, window=5))
    forms = Derivation(graph, [{"n": 1, "h": 56, "w": 56}], Limits(explorative=2)).forms_of(graph.outputs[0])
    assert "beyond the error bound" in forms.statistics
    assert forms.others


def test_what_no_graph_says_has_no_bounds():
    halves = parse("X(n), K(2)!; L[y:0..n, x:0..n] S[k:0..2] X[(y + x)//2 + k] * K[k]")
    assert bounds_of(halves) is None


def test_bounds_are_of_the_kernels_that_a_request_chooses():
    scope, small, large = conv(3), dict.fromkeys("nhwcf", 4), {"n": 1, "h": 56, "w": 56, "c": 64, "f": 64}
    draw = np.random.default_rng(0)
    arrays = {name: draw.normal(size=[evaluate(e, small) for e in t.shape]) for name, t in tensors(scope).items()}

    def kinds(sizes: dict[str, int], *chosen_by: Scope) -> set[str]:
        graph = graph_of((concrete(scope, small),), arrays, sizes, chosen_by=chosen_by)
        return {node.primitive for node in graph.nodes}

    assert kernel_of(scope, small) is None and kernel_of(scope, large) is not None
    assert "contract" not in kinds(large) and "contract" in kinds(large, scope)
    bounds = Bounds(scope)
    assert bounds.largest(scope, large) != bounds.largest(scope, small)


@pytest.mark.parametrize("name", ["c", "f"])
def test_bounds_are_computed_at_small_extents(name: str):
    assert Bounds(conv(3)).sizes[name] == 4


def test_windows_without_pads_have_bounds_above_0():
    scope = parse("A(n, h, c), K(5, c)!; L[b:0..n, y:0..h - 4] S[r:0..5, i:0..c] A[b, y + r, i] * K[r, i]")
    assert Bounds(scope).largest(scope, {"n": 1, "h": 9, "c": 3}) > 0
