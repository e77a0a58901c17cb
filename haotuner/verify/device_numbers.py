"""Numbers of a pack for a device against float64, on a device of this host that runs its code."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from haotuner.errors import EnvironmentMissing
from haotuner.ops.convolution import is_convolution
from haotuner.ops.dtypes import DTYPE_BYTES
from haotuner.pack.manifest import Manifest
from haotuner.pack.op import PackOp
from haotuner.runtime.device_memory import DeviceMemory, with_gaps
from haotuner.runtime.gpus import Gpu, find_gpu
from haotuner.spec import numerics
from haotuner.spec.call_case import CallCase
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from haotuner.verify.device_convolutions import check_convolution, drawn_constants
from haotuner.verify.device_operators import check_operator
from haotuner.verify.device_products import check_product

if TYPE_CHECKING:
    from haotuner.runtime.pack import Pack

LAYERS = ("dense", "grouped")  # whose weight is bound
MOST_DEVICES = 64
CELLS, RANDOM_SHAPES = 24, 4  # of a plan, evenly, each at both ends; and shapes drawn with a fixed seed
ROW_STEP_BYTES = 16  # rows of x lie a multiple of it apart: what every kernel takes


def unchecked(manifest: Manifest) -> str:
    """Reason that no numbers of a pack can be checked on this host; empty if they can, or if it is a pack for CPUs."""
    if not manifest.placed or ordinal_for(manifest) is not None:
        return ""
    lacking = f"no device of this host runs {manifest.arch}"
    with contextlib.suppress(EnvironmentMissing):
        lacking = next(filter(None, (gpu.too_old(manifest) for gpu in _running(manifest))), lacking)
    return f"{lacking}: files and plans were checked, results were not"


def ordinal_for(manifest: Manifest) -> int | None:
    """The first device of this host that runs a pack's code; None if there is none, or no driver that takes it."""
    with contextlib.suppress(EnvironmentMissing):
        return next((gpu.ordinal for gpu in _running(manifest) if not gpu.too_old(manifest)), None)
    return None


def _running(manifest: Manifest) -> Iterator[Gpu]:
    """Devices of this host that run the code, whatever their driver. EnvironmentMissing behind the last."""
    return (gpu for gpu in map(find_gpu, range(MOST_DEVICES)) if gpu.runs(manifest))


def check_numbers(path: Path, manifest: Manifest, seed: int, most_flops: float) -> list[str]:
    """Every wrong number and every write outside an output; nothing where no device can be asked."""
    from haotuner.runtime.pack import Pack

    ordinal = ordinal_for(manifest)
    if ordinal is None:
        return []
    problems: list[str] = []
    with Pack(path, device=f"cuda:{ordinal}") as pack:
        for op in pack.manifest.ops:
            with DeviceMemory(ordinal) as memory:
                problems += _check_op(pack, op, memory, np.random.default_rng(seed), most_flops)
    return problems


def _shapes(op: PackOp, meaning: Op, rng: np.random.Generator, most_flops: float) -> list[int]:
    """Rows where plans change, and beyond, small enough for a reference; one tile and a row of each kernel in any case."""
    (axis,) = op.dynamic
    tiles = [tile[axis.name] for tile in op.tiles]
    largest = max(most_flops, *(float(meaning.flops(Shape.of({axis.name: tile + 1}))) for tile in tiles))
    plans = op.facts.get("plans", {})
    bounds = [end for plan in plans.values() for end in plan.get("cells", {}).get("bounds", {}).get(axis.name, [])]
    picked = np.unique(np.linspace(0, max(len(bounds) - 1, 0), CELLS).round().astype(int)).tolist() if bounds else []
    result = {1, 2, axis.first, axis.last, axis.last + 1, *(tile + 1 for tile in tiles)}
    result |= {bounds[at] + more for at in picked for more in (0, 1)}
    result |= {int(extent) for extent in np.exp(rng.uniform(0, np.log(axis.last + 1), RANDOM_SHAPES))}
    return sorted(m for m in result if m >= 1 and meaning.flops(Shape.of({axis.name: m})) <= largest)


def _check_op(pack: Pack, op: PackOp, memory: DeviceMemory, rng: np.random.Generator, most_flops: float) -> list[str]:
    meaning = op.op
    try:
        numerics.numpy_dtype(meaning.dtype)
    except TypeError:
        return [f"{op.name}: numpy has no {meaning.dtype} here, so its numbers cannot be checked; pip install ml_dtypes"]
    if op.kind == "batch_matmul":
        return check_product(pack, op, memory, rng, most_flops)
    if is_convolution(op.kind):
        return check_convolution(pack, op, memory, rng, most_flops)
    if op.kind not in LAYERS:
        return check_operator(pack, op, memory, rng, most_flops)
    rows, written = _shapes(op, meaning, rng, most_flops), meaning.dtype_of(meaning.meaning.output)
    constants, placed = drawn_constants(meaning, Shape.of(m=1), memory, rng)
    linear = pack.op(op.name).bind(**placed)
    linear.prepare(memory.stream)
    problems = []
    read = meaning.dtype_of(meaning.meaning.inputs[0])
    step = ROW_STEP_BYTES // DTYPE_BYTES[read]
    gap = -op.k % step + step
    for m in rows:
        case = CallCase.drawn(meaning, Shape.of(m=m), rng, bound=constants)
        drawn, outputs = case.operands, case.outputs()
        apart, out = with_gaps(drawn["x"], gap), outputs[meaning.meaning.output.name]
        y = memory.put(out.outer)
        width = out.outer.shape[1]
        tensor = memory.tensor(y + (width + numerics.GUARD) * out.outer.itemsize, (m, op.n), width, written)
        rows_of = memory.tensor(memory.put(apart), (m, op.k), op.k + gap, read)
        cut = [memory.tensor(memory.put(drawn[name]), drawn[name].shape, 1, "int32") for name in meaning.meaning.ends]
        added = {}
        if "residual" in drawn:  # in rows as far apart as those of the output
            room = np.zeros((m, width), drawn["residual"].dtype)
            room[:, : op.n] = drawn["residual"]
            added["residual"] = memory.tensor(memory.put(room), (m, op.n), width, meaning.extra_dtype("residual"))
        linear(rows_of, *cut, out=tensor, stream=memory.stream, **added)
        memory.get(y, out.outer)
        problems += case.problems(outputs)
    return problems
