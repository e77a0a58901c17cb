"""Convolutions from C: bound, called, refused, and fuzzed with odd tensors, through the C library."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from haotuner.spec import numerics
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from tests.runtime.conv_packs import conv_pack
from tests.runtime.native_builds import LIBRARY, cc
from tests.runtime.packs import LANES, best_level

SPECS = (
    "conv2d:c=6,f=9,r=3,s=2,pad=1.2,stride=2.1,groups=3",
    "conv2d:c=4,f=4,r=3,s=3,pad=1,groups=4,layout=nhwc",
    "conv_transpose1d:c=4,f=6,s=3,stride=2,layout=nwc",
)
CPU, FLOAT = 1, 2
ODD = (-1, 0, 1, 2, 3, 2**31 - 1, 2**31, 2**40, 2**62, -8, 64)


class Tensor(ctypes.Structure):
    """DLTensor."""

    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]  # fmt: skip

    @staticmethod
    def of(array: Any, shape: Any = None, strides: Any = None) -> Tensor:
        """A tensor over an array's memory, of its own or of another shape."""
        shape = array.shape if shape is None else shape
        strides = [stride // array.itemsize for stride in array.strides] if strides is None else strides
        sizes, steps = (ctypes.c_int64 * len(shape))(*shape), (ctypes.c_int64 * len(strides))(*strides)
        return Tensor(array.ctypes.data, CPU, 0, len(shape), FLOAT, array.itemsize * 8, 1, sizes, steps, 0)


class Error(ctypes.Structure):
    _fields_ = [("code", ctypes.c_int), ("text", ctypes.c_char * 400)]


class Served:
    """One convolution of a pack that the C library has opened."""

    def __init__(self, library: Any, path: Path, spec: str) -> None:
        self.library, self.op, self.error = library, Op.parse(spec), Error()
        self.pack, self.found, self.linear = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        assert library.ht_pack_open(str(path).encode(), 2, ctypes.byref(self.pack), ctypes.byref(self.error)) == 0, self.said
        name = self.op.name.encode()
        assert library.ht_op_find(self.pack, name, ctypes.byref(self.found), ctypes.byref(self.error)) == 0, self.said

    @property
    def said(self) -> str:
        return bytes(self.error.text).decode()

    def bind(self, weight: Any, bias: Any = None) -> int:
        pointers = [None if array is None else ctypes.byref(Tensor.of(array)) for array in (weight, bias)]
        return int(self.library.ht_bind(self.found, *pointers, ctypes.byref(self.linear), ctypes.byref(self.error)))

    def call(self, x: Tensor, out: Tensor) -> int:
        arguments = (self.linear, ctypes.byref(x), ctypes.byref(out), None, ctypes.byref(self.error))
        return int(self.library.ht_call(*arguments))

    def close(self) -> None:
        self.library.ht_linear_free(self.linear)
        self.library.ht_pack_close(self.pack)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    out = cc(LIBRARY, tmp_path_factory.mktemp("clib") / "libhaotuner.so", "-shared", "-fPIC", "-O1")
    clib = ctypes.CDLL(str(out))
    clib.ht_linear_free.argtypes = clib.ht_pack_close.argtypes = [ctypes.c_void_p]
    return clib


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return conv_pack(tmp_path_factory.mktemp("conv") / "pack", SPECS, LANES[best_level()])


@pytest.fixture(params=SPECS)
def served(library: Any, path: Path, request: pytest.FixtureRequest) -> Iterator[Served]:
    convolution = Served(library, path, request.param)
    yield convolution
    convolution.close()


def drawn(op: Op, **extents: int) -> tuple[dict[str, Any], Any]:
    shape = Shape.of({axis: extents.get(axis, 7) for axis in op.dynamic})
    inputs = numerics.draw(op, shape, np.random.default_rng(0), whole=True)
    return inputs, np.zeros(op.operand_shape(op.meaning.output, shape), np.float32)


def test_c_gets_what_python_gets(served):
    inputs, y = drawn(served.op, b=2)
    bias = np.arange(served.op["f"], dtype=np.float32)
    assert served.bind(inputs["weight"], bias) == 0, served.said
    assert served.call(Tensor.of(inputs["x"]), Tensor.of(y)) == 0, served.said
    axes = served.op.meaning.output.axes(served.op.all_options())
    assert np.array_equal(
        y, numerics.reference(served.op, inputs) + bias.reshape([-1 if axis == "f" else 1 for axis in axes])
    )
    weight, linear = inputs["weight"], served.linear
    for wrong, rest in ((weight[:-1], None), (weight.astype(np.float64), None), (weight, bias[1:])):
        served.linear = ctypes.c_void_p()
        assert served.bind(wrong, rest) < 0 and served.said and not served.linear
    served.linear = linear


def test_any_tensor_is_served_or_refused(served):
    """Odd shapes and strides over a buffer that is large enough for the honest ones: nothing outside of it is written."""
    inputs, y = drawn(served.op, b=2)
    assert served.bind(inputs["weight"]) == 0
    draw = np.random.default_rng(1)
    expected, right = numerics.reference(served.op, inputs), 0
    for _ in range(3000):
        x_shape, y_shape = list(inputs["x"].shape), list(y.shape)
        x_strides, y_strides = ([stride // 4 for stride in array.strides] for array in (inputs["x"], y))
        for _ in range(int(draw.integers(0, 3))):
            values = (x_shape, y_shape, x_strides, y_strides)[int(draw.integers(0, 4))]
            values[int(draw.integers(0, len(values)))] = int(draw.choice(ODD))
        outer = np.full(y.size + 64, numerics.SENTINEL, np.float32)
        target = outer[32 : 32 + y.size].reshape(y.shape)
        if any(n > m for n, m in zip([*x_shape, *y_shape], [*inputs["x"].shape, *y.shape], strict=True)) or any(
            abs(n) > m // 4 for n, m in zip([*x_strides, *y_strides], [*inputs["x"].strides, *y.strides], strict=True)
        ):  # beyond the memory there is: the check alone must see that it does not fit, where it can
            x, to = Tensor.of(inputs["x"], x_shape, x_strides), Tensor.of(target, y_shape, y_strides)
            x.data = to.data = None
        else:
            x, to = Tensor.of(inputs["x"], x_shape, x_strides), Tensor.of(target, y_shape, y_strides)
            if min(x_strides) < 0 or min(y_strides) < 0:
                continue
        if served.call(x, to) == 0:
            right += int(x_shape == list(inputs["x"].shape) and np.array_equal(target, expected))
        else:
            assert served.said
        assert (outer[:32] == numerics.SENTINEL).all() and (outer[-32:] == numerics.SENTINEL).all()
    assert right > 100
