"""Minimal filtering: its transforms are the convolution, and its bound holds what fp32 loses and no more than a term."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from haotuner.cost.families import demand
from haotuner.microkernels.cpu.conv_winograd import WORST, CpuConvWinograd
from haotuner.ops.convolution import convolve, windows
from haotuner.ops.minimal_filtering import EPS, TILES, growth, points, tolerance, transforms
from haotuner.select.limits import laws_of, question
from haotuner.words.law import refusals
from haotuner.words.op import Op
from haotuner.words.shape import Shape
from tests.judgement.cost_examples import BIG_CORE

PADS = ((0, 0), (1, 1), (2, 3))


def filtered(x: Any, weight: Any, before: tuple[int, int], out: tuple[int, ...], tile: int, dtype: Any) -> Any:
    """The convolution by transforms, every operation in ``dtype``."""
    ahead, of_weight, back = (of.astype(dtype) for of in transforms(tile))
    down, across = (-(-extent // tile) for extent in out)
    y = np.zeros((x.shape[0], weight.shape[0], down * tile, across * tile), dtype)
    room = np.zeros((*x.shape[:2], down * tile + 2 + x.shape[2], across * tile + 2 + x.shape[3]), dtype)
    room[:, :, before[0] : before[0] + x.shape[2], before[1] : before[1] + x.shape[3]] = x
    weights = np.einsum("ui,fcij,vj->fcuv", *(v.astype(dtype) for v in (of_weight, weight, of_weight)))
    for i in range(down):
        for j in range(across):
            seen = room[:, :, i * tile : i * tile + tile + 2, j * tile : j * tile + tile + 2]
            inputs = np.einsum("ui,bcij,vj->bcuv", ahead, seen, ahead)
            products = np.einsum("bcuv,fcuv->bfuv", inputs, weights)
            rows, columns = slice(i * tile, (i + 1) * tile), slice(j * tile, (j + 1) * tile)
            y[:, :, rows, columns] = np.einsum("iu,bfuv,jv->bfij", back, products, back)
    return y[:, :, : out[0], : out[1]]


def case(seed: int, channels: int, before: tuple[int, int], *, positive: bool = False) -> tuple[Any, Any, Any]:
    draw = np.random.default_rng(seed)
    x, weight = draw.standard_normal((2, channels, 9, 11)), draw.standard_normal((3, channels, 3, 3))
    if positive:
        x, weight = np.abs(x), np.abs(weight)
    x[0, :, 4, 4] *= 100  # an outlier, which its neighbours in a tile meet, too
    sides = windows("conv2d", {"r": 3, "s": 3}, {"stride": "1", "dilation": "1", "pad": f"{before[0]}.{before[1]}"})
    return x, weight, convolve(x, weight, sides, 1)


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("before", PADS)
def test_transforms_are_the_convolution(tile, before):
    x, weight, want = case(0, 5, before)
    assert np.allclose(filtered(x, weight, before, want.shape[2:], tile, np.float64), want, atol=1e-9)


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("channels", [1, 64])
def test_the_bound_holds_the_error_of_fp32_and_no_missing_term(tile, positive, channels):
    for seed in range(3):
        x, weight, want = case(seed, channels, (1, 1), positive=positive)
        found = filtered(x.astype(np.float32), weight.astype(np.float32), (1, 1), want.shape[2:], tile, np.float32)
        x, weight = x.astype(np.float32).astype(np.float64), weight.astype(np.float32).astype(np.float64)
        exact = filtered(x, weight, (1, 1), want.shape[2:], tile, np.float64)
        allowed = 2 * EPS * tolerance(x, weight, (1, 1), want.shape[2:], tile)
        assert (np.abs(found - exact) <= allowed).all()
        assert np.median(allowed) < 0.1 * np.abs(weight).mean() * np.abs(x).mean() * (1 if channels == 1 else 8)


def test_errors_grow_with_the_tile_and_with_the_channels():
    assert growth(2, 64) < growth(4, 64) < growth(4, 256)


def test_a_family_of_3x3_windows_that_move_by_one():
    family, here = CpuConvWinograd(), BIG_CORE
    for spec in ("conv2d:c=8,f=8,r=3,s=3,stride=2", "conv2d:c=8,f=8,r=3,s=3,groups=2", "conv2d:c=8,f=8,r=3,s=1"):
        assert not family.serves(Op.parse(spec))
    near, deep = (Op.parse(f"conv2d:c={c},f=64,r=3,s=3,pad=1") for c in (64, 8192))
    assert family.serves(near) and family.serves(deep)
    for op, right in ((near, True), (deep, False)):
        laws = laws_of(family, op, here)
        kept = {
            kernel["wt"]
            for kernel in family.points(op, here)
            if not list(refusals(question(family, kernel, op, here, {"b": 1, "h": 56, "w": 56}), laws))
        }
        assert kept == (set(TILES) if right else set()), (op.name, growth(4, op["c"]) / WORST)


@pytest.mark.parametrize("tile", TILES)
def test_a_call_reads_a_weight_of_each_point(tile):
    family, op = CpuConvWinograd(), Op.parse("conv2d:c=64,f=64,r=3,s=3,pad=1")
    kernel = next(one for one in family.points(op, BIG_CORE) if one["wt"] == tile)
    shapes = [Shape.of({"b": 1, "h": side, "w": side}) for side in (tile, 2 * tile)]
    cold, hot = (
        demand(BIG_CORE, family, op, [(kernel, one) for one in shapes], weights=state).work for state in ("cold", "hot")
    )
    assert (cold.far_bytes - hot.far_bytes).tolist() == [points(tile) * 64 * 64 * 4] * 2
    assert hot.flops["simd"][1] == 4 * hot.flops["simd"][0]  # four tiles are four times one
