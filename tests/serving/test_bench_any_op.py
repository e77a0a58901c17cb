"""Any op in a race: every contender computes it with its epilogue, and a wrong result is seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from haotuner.bench import any_op
from haotuner.bench.any_op import draw, error_share, of_call, raceable
from haotuner.bench.compare import contest_of
from haotuner.bench.contender import Setting, load
from haotuner.bench.field import ANY, GPU, HOST
from haotuner.bench.peers.any_ours import OurAnyOp
from haotuner.bench.sides import copies, drawn
from haotuner.host.processor import host_flags
from haotuner.spec import numerics
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from tests.serving.packs import LANES, best_level, make_pack, packed_op

STEPS = "bias+residual+scale+gelu+clamp"
FLOATS = (
    f"dense:n=6,k=5,epilogue={STEPS}",
    "dense:n=6,k=5,weight=kn,epilogue=bias+hardsigmoid",
    "batch_matmul:k=5,layout=tn,epilogue=bias+gelutanh+relu6",
    f"conv2d:c=4,f=6,r=3,s=3,pad=1,groups=2,layout=nhwc,epilogue={STEPS}",
    "conv2d:c=4,f=6,r=3,s=2,pad=1.0.2.1,epilogue=bias+hardswish",
    "conv_transpose1d:c=4,f=6,s=4,stride=2,pad=1,epilogue=silu+sigmoid+tanh",
    "attention:d=8", "softmax:", "log_softmax:", "layer_norm:affine=scale_bias", "gelu_tanh:",
    "add_layer_norm:affine=scale_bias", "bias_gelu:", "silu:", "reduce_prod:", "reduce_mean:over=first", "transpose:",
)  # fmt: skip
BYTES = (
    "dense:n=6,k=5,dtype=int8",
    "dense:n=6,k=5,dtype=int8,out=fp32,epilogue=scale+bias+relu",
    "conv2d:c=4,f=6,r=3,s=3,pad=1,dtype=int8,layout=nhwc,out=uint8,epilogue=scale+bias+relu",
)

# Without one of these, peers add two products of bytes in 16 bits, which saturate unless weights have seven bits.
EXACT_BYTES = frozenset({"avx512_vnni", "avx_vnni"})


def _shape(op: Op) -> Shape:
    return Shape.of({axis: 3 + place for place, axis in enumerate(op.dynamic)})


def _right(op: Op, given: any_op.Operands) -> Any:
    return numerics.reference(op, given).astype(numerics.numpy_dtype(op.dtype_of(op.meaning.output)))


@pytest.mark.parametrize("spec", [*FLOATS, *BYTES])
def test_right_results_pass_and_wrong_ones_do_not(spec: str) -> None:
    op = Op.parse(spec)
    assert raceable(op) and HOST.raceable(op)
    given = draw(op, _shape(op), 0)
    y = _right(op, given)
    assert error_share(op, given, y) <= 1
    wrong = y.copy()
    wrong.flat[-1] += 3
    assert error_share(op, given, wrong) > 1 and error_share(op, given, y[:1]) == np.inf
    if y.dtype.kind == "f":
        wrong.flat[-1] = np.nan
        assert error_share(op, given, wrong) == np.inf


def test_of_a_large_result_the_first_rows_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    op = Op.parse(f"dense:n=6,k=5,epilogue={STEPS}")
    given = draw(op, Shape.of(m=9), 0)
    y = _right(op, given)
    monkeypatch.setattr(any_op, "CHECKED_FLOPS", 4 * 2 * 6 * 5)
    y[4:] = 0
    assert error_share(op, given, y) <= 1
    y[3] = 0
    assert error_share(op, given, y) > 1


def test_in_16_bits_a_step_may_round_what_it_makes_and_no_more() -> None:
    op = Op.parse("dense:n=64,k=64,dtype=fp16,epilogue=bias+relu")
    given = draw(op, Shape.of(m=64), 0)
    wide = {name: values.astype(np.float32) for name, values in given.items()}
    product = (wide["x"] @ wide["weight"].T).astype(np.float16)
    stepwise = np.maximum(product + given["bias"], 0)
    assert error_share(op, given, stepwise) <= 1 < error_share(op, given, stepwise * np.float16(1.01))


@pytest.fixture(scope="module", params=("torch", "openvino", "onnxruntime"))  # compiling by Inductor takes minutes
def contender(request: pytest.FixtureRequest) -> Any:
    pytest.importorskip(request.param, reason=f"library: {request.param}")
    if request.param != "torch":
        pytest.importorskip("onnx", reason="library: onnx")
    return load(any_op.PEERS[request.param], Setting(threads=1))


@pytest.mark.parametrize("spec", [*FLOATS, *BYTES])
def test_peers_compute_what_the_op_says(spec: str, contender: Any) -> None:
    op = Op.parse(spec)
    weights = copies(ANY, op, _shape(op), 2, 0)
    if not EXACT_BYTES & host_flags():
        weights = [{name: v // 2 if v.dtype == np.int8 else v for name, v in one.items()} for one in weights]
    given = drawn(ANY, op, _shape(op), 0, weights)
    try:
        contender.prepare(op, weights)
        calls = contender.aim(given, 2)
    except NotImplementedError as error:
        pytest.skip(f"said to the user: {error}")
    calls[1]()
    for index in (1, 0):
        assert error_share(op, of_call(op, given, weights, index), contender.result(index)) <= 1


def test_ours_is_raced_as_it_is_served(tmp_path: Path) -> None:
    lanes = LANES[best_level()]
    made = packed_op("dense_n100_k37_bias_residual_silu", lanes, 2 * lanes, splits=("serial", "n", "m"))
    pack = make_pack(tmp_path / "pack", [made], best_level()).path
    contest = contest_of(pack, environment={}, against=None)
    assert (contest.ours, dict(contest.peers), contest.weights) == (any_op.OURS, any_op.PEERS, ("cold",))
    op, ours = contest.ops[0], OurAnyOp(Setting(threads=1, pack=str(pack)))
    weights = copies(ANY, op, _shape(op), 2, 0)
    given = drawn(ANY, op, _shape(op), 0, weights)
    ours.prepare(op, weights)
    ours.aim(given, 2)[1]()
    for index in (1, 0):
        assert error_share(op, of_call(op, given, weights, index), ours.result(index)) <= 1
    assert ours.plan(_shape(op).as_dict()) == "" and ours.overhead_ns(0.0) is None


def test_what_is_not_raced() -> None:
    for spec in ("dense:m=3,n=6,k=5", "grouped:g=2,n=6,k=5"):
        assert not HOST.raceable(Op.parse(spec))
    fused = Op.parse("dense:n=6,k=5,epilogue=relu")
    assert HOST.side(fused) == GPU.side(fused) == ANY and not GPU.side(Op.parse("softmax:dtype=int8"))
