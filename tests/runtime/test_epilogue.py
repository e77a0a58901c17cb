"""Epilogues: steps in any order, once for every element whatever plan computed it; what a call or a bind refuses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import haotuner
from haotuner.runtime.pack import Pack
from haotuner.spec import numerics
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from haotuner.verify.pack_check import verify
from tests.runtime.packs import LANES, LIMIT, best_level, make_pack, packed_op

FUSED = tuple(  # n = 100 leaves columns over after whole vectors, n = 5 has none
    f"dense_n{n}_k37_{steps}"
    for n, steps in (
        (100, "bias_relu"), (100, "bias_gelu"), (5, "bias_gelutanh_residual"), (100, "bias_residual_silu"), (5, "sigmoid"),
        (100, "scale_bias_clamp"), (64, "residual_hardswish"), (100, "tanh_scale"), (5, "hardsigmoid"), (100, "relu6"),
        (100, "bias_prelu"), (100, "bias_mish"), (100, "silu_mul"),
    )
)  # fmt: skip
FULL = "dense_n100_k37_bias_residual_silu"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack of fused ops; plans share columns, rows and terms of the sum, and cut k in parts from 24 rows on."""
    level = best_level()
    ops = [packed_op(name, LANES[level], 2 * LANES[level], splits=("serial", "n", "m")) for name in FUSED]
    return make_pack(tmp_path_factory.mktemp("fused") / "pack", ops, level).path


@pytest.fixture(params=[1, 2, 3], ids=lambda t: f"threads{t}")
def pack(folder: Path, request: pytest.FixtureRequest) -> Iterator[Pack]:
    with haotuner.load(folder, threads=request.param) as opened:
        yield opened


def bound(pack: Pack, name: str, drawn: dict[str, Any]) -> tuple[Any, list[str]]:
    op = Op.parse(name)
    constants = {key: drawn[key] for key, axes in op.epilogue_operands.items() if len(axes) == 1}
    return pack.op(name).bind(drawn["weight"], **constants), [key for key in op.epilogue_operands if key not in constants]


@pytest.mark.parametrize("name", FUSED)
def test_every_element_goes_through_the_steps_once(pack: Pack, name: str) -> None:
    op, rng = Op.parse(name), np.random.default_rng(3)
    drawn = numerics.draw(op, Shape.of(m=333), rng)
    linear, passed = bound(pack, name, drawn)
    for m in (0, 1, 2, 3, 7, 23, 24, 31, LIMIT, LIMIT + 1, 333):
        inputs = drawn | {key: drawn[key][:m] for key in ("x", *passed)}
        out = numerics.Guarded((m, op["n"])) if m else None
        spaced = {key: numerics.spaced(inputs[key], 3) for key in passed}
        result = linear(numerics.spaced(inputs["x"], 3), out=None if out is None else out.inner, **spaced)
        assert result.shape == (m, op["n"])
        if out is not None:
            verdict = numerics.check(op, inputs, result)
            assert not verdict.wrong and not out.touched(), (m, str(verdict))


def test_a_pack_of_fused_ops_verifies_and_a_wrong_step_shows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert verify(folder) == []
    from haotuner.ops import epilogue

    wrong = dict(epilogue.STEPS) | {"relu": epilogue.STEPS["relu6"]}
    monkeypatch.setattr(numerics, "STEPS", wrong)
    assert any("bias_relu" in problem for problem in verify(folder))


def test_nan_and_infinity_come_out_as_numpy_has_them(folder: Path) -> None:
    special = np.array([np.nan, np.inf, -np.inf, 0.0], np.float32)
    with haotuner.load(folder, threads=1) as pack, np.errstate(invalid="ignore"):
        for name in FUSED:
            op = Op.parse(name)
            drawn = numerics.draw(op, Shape.of(m=4), np.random.default_rng(5))
            linear, passed = bound(pack, name, drawn)
            drawn["x"][:] = special[:, None] * np.ones(op["k"], np.float32)
            drawn["x"][:, 1:] = 0  # one infinite term: no difference of two
            output = linear(drawn["x"], **{key: drawn[key] for key in passed})
            with np.errstate(over="ignore"):
                expected = numerics.reference(op, drawn)
            assert np.array_equal(np.isnan(output), np.isnan(expected)), name
            infinite = np.isinf(expected)
            assert np.array_equal(output[infinite], expected[infinite]), name


def test_a_row_has_the_same_bits_wherever_it_lies(folder: Path) -> None:
    drawn = numerics.draw(Op.parse(FULL), Shape.of(m=300), np.random.default_rng(6))
    with haotuner.load(folder, threads=1) as pack:
        linear, _ = bound(pack, FULL, drawn)
        whole = linear(drawn["x"], residual=drawn["residual"])
        shifted = np.empty((300, 103), np.float32)[:, 3:]
        assert np.array_equal(linear(drawn["x"], residual=drawn["residual"], out=shifted), whole)


