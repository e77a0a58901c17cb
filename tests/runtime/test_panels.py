"""Panels of fp32 weights: the library lays out the bits that numpy does, for any strides, and older packs are served."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import haotuner
from haotuner.pack.op import PackOp
from haotuner.runtime import weights
from haotuner.runtime.weights import floats_of_panels, panels_by_numpy
from tests.runtime.native_builds import c_pack
from tests.runtime.packs import packed_op

DRAW = np.random.default_rng(8)
OPS = ("dense_n9_k5", "dense_n1_k1", "dense_n16_k16", "dense_n37_k50", "dense_n33_k64_kn", "dense_n7_k3_kn")


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return c_pack(tmp_path_factory.mktemp("panels") / "pack", [packed_op(name, 4, 8) for name in OPS])


def weight_of(op: PackOp) -> np.ndarray[Any, Any]:
    """Any bits, NaN and subnormal numbers among them."""
    shape = (op.k, op.n) if op.weight == "kn" else (op.n, op.k)
    return DRAW.integers(0, 1 << 32, shape, np.uint32).view(np.float32)


@pytest.mark.parametrize("name", OPS)
def test_the_library_lays_out_what_numpy_does(pack, name, monkeypatch):
    with haotuner.load(pack) as opened:
        op = opened.op_entry(name)
        assert floats_of_panels(opened.library(), opened.table_index(op))
        weight = weight_of(op)
        wide = np.zeros((2 * weight.shape[0], 3 * weight.shape[1]), np.float32)
        strided, frozen, column_major = wide[::2, ::3], weight.copy(), np.asfortranarray(weight)
        strided[...], frozen.flags.writeable = weight, False
        expected = np.full((op.panels, op.k, op.pw), 7, np.float32)
        panels_by_numpy(op, weight, expected)
        for array in (weight, strided, frozen, column_major, weight.copy()):
            linear = opened.op(name).bind(array)
            panels = np.from_dlpack(linear.bound.packed)
            assert panels.shape == expected.shape and panels.tobytes() == expected.tobytes()
            assert linear.weight().tobytes() == weight.tobytes()
        monkeypatch.setattr(weights, "floats_of_panels", lambda *_: 0)
        assert np.from_dlpack(opened.op(name).bind(weight).bound.packed).tobytes() == expected.tobytes()


def test_a_weight_moves_between_packs_whoever_laid_it_out(pack, monkeypatch):
    weight, x = weight_of(haotuner.load(pack).op_entry(OPS[2])), np.ones((3, 16), np.float32)
    with monkeypatch.context() as patch:
        patch.setattr(weights, "floats_of_panels", lambda *_: 0)
        old = haotuner.load(pack)
        linear = old.op(OPS[2]).bind(np.nan_to_num(weight, nan=1, posinf=1, neginf=1))
    expected, new = linear(x), haotuner.load(pack)
    old.hand_over(new)
    np.testing.assert_array_equal(linear(x), expected)
    new.close()
