"""torch eager: what a model does that is not compiled."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from haotuner.bench.contender import Array, Call, Setting
from haotuner.words.op import Op


class TorchEager:
    """``torch.nn.functional.linear(x, w)`` under inference mode, MKL inside."""

    width = 1
    alone = False

    def __init__(self, setting: Setting) -> None:
        import torch

        torch.set_num_threads(setting.threads)
        torch.inference_mode().__enter__()  # for the life of this process
        self._torch = torch
        self.version = str(torch.__version__)
        self._weights: list[Any] = []
        self._x: Any = None

    def prepare(self, op: Op, weights: Sequence[Array]) -> None:
        """Keep the weights as ``torch.nn.Linear`` does."""
        self._weights = [self._torch.from_numpy(weight) for weight in weights]

    def aim(self, x: Array, count: int) -> Sequence[Call]:
        """One call a weight; eager linear has no ``out=``, so each call makes its output."""
        self._x = self._torch.from_numpy(x)
        linear = self._torch.nn.functional.linear
        return [partial(linear, self._x, weight) for weight in self._weights[:count]]

    def result(self, index: int) -> Array:
        """Result of one call with the weight of that index, as it is timed."""
        found: Array = self._torch.nn.functional.linear(self._x, self._weights[index]).numpy()
        return found
