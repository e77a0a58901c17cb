"""Greedy looks at all candidates at once; it has to choose as one that composes every set by itself."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from haotuner.plan.compose import Curve, best_us, covers_every
from haotuner.plan.cover import greedy
from tests.plan.plan_examples import curves

PRICE = 0.01


def value(us: NDArray[np.float64], kernels: int) -> NDArray[np.float64]:
    return np.asarray(us.sum(axis=1) * (1 + PRICE * kernels))


def one_by_one(candidates: list[Curve], rows: NDArray[np.int64], most: int) -> list[Curve]:
    def worth(chosen: list[Curve]) -> float:
        return float(value(best_us(chosen, rows)[0][np.newaxis], len(chosen))[0])

    chosen = [min((c for c in candidates if covers_every(c)), key=lambda c: c.lead_us[0][1])]
    while len(chosen) < most:
        options = [[*chosen, more] for more in candidates if more not in chosen]
        if not options or min(map(worth, options)) >= worth(chosen):
            break
        chosen = min(options, key=lambda option: (worth(option), option[-1].kernel))
    return chosen


@settings(max_examples=40, deadline=None)
@given(
    candidates=curves(least=1, most=8),
    rows=st.lists(st.integers(1, 90), min_size=1, max_size=8, unique=True),
    most=st.integers(1, 5),
)
def test_it_chooses_as_if_every_set_were_composed_by_itself(candidates: list[Curve], rows: list[int], most: int) -> None:
    m = np.array(sorted(rows))
    chosen = list(greedy(candidates, m, value, most))
    expected = one_by_one(candidates, m, most)
    assert chosen[0] == expected[0] and len(chosen) == len(expected)
    own, other = (value(best_us(selection, m)[0][np.newaxis], len(selection))[0] for selection in (chosen, expected))
    assert own == pytest.approx(other, rel=1e-12)
