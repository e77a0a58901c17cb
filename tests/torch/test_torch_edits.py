"""Served models that are edited: copies apart from what they were copied from, and layers in a wrapper's place."""

from __future__ import annotations

import copy
import types
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

import haotuner.torch as adapter  # noqa: E402
from tests.torch.test_torch_chains import Head, X, close, twins  # noqa: E402
from tests.torch.test_torch_forms import Outside, alike  # noqa: E402

nn = torch.nn


EDITS: dict[str, Any] = {
    "another activation": lambda net: setattr(net, "act", nn.Tanh()),
    "another layer": lambda net: setattr(net, "fc", nn.Linear(16, 24)),
    "no activation": lambda net: setattr(net, "act", nn.Identity()),
    "a forward": lambda net: setattr(net, "forward", types.MethodType(lambda self, x: self.fc(x) * 2, net)),
    "an activation's forward": lambda net: setattr(net.act, "forward", lambda x: x - 1),
    "a class": lambda net: setattr(net, "__class__", Plain),
    "a hook": lambda net: net.act.register_forward_hook(lambda module, inputs, output: output + 1),
    "a hook of arguments": lambda net: net.act.register_forward_pre_hook(
        lambda module, args, kwargs: ((args[0] + 1,), kwargs), with_kwargs=True
    ),
    "a weight": lambda net: net.fc.weight.data.mul_(2),
    "a wrapped layer": lambda net: setattr(net, "fc", nn.Sequential(net.fc)),
}


class Plain(Head):
    def forward(self, x: Any) -> Any:
        return self.fc(x)


@pytest.mark.parametrize("how", EDITS)
def test_a_copy_that_is_edited_is_apart(chained, how):
    plain, served, _ = twins(Outside(), chained)
    with torch.no_grad():
        expected, other, twin = plain(X), copy.deepcopy(plain), copy.deepcopy(served)
        for net in (other, twin):
            torch.manual_seed(4)
            EDITS[how](net.head)
        assert alike(twin(X), other(X)) and alike(served(X), expected)


def test_an_adapter_is_named_by_its_own_layers(chained):
    class Adapter(nn.Module):  # type: ignore[misc, name-defined]
        """As peft wraps a layer: it shows the layer's weight as its own."""

        def __init__(self) -> None:
            super().__init__()
            self.base_layer, self.low, self.high = nn.Linear(16, 24), nn.Linear(16, 2, bias=False), nn.Linear(2, 24)

        @property
        def weight(self) -> Any:
            return self.base_layer.weight

        def forward(self, x: Any) -> Any:
            return self.base_layer(x) + self.high(self.low(x))

    plain, served, report = twins(nn.Sequential(Adapter()), chained)
    assert report.replaced == ("0.base_layer",) and set(report.left) == {"0.low", "0.high"}
    with torch.no_grad():
        assert close(served(X), plain(X))
        for net in (plain, served):
            net[0].base_layer.weight.data += net[0].high.weight @ net[0].low.weight
        assert close(served(X), plain(X))
    assert set(adapter.swap(served, chained).left) == {"0.low", "0.high"}


def test_what_makes_a_module_is_not_read(chained):
    class Made(Head):
        def __init__(self) -> None:
            exec("pass")
            super().__init__()
            self.fc, self.act = nn.Linear(16, 24), nn.ReLU()

    code = Made.__init__.__code__
    Made.__init__.__code__ = code.replace(co_filename="gone")
    _, _, report = twins(nn.Sequential(Made()), chained)
    assert report.fused == {"0.fc": "0.act"} and not report.unread
