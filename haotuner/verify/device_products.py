"""Numbers of a batch_matmul of a pack for a device against float64."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from haotuner.pack.op import PackOp
from haotuner.runtime.device_memory import DeviceMemory
from haotuner.spec import numerics
from haotuner.spec.call_case import CallCase
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from haotuner.verify.device_operators import inside

if TYPE_CHECKING:
    from haotuner.runtime.pack import Pack

RANDOM_SHAPES = 12  # drawn with a fixed seed
CELLS = 12  # bounds of an axis, evenly
ROW_STEP_BYTES = 16  # rows lie a multiple of it apart: what every kernel takes


def check_product(pack: Pack, op: PackOp, memory: DeviceMemory, rng: np.random.Generator, most_flops: float) -> list[str]:
    """Every wrong number and every write outside an output."""
    meaning = op.op
    problems = []
    for shape in _shapes(op, meaning, rng, most_flops):
        case = CallCase.drawn(meaning, shape, rng)
        outputs, written = case.outputs(), meaning.meaning.output
        output = outputs[written.name]
        y = memory.put(output.outer)
        out = inside(memory, y, output, meaning.dtype_of(written))
        pack.op(op.name).run(
            *(_placed(memory, case.operands[operand.name], meaning.dtype_of(operand)) for operand in meaning.meaning.inputs),
            out=out,
            stream=memory.stream,
        )
        memory.get(y, output.outer)
        problems += case.problems(outputs)
    return problems


def _shapes(op: PackOp, meaning: Op, rng: np.random.Generator, most_flops: float) -> list[Shape]:
    """Around tiles and the plan's bounds along each axis, the others at their least, and drawn ones; all small enough."""
    least = {axis.name: axis.first for axis in op.dynamic}
    one_tile = {axis.name: max(axis.first, *(tile.get(axis.name, 1) + 1 for tile in op.tiles)) for axis in op.dynamic}
    largest = max(most_flops / RANDOM_SHAPES, float(meaning.flops(Shape.of(one_tile))))
    plans = op.facts.get("plans", {})
    result = {Shape.of(least), Shape.of(one_tile), Shape.of({**least, **dict.fromkeys(least, 1)})}
    for axis in op.dynamic:
        bounds = [end for plan in plans.values() for end in plan.get("cells", {}).get("bounds", {}).get(axis.name, [])]
        picked = np.unique(np.linspace(0, max(len(bounds) - 1, 0), CELLS).round().astype(int)).tolist() if bounds else []
        edges = {axis.last, axis.last + 1, *(tile.get(axis.name, 1) + more for tile in op.tiles for more in (-1, 0, 1))}
        edges |= {bounds[at] + more for at in picked for more in (0, 1)}
        result |= {Shape.of({**least, axis.name: extent}) for extent in edges if extent >= 1}
    for _ in range(RANDOM_SHAPES):
        result.add(Shape.of({axis.name: int(np.exp(rng.uniform(0, np.log(axis.last + 1)))) for axis in op.dynamic}))
    return sorted((shape for shape in result if meaning.flops(shape) <= largest), key=str)


def _placed(memory: DeviceMemory, values: NDArray[Any], dtype: str) -> Any:
    """The matrices on the device, NaN (of bytes the largest) between their rows."""
    step = ROW_STEP_BYTES // values.itemsize
    room = np.full(
        (*values.shape[:-1], -(-values.shape[-1] // step) * step + step), numerics.unread(values.dtype), values.dtype
    )
    room[..., : values.shape[-1]] = values
    return memory.tensor(memory.put(room), values.shape, room.shape[-1], dtype)
