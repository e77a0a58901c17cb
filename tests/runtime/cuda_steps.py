"""Any epilogue and type of result of every kind of product, served on a CUDA device. A scenario of cuda_scenarios.py."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any

import ml_dtypes  # noqa: F401  tells numpy of bf16
import numpy as np
import pytest
import tvm_ffi

import haotuner
from haotuner.ops.convolution import is_convolution
from haotuner.ops.dtypes import DTYPES
from haotuner.ops.epilogue import STEPS
from haotuner.ops.products import finished
from haotuner.spec import numerics
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from tests.runtime.cuda_memory import Capsule, Device
from tests.runtime.cuda_served import counts
from tests.standin.client import Driver

LARGEST, COLUMN_BYTES = 24, 64 << 20  # of packed_conv's ranges; of native/kinds/cuda_conv.c
SHAPES = {"m": ((1,), (3,), (50,), (150,)), "image": ((1, 1, 1), (2, 5, 7), (1, 9, 16)), "batch": ((1, 1, 9), (3, 33, 20))}


class Stepped:
    """An op on device 0 and what it was bound with."""

    def __init__(self, path: str) -> None:
        self.device, self.pack = Device(), haotuner.load(path, device="cuda:0")
        (name,) = self.pack.ops
        self.op, self.meaning = self.pack.op(name), Op.parse(name)
        self.image, self.stream = is_convolution(self.meaning.kind), self.device.stream()
        self.written = self.meaning.dtype_of(self.meaning.meaning.output)
        operands = self.drawn(SHAPES["image"][-1] if self.image else (9,))
        self.constants = {operand: operands[operand] for operand in ("weight", *self.meaning.channel_operands)}
        self.placed = {operand: self.device.upload(values) for operand, values in self.constants.items()}
        self.bound = self.op.bind(**self.placed)
        self.bound.prepare(self.stream)

    def drawn(self, sizes: tuple[int, ...]) -> Any:
        """Operands of a call."""
        shape = Shape.of(dict(zip(self.meaning.dynamic, sizes, strict=False)))
        return numerics.draw(self.meaning, shape, np.random.default_rng(sum(sizes)))

    def call(self, drawn: Any, out: Any, **instead: Any) -> None:
        """With what comes with a call: x, offsets, a residual."""
        operands = {
            operand: self.device.upload(drawn[operand]) for operand in ("offsets", "residual") if operand in drawn
        } | instead
        self.bound(self.device.upload(drawn["x"]), out=out, stream=self.stream, **operands)
        self.device.wait(self.stream)

    def out(self, expected: Any) -> Any:
        return self.device.empty(expected.shape, DTYPES[self.written].numpy)

    def judge(self, drawn: Any, y: Any) -> None:
        """Against float64, epilogue included."""
        verdict = numerics.check(self.meaning, drawn | self.constants, self.device.download(y, DTYPES[self.written].numpy))
        assert not verdict.wrong, verdict


def stepped(path: str) -> None:
    """Every kind of cell; a residual is its own tensor or `out` itself; what is missing is said by name."""
    served = Stepped(path)
    for sizes in SHAPES["image" if served.image else "m"]:
        drawn = served.drawn(sizes)
        expected = numerics.reference(served.meaning, drawn | served.constants)
        y = served.out(expected)
        served.call(drawn, y)
        served.judge(drawn, y)
        if "residual" in drawn and drawn["residual"].dtype == DTYPES[served.written].numpy:
            residual = served.device.upload(drawn["residual"])
            served.call(drawn, residual, residual=residual)
            served.judge(drawn, residual)
    name = served.meaning.name
    missing = list(served.placed)[-1]
    if missing != "weight":
        with pytest.raises(ValueError, match=f"^{name}: its epilogue (reads|adds a) {missing}"):
            served.op.bind(**{operand: value for operand, value in served.placed.items() if operand != missing})
        cut = served.device.upload(served.constants[missing][..., :-1].copy())
        with pytest.raises(ValueError, match=f"^{name}: {missing} has rank"):
            served.op.bind(**{**served.placed, missing: cut})
    if served.op.entry.operands[0].dtype in ("int8", "uint8") and not served.meaning.epilogue:
        with pytest.raises(TypeError, match=f"^{name}: it writes sums of bytes as they are: bind the weight alone"):
            served.op.bind(
                served.placed["weight"],
                bias=served.device.upload(np.zeros(served.meaning["f" if served.image else "n"], np.float32)),
            )
    with pytest.raises(TypeError, match=f"^{name}: bind takes .*weight.*; got slope"):
        served.op.bind(**served.placed, slope=served.placed["weight"])
    if "residual" in drawn:
        with pytest.raises(TypeError, match="residual"):
            served.call({operand: value for operand, value in drawn.items() if operand != "residual"}, y)
    if _gathered(served):
        row = drawn["x"].shape[-1] + 6
        steps = [row * int(np.prod(drawn["x"].shape[axis + 1 : -1])) for axis in range(drawn["x"].ndim - 1)]
        rows_apart = served.device.upload(drawn["x"], strides=(*steps, 1))
        if served.meaning.option("layout") == "nchw":
            with pytest.raises(ValueError, match=f"^{name}: x has its pixels unevenly apart"):
                served.bound(rows_apart, out=y, stream=served.stream)
        else:
            more = {"residual": served.device.upload(drawn["residual"])} if "residual" in drawn else {}
            served.bound(rows_apart, out=y, stream=served.stream, **more)
            served.device.wait(served.stream)
            served.judge(drawn, y)
    with pytest.raises(TypeError, match=f"^{name}: out has dtype"):
        served.call(drawn, served.device.empty(expected.shape, "float32" if served.written != "fp32" else "float16"))


def stepped_faults(path: str) -> None:
    """Each launch of a call fails once and is said; the thread keeps its context, and the next call is right."""
    served, driver, current = Stepped(path), Driver(), ctypes.c_void_p(0)
    drawn = served.drawn(SHAPES["image" if served.image else "m"][1])
    y = served.out(numerics.reference(served.meaning, drawn | served.constants))
    driver.library.standin_counts_reset()
    served.call(drawn, y)
    for nth in range(1, counts(driver)["cuLaunchKernel"] + 1):
        driver.fail("cuLaunchKernel", "2", nth)
        with pytest.raises(RuntimeError, match=r"\(2\)"):
            served.call(drawn, y)
        driver.fail("cuLaunchKernel", "")
        served.device.call("cuCtxGetCurrent", ctypes.byref(current))
        assert not current.value, f"after launch {nth}"
    if served.image:
        _prepared(served, driver)
        if _gathered(served):
            _aligned(served, drawn, y)
    if served.image and "residual" in drawn:
        _residuals(served, drawn, y)
    if _gathered(served):
        _apart(served, drawn, y)
    if len(served.constants) > 2:  # the weight, and two values of a channel or more
        bind, record = served.pack.library().function("ht_bind"), served.bound.bound.record
        with pytest.raises(ValueError, match="its epilogue (reads|adds a)"):
            first = served.placed[served.meaning.channel_operands[0]]
            bind(served.pack.table_index(served.op.entry), served.placed["weight"], first, record)
        served.bound = served.op.bind(**served.placed)
    served.call(drawn, y)
    served.judge(drawn, y)


def _gathered(served: Stepped) -> bool:
    """Whether it is transposed, and products of every pixel with every tap come first."""
    return "transpose" in served.meaning.kind and not any("_phases_" in kernel for kernel in served.op.entry.kernels)


def _prepared(served: Stepped, driver: Driver) -> None:
    """Memory is made ready for columns of the largest image that was tuned, as many at a time as are laid out."""
    free, total = ctypes.c_size_t(0), ctypes.c_size_t(0)
    served.device.inside("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    before = free.value
    driver.library.standin_counts_reset()
    served.bound.prepare(served.device.stream())
    served.device.inside("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    if all("direct" in kernel for kernel in served.op.entry.kernels):
        assert not any(name.startswith("cuMemAlloc") for name in counts(driver)), "nothing is laid out"
    elif _gathered(served):
        of, taps = served.meaning, np.prod([size for axis, size in served.meaning.static if axis in ("r", "s")])
        image = LARGEST ** (len(of.dynamic) - 1) * of["f"] * int(taps) * 4
        assert before - free.value == image * min(LARGEST, max(1, COLUMN_BYTES // image)), (before - free.value, image)


def _apart(served: Stepped, drawn: Any, y: Any) -> None:
    """Channels last: images that do not follow evenly are refused; how far apart one image would be says nothing."""
    x, name = drawn["x"], served.meaning.name
    if served.meaning.option("layout") != "nhwc":
        return
    steps = [int(np.prod(x.shape[axis + 1 :])) for axis in range(x.ndim)]
    more = {"residual": served.device.upload(drawn["residual"])} if "residual" in drawn else {}
    far = served.device.upload(x, strides=(steps[0] + 2 * steps[1], *steps[1:]))
    with pytest.raises(ValueError, match=f"^{name}: x has its pixels unevenly apart"):
        served.bound(far, out=y, stream=served.stream, **more)
    operands = served.drawn((1, *SHAPES["image"][1][1:]))
    alone = served.out(numerics.reference(served.meaning, operands | served.constants))
    placed = served.device.upload(operands["x"])
    odd = tvm_ffi.from_dlpack(
        Capsule(placed.data_ptr(), operands["x"].shape, DTYPES[served.meaning.dtype].numpy, 0, (7, *steps[1:]))
    )
    more = {"residual": served.device.upload(operands["residual"])} if "residual" in operands else {}
    served.bound(odd, out=alone, stream=served.stream, **more)
    served.device.wait(served.stream)
    served.judge(operands, alone)


def _aligned(served: Stepped, drawn: Any, y: Any) -> None:
    """Wide copies that addresses or extents do not take: another kernel serves the call and is counted, or it is refused."""
    copies = [dict(MicroKernel.parse(kernel).params)["v"] for kernel in served.op.entry.kernels]
    if max(copies) == 1:
        return
    if min(copies) > 1:
        weight = served.device.empty(served.constants["weight"].shape, DTYPES[served.meaning.dtype].numpy, skip=1)
        more = {"residual": served.device.upload(drawn["residual"])} if "residual" in drawn else {}
        bound = served.op.bind(**served.placed | {"weight": weight})
        bound.prepare(served.stream)
        with pytest.raises(ValueError, match="multiple of|aligned|address"):
            bound(served.device.upload(drawn["x"]), out=y, stream=served.stream, **more)
        return
    for columns in (5, 8):
        operands = served.drawn((2, columns))
        out = served.out(numerics.reference(served.meaning, operands | served.constants))
        before = served.pack.stats()[served.meaning.name]["fallbacks"]
        served.call(operands, out)
        served.judge(operands, out)
        assert served.pack.stats()[served.meaning.name]["fallbacks"] - before == (columns % max(copies) > 0), columns


def _residuals(served: Stepped, drawn: Any, y: Any) -> None:
    """What is added comes as the output lies, and shares all of its memory or none."""
    shape, dtype = drawn["residual"].shape, drawn["residual"].dtype.name
    steps = [int(np.prod(shape[axis + 1 :])) for axis in range(len(shape))]
    wide = [2 * step for step in steps[:-1]] + [1]
    size, added = np.dtype(DTYPES[served.written].numpy).itemsize, drawn["residual"].itemsize
    behind, ends_in_it = y.data_ptr() + size * 4, y.data_ptr() + added - drawn["residual"].nbytes
    for wrong, words in (
        (served.device.empty((*shape[:-1], shape[-1] + 1), dtype), "residual"),
        (served.device.empty((*shape[:-2], shape[-2] + 1, shape[-1]), dtype), "residual"),
        (served.device.empty((shape[0] + 1, *shape[1:]), dtype), f"residual is {shape[0] + 1} images of"),
        (served.device.empty(shape, dtype, strides=wide), "residual is .* with the strides of out"),
        (tvm_ffi.from_dlpack(Capsule(0, shape, dtype, 0)), "residual has no data"),
        *(
            (tvm_ffi.from_dlpack(Capsule(address, shape, dtype, 0)), "out shares some of its memory with residual")
            for address in (behind, ends_in_it, *([y.data_ptr()] if size != added else []))
        ),
    ):
        with pytest.raises(ValueError, match=words):
            served.call(drawn, y, residual=wrong)


def stepped_products(path: str) -> None:
    """Products side by side: what comes with a call is ahead of the steps, all in one launch."""
    device, pack, driver = Device(), haotuner.load(path, device="cuda:0"), Driver()
    (name,) = pack.ops
    op, meaning, stream = pack.op(name), Op.parse(name), device.stream()
    written = meaning.dtype_of(meaning.meaning.output)
    for sizes in SHAPES["batch"]:
        shape = Shape.of(dict(zip(meaning.dynamic, sizes, strict=True)))
        drawn = numerics.draw(meaning, shape, np.random.default_rng(1), whole=True)
        sums = numerics.reference(replace(meaning, epilogue=()), drawn)
        dtype = numerics.numpy_dtype(meaning.dtype if meaning.sums == "fp32" else "fp32")
        for operands in ({}, {"bias": np.arange(sums.shape[-1]).astype(dtype), "scale": 0.25}):
            expected = finished(sums, **operands)
            for step in meaning.epilogue:
                expected = STEPS[step].apply(expected, {})
            expected = expected if DTYPES[written].eps else np.rint(expected)
            y = device.empty(expected.shape, DTYPES[written].numpy)
            placed: Any = {
                operand: value if isinstance(value, float) else device.upload(value) for operand, value in operands.items()
            }
            driver.library.standin_counts_reset()
            op.run(*(device.upload(drawn[operand]) for operand in ("x", "w")), out=y, stream=stream, **placed)
            assert counts(driver)["cuLaunchKernel"] == 1
            device.wait(stream)
            error = np.abs(device.download(y, DTYPES[written].numpy).astype(np.float64) - expected)
            allowed = (DTYPES[written].eps + 1e-5) * (1 + np.abs(expected))
            assert (error <= allowed).all(), (sizes, list(operands), error.max())
