"""Derivation of a model of 500 operators: a minute of the processor at most, and no more than the time that it has."""

from __future__ import annotations

from pathlib import Path

import pytest

from haotuner.verify.model_check import model_of

pytest.importorskip("onnx")
from tests.bench.derivation_layers import many  # noqa: E402
from tests.bench.derivation_models import TimedForms  # noqa: E402
from tests.bench.derivation_nets import Case, written  # noqa: E402

OPERATORS, MOST_S = 500, 60.0
REQUESTS = ({"n": 1, "h": 64, "w": 64}, {"n": 4, "h": 224, "w": 224})


@pytest.mark.slow
def test_derivation_of_five_hundred_operators_takes_a_minute_at_most(tmp_path: Path) -> None:
    case = Case(many(OPERATORS), REQUESTS)
    forms = TimedForms(20 * MOST_S)
    model_of(written(case, tmp_path, "many"), case.shapes, forms=forms)
    assert forms.cpu_s <= MOST_S, str(forms)
    assert sum(count for what, count in forms.count.items() if what.startswith("products")) == OPERATORS // 2
    assert "left out" not in str(forms)
