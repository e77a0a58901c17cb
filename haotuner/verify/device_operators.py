"""Numbers of an op of a pack for a device, all of whose operands come with a call, against float64."""

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

if TYPE_CHECKING:
    from haotuner.runtime.pack import Pack

DRAWN = 12  # shapes, with a fixed seed
BOUNDS = 6  # of each axis's cells, evenly


def check_operator(pack: Pack, op: PackOp, memory: DeviceMemory, rng: np.random.Generator, most_flops: float) -> list[str]:
    """Every wrong number and every write outside an output; operands by turns without gaps and with rows apart."""
    meaning, problems = op.op, []
    for index, shape in enumerate(_shapes(op, meaning, rng, most_flops)):
        case = CallCase.drawn(meaning, shape, rng)
        outputs = case.outputs(gaps=not index % 2)
        at = {name: memory.put(output.outer) for name, output in outputs.items()}
        arguments = [
            _placed(memory, case.operands[operand.name], operand.dtype, apart=not index % 2) for operand in op.inputs
        ]
        outs = tuple(inside(memory, at[operand.name], outputs[operand.name], operand.dtype) for operand in op.in_file_order)
        pack.op(op.name).run(*arguments, out=outs if len(outs) > 1 else outs[0], stream=memory.stream)
        for name, output in outputs.items():
            memory.get(at[name], output.outer)
        problems += case.problems(outputs)
    return problems


def _shapes(op: PackOp, meaning: Op, rng: np.random.Generator, most_flops: float) -> list[Shape]:
    """The smallest, around the plan's bounds along each axis, and drawn ones; all small enough."""
    least = {axis.name: axis.first for axis in op.dynamic}
    result = [Shape.of(dict.fromkeys(least, 1)), Shape.of(least)]
    plans = op.facts.get("plans", {})
    for axis in op.dynamic:
        bounds = [end for plan in plans.values() for end in plan.get("cells", {}).get("bounds", {}).get(axis.name, [])]
        picked = np.unique(np.linspace(0, max(len(bounds) - 1, 0), BOUNDS).round().astype(int)).tolist() if bounds else []
        edges = {axis.last, axis.last + 1, *(bounds[at] + more for at in picked for more in (0, 1))}
        result += [Shape.of({**least, axis.name: extent}) for extent in sorted(edges)]
    for _ in range(DRAWN):
        result.append(Shape.of({axis.name: int(np.exp(rng.uniform(0, np.log(axis.last + 1)))) for axis in op.dynamic}))
    return [shape for shape in dict.fromkeys(result) if meaning.flops(shape) <= most_flops / DRAWN]


def _placed(memory: DeviceMemory, value: NDArray[Any], dtype: str, *, apart: bool) -> Any:
    view = numerics.spaced(value, 3) if apart else np.ascontiguousarray(value)
    room = np.ascontiguousarray(view.base if apart and view.base is not None else view)
    return memory.strided(memory.put(room), value.shape, tuple(step // view.itemsize for step in view.strides), dtype)


def inside(memory: DeviceMemory, address: int, guard: numerics.Guarded, dtype: str) -> Any:
    """A tensor of an output whose surroundings lie at an address."""
    inner = guard.inner
    offset = inner.__array_interface__["data"][0] - guard.outer.__array_interface__["data"][0]
    return memory.strided(address + offset, inner.shape, tuple(step // inner.itemsize for step in inner.strides), dtype)
