"""Convolutions and batched products in bf16, fp16, int8, signed bytes, fp32 rounded, as they are served at every level."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import haotuner
from haotuner.backends.cpu.pack_source import pack_library
from haotuner.errors import HaotunerError
from haotuner.host.processor import missing_flags
from haotuner.pack.write import write_pack
from haotuner.runtime.convolution import Convolution
from haotuner.runtime.pack import Pack
from haotuner.spec import numerics
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from haotuner.verify.pack_check import verify
from tests.run_folder import toolchain
from tests.runtime.conv_packs import packed_conv
from tests.runtime.odd_tensors import ODD, odd
from tests.runtime.packs import LANES, best_level, document, rewrite
from tests.runtime.product_packs import packed_product
from tests.runtime.typed_packs import typed_op

CONVOLUTIONS = (
    "conv2d:c=6,f=20,r=3,s=3,pad=1,dtype=bf16",
    "conv2d:c=8,f=9,r=3,s=2,stride=2,pad=1.0,dtype=bf16,layout=nhwc,epilogue=bias+hardswish+residual",
    "conv2d:c=21,f=21,r=3,s=3,pad=1,stride=2,groups=21,dtype=bf16,layout=nhwc,epilogue=bias+relu",
    "conv2d:c=6,f=12,r=3,s=3,pad=1,groups=6,dtype=fp16,epilogue=bias+residual",
    "conv_transpose2d:c=4,f=10,r=4,s=4,stride=2,pad=1,dtype=fp16",
    "conv1d:c=6,f=5,s=5,dilation=2,pad=4,groups=1,dtype=int8,epilogue=scale+bias+relu,out=uint8",
    "conv2d:c=9,f=20,r=1,s=1,dtype=int8,layout=nhwc",
    "conv2d:c=8,f=18,r=2,s=3,pad=1,groups=2,dtype=int8,in=int8",
    "conv2d:c=7,f=7,r=3,s=3,pad=1,groups=7,dtype=int8,in=int8",
    "conv2d:c=17,f=17,r=5,s=5,pad=2.1.2.3,groups=17,dtype=int8,layout=nhwc",
    "conv2d:c=3,f=6,r=5,s=5,pad=1.2.3.0,stride=2,groups=3,dtype=bf16",
    *(  # fp32, rounded where a tile's sums are stored
        "conv2d:c=6,f=20,r=3,s=3,pad=1,epilogue=bias+relu+residual,out=bf16",
        "conv2d:c=32,f=18,r=3,s=3,pad=1,layout=nhwc,epilogue=bias+silu,out=fp16",  # from lines
        "conv2d:c=9,f=20,r=1,s=1,layout=nhwc,out=bf16",
        "conv1d:c=6,f=8,s=5,dilation=2,pad=4,groups=2,out=fp16",
        "conv_transpose2d:c=4,f=10,r=4,s=4,stride=2,pad=1,epilogue=bias,out=bf16",
        "conv2d:c=6,f=12,r=3,s=3,pad=1,groups=6,epilogue=bias+residual,out=fp16",
        "conv2d:c=21,f=21,r=5,s=5,pad=2,stride=2,groups=21,layout=nhwc,epilogue=bias+relu,out=bf16",
        "conv2d:c=3,f=6,r=5,s=4,pad=1.2.3.0,stride=3,groups=3,out=uint8",  # no program: pixels of lines with gaps
    ),
    *(  # taps of a line are whole steps of 64 bytes: windows are read from padded lines
        "conv2d:c=64,f=20,r=3,s=3,pad=1.2.0.1,groups=2,dtype=bf16,layout=nhwc,epilogue=bias+residual",
        "conv2d:c=64,f=18,r=3,s=1,dilation=2.1,pad=2.0,dtype=int8,in=int8",
        "conv1d:c=32,f=18,s=3,pad=1,dtype=fp16",
    ),
)
PRODUCTS = (
    "batch_matmul:k=37,layout=nt,dtype=bf16",
    "batch_matmul:layout=nn,dtype=bf16,out=fp32",
    "batch_matmul:k=10,layout=tn,dtype=fp16",
    "batch_matmul:layout=nt,dtype=int8",
    "batch_matmul:k=9,layout=nn,dtype=int8,in=int8,out=int8,epilogue=relu",
    "batch_matmul:k=37,layout=nt,epilogue=gelu,out=bf16",
    "batch_matmul:layout=nn,out=fp16",
    "batch_matmul:layout=tn,out=bf16",
)
# Of AMX at its level, where other CPUs run them as SIMD tiles.
CONVOLUTIONS_ON_TILES = (
    "conv2d:c=9,f=20,r=3,s=3,pad=1,dtype=bf16,epilogue=bias+relu",
    "conv2d:c=70,f=33,r=1,s=1,dtype=int8,layout=nhwc",
    "conv1d:c=30,f=18,s=3,pad=1,groups=2,dtype=int8,in=int8",
    "conv_transpose2d:c=4,f=10,r=4,s=4,stride=2,pad=1,dtype=bf16",
    "conv2d:c=32,f=33,r=3,s=3,pad=1,dtype=bf16,epilogue=bias+relu",  # from lines
    "conv2d:c=64,f=18,r=2,s=3,pad=1,dtype=int8,layout=nhwc",
)
PRODUCTS_ON_TILES = (
    "batch_matmul:k=1700,layout=nn,dtype=bf16,out=fp32",
    "batch_matmul:k=70,layout=nt,dtype=bf16",
    "batch_matmul:layout=tn,dtype=int8,in=int8",
)
AMX_LANES = 16
SIGNED = "dense_n33_k21_int8_inint8"
LEVELS = tuple(level for level in LANES if not missing_flags(level))


def made(out: Path, level: str) -> Path:
    lanes = LANES[level]
    ops: list[Any] = [packed_conv(spec, lanes) for spec in CONVOLUTIONS]
    ops += [packed_product(spec, lanes) for spec in PRODUCTS]
    if level == best_level():
        ops += [packed_conv(spec, lanes, on_tiles=lanes == AMX_LANES) for spec in CONVOLUTIONS_ON_TILES]
        ops += [packed_product(spec, lanes, on_tiles=lanes == AMX_LANES) for spec in PRODUCTS_ON_TILES]
    ops.append(typed_op(SIGNED, lanes))
    library = out / "pack.so"
    pack_library(ops, level, toolchain(), library)
    write_pack(out / "pack", library, document(ops, level), lambda _: None)
    return out / "pack"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("kinds"), best_level())


@pytest.fixture
def pack(folder: Path) -> Iterator[Pack]:
    with haotuner.load(folder, threads=2) as opened:
        yield opened


@pytest.mark.long
def test_every_op_verifies(folder: Path) -> None:
    assert verify(folder, most_flops=1e6) == []


@pytest.mark.long
@pytest.mark.parametrize("level", [level for level in LEVELS if level != best_level()])
def test_every_op_verifies_on_an_older_level(tmp_path: Path, level: str) -> None:
    assert verify(made(tmp_path, level), most_flops=1e5) == []


@pytest.mark.long
def test_the_promise_of_bits_is_checked_for_every_kind(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    promising = tmp_path / "pack"
    shutil.copytree(folder, promising)
    rewrite(promising, batch_invariant=True)
    assert verify(promising, most_flops=1e4) == []
    honest = Convolution.__call__

    def careless(self: Convolution, x: Any, out: Any = None, **inputs: Any) -> Any:
        output = honest(self, x, out, **inputs)
        if len(x) > 1 and out is None:
            output[0].reshape(-1)[0] += 1
        return output

    monkeypatch.setattr(Convolution, "__call__", careless)
    problems = [problem for problem in verify(promising, most_flops=1e4) if "as promised" in problem]
    assert {problem.partition(" ")[0] for problem in problems} >= {
        Op.parse(spec).name for spec in CONVOLUTIONS + CONVOLUTIONS_ON_TILES
    }


@pytest.mark.parametrize("spec", CONVOLUTIONS + CONVOLUTIONS_ON_TILES)
def test_an_image_has_the_bits_of_any_batch_and_weights_come_back(pack: Pack, spec: str) -> None:
    op = Op.parse(spec)
    for side in (9, 5):  # of three small images columns are laid out, of one perhaps lines
        whole = Shape.of({axis: 3 if axis == "b" else side for axis in op.dynamic})
        drawn = numerics.draw(op, whole, np.random.default_rng(0))
        constants = {key: drawn[key] for key, axes in op.epilogue_operands.items() if len(axes) == 1}
        passed = [key for key in op.epilogue_operands if key not in constants]
        served = pack.op(op.name).bind(drawn["weight"], **constants)
        every = served(drawn["x"], **{key: drawn[key] for key in passed})
        assert not numerics.check(op, drawn, every).wrong
        last = served(drawn["x"][2:], **{key: drawn[key][2:] for key in passed})
        assert last.tobytes() == every[2:].tobytes()
    assert served.weight().tobytes() == drawn["weight"].tobytes()


@pytest.mark.parametrize("spec", PRODUCTS + PRODUCTS_ON_TILES)
def test_products_take_any_strides_and_what_comes_beside(pack: Pack, spec: str) -> None:
    op, rng = Op.parse(spec), np.random.default_rng(1)
    drawn = numerics.draw(op, Shape.of({axis: 4 if axis == "b" else 23 for axis in op.dynamic}), rng)
    x, w, run = drawn["x"], drawn["w"], pack.op(op.name).run
    plain = run(x, w)
    assert not numerics.check(op, drawn, plain).wrong
    turned = [np.ascontiguousarray(value.transpose(2, 0, 1)).transpose(1, 2, 0) for value in (x, w)]
    assert run(*turned).tobytes() == plain.tobytes()
    assert run(x[:, ::-1] if op.option("layout") != "tn" else x[:, :, ::-1], w).tobytes() == plain[:, ::-1].tobytes()
    scaled = run(x, w[:1], scale=0.5, bias=np.ones(plain.shape[-1], np.float32))
    expected = np.asarray(run(x, w[:1]), np.float64) * 0.5 + 1
    assert scaled.shape == plain.shape
    if op.dtype_of(op.meaning.output) == "int32":  # below 2^24 in float32: exact before they are rounded
        assert np.array_equal(scaled, np.rint(expected))
    if op.dtype_of(op.meaning.output) == "fp32":
        assert np.allclose(scaled, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("spec", (*PRODUCTS, *PRODUCTS_ON_TILES[1:]))
def test_single_elements_side_by_side_have_the_bits_of_each_alone(pack: Pack, spec: str) -> None:
    op = Op.parse(spec)
    shape = Shape.of({axis: {"b": 40, "k": 21}.get(axis, 1) for axis in op.dynamic})
    drawn = numerics.draw(op, shape, np.random.default_rng(5))
    x, w, run = drawn["x"], drawn["w"], pack.op(op.name).run
    several = run(x, w)
    assert not numerics.check(op, drawn, several).wrong
    apart = np.zeros((5, 9, *x.shape[1:]), x.dtype)[:, :8]  # two axes that do not fold: one matrix at a time
    apart[...] = x.reshape(apart.shape)
    assert run(apart, w.reshape(5, 8, *w.shape[1:])).tobytes() == several.tobytes()
    beside = {"scale": np.linspace(0, 2, 40, dtype=np.float32), "mask": np.ones((40, 1, 1), np.float32)}
    spread = {"scale": beside["scale"].reshape(5, 8), "mask": beside["mask"].reshape(5, 8, 1, 1)}
    assert run(apart, w.reshape(5, 8, *w.shape[1:]), **spread).tobytes() == run(x, w, **beside).tobytes()


@pytest.mark.parametrize("k", [37, 300])
def test_wide_products_have_the_bits_of_their_columns_alone(pack: Pack, k: int) -> None:
    """Which blocks and which tiles a column meets follows from how many there are."""
    run, draw = pack.op("batch_matmul_int8_nt").run, np.random.default_rng(9)
    x, w = draw.integers(0, 256, (2, 7, k), np.uint8), draw.integers(-128, 128, (2, 1301, k), np.int8)
    every = run(x, w)
    assert np.array_equal(every, np.einsum("bmk,bnk->bmn", x.astype(np.int32), w.astype(np.int32)))
    for columns in (1300, 1025, 1000, 700, 521, 257, 250, 241, 136, 49, 31):
        assert np.array_equal(run(x, w[:, :columns]), every[..., :columns]), columns


def test_a_long_sum_is_taken_in_parts(pack: Pack) -> None:
    op = Op.parse("batch_matmul:layout=nt,dtype=int8")
    drawn = numerics.draw(op, Shape.of(b=1, m=13, n=40, k=9001), np.random.default_rng(2))
    assert not numerics.check(op, drawn, pack.op(op.name).run(drawn["x"], drawn["w"])).wrong


def test_integers_take_no_bias_beside_and_other_types_are_refused(pack: Pack) -> None:
    op = Op.parse(CONVOLUTIONS[6])
    drawn = numerics.draw(op, Shape.of(b=1, h=4, w=4), np.random.default_rng(0))
    with pytest.raises(TypeError, match="bind takes weight; got weight, bias"):
        pack.op(op.name).bind(drawn["weight"], np.zeros(20, np.float32))
    served = pack.op(op.name).bind(drawn["weight"])
    with pytest.raises(TypeError, match="x has dtype int8; expected uint8"):
        served(drawn["x"].astype(np.int8))
    with pytest.raises(TypeError, match="w has dtype uint8; expected int8"):
        pack.op("batch_matmul_int8_nt").run(np.zeros((1, 2, 4), np.uint8), np.zeros((1, 2, 4), np.uint8))


FUZZED = (CONVOLUTIONS[0], CONVOLUTIONS[1], CONVOLUTIONS[5], CONVOLUTIONS[7], *CONVOLUTIONS[-3:], *PRODUCTS,
          *CONVOLUTIONS_ON_TILES, *PRODUCTS_ON_TILES)  # fmt: skip


@settings(max_examples=150, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_odd_tensors_are_right_or_refused_in_words(pack: Pack, data: st.DataObject) -> None:
    op = Op.parse(data.draw(st.sampled_from(FUZZED)))
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 20)))
    extents = {axis: data.draw(st.integers(1, 9)) for axis in op.dynamic}
    shape = Shape.of(extents)
    if min(op.extents(shape).values()) < 1:
        return  # nothing is left of the image
    inputs = numerics.draw(op, shape, rng)
    passed = [o.name for o in op.meaning.inputs if o.role == "input"]
    passed += [name for name, axes in op.epilogue_operands.items() if len(axes) > 1]
    constants = {name: inputs[name] for name in op.epilogue_operands if name not in passed}
    at, way = data.draw(st.sampled_from([*passed, "out"])), data.draw(st.sampled_from(ODD))
    out: Any = np.zeros(op.operand_shape(op.meaning.output, shape), numerics.numpy_dtype(op.dtype_of(op.meaning.output)))
    if at == "out":
        out = odd(rng, out, way)
    given_to = inputs | ({} if at == "out" else {at: odd(rng, inputs[at], way)})
    if data.draw(st.booleans()):
        out = None
    try:
        if op.kind == "batch_matmul":
            output = pack.op(op.name).run(*(given_to[name] for name in passed), out=out)
        else:
            served = pack.op(op.name).bind(inputs["weight"], **constants)
            output = served(given_to["x"], out=out, **{name: given_to[name] for name in passed if name != "x"})
    except (TypeError, ValueError, HaotunerError) as error:
        assert op.name in str(error) or "takes" in str(error), str(error)
        gaps = at != "out" and given_to[at].shape[-1] > 1 and given_to[at].strides[-1] != given_to[at].itemsize
        documented = op.kind != "batch_matmul" and gaps and "inner stride" in str(error)  # an image's rows have no gaps
        assert way not in ("none", "apart") or at == "out" or documented, str(error)
        return
    assert output.size == 0 or output.shape == out.shape if out is not None else True
    if way not in ("axis", "no axis", "longer", "empty", "one", "type"):
        verdict = numerics.check(op, given_to, np.asarray(output))
        assert not verdict.wrong, f"{op.name} {at} {way}: {verdict}"


def test_an_output_over_an_input_is_refused(pack: Pack) -> None:
    memory = np.zeros((1, 8, 8), np.float32)
    x = memory.view(numerics.numpy_dtype("bf16"))[:, :, :8]
    with pytest.raises(ValueError, match="shares memory"):
        pack.op("batch_matmul_bf16_outfp32").run(x, x, out=memory)
    served = pack.op(Op.parse(CONVOLUTIONS[8]).name).bind(np.ones((7, 1, 3, 3), np.int8))
    image = np.zeros((1, 7, 4, 4), np.int32)
    with pytest.raises(ValueError, match="shares memory"):
        served(image.view(np.int8)[..., :4], out=image)
