"""Contenders for generated kinds on a GPU: operands lie where the call before left them; a call is one of the op."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from haotuner.bench.contender import Array, Call, Setting
from haotuner.bench.peers.gpu_ours import GpuOurOperator
from haotuner.bench.peers.gpu_torch import OnTorch
from haotuner.bench.peers.torch_words import expression
from haotuner.words.op import Op
from haotuner.words.shape import Shape


class GpuOurGenerated(GpuOurOperator):
    """``op.run(*inputs, out=y, stream=…)`` of a pack."""

    def aim(self, operands: Mapping[str, Array], count: int) -> Sequence[Call]:
        """The same call as often as asked."""
        op = self._named
        assert op is not None
        extents = {
            axis: size for o in op.meaning.inputs for axis, size in zip(o.axes({}), operands[o.name].shape, strict=True)
        }
        size = op.operand_shape(op.meaning.output, Shape.of({axis: extents[axis] for axis in op.dynamic}))
        return self._placed(op, operands.values(), size, count)


class GpuTorchGenerated(OnTorch):
    """torch eager under inference mode; each call makes its output."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._dtype = "fp32"
        self._function: Any = None
        self._run: Any = None

    def prepare(self, op: Op, weights: Sequence[Array]) -> None:
        """Look the expression up."""
        self._run, self._dtype = None, op.dtype
        self._function = expression(self._engine.torch, op)

    def aim(self, operands: Mapping[str, Array], count: int) -> Sequence[Call]:
        """The same call as often as asked."""
        self._run = partial(self._function, *(self._engine.put(one, self._dtype) for one in operands.values()))
        return [self._run] * count

    def result(self, index: int) -> Array:
        """Of one call, as it is timed."""
        found: Array = self._run().float().cpu().numpy()
        return found


class GpuInductorGenerated(GpuTorchGenerated):
    """torch.compile for extents that are left open; its own CUDA graphs are off, as every contender has the race's."""

    alone = True

    def prepare(self, op: Op, weights: Sequence[Array]) -> None:
        """Compiled at the first call of a shape, which the race does not time."""
        super().prepare(op, weights)
        torch = self._engine.torch
        torch.compiler.reset()
        options = {"max_autotune": True, "triton.cudagraphs": False}
        self._function = torch.compile(self._function, dynamic=True, fullgraph=True, options=options)
