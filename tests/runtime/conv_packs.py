"""Packs of convolutions with plain C kernels: every cell of shapes has a kernel and a way to share of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from haotuner.backends.cpu.pack_conv import PackedConv, packed_floats, transformed
from haotuner.backends.cpu.pack_op import SlicedEntry, SlicedPlan
from haotuner.microkernels.cpu.conv import CpuConv, channels_last
from haotuner.microkernels.cpu.conv_lines import CpuConvLines
from haotuner.microkernels.cpu.conv_pixel_major import CpuConvPixelMajor
from haotuner.microkernels.cpu.conv_winograd import CpuConvWinograd, filter_tiles
from haotuner.microkernels.cpu.epilogue import with_epilogue
from haotuner.microkernels.cpu.typed import typed_params
from haotuner.microkernels.cpu.typed_conv import CpuTypedConv
from haotuner.microkernels.index import families_for, family_named
from haotuner.spec import numerics
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from tests.cost.cost_examples import BIG_CORE
from tests.runtime.native_builds import c_pack
from tests.runtime.product_packs import AMX_TILES

BOUNDS = (6, 12)  # the largest w of each cell; the last goes on
SHARES = (None, "q", "f")
TILES = ((3, 1), (5, 2), (1, 1))  # rows and vectors of a kernel's tile, one for each cell


def filtering_conv(spec: str, lanes: int, threads: Sequence[int] = (1, 2)) -> PackedConv:
    """Cells along w: minimal filtering of ever more outputs each way, then image columns where three cells are not full."""
    op, family = Op.parse(spec), CpuConvWinograd()
    rows = zip(filter_tiles(op), ((3, 2 * lanes), (5, lanes), (4, 2 * lanes)), strict=False)
    kernels = [family.filtering(op, tile, lanes, outputs) for outputs, tile in rows]
    return with_kernels(op, [*kernels, CpuConv().kernel(op, 3, lanes, 1, lanes)][:3], lanes, threads)


def turned_conv(spec: str, lanes: int, threads: Sequence[int] = (1, 2)) -> PackedConv:
    """Cells along w: tiles whose rows are pixels, of two vectors and of one, and image columns."""
    op, family = Op.parse(spec), CpuConvPixelMajor()
    kernels = [
        family.kernel_with(op, (3, 2 * lanes), lanes),
        family.kernel_with(op, (5, lanes), lanes),
        CpuConv().kernel(op, 3, lanes, 1, lanes),
    ]
    return with_kernels(op, kernels, lanes, threads)


def lines_conv(spec: str, lanes: int, threads: Sequence[int] = (1, 2)) -> PackedConv:
    """Cells along w: image columns, and windows read from lines by tiles of two vectors and of one."""
    op, family = Op.parse(spec), CpuConvLines()
    kernels = [
        CpuConv().kernel(op, 3, lanes, 1, lanes),
        family.from_lines(op, 3, 2 * lanes, lanes),
        family.from_lines(op, 5, lanes, lanes),
    ]
    return with_kernels(op, kernels, lanes, threads)


def assert_right(pack: Any, op: Op, shapes: Sequence[Shape]) -> None:
    """Calls of these shapes, with whole numbers exactly and others within the tolerance, with a bias and without."""
    draw = np.random.default_rng(0)
    for index, shape in enumerate(shapes):
        whole = index % 3 == 0
        inputs = numerics.draw(op, shape, draw, whole=whole)
        bias = draw.integers(-3, 4, op["f"]).astype(np.float32) if index % 2 else None
        bound = pack.op(op.name).bind(inputs["weight"], bias)
        assert np.array_equal(bound.weight(), inputs["weight"])
        out = numerics.Guarded(op.operand_shape(op.meaning.output, shape))
        bound(numerics.spaced(inputs["x"], 3), out=out.inner)
        assert not out.touched(), shape
        apart = (-1, *([1] * (out.inner.ndim - 2))) if not channels_last(op) else (-1,)
        after = 0 if bias is None else bias.reshape(apart)
        expected = numerics.reference(op, inputs)
        if whole:
            assert np.array_equal(out.inner, expected + after), shape
        else:
            verdict = numerics.compare(
                out.inner, expected + after, numerics.tolerance(op, inputs, expected) + 1e-6 * np.abs(after)
            )
            assert not verdict.wrong, (shape, str(verdict))
        assert np.array_equal(bound(inputs["x"]), out.inner)


def packed_conv(spec: str, lanes: int, threads: Sequence[int] = (1, 2), *, on_tiles: bool = False) -> PackedConv:
    """Cells along w, each with another kernel and another way to share; ``on_tiles``: of AMX."""
    op = Op.parse(spec)
    family = families_for(op, "cpu")[0]
    if isinstance(family, CpuTypedConv):
        shapes = AMX_TILES if on_tiles else [(*tile, 0) for tile in TILES]
        tiles = ((rows, vectors * lanes, lanes, 1, lanes, ahead) for rows, vectors, ahead in shapes)
        params = (typed_params(op, tile, on_tiles=on_tiles) for tile in tiles)
        kernels = [with_epilogue(MicroKernel(family.name, tile_params), op.epilogue) for tile_params in params]
    elif isinstance(family, CpuConv):
        kernels = [family.kernel(op, rows, vectors * lanes, 1, lanes) for rows, vectors in TILES]
    else:
        kernels = list(family.points(op, replace(BIG_CORE, wave_width=lanes)))
    return with_kernels(op, kernels, lanes, threads)


def with_kernels(op: Op, kernels: Sequence[MicroKernel], lanes: int, threads: Sequence[int]) -> PackedConv:
    """Each of the kernels in a cell of its own, the last one in those that are left."""
    tiles = [family_named(kernel.family).tile(kernel) for kernel in kernels]
    entries = [SlicedEntry(kernel=min(at, len(kernels) - 1), axis=SHARES[at]) for at in range(len(TILES))]
    grid = {axis: (*BOUNDS, 24) if axis == "w" else 1 for axis in op.dynamic}
    return PackedConv(
        op=op,
        ranges={axis: (1, 24) for axis in op.dynamic},
        micro_kernels=tuple(kernels),
        tiles=tuple({**tile.extent, **tile.step} for tile in tiles),
        plans=tuple(SlicedPlan(threads=count, grid=grid, entries=entries) for count in threads),
        packed_floats=packed_floats(op, lanes, transformed(kernels)),
    )


def conv_pack(out: Path, specs: Sequence[str], lanes: int) -> Path:
    """A pack of these ops."""
    return c_pack(out, [packed_conv(spec, lanes) for spec in specs])
