"""Zeros that forms add as factors: which forms have NaN beside an infinity where the original has none."""

from __future__ import annotations

import numpy as np
import pytest

from haotuner.derive.added_zeros import AddedZeros
from haotuner.derive.expression import Scope
from haotuner.derive.plan_forms import ADDS_ZEROS, DerivedForms
from haotuner.derive.search import Derived, Limits, search
from haotuner.derive.text import parse
from haotuner.derive.together import together
from haotuner.graph.interpret import interpret
from haotuner.graph.rewrites import rewritten
from haotuner.partition.costs import Prices
from haotuner.partition.ilp_partition import IlpPartitioner
from tests.derive.expressions import conv, transposed_conv
from tests.derive.test_plan_forms import REQUESTS, branches, layer

SIZES = {"n": 2, "h": 14, "w": 14, "c": 8, "f": 4}


def states(root: Scope, explorative: int = 1) -> list[Derived]:
    return [state for state in search(root, [SIZES], Limits(explorative=explorative, states=60)).states if state.steps]


@pytest.mark.parametrize("stride", [1, 2])
def test_the_original_and_sums_of_its_parts_add_no_zeros(stride: int) -> None:
    zeros = AddedZeros(conv(3, stride))
    assert not zeros.are_in(conv(3, stride))
    parts = [state for state in states(conv(3, stride)) if [rule for rule, _ in state.steps] == ["summation splitting"]]
    assert parts and not any(zeros.are_in(state.scope) for state in parts)


def test_a_relaxed_window_adds_zeros() -> None:
    zeros = AddedZeros(conv(5))
    relaxed = [state for state in states(conv(5), 2) if any("range relaxed" in detail for _, detail in state.steps)]
    assert relaxed and all(zeros.are_in(state.scope) for state in relaxed)


@pytest.mark.parametrize("window", [3, 4])
def test_sides_are_longer_than_the_windows_of_a_transposed_convolution(window: int) -> None:
    assert AddedZeros(transposed_conv(window)).sizes["h"] > 2 * window


def test_merged_windows_of_other_sizes_add_zeros() -> None:
    for window, adds in ((3, False), (5, True)):
        first, other = conv(3), conv(window, weight="B", features="g")
        merged = together([first, other])
        assert merged is not None
        assert AddedZeros(first, other).are_in(*merged) == adds


def test_too_large_an_expression_is_taken_to_add_zeros() -> None:
    large = parse("A(4096, 64), K(64, 64)!; L[i:0..4096, o:0..64] S[k:0..64] A[i, k] * K[o, k]")
    assert AddedZeros(large).are_in(large)


def test_a_form_that_adds_zeros_says_so_or_is_left_out() -> None:
    """What is said of it is what happens: beside an infinity there is NaN where the model has none."""
    graph = layer(6, 1, 5)
    plan = IlpPartitioner(graph, Prices(REQUESTS))
    x = np.ones((1, 6, 24, 24), np.float32)
    x[0, 0, 12, 12] = np.inf
    (expected,) = interpret(graph, {"x": x}).values()
    seen = set[bool]()
    for site in DerivedForms(60.0).sites(plan):
        (answer,) = interpret(rewritten(plan.graph, [site]), {"x": x}).values()
        says = site.rule.endswith(ADDS_ZEROS)
        assert says == bool(np.isnan(answer).sum() > np.isnan(expected).sum()), site.rule
        seen.add(says)
    without = DerivedForms(60.0, with_zeros=False)
    assert not any(ADDS_ZEROS in site.rule for site in without.sites(plan))
    assert (without.count["forms with added zeros"] > 0) == (True in seen)


def test_merged_products_of_one_window_add_no_zeros() -> None:
    plan = IlpPartitioner(branches(2, 3, 4), Prices(REQUESTS))
    sites = [site for site in DerivedForms(60.0, with_zeros=False).sites(plan) if site.beside]
    assert [site.rule for site in sites] == ["derived: expression merging"]
