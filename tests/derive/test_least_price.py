"""The lower bound of what forms of a product take: multiplications inside of all ranges, at the full rate."""

from __future__ import annotations

import numpy as np
import pytest

from haotuner.derive.expression import Scope, tensors
from haotuner.derive.general_extents import sizes_needed
from haotuner.derive.interpret import interpret
from haotuner.derive.least_price import least_us
from haotuner.derive.search import Limits, search
from haotuner.derive.text import parse
from haotuner.graph.extents import evaluate
from haotuner.partition.costs import CORE
from tests.derive.expressions import band, conv, matmul, transposed_conv

PRODUCTS = [conv(), conv(5), conv(3, 2), conv(3, 1, 3), band(), transposed_conv(), matmul(1, "f")]


def multiplications(scope: Scope, sizes: dict[str, int]) -> float:
    """Products of two elements that both exist: the sum of all results, where every element is 1."""
    ones = {name: np.ones([evaluate(extent, sizes) for extent in tensor.shape]) for name, tensor in tensors(scope).items()}
    return float(interpret(scope, ones, sizes).sum())


@pytest.mark.parametrize("scope", PRODUCTS)
@pytest.mark.parametrize("size", [1, 4, 7])
def test_the_bound_counts_the_multiplications_of_numbers_that_exist(scope: Scope, size: int) -> None:
    sizes = dict.fromkeys(sizes_needed(scope), size)
    assert least_us(scope, sizes) == pytest.approx(2 * multiplications(scope, sizes) / CORE.flops)


@pytest.mark.parametrize("scope", PRODUCTS)
def test_no_form_that_a_search_finds_is_cheaper(scope: Scope) -> None:
    sizes = dict.fromkeys(sizes_needed(scope), 12)
    states = search(scope, [sizes], Limits(explorative=1)).states
    assert min(state.price_us for state in states) >= least_us(scope, sizes) > 0


@pytest.mark.parametrize(
    "source",
    [
        "A(m, k), B(m, n); L[a:0..m, c:0..n] S[d:0..k] A[a, d] * B[a, c]",  # the sum of A's rows may stand alone
        "A(m, k); L[a:0..m] S[d:0..k] A[a, d]",
    ],
)
def test_of_sums_that_factoring_shortens_nothing_is_said(source: str) -> None:
    assert least_us(parse(source), {"m": 4, "k": 5, "n": 6}) == 0
