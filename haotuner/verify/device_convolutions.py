"""Numbers of a convolution of a pack for a device against float64."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from haotuner.ops.convolution import windows
from haotuner.pack.op import PackOp
from haotuner.runtime.device_memory import DeviceMemory
from haotuner.spec import numerics
from haotuner.spec.call_case import CallCase
from haotuner.spec.numerics import Array
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape

if TYPE_CHECKING:
    from haotuner.runtime.pack import Pack

DRAWN = 10  # shapes, with a fixed seed, beside the smallest
GAP, WHOLE_GAP = 3, 32  # elements between pixels, or rows


def check_convolution(
    pack: Pack, op: PackOp, memory: DeviceMemory, rng: np.random.Generator, most_flops: float
) -> list[str]:
    """Every wrong number and every write outside an output."""
    meaning, problems = op.op, []
    written = meaning.dtype_of(meaning.meaning.output)
    turned = "transpose" in meaning.kind and meaning.option("layout") in ("nchw", "ncw")  # reads pixels as they lie
    # Kernels of windows copy 16 bytes of a pixel: other strides want a kernel of columns beside them.
    gap = WHOLE_GAP if all("_windows_" in kernel or "_phases_" in kernel for kernel in op.kernels) else GAP
    shapes = _shapes(op, meaning, rng, most_flops)
    constants, placed = drawn_constants(meaning, shapes[0], memory, rng)
    read = meaning.dtype_of(meaning.meaning.inputs[0])
    served = pack.op(op.name).bind(**placed)
    served.prepare(memory.stream)
    for shape in shapes:
        case = CallCase.drawn(meaning, shape, rng, bound=constants)
        drawn = case.operands
        output = numerics.Guarded(meaning.operand_shape(meaning.meaning.output, shape), written)
        apart = numerics.spaced(drawn["x"], 0 if turned else gap)  # NaN between rows
        room = np.ascontiguousarray(apart.base if apart.base is not None else apart)
        x = memory.tensor(memory.put(room), drawn["x"].shape, room.shape[-1], read)
        whole = np.ascontiguousarray(output.inner)  # pixels must lie evenly: what is around them is watched behind the last
        sentinels = output.outer.reshape(-1)[: numerics.GUARD]
        edge = np.concatenate([whole.reshape(-1), sentinels])
        y = memory.put(edge)
        added = {
            name: memory.tensor(
                memory.put(np.ascontiguousarray(drawn[name])), whole.shape, whole.shape[-1], meaning.extra_dtype(name)
            )
            for name in ("residual",)
            if name in drawn
        }
        served(x, out=memory.tensor(y, whole.shape, whole.shape[-1], written), stream=memory.stream, **added)
        memory.get(y, edge)
        result = edge[: whole.size].reshape(whole.shape)
        verdict = case.verdict({meaning.meaning.output.name: result})
        if verdict.wrong:
            problems.append(f"{case}: {verdict}")
        if not np.array_equal(edge[whole.size :], sentinels):
            problems.append(f"{case}: wrote outside the output")
    return problems


def _shapes(op: PackOp, meaning: Op, rng: np.random.Generator, most_flops: float) -> list[Shape]:
    """The smallest image that leaves something, and drawn ones of the range; all small enough for a reference."""
    sides = windows(meaning.kind, dict(meaning.static), meaning.all_options())
    least = {axis: next(n for n in range(1, 1 << 21) if side.out(n) >= 1) for axis, side in sides.items()}
    smallest = {axis.name: least.get(axis.name, 1) for axis in op.dynamic}  # type: ignore[call-overload]
    result = [Shape.of(smallest)]
    for _ in range(DRAWN):
        extents = {}
        for axis in op.dynamic:
            low, high = smallest[axis.name], max(axis.last, smallest[axis.name])
            extents[axis.name] = int(np.exp(rng.uniform(np.log(low), np.log(high + 1))))
        one_shape = Shape.of(extents)
        while meaning.flops(one_shape) > most_flops / DRAWN and one_shape != result[0]:
            extents = {axis: max(smallest[axis], extent // 2) for axis, extent in extents.items()}
            one_shape = Shape.of(extents)
        result.append(one_shape)
    return list(dict.fromkeys(result))


def drawn_constants(
    op: Op, shape: Shape, memory: DeviceMemory, rng: np.random.Generator
) -> tuple[dict[str, Array], dict[str, Any]]:
    """What a call binds, drawn at a shape: the weight and values of a channel, as arrays and as tensors of the device."""
    operands = numerics.draw(op, shape, rng)
    constants = {name: operands[name] for name in ("weight", *op.channel_operands)}
    tensors = {
        name: memory.tensor(
            memory.put(np.ascontiguousarray(value)), value.shape, value.shape[-1],
            op.dtype if name == "weight" else op.extra_dtype(name),
        )
        for name, value in constants.items()
    }  # fmt: skip
    return constants, tensors
