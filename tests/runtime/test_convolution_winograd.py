"""Convolutions by minimal filtering in a pack: right at every shape, layout, pad and share, and within their own bound."""

from __future__ import annotations

from collections.abc import Iterator
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
from haotuner.verify.pack_check import verify
from tests.run_folder import toolchain
from tests.runtime.conv_packs import filtering_conv
from tests.runtime.native_builds import c_pack
from tests.runtime.packs import LANES, LANES_HERE, best_level, document

pytestmark = pytest.mark.long

SPECS = (
    "conv2d:c=6,f=10,r=3,s=3,pad=1",
    "conv2d:c=17,f=40,r=3,s=3,pad=1",
    "conv2d:c=6,f=9,r=3,s=3,pad=1,layout=nhwc",
    "conv2d:c=16,f=32,r=3,s=3,layout=nhwc",
    "conv2d:c=5,f=7,r=3,s=3,pad=0.3.2.1",
    "conv2d:c=7,f=17,r=5,s=5,pad=2",
    "conv2d:c=9,f=18,r=1,s=5,pad=0.2",
    "conv2d:c=20,f=18,r=4,s=1,pad=1.0,layout=nhwc",
    "conv2d:c=16,f=16,r=2,s=3,pad=1,layout=nhwc",
    "conv1d:c=19,f=21,s=5,pad=2",
    "conv1d:c=16,f=32,s=3,layout=nwc",
    "conv1d:c=5,f=7,s=7,pad=1.3",
    "conv1d:c=35,f=17,s=4,pad=2,layout=nwc",
    "conv2d:c=3,f=20,r=7,s=7,stride=2,pad=3",
    "conv2d:c=3,f=20,r=7,s=7,stride=2,pad=3,layout=nhwc",
    "conv2d:c=17,f=18,r=3,s=3,stride=2,pad=1",
    "conv2d:c=32,f=16,r=3,s=3,stride=2,pad=1,layout=nhwc",
    "conv2d:c=4,f=9,r=3,s=5,stride=1.2,pad=1.2,layout=nhwc",
    "conv1d:c=5,f=17,s=5,stride=2,pad=2",
    "conv1d:c=17,f=18,s=3,dilation=3,pad=3",
    "conv1d:c=16,f=20,s=4,dilation=2,pad=3,layout=nwc",
    "conv2d:c=5,f=9,r=3,s=3,dilation=2.4,pad=2.4",
    "conv2d:c=16,f=16,r=3,s=3,dilation=2,pad=2,layout=nhwc",
    "conv2d:c=4,f=9,r=3,s=3,dilation=2.1,stride=1.2,pad=2.1",
    "conv1d:c=18,f=17,s=7,stride=3,pad=2,layout=nwc",
)
TRANSPOSED = (
    "conv_transpose2d:c=6,f=10,r=4,s=4,stride=2,pad=1",
    "conv_transpose2d:c=17,f=33,r=4,s=2,stride=2.1,pad=1.0.0.1",
    "conv_transpose2d:c=5,f=18,r=4,s=6,stride=2.3,pad=1.2.0.1,opad=1,layout=nhwc",
    "conv_transpose1d:c=8,f=16,s=4,stride=2,pad=1",
    "conv_transpose1d:c=9,f=7,s=16,stride=8,pad=4",
)
FUSED = (
    "conv_transpose2d:c=6,f=21,r=4,s=4,stride=2,pad=1,epilogue=bias+residual+relu",
    "conv_transpose2d:c=6,f=21,r=4,s=4,stride=2,pad=1,layout=nhwc,epilogue=bias+silu",
    "conv_transpose1d:c=6,f=19,s=4,stride=2,pad=1,epilogue=bias+gelu",
    "conv2d:c=16,f=20,r=3,s=3,pad=1,epilogue=bias+relu",
    "conv2d:c=7,f=37,r=3,s=3,pad=1,epilogue=scale+gelu+bias",
    "conv2d:c=9,f=18,r=3,s=3,pad=1,epilogue=bias+residual+relu",
    "conv2d:c=9,f=16,r=3,s=3,layout=nhwc,epilogue=bias+residual+silu",
    "conv1d:c=18,f=20,s=5,pad=2,epilogue=bias+gelu",
    "conv2d:c=3,f=20,r=7,s=7,stride=2,pad=3,epilogue=bias+relu",
    "conv1d:c=18,f=20,s=3,dilation=5,pad=5,epilogue=bias+relu",
    "conv2d:c=18,f=20,r=3,s=3,dilation=2,pad=2,epilogue=bias+residual+relu",
    "conv2d:c=18,f=16,r=3,s=3,dilation=2,pad=2,layout=nhwc,epilogue=bias+residual+relu",
    "conv1d:c=18,f=20,s=6,pad=3,epilogue=bias+residual+relu",
    "conv1d:c=18,f=16,s=3,pad=1,layout=nwc,epilogue=bias+residual+relu",
)


