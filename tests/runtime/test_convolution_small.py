"""Depthwise convolutions of small images, channels first and in the lanes of vectors: every width, type, stride and pad."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import haotuner
from haotuner.backends.cpu.pack_source import pack_library
from haotuner.pack.write import write_pack
from haotuner.spec import numerics
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from tests.run_folder import toolchain
from tests.runtime.conv_packs import packed_conv
from tests.runtime.packs import LANES, LANES_HERE, document

pytestmark = pytest.mark.long

PLAIN = (
    "conv2d:c=37,f=37,r=5,s=5,pad=2,groups=37",
    "conv2d:c=32,f=32,r=3,s=3,pad=1,groups=32",
    "conv2d:c=29,f=29,r=5,s=5,stride=2,pad=2,groups=29",
    "conv2d:c=16,f=16,r=3,s=3,stride=2,pad=1.0.0.2,groups=16",
    "conv2d:c=33,f=33,r=7,s=7,pad=3,groups=33",
    "conv2d:c=18,f=18,r=3,s=4,stride=1.3,dilation=1.2,pad=5.1.2.6,groups=18",
    "conv2d:c=17,f=17,r=5,s=1,pad=7,groups=17",
)
OTHERS = (
    "conv2d:c=37,f=37,r=5,s=5,pad=2,groups=37,epilogue=bias+hardswish",  # reads channels alone: finished on the way
    "conv2d:c=21,f=21,r=3,s=3,pad=1,groups=21,epilogue=scale+bias+residual+relu6",
    "conv2d:c=37,f=37,r=5,s=5,pad=2,groups=37,dtype=bf16,epilogue=bias+relu",
    "conv2d:c=20,f=20,r=3,s=3,stride=2,pad=1,groups=20,dtype=fp16",
    "conv2d:c=37,f=37,r=5,s=5,stride=2,pad=2,groups=37,dtype=int8",
    "conv2d:c=19,f=19,r=3,s=3,pad=1,groups=19,dtype=int8,in=int8,epilogue=scale+bias+relu,out=uint8",
    "conv2d:c=35,f=35,r=3,s=3,pad=1,groups=35,epilogue=bias+residual,out=fp16",
)
EACH_WAY = st.one_of(st.tuples(*2 * [st.integers(1, 24)]), st.tuples(st.integers(25, 200), st.integers(1, 3)))
GAPS = st.sampled_from((0, 3))  # behind each line


@pytest.fixture(scope="module", params=LANES_HERE)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    level = next(level for level, lanes in LANES.items() if lanes == request.param)
    ops = [packed_conv(spec, request.param) for spec in (*PLAIN, *OTHERS)]
    pack_library(ops, level, toolchain(), folder / "library.so")
    write_pack(folder / "pack", folder / "library.so", document(ops, level), lambda _: None)
    return folder / "pack"


@pytest.mark.parametrize("spec", [*PLAIN, *OTHERS])
def test_every_size_is_right(path: Path, spec: str) -> None:
    op = Op.parse(spec)
    packs = {threads: haotuner.load(path, threads=threads) for threads in (1, 3)}

    @given(
        b=st.integers(1, 3),
        size=EACH_WAY,
        threads=st.sampled_from((1, 3)),
        gaps=st.tuples(GAPS, GAPS),
        seed=st.integers(0, 99),
    )
    def law(b: int, size: tuple[int, int], threads: int, gaps: tuple[int, int], seed: int) -> None:
        shape, draw = Shape.of({"b": b, "h": size[0], "w": size[1]}), np.random.default_rng(seed)
        if min(op.extents(shape).values()) < 1:
            return
        inputs = numerics.draw(op, shape, draw, whole=True)
        values = {name: inputs[name] for name in ("scale", "bias") if name in inputs}
        if not op.epilogue and op.plain and seed % 2:
            values["bias"] = draw.integers(-3, 4, op["f"]).astype(np.float32)
        bound = packs[threads].op(op.name).bind(inputs["weight"], **values)
        *lines, line = op.operand_shape(op.meaning.output, shape)
        out = numerics.Guarded((*lines, line + gaps[1]), op.dtype_of(op.meaning.output))
        out.inner[..., line:] = 7
        y = out.inner[..., :line]
        bound(
            numerics.spaced(inputs["x"], gaps[0]),
            out=y,
            **({"residual": inputs["residual"]} if "residual" in inputs else {}),
        )
        assert not out.touched() and (out.inner[..., line:] == 7).all()
        output = y - values["bias"].reshape(-1, 1, 1) if not op.epilogue and "bias" in values else y
        verdict = numerics.check(op, inputs, output, whole=not op.epilogue, computed={})
        assert not verdict.wrong, str(verdict)

    with packs[1], packs[3]:
        law()


@pytest.mark.parametrize("spec", [PLAIN[0], PLAIN[1], PLAIN[4]])
def test_taps_beside_a_small_image_are_not_computed(path: Path, spec: str) -> None:
    """0 times NaN would be NaN: of the window over an image of one pixel one tap counts."""
    op = Op.parse(spec)
    inputs = numerics.draw(op, Shape.of({"b": 2, "h": 1, "w": 1}), np.random.default_rng(0), whole=True)
    marked, middle = np.full_like(inputs["weight"], np.nan), op["r"] // 2
    marked[:, :, middle, middle] = inputs["weight"][:, :, middle, middle]
    with haotuner.load(path, threads=1) as pack:
        assert np.array_equal(pack.op(op.name).bind(marked)(inputs["x"]), numerics.reference(op, inputs))
