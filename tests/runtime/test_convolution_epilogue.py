"""Convolutions with epilogues: steps behind the sums, values of a feature bound, residuals passed, in every layout."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import haotuner
from haotuner.backends.cpu.pack_source import pack_library
from haotuner.backends.cpu.timer_conv import ConvTimer, conv_facts
from haotuner.backends.cpu.timer_process import Libraries
from haotuner.pack.write import write_pack
from haotuner.spec import numerics
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from haotuner.verify.pack_check import verify
from tests.run_folder import toolchain
from tests.runtime.conv_packs import filtering_conv, packed_conv
from tests.runtime.packs import LANES, best_level, document

SPECS = (
    "conv2d:c=6,f=10,r=3,s=3,pad=1,epilogue=bias+relu",
    "conv2d:c=6,f=9,r=3,s=3,pad=1,layout=nhwc,epilogue=bias+hardswish+residual",
    "conv2d:c=21,f=21,r=3,s=3,pad=1,groups=21,epilogue=scale+bias+residual+relu6",  # planes are finished 16 at a time
    "conv2d:c=19,f=19,r=3,s=3,groups=19,layout=nhwc,epilogue=residual+prelu",
    "conv_transpose2d:c=6,f=8,r=4,s=3,stride=2,pad=1,groups=2,epilogue=residual+clamp",
    "conv_transpose2d:c=6,f=5,r=2,s=2,stride=2,layout=nhwc,epilogue=bias+residual+relu",
    "conv_transpose2d:c=6,f=5,r=2,s=2,stride=2,epilogue=bias+prelu",  # rows of an image are finished as one
    "conv1d:c=7,f=20,s=5,pad=4,dilation=2,epilogue=sigmoid",
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, level = tmp_path_factory.mktemp("conv"), best_level()
    ops = [packed_conv(spec, LANES[level]) for spec in SPECS]
    library = folder / "pack.so"
    pack_library(ops, level, toolchain(), library)
    write_pack(folder / "pack", library, document(ops, level), lambda _: None)
    return folder / "pack"


@pytest.fixture(params=[1, 2])
def pack(path: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    with haotuner.load(path, threads=request.param) as opened:
        yield opened


def split(op: Op, inputs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is bound beside the weight, and what a call passes beside x."""
    bound = {name: inputs[name] for name, axes in op.epilogue_operands.items() if len(axes) == 1}
    return bound, {name: inputs[name] for name in op.epilogue_operands if name not in bound}


@pytest.mark.parametrize("spec", SPECS)
def test_every_shape_is_right(pack, spec):
    op, draw = Op.parse(spec), np.random.default_rng(0)
    for extents in (
        {"b": 1, "h": 3, "w": 5},
        {"b": 2, "h": 7, "w": 11},
        {"b": 3, "h": 9, "w": 23},
        {"b": 1, "h": 20, "w": 17},
    ):
        shape = Shape.of({axis: extents[axis] for axis in op.dynamic})
        inputs = numerics.draw(op, shape, draw)
        bound, passed = split(op, inputs)
        served = pack.op(op.name).bind(inputs["weight"], **bound)
        out = numerics.Guarded(op.operand_shape(op.meaning.output, shape))
        served(
            numerics.spaced(inputs["x"], 3),
            out=out.inner,
            **{name: numerics.spaced(array, 5) for name, array in passed.items()},
        )
        assert not numerics.check(op, inputs, out.inner).wrong and not out.touched(), shape
        assert np.array_equal(served(inputs["x"], **passed), out.inner)


def test_what_an_epilogue_reads_is_asked_for(pack):
    plain, fused = (Op.parse(spec) for spec in SPECS[:2])
    weight = np.ones((9, 6, 3, 3), np.float32)
    with pytest.raises(TypeError, match="bind takes weight, bias; got weight"):
        pack.op(plain.name).bind(np.ones((10, 6, 3, 3), np.float32))
    with pytest.raises(ValueError, match=r"bias has shape \(8,\)"):
        pack.op(fused.name).bind(weight, np.ones(8, np.float32))
    served, x = pack.op(fused.name).bind(weight, 0.5), np.ones((1, 4, 4, 6), np.float32)
    with pytest.raises(TypeError, match="a call takes x and residual="):
        served(x)
    with pytest.raises(ValueError, match="axis p, residual has 3; they must be equal"):
        served(x, residual=np.ones((1, 3, 4, 9), np.float32))
    both = np.ones((1, 4, 4, 9), np.float32)
    with pytest.raises(ValueError, match="out shares memory with residual"):
        served(x, residual=both, out=both)
    frozen = both.copy()
    frozen.setflags(write=False)
    assert np.array_equal(served(x, residual=frozen), served(x, residual=both))


def test_packs_with_epilogues_verify_and_change_hands(path):
    assert verify(path) == []
    op = Op.parse(SPECS[2])
    x, weight = np.ones((1, 21, 4, 4), np.float32), np.ones((21, 1, 3, 3), np.float32)
    with haotuner.load(path) as old, haotuner.load(path) as new:
        served = old.op(op.name).bind(weight, scale=2, bias=0.25)
        expected = served(x, residual=x)
        old.warmup()
        old.hand_over(new)
        assert np.array_equal(served(x, residual=x), expected)


def test_candidates_are_verified_with_their_epilogue(tmp_path):
    from haotuner.backends.cpu.timing_library import measuring_library

    level = best_level()
    lanes = LANES[level]
    by_transforms = filtering_conv("conv2d:c=16,f=20,r=3,s=3,pad=1,epilogue=bias+relu", lanes)
    for packed in (packed_conv(SPECS[1], lanes), packed_conv(SPECS[2], lanes), by_transforms):
        kernel = packed.micro_kernels[0]
        out = tmp_path / f"{packed.kind}{kernel.family}.so"
        measuring_library([kernel], level, toolchain(), out)
        job = {"library": str(out), "op": packed.name, "tile": {"q": kernel["nr"]}, "seed": 0, **conv_facts(kernel),
               "kernel": 0, "sample_ns": 10_000, "limit_ns": 500_000, "least": 2, "most": 4, "cold_bytes": 0,
               "shape": {"b": 1, "h": 5, "w": 6}, "axis": 255, "threads": 1}  # fmt: skip
        timer = ConvTimer(Libraries())
        assert 0 <= timer.verify(job)["max_error"] < 1 and min(timer.time(job)["samples_us"]) > 0
