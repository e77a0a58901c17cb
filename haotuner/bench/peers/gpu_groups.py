"""Contenders for grouped products on a GPU: the experts' weights take turns, rows come with where their groups end."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from haotuner.bench.contender import Array, Call, Setting
from haotuner.bench.groups import Rows
from haotuner.bench.peers.gpu_ours import GpuOurs
from haotuner.bench.peers.gpu_torch import GpuTorch


class GpuOurGroups(GpuOurs):
    """``linear(x, offsets, out=y, stream=…)`` of a pack."""

    def aim(self, rows: Rows, count: int) -> Sequence[Call]:  # type: ignore[override]  # rows come with their cut
        """One call a stack of weights, all into the same output."""
        self._leave()
        x, ends = rows
        self._operands = [
            self._driver.upload(x, self._dtype),
            self._driver.empty((x.shape[0], self._n), self._dtype),
            self._driver.upload(ends.astype("int32"), "int32"),
        ]
        return [partial(self._queue, linear) for linear in self._linears[:count]]

    def result(self, index: int) -> Array:
        """Into a poisoned output, so that an element nobody writes shows."""
        self._driver.poison(self._operands[1])
        self._queue(self._linears[index])
        return self._driver.download(self._operands[1])

    def _queue(self, linear: Any) -> None:
        x, y, ends = (memory.tensor() for memory in self._operands)
        linear(x, ends, out=y, stream=self._driver.stream)


class GpuTorchGroups(GpuTorch):
    """``torch.mm`` of each group's rows: a cut that the host knows, which a server would have to wait for."""

    def aim(self, rows: Rows, count: int) -> Sequence[Call]:  # type: ignore[override]
        """One round of products a stack of weights, all into the same output."""
        x, ends = rows
        self._cuts = [(group, cut) for group, cut in enumerate(pairwise((0, *ends.tolist()))) if cut[0] < cut[1]]
        self._ends = self._engine.torch.from_numpy(ends).to(device="cuda")
        self._x = self._engine.put(x, self._dtype)
        self._y = self._x.new_empty(x.shape[0], self._weights[0].shape[1])
        return [partial(self._multiply, self._x, weight, self._y) for weight in self._weights[:count]]

    def _multiply(self, x: Any, w: Any, y: Any) -> None:
        for group, (first, end) in self._cuts:
            self._engine.torch.mm(x[first:end], w[group].t(), out=y[first:end])


class GpuTorchGroupedMm(GpuTorchGroups):
    """``torch._grouped_mm``: one launch, bf16 alone, the cut read on the device."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        if not hasattr(self._engine.torch, "_grouped_mm"):
            raise ImportError("this torch has no _grouped_mm")

    def _multiply(self, x: Any, w: Any, y: Any) -> None:
        if self._dtype != "bf16":
            raise NotImplementedError(f"it is raced in bf16, not in {self._dtype}")
        y.copy_(self._engine.torch._grouped_mm(x, w.transpose(1, 2), offs=self._ends))
