"""Minimal filtering: its transforms are the convolution, and its bound holds what fp32 loses and no more than a term."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from haotuner.cost.families import demand
from haotuner.microkernels.cpu.conv_winograd import WORST, CpuConvWinograd, filter_tiles, outputs_of
from haotuner.ops.convolution import Window, convolve
from haotuner.ops.minimal_filtering import (
    EPS,
    MOST_POINTS,
    POINTS,
    TILES,
    Axis,
    fits,
    growth,
    phased,
    points,
    residues,
    terms,
    tolerance,
    transforms,
)
from haotuner.search.select.limits import laws_of, question
from haotuner.spec.constraint import refusals
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from tests.cost.cost_examples import BIG_CORE
from tests.runtime.native_builds import NATIVE

THREE = (Axis(taps=3, before=1), Axis(taps=3, before=1))
AXES = st.builds(Axis, taps=st.integers(1, 7), stride=st.integers(1, 3), before=st.integers(0, 3)) | st.builds(
    Axis, taps=st.integers(1, 4), dilation=st.integers(1, 4), before=st.integers(0, 5)
)


def filtered(x: Any, weight: Any, axes: tuple[Axis, Axis], out: tuple[int, int], tile: int, dtype: Any) -> Any:
    """The convolution by transforms, every operation in ``dtype``."""
    if any(axis.dilation > 1 for axis in axes):
        whole = np.zeros((x.shape[0], weight.shape[0], *out), dtype)
        for outputs, part, plain in residues(x, axes, out):
            residue = whole[:, :, outputs[0], outputs[1]]
            residue[...] = filtered(part, weight, plain, residue.shape[2:], tile, dtype)
        return whole
    room, taps = (of.astype(dtype) for of in phased(x, weight, axes, out, tile))
    tall, wide = ([of.astype(dtype) for of in transforms(axis.outputs(tile), axis.each)] for axis in axes)
    weights = np.einsum("ui,fcij,vj->fcuv", tall[1], taps, wide[1])
    step = (len(tall[2]), len(wide[2]))
    seen = np.lib.stride_tricks.sliding_window_view(room, (len(tall[0]), len(wide[0])), axis=(2, 3))
    inputs = np.einsum("ui,bcyxij,vj->bcyxuv", tall[0], seen[:, :, :: step[0], :: step[1]], wide[0])
    result = np.einsum("iu,bfyxuv,jv->bfyixj", tall[2], np.einsum("bcyxuv,fcuv->bfyxuv", inputs, weights), wide[2])
    b, f, y, i, x_, j = result.shape
    return result.reshape(b, f, y * i, x_ * j)[:, :, : out[0], : out[1]]


def direct(x: Any, weight: Any, axes: tuple[Axis, Axis]) -> Any:
    """The convolution as it is defined; the pads behind are those before."""
    tall, wide = (Window(taps=a.taps, stride=a.stride, dilation=a.dilation, before=a.before, after=a.before) for a in axes)
    return convolve(x, weight, {"h": tall, "w": wide}, 1)


def case(seed: int, channels: int, axes: tuple[Axis, Axis], *, positive: bool = False) -> tuple[Any, Any, Any]:
    draw = np.random.default_rng(seed)
    size = tuple(max(9 + 2 * at, axis.dilation * (axis.taps - 1) + 1) for at, axis in enumerate(axes))
    x, weight = draw.standard_normal((2, channels, *size)), draw.standard_normal((3, channels, *(a.taps for a in axes)))
    if positive:
        x, weight = np.abs(x), np.abs(weight)
    x[0, :, 4, 4] *= 100  # an outlier, which its neighbours in a tile meet, too
    return x, weight, direct(x, weight, axes)


@settings(max_examples=60, deadline=None)
@given(axes=st.tuples(AXES, AXES), tile=st.sampled_from(TILES), seed=st.integers(0, 9))
def test_transforms_are_the_convolution(axes, tile, seed):
    if not fits(tile, axes):
        return
    x, weight, expected = case(seed, 2, axes)
    assert np.allclose(filtered(x, weight, axes, expected.shape[2:], tile, np.float64), expected, atol=1e-8)
    assert terms(tile, axes) <= points(tile, axes) * np.prod([axis.phases for axis in axes])


def test_three_taps_have_the_matrices_of_lavin_and_gray():
    ahead, weight, back = transforms(4, 3)
    assert ahead.tolist()[:3] == [[4, 0, -5, 0, 1, 0], [0, -4, -4, 1, 1, 0], [0, 4, -4, -1, 1, 0]]
    assert ahead.tolist()[3:] == [[0, -2, -1, 2, 1, 0], [0, 2, -1, -2, 1, 0], [0, 4, 0, -5, 0, 1]]
    assert back.tolist() == [[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]]
    of_24 = [[6, 0, 0], [-4, -4, -4], [-4, 4, -4], [1, 2, 4], [1, -2, 4], [0, 0, 24]]
    assert np.allclose(24 * weight, of_24)
    assert np.abs(transforms(2, 3)[0]).tolist() == [[1, 0, 1, 0], [0, 1, 1, 0], [0, 1, 1, 0], [0, 1, 0, 1]]


def test_the_loops_in_c_have_the_same_points_and_matrices():
    text = (NATIVE / "kinds" / "conv_filter.c").read_text()

    def numbers(name: str) -> list[list[float]]:
        (initializer,) = re.findall(rf"static const float {name}(?:\[[^]]*\])+ = (.*?);", text, re.DOTALL)
        rows = re.findall(r"{([^{}]*)}", initializer)
        return [[float(number.strip().removesuffix("f")) for number in row.split(",")] for row in rows]

    (c_points,) = numbers("point_of")
    assert c_points == [float(point) for point in POINTS]
    positive = [point for point in POINTS if point > 0]
    assert numbers("power_of") == [[float(point**j) for j in range(max(TILES))] for point in positive]
    rows = iter(numbers("ahead_of"))
    for count in range(2, MOST_POINTS + 1, 2):
        ahead = transforms(count - 1, 2)[0] if count > 2 else np.eye(2)  # of any taps and outputs with as many points
        for at in [0, *range(1, count - 1, 2)]:
            row = next(rows)
            assert row == ahead[at, : len(row)].tolist() and not ahead[at, len(row) :].any()
    assert next(rows, None) is None


@settings(max_examples=40, deadline=None)
@given(axes=st.tuples(AXES, AXES), tile=st.sampled_from(TILES), positive=st.booleans(), seed=st.integers(0, 99))
def test_the_bound_holds_the_error_of_fp32(axes, tile, positive, seed):
    if not fits(tile, axes):
        return
    x, weight, expected = case(seed, 5, axes, positive=positive)
    held(x, weight, axes, expected.shape[2:], tile)


def held(x: Any, weight: Any, axes: tuple[Axis, Axis], out: tuple[int, int], tile: int) -> Any:
    """What is allowed, once no error was larger."""
    result = filtered(x.astype(np.float32), weight.astype(np.float32), axes, out, tile, np.float32)
    x, weight = x.astype(np.float32).astype(np.float64), weight.astype(np.float32).astype(np.float64)
    allowed = 2 * EPS * tolerance(x, weight, axes, out, tile)
    assert (np.abs(result - filtered(x, weight, axes, out, tile, np.float64)) <= allowed).all()
    return allowed


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("channels", [1, 64])
@pytest.mark.parametrize("axes", [THREE, (Axis(taps=1), Axis(taps=3, before=1))])
def test_the_bound_misses_no_term(tile, positive, channels, axes):
    for seed in range(2):
        x, weight, expected = case(seed, channels, axes, positive=positive)
        allowed = held(x, weight, axes, expected.shape[2:], tile)
        assert np.median(allowed) < 0.1 * np.abs(weight).mean() * np.abs(x).mean() * (1 if channels == 1 else 8)


def test_errors_grow_with_the_tile_and_with_the_channels():
    assert growth(2, THREE, 64) < growth(4, THREE, 64) < growth(6, THREE, 64) < growth(6, THREE, 256)
    assert growth(4, (Axis(taps=1), Axis(taps=5)), 64) < growth(4, (Axis(taps=5), Axis(taps=5)), 64)


@pytest.mark.parametrize(
    "spec, tiles",
    [
        ("conv2d:c=8,f=8,r=3,s=3,groups=2", ()),
        ("conv2d:c=8,f=8,r=1,s=1", ()),
        ("conv1d:c=8,f=8,s=3,dilation=2", TILES),
        ("conv1d:c=8,f=8,s=3,dilation=2,stride=2", ()),
        ("conv1d:c=8,f=8,s=8", ()),
        ("conv1d:c=8,f=8,s=2", TILES),
        ("conv1d:c=8,f=8,s=3", TILES),
        ("conv1d:c=8,f=8,s=5,layout=nwc", (2, 4)),
        ("conv1d:c=8,f=8,s=7", (2,)),
        ("conv2d:c=8,f=8,r=1,s=3", TILES),
        ("conv2d:c=8,f=8,r=3,s=1", TILES),
        ("conv2d:c=8,f=8,r=3,s=3", TILES),
        ("conv2d:c=8,f=8,r=5,s=5", (2, 4)),
        ("conv2d:c=8,f=8,r=1,s=1,stride=2", ()),
        ("conv2d:c=8,f=8,r=2,s=2,stride=2", ()),
        ("conv2d:c=8,f=8,r=3,s=3,stride=2", (2, 4)),  # six outputs would take 22 times the weight
        ("conv2d:c=8,f=8,r=7,s=7,stride=2", (2, 4)),
        ("conv1d:c=8,f=8,s=7,stride=3", TILES),
    ],
)
def test_windows_whose_products_filtering_saves_are_served(spec, tiles):
    op, family = Op.parse(spec), CpuConvWinograd()
    assert filter_tiles(op) == tiles and family.serves(op) == bool(tiles)
    for kernel in family.points(op, BIG_CORE) if tiles else ():
        flat = [op[axis] == 1 if axis in op.axes else True for axis in ("r", "s")]
        assert outputs_of(kernel) == tuple(1 if is_flat else kernel["wt"] for is_flat in flat)


def test_each_residue_of_a_dilation_ends_in_a_tile_of_its_own():
    family = CpuConvWinograd()
    near, apart = (Op.parse(f"conv2d:c=16,f=32,r=3,s=3,dilation={d},pad={d}") for d in (1, 6))
    shape = Shape.of({"b": 1, "h": 7, "w": 7})
    demands = [
        demand(BIG_CORE, family, op, [(next(point for point in family.points(op, BIG_CORE) if point["wt"] == 4), shape)])
        for op in (near, apart)
    ]
    assert demands[1].work.flops["simd"][0] == 9 * demands[0].work.flops["simd"][0]  # 36 tiles, not 4


def test_a_window_that_moves_by_two_is_priced_without_what_its_phases_lack():
    family, op = CpuConvWinograd(), Op.parse("conv2d:c=16,f=32,r=3,s=3,stride=2,pad=1")
    kernel = next(point for point in family.points(op, BIG_CORE) if point["wt"] == 4)
    shape = Shape.of({"b": 1, "h": 16, "w": 16})
    kernel_demand, axes = demand(BIG_CORE, family, op, [(kernel, shape)]), (Axis(taps=3, stride=2),) * 2
    assert (terms(4, axes), points(4, axes)) == (81, 25)
    multiplied = 2 * 4 * 81 * 16 * 32
    assert multiplied < kernel_demand.work.flops["simd"][0] < multiplied + 4 * 2 * 4 * 25 * (4 * 16 + 32) + 1


def test_deep_sums_are_refused_where_errors_are_large():
    family, here = CpuConvWinograd(), BIG_CORE
    near, deep = (Op.parse(f"conv2d:c={c},f=64,r=3,s=3,pad=1") for c in (64, 8192))
    for op, right in ((near, set(TILES)), (deep, {2})):
        laws = laws_of(family, op, here)
        legal_tiles = {
            kernel["wt"]
            for kernel in family.points(op, here)
            if not list(refusals(question(family, kernel, op, here, {"b": 1, "h": 56, "w": 56}), laws))
        }
        assert legal_tiles == right, (op.name, growth(4, THREE, op["c"]) / WORST)


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("spec", ["conv2d:c=64,f=64,r=3,s=3,pad=1", "conv1d:c=64,f=64,s=3,pad=1"])
def test_a_call_reads_a_weight_of_each_point(tile, spec):
    family, op = CpuConvWinograd(), Op.parse(spec)
    kernel = next(point for point in family.points(op, BIG_CORE) if point["wt"] == tile)
    shapes = [Shape.of({axis: 1 if axis == "b" else side for axis in op.dynamic}) for side in (tile, 2 * tile)]
    cold, hot = (
        demand(BIG_CORE, family, op, [(kernel, shape) for shape in shapes], weights=state).work for state in ("cold", "hot")
    )
    each = (tile + 2) ** (len(op.dynamic) - 1)
    assert (cold.far_bytes - hot.far_bytes).tolist() == [each * 64 * 64 * 4] * 2
    assert hot.flops["simd"][1] == 2 ** (len(op.dynamic) - 1) * hot.flops["simd"][0]  # as many times the tiles
