"""Budget of a run with derivation: what is charged to it, and that a model without gains is tuned at most 5 % longer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from haotuner.tuning.request import DERIVING, LEAST_LEFT, Request, derivation_s


def request(budget_s: float, spent_s: float, *, forms: bool) -> Request:
    model: Any = SimpleNamespace(open_forms=forms)
    return Request(ops=(), models=(model,), budget_s=budget_s, spent_s=spent_s)


@pytest.mark.parametrize("budget_s", [100.0, 240.0, 600.0, 1200.0, 3600.0])
def test_a_model_without_gains_keeps_its_budget_and_ends_at_most_a_twentieth_later(budget_s: float) -> None:
    spent_s = derivation_s(budget_s)
    left_s = request(budget_s, spent_s, forms=False).seconds
    assert left_s == budget_s, "its kernels have all of it"
    assert spent_s + left_s <= (1 + DERIVING) * budget_s


@pytest.mark.parametrize("budget_s", [6.0, 20.0, 60.0])
@pytest.mark.parametrize("late_s", [0.0, 1.5])
def test_of_a_short_budget_what_is_beyond_the_share_is_charged(budget_s: float, late_s: float) -> None:
    spent_s = derivation_s(budget_s) + late_s
    left_s = request(budget_s, spent_s, forms=False).seconds
    assert left_s == pytest.approx(max(LEAST_LEFT * budget_s, (1 + DERIVING) * budget_s - spent_s))


def test_where_forms_may_pay_all_of_it_is_charged() -> None:
    assert request(100.0, 5.0, forms=True).seconds == 95.0
    assert request(100.0, 80.0, forms=True).seconds == LEAST_LEFT * 100.0


def test_without_derivation_the_budget_is_whole() -> None:
    assert request(30.0, 0.0, forms=False).seconds == request(30.0, 0.0, forms=True).seconds == 30.0
