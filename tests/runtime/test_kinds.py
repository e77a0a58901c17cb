"""The result is of x's kind: numpy, torch, another DLPack tensor."""

from __future__ import annotations

import numpy as np
import pytest

from tests.runtime.conftest import DENSE, rows


def test_torch_in_torch_out(linear):
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(rows(5))
    y = linear(x)
    assert isinstance(y, torch.Tensor) and y.shape == (5, 100) and y.dtype == torch.float32
    assert np.array_equal(y.numpy(), linear(rows(5)))
    out = torch.empty(5, 100)
    assert linear(x, out=out) is out and torch.equal(out, y)
    mixed = np.empty((5, 100), np.float32)
    linear(x, out=mixed)
    assert np.array_equal(mixed, y.numpy())
    assert linear(torch.empty(0, 37)).shape == (0, 100)
    assert linear(torch.empty(3, 0, 37)).shape == (3, 0, 100)


def test_torch_parameters_views_and_inference_tensors(linear, built_pack):
    torch = pytest.importorskip("torch")
    import haotuner

    layer = torch.nn.Linear(37, 100, bias=False)
    with haotuner.load(built_pack.path, threads=1) as pack, torch.inference_mode():
        mine = pack.op(DENSE).bind(layer.weight)
        x = torch.randn(4, 6, 37)
        assert torch.allclose(mine(x), layer(x), atol=1e-4)
        assert torch.allclose(mine(x[:, 0]), layer(x[:, 0]), atol=1e-4)
    with torch.no_grad():
        grad = torch.randn(2, 37, requires_grad=True)
        assert linear(grad).shape == (2, 100)


def test_tvm_ffi_tensors(linear):
    import tvm_ffi

    x = tvm_ffi.from_dlpack(rows(3))
    out = np.empty((3, 100), np.float32)
    linear(x, out=out)
    assert np.array_equal(out, linear(rows(3)))
    y = linear(x)
    assert np.array_equal(np.from_dlpack(y), out)


def test_a_packed_weight_is_a_copy(built_pack):
    import haotuner

    weight = np.random.default_rng(2).standard_normal((100, 37), dtype=np.float32)
    with haotuner.load(built_pack.path, threads=1) as pack:
        mine = pack.op(DENSE).bind(weight)
        before = mine(rows(2))
        weight[...] = 0
        assert np.array_equal(mine(rows(2)), before)
        assert mine.packed_bytes >= 100 * 37 * 4


def test_the_bare_call_is_the_same_call(linear):
    out, other = np.empty((3, 100), np.float32), np.empty((3, 100), np.float32)
    linear.bare_call(rows(3), out)
    linear(rows(3), out=other)
    assert np.array_equal(out, other)
