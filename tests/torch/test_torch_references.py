"""Layers that a model holds past torch's registers stay torch's: a swap would leave it with two copies of one weight."""

from __future__ import annotations

import copy
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from haotuner.torch import swap  # noqa: E402  needs torch
from tests.torch.test_torch_chains import X, close  # noqa: E402  needs torch

pytestmark = pytest.mark.filterwarnings("ignore")
nn, F = torch.nn, torch.nn.functional
HOLDERS: dict[str, tuple[Any, Any]] = {
    "list": (lambda fc: [fc, nn.ReLU()], lambda item: item[1](item[0](X))),
    "inside": (lambda fc: {"first": (0, [fc])}, lambda item: item["first"][1][0](X)),
    "method": (lambda fc: fc.forward, lambda item: item(X)),
    "closure": (lambda fc: lambda x: fc(x), lambda item: item(X)),
    "weight": (lambda fc: partial(F.linear, weight=fc.weight), lambda item: item(X)),
    "object": (lambda fc: SimpleNamespace(layer=fc), lambda item: item.layer(X)),
}


class Holding(nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self, name: str) -> None:
        super().__init__()
        holder, self.used = HOLDERS[name]
        self.fc, self.free = nn.Linear(16, 24), nn.Linear(16, 24)
        self.holder = holder(self.fc)

    def forward(self, x: Any) -> Any:
        return self.fc(x), self.free(x), self.used(self.holder)


@pytest.mark.parametrize("name", HOLDERS)
def test_a_layer_that_something_else_holds_is_left(chained, name):
    torch.manual_seed(0)
    plain, served = Holding(name).eval(), Holding(name).eval()
    result = swap(served, chained)
    assert result.replaced == ("free",) and result.left["fc"].startswith("holder holds it or its weight too")
    state = {key: value * 0.5 for key, value in plain.state_dict().items()}
    for model in (plain, served):
        model.load_state_dict(copy.deepcopy(state))
    with torch.inference_mode():
        assert close(served(X), plain(X))
