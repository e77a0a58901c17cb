"""Any op on a GPU: ours as a server calls it, torch eager and compiled; operands lie where the call before left them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from haotuner.bench.any_op import Operands, bound, images_of, shape_of
from haotuner.bench.contender import Array, Call, Setting
from haotuner.bench.images import ConvAttributes
from haotuner.bench.peers.gpu_driver import Memory
from haotuner.bench.peers.gpu_ours import GpuOurOperator
from haotuner.bench.peers.gpu_torch import OnTorch
from haotuner.bench.peers.torch_expressions import expression
from haotuner.ops.convolution import is_convolution
from haotuner.spec.op import Op


class GpuOurAnyOp(GpuOurOperator):
    """``op.bind(weight, **constants)(x, out=y, **more, stream=…)``, or ``op.run(**operands, …)`` where nothing is bound."""

    def aim(self, operands: Operands, count: int) -> Sequence[Call]:
        """The same call as often as asked."""
        op = self._named
        assert op is not None
        self._leave()
        types = {operand.name: op.dtype_of(operand) for operand in op.meaning.inputs}
        types |= {name: op.extra_dtype(name) for name in op.epilogue_operands}
        placed: dict[str, Memory] = {}
        for name, values in operands.items():
            placed[name] = self._driver.upload(np.asarray(values, np.float32), types[name])
            self._held.append(placed[name])
        output = op.meaning.output
        self._held.append(self._driver.empty(op.operand_shape(output, shape_of(op, operands)), op.dtype_of(output)))
        inputs = {name: memory.tensor() for name, memory in placed.items()}
        self._run = self._call(op, inputs, self._held[-1].tensor())
        return [self._run] * count

    def _call(self, op: Op, inputs: dict[str, Any], out: Any) -> Call:
        served, selected, stream = self._pack.op(op.name), bound(op), self._driver.stream
        if not selected:
            if hasattr(served, "prepare"):
                served.prepare(stream)
            passed = {name: inputs.pop(name) for name in op.epilogue_operands}
            return partial(served.run, *inputs.values(), out=out, stream=stream, **passed)
        layer = served.bind(inputs["weight"], **{name: inputs[name] for name in selected[1:]})
        layer.prepare(stream)
        more = {name: item for name, item in inputs.items() if name not in ("x", *selected)}
        return partial(layer, inputs["x"], out=out, stream=stream, **more)


class GpuTorchAnyOp(OnTorch):
    """torch eager under inference mode, cuDNN's choice by timing; each call makes its output."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._engine.torch.backends.cudnn.benchmark = True
        self._op: Any = None
        self._function: Callable[..., Any] = lambda: None
        self._run: Call = lambda: None

    def prepare(self, op: Op, weights: Sequence[Array]) -> None:
        """Look the expression up."""
        self._op, self._function = op, expression(self._engine.torch, op)

    def aim(self, operands: Mapping[str, Any], count: int) -> Sequence[Call]:
        """The same call as often as asked."""
        op, torch = self._op, self._engine.torch
        placed = {name: self._engine.put(np.asarray(values, np.float32), op.dtype) for name, values in operands.items()}
        if self._last():
            placed |= {name: placed[name].movedim(-1, 1) for name in images_of(op)}
        if self._last() and "h" in op.axes:
            placed["weight"] = placed["weight"].contiguous(memory_format=torch.channels_last)
        more = {name: placed.pop(name) for name in op.epilogue_operands}
        self._run = partial(self._function, *placed.values(), **more)
        return [self._run] * count

    def result(self, index: int) -> Array:
        """Of one call, as it is timed."""
        made: Any = self._run()
        result: Array = (made.movedim(1, -1) if self._last() else made).float().cpu().numpy()
        return result

    def _last(self) -> bool:
        return is_convolution(self._op.kind) and ConvAttributes.of(self._op).last


class GpuInductorAnyOp(GpuTorchAnyOp):
    """torch.compile for extents that are left open; its own CUDA graphs are off, as every contender has the race's."""

    alone = True

    def prepare(self, op: Op, weights: Sequence[Array]) -> None:
        """Compiled at the first call of a shape, which the race does not time."""
        super().prepare(op, weights)
        torch = self._engine.torch
        torch.compiler.reset()
        options = {"max_autotune": True, "triton.cudagraphs": False}
        self._function = torch.compile(self._function, dynamic=True, fullgraph=True, options=options)
