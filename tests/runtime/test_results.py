"""Right results: every m in the table and beyond, strides, offsets, ranks, special values, every level and thread count."""

from __future__ import annotations

import numpy as np
import pytest

import haotuner
from tests.runtime.conftest import DENSE, SMALLEST, TURNED, rows
from tests.runtime.packs import LANES, LIMIT, assert_right, make_pack, packed_op, reference

FAR = 5000  # a hundred times the tuned range


def test_every_m_in_the_table_and_some_beyond_is_right(pack, weight):
    linear = pack.op(DENSE).bind(weight)
    for m in (*range(1, LIMIT + 20), 97, 1000, FAR):
        x = rows(m)
        out = np.full((m + 2, 100), -7.0, np.float32)
        linear(x, out=out[1:-1])
        assert_right(out[1:-1], x, weight)
        assert (out[0] == -7).all() and (out[-1] == -7).all()


def test_the_library_and_the_table_agree_for_every_m(built_pack, pack):
    for op in built_pack.ops.values():
        for index, plan in enumerate(op.plans):
            bulk, top = op.kernels[plan.entries[-1][0][0][0]], len(plan.entries)
            for m in range(1, 4 * LIMIT):
                inside, extra = m, 0
                if m > top:  # whole tiles of the largest shape's first kernel until the rest is in the table
                    extra = -(-(m - top) // bulk["mr"])
                    inside = m - extra * bulk["mr"]
                expected = [(op.kernels[k].name, t) for k, t in plan.entries[inside - 1][0]]
                composition = pack.op(op.name).composition(m, op.plans[index].threads)
                joined: dict[str, int] = {bulk.name: extra} if extra else {}
                for name, tiles in expected:
                    joined[name] = joined.get(name, 0) + tiles
                assert list(composition.parts) == list(joined.items())
                assert composition.share == plan.entries[min(m, top) - 1][1]
                last = 0
                heights = {kernel.name: kernel["mr"] for kernel in op.kernels}
                for region in composition.boxes(
                    heights.__getitem__, {"m": m, "n": 100}
                ):  # the rows are covered once, without a gap
                    assert region.box["m"][0] == last
                    last = region.box["m"][1]
                assert last == m


def test_the_same_bits_for_every_thread_count_and_every_composition(built_pack, weight):
    """Each element is one sum in the order of k, whichever kernel computes it: results do not depend on batch or threads."""
    whole = rows(FAR)
    seen = None
    for threads in (1, 2, 3, 7):
        with haotuner.load(built_pack.path, threads=threads) as pack:
            linear = pack.op(DENSE).bind(weight)
            y = linear(whole)
            assert seen is None or np.array_equal(y, seen)
            seen = y
            for m in range(1, 2 * LIMIT):
                assert np.array_equal(linear(whole[:m]), y[:m])


@pytest.mark.parametrize("shape", [(37,), (1, 37), (2, 3, 37), (2, 1, 5, 37), (0, 37), (3, 0, 37)])
def test_leading_axes_are_rows(linear, weight, shape):
    x = np.random.default_rng(3).standard_normal(shape, dtype=np.float32)
    y = linear(x)
    assert y.shape == (*shape[:-1], 100) and y.dtype == np.float32
    assert_right(y, x, weight)
    out = np.empty((*shape[:-1], 100), np.float32)
    assert linear(x, out=out) is out
    assert np.array_equal(out, y)


@pytest.mark.parametrize("m", [1, 3, 17])
@pytest.mark.parametrize("offset", [0, 1, 2, 3, 4, 8, 12, 17, 60, 63])
def test_any_alignment_of_x_and_out(linear, weight, m, offset):
    x = rows(m)
    store = np.zeros(m * 37 * 4 + 128, np.uint8)
    placed = store[offset : offset + m * 37 * 4].view(np.float32).reshape(m, 37)
    placed[...] = x
    target = np.zeros(m * 100 * 4 + 128, np.uint8)
    out = target[offset : offset + m * 100 * 4].view(np.float32).reshape(m, 100)
    linear(placed, out=out)
    assert_right(out.copy(), x, weight)
    assert not target[:offset].any() and not target[offset + m * 400 :].any()


def test_row_strides_of_x_and_out(linear, weight):
    base = rows(24)
    wide = np.zeros((24, 50), np.float32)
    wide[:, :37] = base
    for x in (wide[:, :37], base[::2], base[::-1], base[::-3], np.broadcast_to(base[0], (9, 37)), wide[:, :37][::-1]):
        contiguous = np.ascontiguousarray(x)
        assert_right(linear(x), contiguous, weight)
        out = np.full((len(x), 130), 5.0, np.float32)
        linear(x, out=out[:, 7:107])
        assert_right(out[:, 7:107], contiguous, weight)
        assert (out[:, :7] == 5).all() and (out[:, 107:] == 5).all()
        upward = np.empty((len(x), 100), np.float32)
        linear(x, out=upward[::-1])
        assert_right(upward[::-1], contiguous, weight)


def test_nan_and_infinity_go_where_the_sum_puts_them(linear, weight):
    x = rows(5)
    x[1, 3], x[2, 0], x[3, 5] = np.nan, np.inf, -np.inf
    y, expected = linear(x), reference(x, weight)
    assert np.isnan(y[1]).all()
    assert np.array_equal(np.isinf(y), np.isinf(expected)) and np.array_equal(np.sign(y[2:4]), np.sign(expected[2:4]))
    x[...] = np.float32(1e-42)  # denormals are kept, not flushed
    assert np.allclose(linear(x), reference(x, weight), rtol=0, atol=1e-43)


def test_weight_stored_the_other_way_round(pack):
    weight = np.random.default_rng(5).standard_normal((16, 64), dtype=np.float32)
    x = rows(19, 16)
    assert_right(pack.op(TURNED).bind(weight)(x), x, weight.T)


def test_one_by_one(pack):
    y = pack.op(SMALLEST).bind(np.full((1, 1), 3, np.float32))(np.full((50, 1), 2, np.float32))
    assert y.shape == (50, 1) and (y == 6).all()


@pytest.mark.parametrize("level", ["x86-64-v3", "x86-64-v2"])
def test_narrower_instruction_sets(tmp_path, level, weight):
    from haotuner.host.processor import missing_flags

    if missing_flags(level):
        pytest.skip(f"isa: this host is not {level}")
    built_pack = make_pack(tmp_path / "pack", [packed_op(DENSE, LANES[level], 2 * LANES[level])], level)
    for threads in (1, 2):
        with haotuner.load(built_pack.path, threads=threads) as pack:
            linear = pack.op(DENSE).bind(weight)
            for m in (*range(1, 20), 77):
                assert_right(linear(rows(m)), rows(m), weight)
