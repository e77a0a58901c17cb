"""Numbers of a pack for a device against float64, on a device of this host that runs its code."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from haotuner.errors import EnvironmentMissing
from haotuner.ops.convolution import is_convolution, windows
from haotuner.ops.dtypes import DTYPE_BYTES
from haotuner.pack.manifest import Manifest
from haotuner.pack.op import PackAxis, PackOp
from haotuner.runtime.device_chain import DeviceChain
from haotuner.runtime.device_memory import DeviceMemory, Gpu, find_gpu, with_gaps
from haotuner.runtime.device_model import DeviceModel, DeviceModelBound
from haotuner.spec import numerics
from haotuner.spec.call_case import CallCase
from haotuner.spec.numerics import Array
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape

if TYPE_CHECKING:
    from haotuner.runtime.pack import Pack

CONVOLUTION_SHAPES = 10  # shapes, with a fixed seed, beside the smallest
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
    shapes = _convolution_shapes(op, meaning, rng, most_flops)
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


def _convolution_shapes(op: PackOp, meaning: Op, rng: np.random.Generator, most_flops: float) -> list[Shape]:
    """The smallest image that leaves something, and drawn ones of the range; all small enough for a reference."""
    sides = windows(meaning.kind, dict(meaning.static), meaning.all_options())
    least = {axis: next(n for n in range(1, 1 << 21) if side.out(n) >= 1) for axis, side in sides.items()}
    smallest = {axis.name: least.get(axis.name, 1) for axis in op.dynamic}  # type: ignore[call-overload]
    result = [Shape.of(smallest)]
    for _ in range(CONVOLUTION_SHAPES):
        extents = {}
        for axis in op.dynamic:
            low, high = smallest[axis.name], max(axis.last, smallest[axis.name])
            extents[axis.name] = int(np.exp(rng.uniform(np.log(low), np.log(high + 1))))
        one_shape = Shape.of(extents)
        while meaning.flops(one_shape) > most_flops / CONVOLUTION_SHAPES and one_shape != result[0]:
            extents = {axis: max(smallest[axis], extent // 2) for axis, extent in extents.items()}
            one_shape = Shape.of(extents)
        result.append(one_shape)
    return list(dict.fromkeys(result))


def drawn_constants(
    op: Op, shape: Shape, memory: DeviceMemory, rng: np.random.Generator
) -> tuple[dict[str, Array], dict[str, Any]]:
    """Constants of a call, drawn at a shape: the weight and values of a channel, as arrays and as tensors of the device."""
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


OPERATOR_SHAPES = 12  # shapes, with a fixed seed
BOUNDS = 6  # of each axis's cells, evenly


def check_operator(pack: Pack, op: PackOp, memory: DeviceMemory, rng: np.random.Generator, most_flops: float) -> list[str]:
    """Every wrong number and every write outside an output; operands by turns without gaps and with rows apart."""
    meaning, problems = op.op, []
    for index, shape in enumerate(_operator_shapes(op, meaning, rng, most_flops)):
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


def _operator_shapes(op: PackOp, meaning: Op, rng: np.random.Generator, most_flops: float) -> list[Shape]:
    """The smallest, around the plan's bounds along each axis, and drawn ones; all small enough."""
    least = {axis.name: axis.first for axis in op.dynamic}
    result = [Shape.of(dict.fromkeys(least, 1)), Shape.of(least)]
    for axis in op.dynamic:
        result += [Shape.of({**least, axis.name: extent}) for extent in sorted(_edges(op, axis, BOUNDS))]
    result += [_drawn_shape(op, rng) for _ in range(OPERATOR_SHAPES)]
    return [shape for shape in dict.fromkeys(result) if meaning.flops(shape) <= most_flops / OPERATOR_SHAPES]


def _edges(op: PackOp, axis: PackAxis, most: int) -> set[int]:
    """Extents at which a plan changes, ``most`` cells of it evenly, and those at the end of the axis and beyond."""
    plans = op.facts.get("plans", {})
    bounds = [end for plan in plans.values() for end in plan.get("cells", {}).get("bounds", {}).get(axis.name, [])]
    picked = np.unique(np.linspace(0, max(len(bounds) - 1, 0), most).round().astype(int)).tolist() if bounds else []
    return {axis.last, axis.last + 1, *(bounds[at] + more for at in picked for more in (0, 1))}


def _drawn_shape(op: PackOp, rng: np.random.Generator) -> Shape:
    """A shape whose extents are drawn evenly over their logarithms."""
    return Shape.of({axis.name: int(np.exp(rng.uniform(0, np.log(axis.last + 1)))) for axis in op.dynamic})


