"""Epilogues and other types than float32 from C: bound, called and refused, through the C library."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from haotuner.backends.cpu.pack_source import PackedAny, pack_library
from haotuner.ops.dtypes import DTYPES
from haotuner.pack.write import write_pack
from haotuner.spec import numerics
from haotuner.spec.shape import Shape
from tests.run_folder import toolchain
from tests.runtime.conv_packs import packed_conv
from tests.runtime.native_builds import LIBRARY, cc
from tests.runtime.packs import LANES, best_level, document, packed_op
from tests.runtime.product_packs import packed_product
from tests.runtime.test_convolution_c import Error, Served, Tensor
from tests.runtime.typed_packs import typed_op

FP32 = "dense_n50_k37_scale_bias_clamp_residual"
BF16 = "dense_n33_k21_bf16_bias_gelu_residual"
INT8 = "dense_n50_k37_int8_outuint8_scale_bias_relu"
PLAIN = "dense_n20_k9_bf16_kn"
CONV = "conv2d:c=6,f=9,r=3,s=2,pad=1,epilogue=bias+residual+relu"
CONV_BF16 = "conv2d:c=6,f=9,r=3,s=2,pad=1,dtype=bf16,epilogue=bias+residual+relu"
CONV_INT8 = "conv1d:c=5,f=6,s=3,dtype=int8,in=int8,epilogue=scale+bias,out=uint8"
PRODUCT = "batch_matmul:k=7,layout=nt,dtype=int8"
ODD = (-1, 0, 1, 2, 3, 2**31 - 1, 2**31, 2**40, 2**62, -8, 64)


class Fused(Served):
    """An op with an epilogue."""

    def bind_fused(self, weight: Tensor, constants: list[Tensor]) -> int:
        addresses = (ctypes.c_void_p * max(1, len(constants)))(*(ctypes.addressof(constant) for constant in constants))
        to = (ctypes.byref(self.linear), ctypes.byref(self.error))
        return int(self.library.ht_bind_fused(self.found, ctypes.byref(weight), addresses, len(constants), *to))

    def call_fused(self, x: Tensor, inputs: list[Tensor], out: Tensor) -> int:
        addresses = (ctypes.c_void_p * max(1, len(inputs)))(*(ctypes.addressof(operand) for operand in inputs))
        last = (ctypes.byref(out), None, ctypes.byref(self.error))
        return int(self.library.ht_call_fused(self.linear, ctypes.byref(x), addresses, len(inputs), *last))


def tensor(array: Any, dtype: str) -> Tensor:
    descriptor = Tensor.of(array.view(np.uint16) if dtype == "bf16" else array)
    descriptor.code = DTYPES[dtype].code
    return descriptor


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    out = cc(LIBRARY, tmp_path_factory.mktemp("clib") / "libhaotuner.so", "-shared", "-fPIC", "-O1")
    clib = ctypes.CDLL(str(out))
    clib.ht_linear_free.argtypes = clib.ht_pack_close.argtypes = [ctypes.c_void_p]
    return clib


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    level, out = best_level(), tmp_path_factory.mktemp("fused")
    lanes = LANES[level]
    ops: list[PackedAny] = [packed_op(FP32, lanes, 2 * lanes), packed_conv(CONV, lanes)]
    ops += [packed_conv(CONV_BF16, lanes), packed_conv(CONV_INT8, lanes), packed_product(PRODUCT, lanes)]
    ops += [typed_op(name, lanes) for name in (BF16, INT8, PLAIN)]
    pack_library(ops, level, toolchain(), out / "pack.so")
    write_pack(out / "pack", out / "pack.so", document(ops, level), lambda _: None)
    return out / "pack"


@pytest.mark.long
@pytest.mark.parametrize("name", [FP32, BF16, INT8, PLAIN, CONV, CONV_BF16, CONV_INT8])
def test_c_computes_epilogues_and_types(library: Any, folder: Path, name: str) -> None:
    served = Fused(library, folder, name)
    op = served.op
    shape = Shape.of({axis: 7 for axis in op.dynamic})
    inputs = numerics.draw(op, shape, np.random.default_rng(0))
    types = {o.name: op.dtype_of(o) for o in op.meaning.operands}
    constants = [np.asarray(inputs[key]).astype(np.float32) for key, axes in op.epilogue_operands.items() if len(axes) == 1]
    passed = [tensor(inputs[key], op.extra_dtype(key)) for key, axes in op.epilogue_operands.items() if len(axes) > 1]
    x, weight = (tensor(inputs[key], types[key]) for key in ("x", "weight"))
    out = numerics.Guarded(op.operand_shape(op.meaning.output, shape), types["y"]) if op.kind == "dense" else None
    y = np.zeros(op.operand_shape(op.meaning.output, shape), numerics.numpy_dtype(types["y"])) if out is None else out.inner
    assert served.bind_fused(weight, [Tensor.of(constant) for constant in constants]) == 0, served.said
    assert served.call_fused(x, passed, tensor(y, types["y"])) == 0, served.said
    verdict = numerics.check(op, inputs, y)
    assert not verdict.wrong, str(verdict)
    assert out is None or not out.touched()

    if constants:
        again = Fused(library, folder, name)
        assert again.bind_fused(weight, []) != 0 and "binds" in again.said
        short = [Tensor.of(constant[:-1].copy()) for constant in constants]
        assert again.bind_fused(weight, short) != 0 and "elements; expected" in again.said
        again.close()
    if passed:
        assert served.call_fused(x, [], tensor(y, types["y"])) != 0 and "reads 1 tensors" in served.said
        assert served.call_fused(x, [tensor(y, types["y"])], tensor(y, types["y"])) != 0 and "shares memory" in served.said
    assert served.call_fused(x, [*passed, x], tensor(y, types["y"])) != 0 and "tensors like its output" in served.said
    other = tensor(y, types["y"])
    other.bits = 64
    assert served.call_fused(x, passed, other) != 0
    wrong = tensor(inputs["weight"], types["weight"])
    wrong.code = 5  # complex
    assert Fused(library, folder, name).bind_fused(wrong, [Tensor.of(constant) for constant in constants]) != 0
    served.close()


def test_a_plain_typed_op_is_bound_and_called_as_any(library: Any, folder: Path) -> None:
    served = Fused(library, folder, PLAIN)
    inputs = numerics.draw(served.op, Shape.of(m=5), np.random.default_rng(1))
    weight, x, bias = tensor(inputs["weight"], "bf16"), tensor(inputs["x"], "bf16"), np.arange(20, dtype=np.float32)
    bind = library.ht_bind
    to = (ctypes.byref(served.linear), ctypes.byref(served.error))
    assert bind(served.found, ctypes.byref(weight), ctypes.byref(Tensor.of(bias)), *to) == 0, served.said
    y = np.zeros((5, 20), inputs["x"].dtype)
    assert served.call(x, tensor(y, "bf16")) == 0, served.said
    expected = numerics.reference(served.op, inputs) + bias
    assert np.abs(y.astype(np.float64) - expected).max() <= 2.0**-7 * np.abs(expected).max()
    assert bind(served.found, ctypes.byref(Tensor.of(np.zeros((9, 20), np.float32))), None, *to) != 0
    assert "weight" in served.said and isinstance(served.error, Error)


def run(served: Fused, tensors: list[Tensor]) -> int:
    """A call of an op that binds nothing."""
    addresses = (ctypes.c_void_p * len(tensors))(*(ctypes.addressof(operand) for operand in tensors))
    return int(served.library.ht_run(served.found, addresses, len(tensors), None, ctypes.byref(served.error)))


@pytest.mark.long
@pytest.mark.parametrize("name", [CONV_BF16, CONV_INT8, PRODUCT])
def test_odd_tensors_of_other_types_are_served_or_refused(library: Any, folder: Path, name: str) -> None:
    """Odd shapes, strides and types; those that reach beyond their memory have none, so the check alone must see it."""
    served, rng = Fused(library, folder, name), np.random.default_rng(3)
    op = served.op
    shape = Shape.of({axis: 5 for axis in op.dynamic})
    operands = numerics.draw(op, shape, rng)
    types = {o.name: op.dtype_of(o) for o in op.meaning.operands}
    expected, right = None, 0
    passed = [key for key, axes in op.epilogue_operands.items() if len(axes) > 1]
    read = [*(o.name for o in op.meaning.inputs if o.role == "input"), *passed]
    if op.kind != "batch_matmul":
        constants = [np.asarray(operands[key]).astype(np.float32) for key in op.epilogue_operands if key not in passed]
        weight = tensor(operands["weight"], types["weight"])
        assert served.bind_fused(weight, [Tensor.of(constant) for constant in constants]) == 0, served.said
    for _ in range(800):
        out = numerics.Guarded(op.operand_shape(op.meaning.output, shape), types["y"])
        arrays = [*(operands[key] for key in read), np.ascontiguousarray(out.inner)]
        tensors, honest = [], True
        chosen = int(rng.integers(-1, len(arrays)))
        for index, array in enumerate(arrays):
            dtype = types["y"] if index == len(arrays) - 1 else types.get(read[index]) or op.extra_dtype(read[index])
            operand, sizes, steps = (
                tensor(array, dtype),
                list(array.shape),
                [step // array.itemsize for step in array.strides],
            )
            if index == chosen:
                honest = False
                values = (sizes, steps)[int(rng.integers(2))]
                values[int(rng.integers(len(values)))] = int(rng.choice(ODD))
                inside = all(0 <= n <= m for n, m in zip(sizes, array.shape, strict=True)) and all(
                    0 <= n <= m // array.itemsize for n, m in zip(steps, array.strides, strict=True)
                )
                whole = Tensor.of(array.view(np.uint8), sizes, steps)
                operand = Tensor(
                    whole.data if inside else None,
                    1,
                    0,
                    operand.ndim,
                    operand.code,
                    operand.bits,
                    1,
                    whole.shape,
                    whole.strides,
                    0,
                )
                if rng.random() < 0.1:
                    operand.bits = int(rng.choice((1, 4, 64)))
            tensors.append(operand)
        *inputs, to = tensors
        rc = run(served, tensors) if op.kind == "batch_matmul" else served.call_fused(inputs[0], inputs[1:], to)
        assert rc in (0, -1, -2) and (rc == 0 or served.said)
        if honest:
            assert rc == 0, served.said
            expected = arrays[-1].tobytes() if expected is None else expected
            assert arrays[-1].tobytes() == expected and not numerics.check(op, operands, arrays[-1]).wrong
            right += 1
    assert right > 20
    served.close()
