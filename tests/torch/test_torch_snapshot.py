"""``Snapshot``: every way to change a norm's numbers is seen."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from haotuner.torch.folding import Fold, Snapshot  # noqa: E402

nn = torch.nn


def changes() -> Any:
    """(name, change, whether the numbers are others then)."""

    def other(norm: Any) -> Any:
        return {name: value + 1 for name, value in norm.state_dict().items()}

    yield "nothing", lambda norm: None, False
    yield "in place", lambda norm: norm.running_mean.add_(1), True
    yield "by data", lambda norm: norm.weight.data.mul_(2), True
    yield "by numpy", lambda norm: norm.running_var.numpy().__setitem__(3, 7.0), True
    yield "data replaced", lambda norm: setattr(norm.weight, "data", torch.full((8,), 3.0)), True
    yield "equal data", lambda norm: setattr(norm.weight, "data", norm.weight.data.clone()), False
    yield "other type", lambda norm: setattr(norm.weight, "data", norm.weight.data.double()), True
    yield "shorter", lambda norm: setattr(norm.weight, "data", norm.weight.data[:4]), True
    yield "spread out", lambda norm: setattr(norm.weight, "data", torch.arange(16.0)[::2]), True
    yield "spread over the same memory", _spread, True
    yield "parameter replaced", lambda norm: setattr(norm, "bias", nn.Parameter(torch.ones(8))), True
    yield "buffer replaced", lambda norm: setattr(norm, "running_var", torch.full((8,), 2.0)), True
    yield "equal buffer", lambda norm: setattr(norm, "running_var", norm.running_var.clone()), False
    yield "gone", lambda norm: setattr(norm, "bias", None), True
    yield "loaded", lambda norm: norm.load_state_dict(other(norm)), True
    yield "assigned", lambda norm: norm.load_state_dict(other(norm), assign=True), True
    yield "eps", lambda norm: setattr(norm, "eps", 0.5), True


def _spread(norm: Any) -> None:
    whole = norm.weight.data.untyped_storage()
    norm.weight.data = torch.empty(0).set_(whole, 0, (4,), (2,))


@pytest.mark.parametrize(("change", "differs"), [case[1:] for case in changes()], ids=[case[0] for case in changes()])
def test_every_change_of_a_norm_is_seen(change: Any, differs: bool) -> None:
    norm = nn.BatchNorm2d(8).eval()
    fold = Fold(norm)
    assert not fold.current()
    with torch.no_grad():
        fold.folded(torch.ones(8, 8, 3, 3), None, None)
        assert fold.current()
        twin = copy.deepcopy(norm)
        moved = fold.moved(twin)
        assert moved.current() and moved.current()
        change(norm)
        assert fold.current() is not differs
        assert moved.current()
        change(twin)
        assert moved.current() is not differs


def test_a_tensor_without_numbers_side_by_side_is_compared_too() -> None:
    tensor = torch.arange(8.0)[::2]
    seen = Snapshot(tensor)
    assert seen.shows(tensor) and seen.shows(tensor.clone()) and seen.shows(tensor)
    tensor[1] = 9
    assert not seen.shows(tensor) and not seen.shows(None) and not seen.shows(tensor.double())
