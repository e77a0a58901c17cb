"""zentorch: AMD's ZenDNN as torch operators, the weight packed once."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from functools import partial
from typing import Any

from haotuner.bench.contender import Array, Call, Setting, only
from haotuner.spec.op import Op


class ZentorchPacked:
    """``zentorch_linear_unary.out`` on a weight from ``zentorch_weight_prepack_for_linear``."""

    width = 1
    alone = False

    def __init__(self, setting: Setting) -> None:
        import torch

        zentorch = importlib.import_module("zentorch")
        torch.set_num_threads(setting.threads)
        torch.inference_mode().__enter__()  # for the life of this process
        self._torch = torch
        self._op = torch.ops.zentorch
        self.version = str(zentorch.__version__)
        self._weights: list[Any] = []
        self._x: Any = None
        self._y: Any = None

    def prepare(self, op: Op, weights: Sequence[Array]) -> None:
        """Pack copies: packing writes into the very memory that it is given (zentorch 2.13)."""
        only(op.dtype, "fp32")
        self._weights = []
        pack = self._op.zentorch_weight_prepack_for_linear
        self._weights = [pack(self._torch.from_numpy(weight).clone()) for weight in weights]

    def aim(self, x: Array, count: int) -> Sequence[Call]:
        """One call a weight, all into the same output."""
        self._x = self._torch.from_numpy(x)
        self._y = self._torch.empty(x.shape[0], self._weights[0].shape[0])
        return [self._call(weight) for weight in self._weights[:count]]

    def result(self, index: int) -> Array:
        """Into a poisoned output."""
        self._y.fill_(float("nan"))
        self._call(self._weights[index])()
        result: Array = self._y.numpy()
        return result

    def _call(self, weight: Any) -> Call:
        return partial(self._op.zentorch_linear_unary.out, self._x, weight, is_weight_prepacked=True, out=self._y)
