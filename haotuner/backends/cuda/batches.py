"""Batched products in the timing process: what such a kernel must compute right, and operands to time it with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from haotuner.backends.cuda.timing_library import (
    ArgsWords,
    BatchWords,
    CallWords,
    DeviceScratch,
    Loaded,
    TimingLibrary,
    call_words,
)
from haotuner.backends.cuda.verifying import ALIGNED_BYTES, drawn
from haotuner.isolate.answers import Refusal
from haotuner.microkernels.cuda.fused import ANY_STEPS, STEP_BITS, after_of, coded, decoded
from haotuner.microkernels.cuda.launch import Launch
from haotuner.ops.dtypes import DTYPE_BYTES, DTYPES
from haotuner.ops.epilogue import STEPS
from haotuner.ops.products import BESIDE, finished
from haotuner.spec import numerics
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape

DEEP_TERMS = 4096  # of the sum at most, in a check of the op's own
OWN = ("b", "m", "n", "k")
BYTES = {"u": np.uint8, "s": np.int8}
STEP_ULPS = 8  # of functions in the steps behind a product


def cases(op: Op, launch: Launch, depth: int) -> Iterator[tuple[Op, Shape, bool]]:
    """Small ragged batches around one kernel's tile, on whole numbers with bias, scale and mask, or without these.

    Then the op's own extents, cut short.
    """
    step, free = launch.vector, replace(op, static=())
    wide = 1 if op.option("layout") == "nt" else step
    high = step if op.option("layout") == "tn" else 1
    last = step * (max(depth // step, 1) - 1) or step
    yield free, Shape.of(b=3, m=launch.tile_m + high, n=launch.tile_n + wide, k=2 * depth + last), True
    yield free, Shape.of(b=1, m=high, n=wide, k=step), False
    yield free, Shape.of(b=2, m=max(high, launch.tile_m - high), n=launch.tile_n, k=depth), False
    own = dict(op.static)
    deep = {
        "b": 2,
        "m": min(own.get("m", launch.tile_m), launch.tile_m),
        "n": launch.tile_n,
        "k": min(own.get("k", depth), DEEP_TERMS),
    }
    yield free, Shape.of(deep), False


def verify(
    op: Op,
    loaded: Loaded,
    launch: Launch,
    depth: int,
    native: TimingLibrary,
    rng: np.random.Generator,
    steps: int = 0,
    signs: str = "us",
) -> float:
    """The largest error as a share of the tolerance; Refusal for wrong numbers and for a write outside the output.

    ``steps``: those that the kernel is built for (``fused.built_for``), which may be a convolution's; of what they read a
    bias is given. ``signs``: of bytes, those that the kernel multiplies (``CudaDense``).
    """
    built = decoded(steps) if steps > ANY_STEPS else op.epilogue
    alone = tuple(step for step in built if not STEPS[step].operands)
    ahead = len([step for step in built[: built.index("bias")] if step in alone]) if "bias" in built else 0
    return max(
        _verify(replace(case_op, epilogue=alone), shape, loaded, native, rng, whole=whole, ahead=ahead, signs=signs)
        for case_op, shape, whole in cases(op, launch, depth)
    )


def _verify(
    op: Op,
    shape: Shape,
    loaded: Loaded,
    native: TimingLibrary,
    rng: np.random.Generator,
    *,
    whole: bool,
    ahead: int,
    signs: str,
) -> float:
    inputs = numerics.draw(op, shape, rng, whole=whole)
    if op.sums == "int32":  # the same bytes, as the kernel takes them
        inputs |= {name: inputs[name].view(BYTES[sign]) for name, sign in zip(("x", "w"), signs, strict=True)}
    b, m, n, k = (shape[axis] for axis in OWN)
    beside = _beside(op, shape, rng) if whole else {}
    step = ALIGNED_BYTES // DTYPE_BYTES[op.dtype]
    # NaN between rows and behind the last one, which are whole vectors of any kernel apart.
    spaced = {name: _widened(inputs[name], -(-inputs[name].shape[-1] // step) * step + step) for name in ("x", "w")}
    written = op.dtype_of(op.meaning.output)
    output = numerics.Guarded((b, m, n), written)
    with DeviceScratch(native) as scratch:
        put = scratch.put
        at, (_, rows, columns) = put(output.outer), output.outer.shape
        args = ArgsWords(
            x=put(spaced["x"]), y=at + ((rows + 1) * columns + numerics.GUARD) * DTYPE_BYTES[written], m=m, n=n, k=k,
            ldx=spaced["x"].shape[-1], ldy=columns, ldw=spaced["w"].shape[-1], splits=1,
            bias=put(beside["bias"]) if beside else 0, **after_of(op),
        )  # fmt: skip
        if beside and args.after:  # what comes with a call is ahead of the steps
            args.after = args.after << STEP_BITS | coded(("bias",))
        call = call_words([(loaded, m)], 0, args, np.array([put(spaced["w"])], np.uint64))
        x_apart, w_apart = (values.shape[1] * values.shape[2] for values in (spaced["x"], spaced["w"]))
        call.batch, call.matrices = BatchWords.of(b, x_apart, w_apart, rows * columns), b
        if beside:
            call.batch.scale, call.batch.mask = put(beside["scale"]), put(beside["mask"])
            call.batch.scale_apart[-1], call.batch.mask_apart[-1] = 1, m * n
            call.batch.mask_down, call.batch.mask_right = n, 1
        native.run(call)
        native.get(at, output.outer)
    if beside:
        return _judged_beside(op, inputs, beside, output, shape, ahead)
    return _judged(op, inputs, output, shape)


def _widened(values: NDArray[Any], columns: int) -> NDArray[Any]:
    room = np.full((*values.shape[:-1], columns), numerics.unread(values.dtype), values.dtype)
    room[..., : values.shape[-1]] = values
    return room


def _beside(op: Op, shape: Shape, rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    """Optional operands of a call, of numbers that every type holds: a scale of each matrix, in fp32, is a power of two."""
    extents = {axis: shape[axis] for axis in OWN}
    dtype, ends = numerics.numpy_dtype(beside_type(op)), (-numerics.WHOLE, numerics.WHOLE + 1)
    result = {name: rng.integers(*ends, [extents[axis] for axis in axes]).astype(dtype) for name, axes in BESIDE.items()}
    return result | {"scale": np.exp2(rng.integers(-3, 2, shape["b"])).astype(np.float32)}


def beside_type(op: Op) -> str:
    """Element type of a bias and a mask that come with a call."""
    return op.dtype if op.sums == "fp32" else "fp32"


def _judged_beside(
    op: Op,
    inputs: Mapping[str, NDArray[Any]],
    beside: Mapping[str, NDArray[Any]],
    output: numerics.Guarded,
    shape: Shape,
    ahead: int,
) -> float:
    """Sums of whole numbers are exact in fp32: what is left is the rounding of the steps behind them, and of the result.

    ``ahead``: how many steps come before the bias.
    """
    before = want = finished(
        numerics.reference(replace(op, epilogue=()), inputs), scale=beside["scale"], mask=beside["mask"]
    )
    for index, step in enumerate([*op.epilogue, ""]):
        want = finished(want, bias=beside["bias"]) if index == ahead else want
        want = STEPS[step].apply(want, {}) if step else want
    element_type = DTYPES[op.dtype_of(op.meaning.output)]
    allowed = element_type.eps * np.abs(want)
    if op.epilogue:
        allowed = allowed + STEP_ULPS * DTYPES["fp32"].eps * (1.0 + np.abs(before))
    if not element_type.eps:  # what lies so near to a half may be either
        low, want, high = (
            np.clip(np.rint(item), element_type.low, element_type.high) for item in (want - allowed, want, want + allowed)
        )
        allowed = np.maximum(high - want, want - low)
    return _verdict_error(numerics.compare(output.inner, want, allowed), output, shape)


def _judged(op: Op, inputs: Mapping[str, NDArray[Any]], output: numerics.Guarded, shape: Shape) -> float:
    return _verdict_error(numerics.check(op, inputs, output.inner), output, shape)


def _verdict_error(verdict: numerics.Verdict, output: numerics.Guarded, shape: Shape) -> float:
    if verdict.wrong or output.touched():
        text = str(verdict) if verdict.wrong else "wrote outside its output"
        raise Refusal("verify", "wrong", f"{shape}: {text}")
    return verdict.worst


class BatchOperands:
    """x, w and y of one shape on the device, compact."""

    def __init__(self, scratch: DeviceScratch, op: Op, extents: Mapping[str, int]) -> None:
        self.b, self.m, self.n, self.k = (int(extents[axis]) for axis in OWN)
        self._kn, self._across = op.option("layout") != "nt", op.option("layout") == "tn"
        x, w = map(op.dtype_of, op.meaning.inputs)
        self._x = scratch.put(drawn(self.b * self.m * self.k, x))
        self._w = scratch.put(drawn(self.b * self.n * self.k, w))
        self._y = scratch.room(self.b * self.m * self.n * DTYPE_BYTES[op.dtype_of(op.meaning.output)])
        self._after = after_of(op)

    def call(self, loaded: Loaded) -> CallWords:
        """All matrices, in one launch."""
        args = ArgsWords(
            x=self._x,
            y=self._y,
            m=self.m,
            n=self.n,
            k=self.k,
            ldx=self.m if self._across else self.k,
            ldy=self.n,
            ldw=self.n if self._kn else self.k,
            splits=1,
            **self._after,
        )
        self.weights = np.array([self._w], np.uint64)  # outlives the call
        call = call_words([(loaded, self.m)], 0, args, self.weights)
        call.batch = BatchWords.of(self.b, self.m * self.k, self.n * self.k, self.m * self.n)
        call.matrices = self.b
        return call
