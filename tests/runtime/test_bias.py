"""A bias is added once to every element, for every plan, and refused when it does not fit."""

from __future__ import annotations

import numpy as np
import pytest

from tests.runtime.conftest import DENSE, SMALLEST, rows


def test_bias_is_one_rounding_after_the_sum(pack, weight):
    bias = np.random.default_rng(4).standard_normal(100, dtype=np.float32)
    plain, biased = pack.op(DENSE).bind(weight), pack.op(DENSE).bind(weight, bias)
    for m in (*range(0, 60), 333, 1500):
        out = np.full((m + 2, 120), 9, np.float32)
        biased(rows(m), out=out[1:-1, 10:110])
        assert np.array_equal(out[1:-1, 10:110], plain(rows(m)) + bias)
        out[1:-1, 10:110] = 9
        assert (out == 9).all()


def test_bias_of_one_element(pack):
    linear = pack.op(SMALLEST).bind(np.ones((1, 1), np.float32), np.full(1, 0.5, np.float32))
    assert (linear(np.ones((7, 1), np.float32)) == 1.5).all()


def test_bias_kinds(built_pack, weight):
    torch = pytest.importorskip("torch")
    import haotuner

    bias = np.arange(200, dtype=np.float32)[::2]  # not contiguous: copied
    with haotuner.load(built_pack.path, threads=1) as pack:
        dense = pack.op(DENSE)
        expected = dense.bind(weight, bias)(rows(3))
        assert np.array_equal(dense.bind(weight, torch.from_numpy(bias.copy()).requires_grad_())(rows(3)), expected)
        frozen = bias.copy()
        frozen.setflags(write=False)
        assert np.array_equal(dense.bind(weight, frozen)(rows(3)), expected)
        bound = dense.bind(weight, bias)
        out = np.empty((3, 100), np.float32)
        bound.bare_call(rows(3), out)
        assert np.array_equal(out, expected)


def test_biases_that_do_not_fit(built_pack, weight):
    import haotuner

    with haotuner.load(built_pack.path) as pack:
        dense = pack.op(DENSE)
        for shape in ((99,), (1, 100), (100, 1)):
            with pytest.raises((ValueError, TypeError), match="bias"):
                dense.bind(weight, np.zeros(shape, np.float32))
        for wrong in (np.zeros(100), [0.0] * 100, "bias"):
            with pytest.raises(TypeError, match="bias is"):
                dense.bind(weight, wrong)