def test_what_a_bind_refuses(folder: Path) -> None:
    weight, row = np.zeros((100, 37), np.float32), np.zeros(100, np.float32)
    with haotuner.load(folder) as pack:
        relu, clamp = pack.op("dense_n100_k37_bias_relu"), pack.op("dense_n100_k37_scale_bias_clamp")
        with pytest.raises(TypeError, match="bind takes weight, bias; got weight"):
            relu.bind(weight)
        with pytest.raises(TypeError, match="bind takes weight, bias; got weight, bias, scale"):
            relu.bind(weight, row, scale=row)
        with pytest.raises(ValueError, match=r"bias has shape \(99,\); expected \(100,\)"):
            relu.bind(weight, np.zeros(99, np.float32))
        with pytest.raises(TypeError, match="bias is float64"):
            relu.bind(weight, np.zeros(100))
        with pytest.raises(ValueError, match="low is above high in column 0"):
            clamp.bind(weight, row, scale=2.0, low=1.0, high=0.0)
        assert (clamp.bind(weight, 5.0, scale=1.0, low=0.0, high=2.0)(np.zeros((3, 37), np.float32)) == 2).all()
        for number in (np.full((), 5, np.float32), np.full(1, 5, np.float32)):  # as a number, whatever it lies in
            assert (clamp.bind(weight, number, scale=number, low=0.0, high=30.0)(np.zeros((3, 37), np.float32)) == 5).all()


def test_what_a_call_refuses(folder: Path) -> None:
    weight, row = np.zeros((100, 37), np.float32), np.zeros(100, np.float32)
    x, residual = np.zeros((4, 37), np.float32), np.zeros((4, 100), np.float32)
    with haotuner.load(folder) as pack:
        plain, full = pack.op("dense_n100_k37_bias_relu").bind(weight, row), pack.op(FULL).bind(weight, row)
        with pytest.raises(TypeError, match="a call takes x and nothing but out=; got residual"):
            plain(x, residual=residual)
        with pytest.raises(TypeError, match="a call takes x and residual="):
            full(x)
        with pytest.raises(ValueError, match="out shares memory with residual"):
            full(x, out=residual, residual=residual)
        for wrong, words in (
            (residual[:3], "residual has extent 3 in axis 0, out has 4"),
            (residual[:, :99], "residual has last extent 99; expected 100"),
            (residual[0], "residual has rank 1, out has rank 2"),
        ):
            with pytest.raises(ValueError, match=words):
                full(x, residual=wrong)
        for wrong in (residual.astype(np.float64), "r", None):
            with pytest.raises(TypeError, match="residual"):
                full(x, residual=wrong)
        frozen = residual.copy()
        frozen.setflags(write=False)
        assert full(x, residual=frozen).shape == (4, 100)


def test_a_linear_is_rebound_twinned_and_handed_over(folder: Path) -> None:
    drawn = numerics.draw(Op.parse(FULL), Shape.of(m=9), np.random.default_rng(8))
    first, second = haotuner.load(folder, threads=1), haotuner.load(folder, threads=1)
    linear, _ = bound(first, FULL, drawn)
    twin = linear.twin()
    expected = linear(drawn["x"], residual=drawn["residual"])
    linear.rebind(drawn["weight"], drawn["bias"] + 1)
    assert not np.array_equal(linear(drawn["x"], residual=drawn["residual"]), expected)
    first.hand_over(second)
    assert np.array_equal(twin(drawn["x"], residual=drawn["residual"]), expected)
    second.close()
    with pytest.raises(haotuner.errors.PackClosed):
        twin(drawn["x"], residual=drawn["residual"])


def test_torch_operators_take_what_the_epilogue_reads(folder: Path) -> None:
    torch = pytest.importorskip("torch")
    import haotuner.torch

    drawn = numerics.draw(Op.parse(FULL), Shape.of(m=6), np.random.default_rng(9))
    tensors = {key: torch.from_numpy(value) for key, value in drawn.items()}
    with haotuner.load(folder, threads=1) as pack, haotuner.torch.register(pack) as handle:
        linear, _ = bound(pack, FULL, drawn)
        expected = linear(drawn["x"], residual=drawn["residual"])
        packed, operator = handle.pack_weight(FULL, tensors["weight"]), getattr(torch.ops.haotuner, FULL)
        with torch.inference_mode():
            assert np.array_equal(operator(tensors["x"], packed, tensors["bias"], tensors["residual"]), expected)
            turned = tensors["residual"].T.contiguous().T
            out = torch.empty(6, 100)
            operator.out(tensors["x"], packed, tensors["bias"], turned, out=out)
            assert np.array_equal(out, expected)
            with pytest.raises(ValueError, match="residual has extent 5"):
                operator(tensors["x"], packed, tensors["bias"], tensors["residual"][:5])
            with pytest.raises((TypeError, RuntimeError), match="bias"):
                operator(tensors["x"], packed, tensors["bias"].double(), tensors["residual"])
            compiled = torch.compile(lambda x, r: operator(x, packed, tensors["bias"], r), backend="eager", fullgraph=True)
            assert np.array_equal(compiled(tensors["x"], tensors["residual"]), expected)
            assert np.array_equal(linear(tensors["x"], residual=tensors["residual"]), expected)
        with pytest.raises(ValueError, match="requires grad"):
            operator(tensors["x"].requires_grad_(), packed, tensors["bias"], tensors["residual"])
