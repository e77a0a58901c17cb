"""Models of a few drawn operators: the interpreter and packs compute what ONNX Runtime computes, at odd sizes."""

from __future__ import annotations

import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
from tests.runtime.drawn_judges import read, served  # noqa: E402, after the skip

COUNT = 24  # models of one test


def agree(first: int, *, packs: bool) -> None:
    read_models = [read(seed) for seed in range(first, first + COUNT)]
    assert [line for _, lines in read_models for line in lines] == []
    models = [model for model, _ in read_models if model is not None]
    assert sum(len(model.answers) for model in models) > 2 * COUNT
    if packs:
        assert list(served(models, tuned=False)) == []


@pytest.mark.parametrize("first", [10_000, 10_024])
def test_drawn_models_are_interpreted(first: int) -> None:
    agree(first, packs=False)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(20_000, 20_000 + 4 * COUNT, COUNT))
def test_drawn_models_in_packs(first: int) -> None:
    agree(first, packs=True)
