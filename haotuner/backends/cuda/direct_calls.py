"""Direct convolutions, without columns, in the timing process: what one must compute right, operands to time it."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from haotuner.backends.cuda.timing_library import ArgsWords, CallWords, DeviceScratch, Loaded, TimingLibrary, call_words
from haotuner.backends.cuda.verifying import drawn
from haotuner.backends.timing_job import largest_error
from haotuner.microkernels.cuda.direct import sides_of
from haotuner.microkernels.cuda.fused import CHANNELS, after_of
from haotuner.spec import numerics
from haotuner.spec.call_case import CallCase
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape

DRAWN = 2  # shapes beside those around a thread's pixels
MOST_CHANNELS = 6  # of a check
GAP = 3  # elements between rows of x


class DirectWords(ctypes.Structure):
    """``ht_cuda_direct`` of native/cuda/ht_cuda_args.h."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("xb", "xc", "xh", "xw", "yb", "yf", "yh", "yw")),
        *((name, ctypes.c_int32) for name in ("images", "features", "each", "h", "w", "p", "q", "above", "before", "zero")),
    )


def words_of(op: Op, extents: Mapping[str, int], x: NDArray[Any], y: NDArray[Any]) -> DirectWords:
    """A call on an image and a result as they lie."""
    tall, wide = sides_of(op)
    last = op.option("layout") in ("nhwc", "nwc")

    def steps(values: NDArray[Any]) -> tuple[int, ...]:
        result = [stride // values.itemsize for stride in values.strides]
        if values.ndim == 3:  # no height
            result.insert(1 if last else 2, 0)
        b, *sides = result
        return (b, sides[2], sides[0], sides[1]) if last else (b, *sides)

    return DirectWords(
        *steps(x), *steps(y), extents["b"], extents["f"], extents["f"] // extents["c"], extents.get("h", 1), extents["w"],
        extents.get("p", 1), extents["q"], tall.before, wide.before, 0,
    )  # fmt: skip


def shapes(op: Op, kernel: MicroKernel, rng: np.random.Generator) -> Iterator[Shape]:
    """The smallest image that leaves something, one of a thread's pixels and more, and some drawn."""
    tall, wide = sides_of(op)
    least = {
        axis: next(extent for extent in range(1, 1 << 21) if side.out(extent) >= 1)
        for axis, side in (("h", tall), ("w", wide))
    }
    more = {"h": kernel["tp"] * tall.stride + 1, "w": kernel["tq"] * wide.stride + 2}
    known = set(op.dynamic)
    for count in range(2 + DRAWN):
        extents = {
            "b": 1 + count % 2,
            **{axis: least[axis] + (0, more[axis], *rng.integers(1, 9, DRAWN))[count] for axis in least},
        }
        yield Shape.of({axis: int(extent) for axis, extent in extents.items() if axis in known})


def small(op: Op) -> Op:
    """Op with the same window on a few channels: they are all alike."""
    channels = min(op["c"], MOST_CHANNELS)
    static = tuple(
        (axis, channels if axis == "c" else channels * (op["f"] // op["c"]) if axis == "f" else extent)
        for axis, extent in op.static
    )
    options = tuple((name, str(channels) if name == "groups" else value) for name, value in op.options)
    return Op(kind=op.kind, static=static, dtype=op.dtype, options=options, epilogue=op.epilogue)


def verify(op: Op, kernel: MicroKernel, loaded: Loaded, native: TimingLibrary, rng: np.random.Generator) -> float:
    """The largest error as a share of the tolerance; Refusal for wrong numbers and for a write outside the output."""
    small_op = small(op)
    return max(_verified(small_op, shape, loaded, native, rng) for shape in shapes(small_op, kernel, rng))


def _verified(op: Op, shape: Shape, loaded: Loaded, native: TimingLibrary, rng: np.random.Generator) -> float:
    case = CallCase.drawn(op, shape, rng)
    inputs, outputs = case.operands, case.outputs()
    output = outputs[op.meaning.output.name]
    with DeviceScratch(native) as scratch:
        put = scratch.put
        apart = numerics.spaced(inputs["x"], GAP)  # NaN between rows
        root = apart.base if apart.base is not None else apart
        beside = {name: put(inputs[name]) for name in CHANNELS if name in inputs}
        offset = output.inner.__array_interface__["data"][0] - output.outer.__array_interface__["data"][0]
        if "residual" in inputs:  # lies as the output does
            room = output.outer.copy()
            room[tuple(slice(g, g + n) for n, g in zip(output.inner.shape, _around(output), strict=True))] = inputs[
                "residual"
            ]
            beside["residual"] = put(room) + offset
        y = put(output.outer)
        args = ArgsWords(x=put(root), y=y + offset, splits=1, **beside, **after_of(op))
        words = words_of(op, op.extents(shape), apart, output.inner)
        native.run(_call(loaded, args, words, np.array([put(inputs["weight"])], np.uint64)))
        native.get(y, output.outer)
    return largest_error(case, outputs, f"{op.name} {shape}")


def _around(output: numerics.Guarded) -> tuple[int, ...]:
    return tuple((outer - inner) // 2 for outer, inner in zip(output.outer.shape, output.inner.shape, strict=True))


def _call(loaded: Loaded, args: ArgsWords, words: DirectWords, weights: NDArray[np.uint64]) -> CallWords:
    call = call_words([(loaded, 1)], 0, args, weights)
    call.direct = ctypes.addressof(words)
    return call


class DirectOperands:
    """Operands of one shape on the device, compact."""

    def __init__(self, scratch: DeviceScratch, op: Op, shape: Shape) -> None:
        extents = op.extents(shape)
        x, weight, *_ = op.meaning.inputs
        sizes = {item.name: op.operand_shape(item, shape) for item in (x, weight, op.meaning.output)}
        kinds = {item.name: op.dtype_of(item) for item in (x, weight, op.meaning.output)}
        sizes |= {name: tuple(extents[axis] for axis in axes) for name, axes in op.epilogue_operands.items()}
        kinds |= {name: op.extra_dtype(name) for name in op.epilogue_operands}
        at = {name: scratch.put(drawn(prod(size), kinds[name])) for name, size in sizes.items()}
        beside = {name: at[name] for name in op.epilogue_operands}
        self._args = ArgsWords(x=at["x"], y=at[op.meaning.output.name], splits=1, **beside, **after_of(op))
        image, result = (np.empty(sizes[name], numerics.numpy_dtype(kinds[name])) for name in ("x", "y"))
        self._words = words_of(op, extents, image, result)
        self._weights = np.array([at["weight"]], np.uint64)

    def call(self, loaded: Loaded) -> CallWords:
        """One launch; this object must outlive it."""
        return _call(loaded, self._args, self._words, self._weights)
