"""zentorch: AMD's ZenDNN as torch operators, the weight packed once."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from functools import partial
from typing import Any

from numpy.typing import NDArray

from haotuner.bench.contender import Call, Operands, Setting, only, poison
from haotuner.bench.peers.on_host import torch_for
from haotuner.spec.op import Op


class ZentorchPacked:
    """``zentorch_linear_unary.out`` on a weight from ``zentorch_weight_prepack_for_linear``."""

    width = 1
    alone = False

    def __init__(self, setting: Setting) -> None:
        import torch

        zentorch = importlib.import_module("zentorch")
        self._torch = torch_for(setting.threads)
        self._op = torch.ops.zentorch
        self.version = str(zentorch.__version__)
        self._weights: list[Any] = []
        self._calls: list[Call] = []
        self._y: Any = None

    def prepare(self, op: Op, copies: Sequence[Operands]) -> None:
        """Pack copies: packing writes into the very memory that it is given (zentorch 2.13)."""
        only(op.dtype, "fp32")
        self._weights, self._calls = [], []
        pack = self._op.zentorch_weight_prepack_for_linear
        self._weights = [pack(self._torch.from_numpy(copy["weight"]).clone()) for copy in copies]

    def aim(self, calls: Sequence[Operands], y: NDArray[Any]) -> Sequence[Call]:
        """One call a weight, all into the same output."""
        x, out, linear = self._torch.from_numpy(calls[0]["x"]), self._torch.from_numpy(y), self._op.zentorch_linear_unary.out
        self._calls = [
            partial(linear, x, weight, is_weight_prepacked=True, out=out) for weight in self._weights[: len(calls)]
        ]
        self._y = y
        return self._calls

    def result(self, index: int) -> NDArray[Any]:
        """Into a poisoned output."""
        poison(self._y)
        self._calls[index]()
        result: NDArray[Any] = self._y
        return result