@pytest.fixture(scope="module", params=LANES_HERE)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    ops = [filtering_conv(spec, request.param) for spec in (*SPECS, *TRANSPOSED)]
    return c_pack(tmp_path_factory.mktemp("conv") / "pack", ops)


@pytest.fixture(params=[1, 3])
def pack(path: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    with haotuner.load(path, threads=request.param) as opened:
        yield opened


def sizes(op: Op, draw: np.random.Generator) -> list[Shape]:
    """Of each cell along w, and far beyond one block of tiles."""
    drawn = [(int(draw.integers(1, 3)), int(draw.integers(3, 20)), w) for w in (3, 5, 6, 7, 9, 12, 13)]
    far = [(2, 66, 12), (3, 70, 6)] if "h" in op.axes else [(2, 1, 900), (40, 1, 6), (3, 1, 24)]
    shapes = [{"b": b, "h": h, "w": w} for b, h, w in [*drawn, *far]]
    return [Shape.of({axis: shape[axis] for axis in op.dynamic}) for shape in shapes]


@pytest.mark.parametrize("spec", [*SPECS, *TRANSPOSED])
def test_every_shape_is_right(pack, spec):
    op, draw = Op.parse(spec), np.random.default_rng(0)
    for index, shape in enumerate(sizes(op, draw)):
        inputs = numerics.draw(op, shape, draw)
        bias = draw.standard_normal(op["f"]).astype(np.float32) if index % 2 else None
        bound = pack.op(op.name).bind(inputs["weight"], bias)
        assert np.array_equal(bound.weight(), inputs["weight"])
        out = numerics.Guarded(op.operand_shape(op.meaning.output, shape))
        bound(numerics.spaced(inputs["x"], 3), out=out.inner)
        assert not out.touched(), shape
        axes = op.meaning.output.axes(op.all_options())
        after = 0 if bias is None else bias.reshape([-1 if axis == "f" else 1 for axis in axes])
        how = numerics.computed_by(pack.op(op.name).entry.kernels)
        verdict = numerics.compare(
            out.inner,
            numerics.reference(op, inputs) + after,
            numerics.tolerance(op, inputs, numerics.reference(op, inputs), how) + 1e-6 * np.abs(after),
        )
        assert not verdict.wrong, (shape, str(verdict))
        assert np.array_equal(bound(inputs["x"]), out.inner)


def test_two_outputs_each_way_are_exact_on_whole_numbers(pack):
    op, draw = Op.parse(SPECS[1]), np.random.default_rng(1)
    shape = Shape.of({"b": 2, "h": 9, "w": 6})  # of the first cell
    inputs = numerics.draw(op, shape, draw, whole=True)
    assert np.array_equal(pack.op(op.name).bind(inputs["weight"])(inputs["x"]), numerics.reference(op, inputs))


def test_a_pack_verifies_and_says_what_it_holds(path):
    assert verify(path) == []
    with haotuner.load(path) as pack:
        entry = pack.op(Op.parse(SPECS[0]).name).entry
        packed = entry.operands[1].packed
        assert 0 < packed["plain"] < packed["floats"]
        assert numerics.computed_by(entry.kernels) == {"filtered": "6"}


def test_epilogues_follow(tmp_path):
    level = best_level()
    ops = [filtering_conv(spec, LANES[level]) for spec in FUSED]
    pack_library(ops, level, toolchain(), tmp_path / "library.so")
    write_pack(tmp_path / "pack", tmp_path / "library.so", document(ops, level), lambda _: None)
    assert verify(tmp_path / "pack") == []
    draw = np.random.default_rng(1)
    with haotuner.load(tmp_path / "pack", threads=1) as pack:
        for op in map(Op.parse, FUSED):
            for shape in sizes(op, draw):  # lines that end within a vector, and within a tile
                inputs = numerics.draw(op, shape, draw)
                bound = pack.op(op.name).bind(
                    inputs["weight"], **{operand: inputs[operand] for operand in ("scale", "bias") if operand in inputs}
                )
                out = numerics.Guarded(op.operand_shape(op.meaning.output, shape))
                bound(inputs["x"], out=out.inner, **({"residual": inputs["residual"]} if "residual" in inputs else {}))
                assert not out.touched(), shape
                expected = numerics.reference(op, inputs)
                how = numerics.computed_by(pack.op(op.name).entry.kernels)
                verdict = numerics.compare(out.inner, expected, numerics.tolerance(op, inputs, expected, how))
                assert not verdict.wrong, (op.name, shape, str(verdict))
