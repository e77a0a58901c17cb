"""ATen operators that join, order, count, pool and draw: graphs give what torch gives at sizes never exported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from haotuner.errors import UsageError
from haotuner.graph.interpret import interpret

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore")  # torch warns of itself

from tests.torch.test_torch_operators import Called, check, drawn  # noqa: E402  needs torch
from tests.torch.torch_functions import FUNCTIONS, laws  # noqa: E402  needs torch

MANY = 2000  # rows of draws: their means are within 5 deviations of it


@pytest.mark.long
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_operators_give_what_torch_gives(function: Callable[[Any], Any]) -> None:
    check(Called(function), drawn)


def test_draws_have_their_laws_and_follow_from_the_seed() -> None:
    from haotuner.torch import export

    names = list(laws(torch.zeros(4, 8)))
    module = Called(lambda x: [value for value, _, _ in laws(x).values()])
    graph = export(module, (torch.zeros(7, 8),), ({0: "rows"},))
    x = np.zeros((MANY, 8), np.float32)
    once, again, other = (list(interpret(graph, {"x": x}, seed=seed).values()) for seed in (1, 1, 2))
    expected = laws(torch.zeros(4, 8))
    for name, first, same, new in zip(names, once, again, other, strict=True):
        like, mean, spread = expected[name]
        assert first.dtype == like.numpy().dtype and first.shape[0] == MANY, name
        assert np.array_equal(first, same) and not np.array_equal(first, new), name
        numbers = first.astype(np.float64)
        assert abs(numbers.mean() - mean) < 5 * spread / numbers.size**0.5, name
        assert abs(numbers.std() - spread) < 0.05 * spread + 5 * spread / numbers.size**0.5, name


def test_orders_drawn_at_random_hold_every_place_once() -> None:
    from haotuner.torch import export

    graph = export(
        Called(lambda x: (torch.randperm(x.shape[0]), torch.multinomial(x * 0 + 1, 8))), (drawn(7),), ({0: "rows"},)
    )
    order, places = interpret(graph, {"x": drawn(40).numpy()}, seed=1).values()
    assert sorted(order) == list(range(40)) and list(order) != list(range(40))
    assert (np.sort(places, 1) == np.arange(8)).all()


def test_refusals_say_which_operator_how_often_and_where() -> None:
    from haotuner.torch import export

    class Odd(torch.nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any) -> Any:
            return torch.special.bessel_j0(torch.special.bessel_j0(x)) + torch.linalg.svdvals(x).sum()

    whole = torch.nn.Sequential(torch.nn.Linear(8, 8), Odd())
    with pytest.raises(UsageError) as refused:
        export(whole, (drawn(7),))
    message = str(refused.value)
    assert "special_bessel_j0.default: 2 (node special_bessel_j0 in 1, node special_bessel_j0_1 in 1)" in message
    assert "_linalg_svd.default: 1 (node _linalg_svd in 1)" in message
