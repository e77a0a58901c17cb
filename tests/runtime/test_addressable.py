"""Tensors that reach beyond the address space are refused in words by every kind of op and by models."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import haotuner
from haotuner.backends.cpu.pack_source import pack_library
from haotuner.pack.write import write_pack
from haotuner.spec import numerics
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from tests.run_folder import toolchain
from tests.runtime.conftest import rows
from tests.runtime.conv_packs import conv_pack
from tests.runtime.model_packs import model_pack
from tests.runtime.native_builds import LIBRARY, cc
from tests.runtime.packs import LANES, best_level, document
from tests.runtime.product_packs import product_pack
from tests.runtime.test_bad_input import Forged
from tests.runtime.test_convolution_c import Error, Served, Tensor
from tests.runtime.test_generated import packed as generated
from tests.runtime.test_models import GRAPHS, given

WORDS = "beyond the address space|beyond any memory|more elements than any memory"
CONVOLUTION = "conv2d:c=6,f=9,r=3,s=2,pad=1,groups=3"
GENERATED = ("softmax:", "add_layer_norm:n=24", "max_pool:kernel=3,stride=2.1,pad=1")
# Half of all addresses, one that wraps with the address of the data, one that leaves the process's half with it.
OFFSETS = (2**63, 2**64 - 64, 2**63 - 64)
DATA = (2**64 - 64, 2**63 - 64, 2**63)


def at(address: int, array: Any, strides: tuple[int, ...]) -> Any:
    tensor = Forged(array, array.shape, strides)
    tensor._managed.tensor.data = address
    return tensor


def forged(array: Any) -> list[Any]:
    strides = tuple(stride // array.itemsize for stride in array.strides)
    tensors = [Forged(array, array.shape, strides, byte_offset=offset) for offset in OFFSETS]
    return tensors + [at(address, array, strides) for address in DATA]


@pytest.fixture(scope="module")
def convolutions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return conv_pack(tmp_path_factory.mktemp("addressable") / "conv", (CONVOLUTION,), LANES[best_level()])


def test_a_linear_refuses_them(linear: Any) -> None:
    x, y = rows(3), np.zeros((3, 100), np.float32)
    spread = np.zeros((3, 2, 37), np.float32)[:, 0]
    for array in (x, x[:1], x[::-1], spread, x.reshape(3, 1, 37), x[0]):
        for wrong in forged(array):
            with pytest.raises(ValueError, match="x.*(" + WORDS + ")"):
                linear(wrong, out=np.zeros((*array.shape[:-1], 100), np.float32))
    for wrong in forged(y):
        with pytest.raises(ValueError, match="out.*(" + WORDS + ")"):
            linear(x, out=wrong)
    assert linear(Forged(x, (0, 37), byte_offset=2**63)).shape == (0, 100), "what is empty has no address"


def test_strides_that_wrap_are_refused(linear: Any, products: Any) -> None:
    x = rows(4)
    for strides in ((2**62, 1), (-(2**62), 1), (2**29, 1), (-(2**29), 1)):
        high = 2**63 - (1 << 30) if strides[0] > 0 else 4096
        with pytest.raises(ValueError, match=WORDS):
            linear(at(high, x, strides), out=np.zeros((4, 100), np.float32))
        with pytest.raises(ValueError, match=WORDS):
            products.run(at(high, x, strides), rows(37, 4), out=np.zeros((4, 4), np.float32))
    views = np.lib.stride_tricks.as_strided(x, (2, 37), (2**62, 4))  # a numpy array goes by its address
    with pytest.raises(ValueError, match=WORDS):
        linear(views, out=np.zeros((2, 100), np.float32))


@pytest.fixture(scope="module")
def products(tmp_path_factory: pytest.TempPathFactory) -> Any:
    out = tmp_path_factory.mktemp("addressable") / "products"
    with haotuner.load(product_pack(out, ["batch_matmul:"], LANES[best_level()], best_level()), threads=1) as opened:
        yield opened.op("batch_matmul")


def refused(served: Any, operands: dict[str, Any], y: Any) -> None:
    """Every operand in turn, and then the output."""
    served.run(*operands.values(), out=y)
    for name, array in operands.items():
        for wrong in forged(array):
            with pytest.raises(ValueError, match=f"{name}.*({WORDS})"):
                served.run(*({**operands, name: wrong}.values()), out=y)
    for wrong in forged(y):
        with pytest.raises(ValueError, match=f"out.*({WORDS})"):
            served.run(*operands.values(), out=wrong)


def test_products_refuse_them(products: Any) -> None:
    operands = {"x": np.ones((2, 3, 7), np.float32), "w": np.ones((2, 7, 33), np.float32)}
    beside = {"bias": np.ones(33, np.float32), "scale": np.ones(2, np.float32), "mask": np.ones((3, 33), np.float32)}
    y = np.zeros((2, 3, 33), np.float32)
    refused(products, operands, y)
    for name, array in beside.items():
        products.run(**operands, **{name: array}, out=y)
        for wrong in forged(np.repeat(array, 40, axis=0) if name == "scale" else array)[:3]:
            with pytest.raises(ValueError, match=f"{name}"):
                products.run(**operands, **{name: wrong}, out=y)


@pytest.mark.parametrize("spec", GENERATED)
def test_generated_kernels_refuse_them(generated_pack: Any, spec: str) -> None:
    op, rng = Op.parse(spec), np.random.default_rng(0)
    shape = Shape.of(dict.fromkeys(op.dynamic, 20))
    inputs = numerics.draw(op, shape, rng, whole=False)
    large = {name: value for name, value in inputs.items() if value.nbytes > 64}
    assert large
    refused(generated_pack.op(op.name), inputs, np.zeros(op.operand_shape(op.meaning.output, shape), np.float32))


def typed(array: Any) -> Tensor:
    tensor = Tensor.of(array)
    tensor.code = {"f": 2, "i": 0}[array.dtype.kind]
    return tensor


def hostile(array: Any) -> list[Tensor]:
    tensors = [typed(array) for _ in OFFSETS + DATA]
    for tensor, offset in zip(tensors, OFFSETS, strict=False):
        tensor.byte_offset = offset
    for tensor, address in zip(tensors[len(OFFSETS) :], DATA, strict=True):
        tensor.data = address
    return tensors


def test_convolutions_refuse_them_in_c(library: Any, convolutions: Path) -> None:
    served = Served(library, convolutions, CONVOLUTION)
    x, y = np.ones((2, 6, 7, 7), np.float32), np.zeros((2, 9, 7, 8), np.float32)
    weight, bias = np.ones((9, 2, 3, 2), np.float32), np.ones(9, np.float32)
    linear, error = ctypes.c_void_p(), Error()
    for bad in hostile(weight):
        code = library.ht_bind(served.found, ctypes.byref(bad), None, ctypes.byref(linear), ctypes.byref(error))
        assert code < 0 and b"weight: its data" in error.text
    for bad in hostile(bias)[:2]:
        code = library.ht_bind(
            served.found, ctypes.byref(Tensor.of(weight)), ctypes.byref(bad), ctypes.byref(linear), ctypes.byref(error)
        )
        assert code < 0 and b"bias: its data" in error.text
    assert served.bind(weight, bias) == 0
    assert served.call(Tensor.of(x), Tensor.of(y)) == 0, served.said
    for bad in hostile(x):
        assert served.call(bad, Tensor.of(y)) < 0 and "x: its data" in served.said
    for bad in hostile(y):
        assert served.call(Tensor.of(x), bad) < 0 and "out: its data" in served.said
    served.close()


def test_models_refuse_them_in_c(library: Any, tmp_path: Path) -> None:
    graph, error = GRAPHS["encoder"], Error()
    feeds = given(graph, batch=2, seq=7)
    path = model_pack(tmp_path / "pack", {"encoder": graph})
    with haotuner.load(path, threads=1) as pack:
        right = pack.model("encoder").run(feeds)
    opened, model = ctypes.c_void_p(), ctypes.c_void_p()
    assert library.ht_pack_open(str(path).encode(), 1, ctypes.byref(opened), ctypes.byref(error)) == 0, error.text
    assert library.ht_model_open(opened, b"encoder", ctypes.byref(model), ctypes.byref(error)) == 0, error.text
    answers = [np.zeros_like(array) for array in right.values()]

    def run(inputs: list[Tensor], outputs: list[Tensor]) -> int:
        rooms = (Tensor * len(inputs))(*inputs), (Tensor * len(outputs))(*outputs)
        return int(library.ht_model_run(model, *rooms, ctypes.byref(error)))

    inputs, outputs = [typed(array) for array in feeds.values()], [typed(array) for array in answers]
    assert run(inputs, outputs) == 0, error.text
    assert all(np.array_equal(*pair) for pair in zip(answers, right.values(), strict=True))
    for at, array in enumerate(feeds.values()):
        for bad in hostile(array):
            assert run([*inputs[:at], bad, *inputs[at + 1 :]], outputs) < 0 and b"beyond the address space" in error.text
    for at, array in enumerate(answers):
        for bad in hostile(array):
            assert run(inputs, [*outputs[:at], bad, *outputs[at + 1 :]]) < 0 and b"beyond the address space" in error.text
    library.ht_model_free(model)
    library.ht_pack_close(opened)


@pytest.fixture(scope="module")
def generated_pack(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("addressable")
    ops = [generated(spec) for spec in GENERATED]
    pack_library(ops, "x86-64", toolchain(), folder / "generated.so")
    write_pack(folder / "pack", folder / "generated.so", document(ops, "x86-64"), lambda _: None)
    with haotuner.load(folder / "pack", threads=1) as opened:
        yield opened


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    out = cc(LIBRARY, tmp_path_factory.mktemp("clib") / "libhaotuner.so", "-shared", "-fPIC", "-O1")
    clib = ctypes.CDLL(str(out))
    clib.ht_linear_free.argtypes = clib.ht_pack_close.argtypes = [ctypes.c_void_p]
    return clib