def _placed(memory: DeviceMemory, value: NDArray[Any], dtype: str, *, apart: bool) -> Any:
    view = numerics.spaced(value, 3) if apart else np.ascontiguousarray(value)
    room = np.ascontiguousarray(view.base if apart and view.base is not None else view)
    return memory.strided(memory.put(room), value.shape, tuple(step // view.itemsize for step in view.strides), dtype)


def inside(memory: DeviceMemory, address: int, guard: numerics.Guarded, dtype: str) -> Any:
    """A tensor of an output whose surroundings lie at an address."""
    inner = guard.inner
    offset = inner.__array_interface__["data"][0] - guard.outer.__array_interface__["data"][0]
    return memory.strided(address + offset, inner.shape, tuple(step // inner.itemsize for step in inner.strides), dtype)


PRODUCT_SHAPES = 12  # drawn with a fixed seed
PRODUCT_CELLS = 12  # bounds of an axis, evenly
ROW_STEP_BYTES = 16  # rows lie a multiple of it apart: what every kernel takes


def check_product(pack: Pack, op: PackOp, memory: DeviceMemory, rng: np.random.Generator, most_flops: float) -> list[str]:
    """Every wrong number and every write outside an output."""
    meaning = op.op
    problems = []
    for shape in _product_shapes(op, meaning, rng, most_flops):
        case = CallCase.drawn(meaning, shape, rng)
        outputs, written = case.outputs(), meaning.meaning.output
        output = outputs[written.name]
        y = memory.put(output.outer)
        out = inside(memory, y, output, meaning.dtype_of(written))
        pack.op(op.name).run(
            *(
                _placed_product(memory, case.operands[operand.name], meaning.dtype_of(operand))
                for operand in meaning.meaning.inputs
            ),
            out=out,
            stream=memory.stream,
        )
        memory.get(y, output.outer)
        problems += case.problems(outputs)
    return problems


def _product_shapes(op: PackOp, meaning: Op, rng: np.random.Generator, most_flops: float) -> list[Shape]:
    """Around tiles and the plan's bounds along each axis, the others at their least, and drawn ones; all small enough."""
    least = {axis.name: axis.first for axis in op.dynamic}
    one_tile = {axis.name: max(axis.first, *(tile.get(axis.name, 1) + 1 for tile in op.tiles)) for axis in op.dynamic}
    largest = max(most_flops / PRODUCT_SHAPES, float(meaning.flops(Shape.of(one_tile))))
    result = {Shape.of(least), Shape.of(one_tile), Shape.of({**least, **dict.fromkeys(least, 1)})}
    for axis in op.dynamic:
        edges = _edges(op, axis, PRODUCT_CELLS)
        edges |= {tile.get(axis.name, 1) + more for tile in op.tiles for more in (-1, 0, 1)}
        result |= {Shape.of({**least, axis.name: extent}) for extent in edges if extent >= 1}
    result |= {_drawn_shape(op, rng) for _ in range(PRODUCT_SHAPES)}
    return sorted((shape for shape in result if meaning.flops(shape) <= largest), key=str)


def _placed_product(memory: DeviceMemory, values: NDArray[Any], dtype: str) -> Any:
    """The matrices on the device, NaN (of bytes the largest) between their rows."""
    step = ROW_STEP_BYTES // values.itemsize
    room = np.full(
        (*values.shape[:-1], -(-values.shape[-1] // step) * step + step), numerics.unread(values.dtype), values.dtype
    )
    room[..., : values.shape[-1]] = values
    return memory.tensor(memory.put(room), values.shape, room.shape[-1], dtype)


LAYERS = ("dense", "grouped")  # whose weight is bound
MOST_DEVICES = 64
CELLS, RANDOM_SHAPES = 24, 4  # of a plan, evenly, each at both ends; and shapes drawn with a fixed seed


def unchecked(manifest: Manifest) -> str:
    """Reason that no numbers of a pack can be checked on this host; empty if they can, or if it is a pack for CPUs."""
    if not manifest.on_device or ordinal_for(manifest) is not None:
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
    result = {1, 2, axis.first, *(tile + 1 for tile in tiles)} | _edges(op, axis, CELLS)
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


def answered(model: DeviceModel | DeviceModelBound, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Outputs by name. The results' memory is filled with ones of all bits before, so that what is not written is seen."""
    assert model.pack.gpu is not None
    with DeviceMemory(model.pack.gpu.ordinal) as memory:
        room = _Room(memory)
        tensors = {name: room.tensor(array) for name, array in inputs.items()}
        shapes = model.shapes(tensors)
        out = {end.name: room.empty(end.name, shapes[end.name], end.dtype) for end in model.outputs}
        model.run(tensors, out=out, stream=memory.stream)
        result = room.results()
        model.trim()
        return result


def answered_chain(model: DeviceChain, inputs: Mapping[str, NDArray[Any]], seed: int) -> dict[str, NDArray[Any]]:
    """Results of a model whose sizes depend on data."""
    assert model.pack.gpu is not None
    with DeviceMemory(model.pack.gpu.ordinal) as memory:
        room, ends = _Room(memory), model.outputs
        tensors = [room.tensor(inputs[end.name]) for end in model.inputs]
        model.placed(
            tensors, seed, memory.stream, lambda index, shape: room.empty(ends[index].name, shape, ends[index].dtype)
        )
        result = room.results()
        model.trim()
        return {end.name: result[end.name] for end in ends}


class _Room:
    """Tensors of a device with arrays of the host beside them."""

    def __init__(self, memory: DeviceMemory) -> None:
        self._memory = memory
        self._outputs: dict[str, tuple[int, NDArray[Any]]] = {}

    def tensor(self, values: NDArray[Any]) -> Any:
        """A copy of an array there."""
        whole = np.array(values, order="C")  # of no axes, too
        return self._memory.like(self._memory.put(whole), whole)

    def empty(self, name: str, shape: tuple[int, ...], dtype: Any) -> Any:
        """Memory for a result, ones of all bits."""
        filled = np.empty(shape, dtype)
        if filled.size and filled.ndim:
            filled.view(np.uint8).fill(0xFF)
        address = self._memory.put(filled)
        self._outputs[name] = address, filled
        return self._memory.like(address, filled)

    def results(self) -> dict[str, NDArray[Any]]:
        """The results, after the stream's work."""
        for address, item in self._outputs.values():
            self._memory.get(address, item)
        return {name: item for name, (_, item) in self._outputs.items()}
