"""Dense ops in bf16, fp16, int8 and fp32 rounded as they are served: numbers, row bits, types, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import haotuner
from haotuner.runtime.arrays import numpy_type
from haotuner.runtime.pack import Pack
from haotuner.spec import numerics
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from haotuner.verify.pack_check import verify
from tests.runtime.packs import LANES, LIMIT, best_level, make_pack
from tests.runtime.typed_packs import typed_op

BF16 = "dense_n50_k37_bf16"
FULL = "dense_n33_k21_bf16_kn_scale_bias_gelu_residual"
FP16 = "dense_n20_k37_fp16_outfp32_relu"
INT8 = "dense_n50_k37_int8"
BYTES = "dense_n50_k37_int8_outuint8_scale_bias_relu"
ROUNDED = "dense_n50_k37_outbf16_bias_gelu_residual"
OPS = (BF16, FULL, FP16, INT8, BYTES, ROUNDED)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    level = best_level()
    ops = [typed_op(name, LANES[level]) for name in OPS]
    return make_pack(tmp_path_factory.mktemp("typed") / "pack", ops, level).path


@pytest.fixture(params=[1, 2], ids=lambda t: f"threads{t}")
def pack(folder: Path, request: pytest.FixtureRequest) -> Iterator[Pack]:
    with haotuner.load(folder, threads=request.param) as opened:
        yield opened


def drawn(name: str, m: int, seed: int = 0) -> dict[str, Any]:
    return numerics.draw(Op.parse(name), Shape.of(m=m), np.random.default_rng(seed))


def bound(pack: Pack, name: str, operands: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    op = Op.parse(name)
    constants = {key: operands[key] for key, axes in op.epilogue_operands.items() if len(axes) == 1}
    passed = {key: operands[key] for key in op.epilogue_operands if key not in constants}
    return pack.op(name).bind(operands["weight"], **constants), passed


@pytest.mark.parametrize("name", OPS)
def test_results_are_right_and_rows_have_the_bits_of_any_batch(pack: Pack, name: str) -> None:
    whole = drawn(name, LIMIT + 25)
    linear, passed = bound(pack, name, whole)
    every = linear(whole["x"], **passed)
    verdict = numerics.check(Op.parse(name), whole, every)
    assert not verdict.wrong, str(verdict)
    assert every.dtype == numpy_type(Op.parse(name).dtype_of(Op.parse(name).meaning.output))
    for m in (1, 2, 3, 7, 40):
        some = linear(whole["x"][-m:], **{key: value[-m:] for key, value in passed.items()})
        assert some.tobytes() == every[-m:].tobytes()


def test_the_pack_verifies_and_says_how_weights_lie(folder: Path) -> None:
    assert verify(folder) == []
    with haotuner.load(folder, threads=1) as pack:
        entry = pack.op_entry(INT8)
        assert [o.dtype for o in entry.operands] == ["uint8", "int8", "int32"] and entry.operands[1].packed["terms"] == 4
        assert [o.dtype for o in pack.op_entry(FULL).operands] == ["bf16", "bf16", "fp32", "fp32", "bf16", "bf16"]
        assert [o.dtype for o in pack.op_entry(ROUNDED).operands] == ["fp32", "fp32", "fp32", "bf16", "bf16"]


@pytest.mark.parametrize("name", OPS)
def test_a_weight_comes_back_as_it_was_bound_and_can_be_replaced(pack: Pack, name: str) -> None:
    operands, other = drawn(name, 5), drawn(name, 5, seed=1)
    linear, passed = bound(pack, name, operands)
    assert linear.weight().tobytes() == operands["weight"].tobytes() and linear.packed_bytes > 0
    twin = linear.twin()
    constants = {key: other[key] for key, axes in Op.parse(name).epilogue_operands.items() if len(axes) == 1}
    linear.rebind(other["weight"], **constants)
    assert not numerics.check(Op.parse(name), {**other, "x": operands["x"], **passed}, linear(operands["x"], **passed)).wrong
    assert twin.weight().tobytes() == operands["weight"].tobytes()


def test_bits_stand_for_bfloat16_and_read_only_arrays_are_taken(pack: Pack) -> None:
    operands = drawn(BF16, 6)
    linear, _ = bound(pack, BF16, operands)
    expected = linear(operands["x"])
    bits = linear(operands["x"].view(np.uint16))
    assert expected.dtype == operands["x"].dtype and bits.dtype == np.uint16 and bits.tobytes() == expected.tobytes()
    frozen = operands["x"].copy()
    frozen.flags.writeable = False
    assert linear(frozen).tobytes() == expected.tobytes()
    with_bias = pack.op(BF16).bind(operands["weight"].view(np.uint16), np.ones(50, np.float32))
    assert np.allclose(with_bias(operands["x"]).astype(np.float32), expected.astype(np.float32) + 1, atol=0.1)
    pack.warmup()


def test_packs_change_under_typed_linears(folder: Path) -> None:
    operands = drawn(BYTES, 9)
    old = haotuner.load(folder, threads=1)
    linear, _ = bound(old, BYTES, operands)
    expected = linear(operands["x"]).tobytes()
    new = haotuner.load(folder, threads=1)
    old.hand_over(new)
    assert linear(operands["x"]).tobytes() == expected
    new.close()
    with pytest.raises(haotuner.errors.PackClosed):
        linear(operands["x"])


def test_other_types_shapes_and_shared_memory_are_refused(pack: Pack) -> None:
    operands, bytes_ = drawn(BF16, 4), drawn(BYTES, 4)
    linear, _ = bound(pack, BF16, operands)
    scaled, _ = bound(pack, BYTES, bytes_)
    x, weight = operands["x"], operands["weight"]
    for wrong in (x.astype(np.float32), x.astype(np.float16), [[1.0]]):
        with pytest.raises(TypeError, match="x "):
            linear(wrong)
    with pytest.raises(TypeError, match="x has dtype int8; expected uint8"):
        scaled(bytes_["x"].view(np.int8))
    with pytest.raises(TypeError, match="weight is float32; expected bfloat16"):
        pack.op(BF16).bind(weight.astype(np.float32))
    with pytest.raises(ValueError, match=r"weight has shape \(50, 36\); expected \(50, 37\)"):
        pack.op(BF16).bind(weight[:, :36])
    with pytest.raises(ValueError, match=r"bias has shape \(3,\); expected \(50,\)"):
        pack.op(BF16).bind(weight, np.zeros(3, np.float32))
    with pytest.raises(TypeError, match="bind takes weight, scale, bias"):
        pack.op(BYTES).bind(bytes_["weight"])
    with pytest.raises(TypeError, match="bind takes weight; got weight, bias"):
        pack.op(INT8).bind(bytes_["weight"], np.zeros(50, np.float32))
    with pytest.raises(ValueError, match="last extent 36"):
        linear(x[:, :36])
    with pytest.raises(TypeError, match="out has dtype float32"):
        linear(x, out=np.zeros((4, 50), np.float32))
    room = np.zeros(4 * 50, np.uint16)
    with pytest.raises(ValueError, match="shares memory"):
        linear(room[: 4 * 37].reshape(4, 37), out=room.reshape(4, 50))
    with pytest.raises(TypeError, match="residual"):
        bound(pack, FULL, drawn(FULL, 4))[0](drawn(FULL, 4)["x"])
    assert linear(x[:0]).shape == (0, 50)


def test_strides_and_guards_are_kept(pack: Pack) -> None:
    for name in (BF16, BYTES):
        operands = drawn(name, 11)
        linear, _ = bound(pack, name, operands)
        expected = linear(operands["x"])
        out = numerics.Guarded(expected.shape, Op.parse(name).dtype_of(Op.parse(name).meaning.output))
        linear(numerics.spaced(operands["x"], 3), out=out.inner)
        assert out.inner.tobytes() == expected.tobytes() and not out.touched()
        linear(operands["x"], out=expected[::-1])  # rows backwards
        assert expected[::-1].tobytes() == out.inner.tobytes()
