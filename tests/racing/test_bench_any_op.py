"""Any op in a race: every peer computes it with its epilogue, ours is raced as it is served, and a wrong result is seen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from haotuner.bench import check
from haotuner.bench.check import error_share
from haotuner.bench.compare import contest_of
from haotuner.bench.contender import Setting, UnsupportedOp, load
from haotuner.bench.contest import Contest
from haotuner.bench.field import GPU, HOST
from haotuner.bench.images import ConvAttributes
from haotuner.bench.operands import bound, calls, copies, plain_convolution, result_of, routed
from haotuner.bench.peers.ours import Ours
from haotuner.bench.rotation import resting_bytes
from haotuner.errors import UsageError
from haotuner.host.processor import host_flags
from haotuner.spec.call_case import CallCase
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from tests.runtime.conv_packs import conv_pack
from tests.runtime.packs import LANES, best_level, make_pack, packed_op
from tests.runtime.product_packs import product_pack

STEPS = "bias+residual+scale+gelu+clamp"
CONVOLUTIONS = (
    "conv2d:c=6,f=8,r=3,s=3,pad=1,groups=2", "conv1d:c=5,f=7,s=3,dilation=2,layout=nwc",
    "conv_transpose2d:c=6,f=8,r=3,s=3,pad=1,groups=2,stride=2,opad=1",
    "conv_transpose1d:c=5,f=7,s=4,stride=2,pad=1,layout=nwc",
)  # fmt: skip
FLOATS = (
    "dense:n=6,k=5", "batch_matmul:k=5", "batch_matmul:k=6,layout=nt", "batch_matmul:k=5,layout=tn", *CONVOLUTIONS,
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


def shape_of(op: Op) -> Shape:
    return Shape.of({axis: 4 + index for index, axis in enumerate(op.dynamic)})


def cases_of(op: Op, shape: Shape, count: int = 2) -> list[CallCase]:
    return calls(op, shape, 0, copies(op, shape, count, 0), count)


def rounded_reference(case: CallCase) -> Any:
    return case.reference.astype(result_of(case.op, case.shape).dtype)


def shares(contender: Any, op: Op, shape: Shape, constants: Sequence[Any], count: int) -> list[float]:
    """Errors of the first and the last result of a contender."""
    contender.prepare(op, constants)
    cases = calls(op, shape, 0, constants, count)
    y = result_of(op, shape)
    timed = contender.aim([case.operands for case in cases], y)
    timed[-1]()
    return [error_share(cases[index], contender.result(index)) for index in (count - 1, 0)]


@pytest.mark.parametrize("spec", [*FLOATS, *BYTES])
def test_right_results_pass_and_wrong_ones_do_not(spec: str) -> None:
    op = Op.parse(spec)
    assert HOST.raceable(op)
    first, second = cases_of(op, shape_of(op))
    y = rounded_reference(first)
    assert error_share(first, y) <= 1 and error_share(first, y[:1]) == math.inf
    wrong = y.copy()
    wrong.flat[-1] += 3
    assert error_share(first, wrong) > 1
    if bound(op):
        assert error_share(second, y) > 1
    if y.dtype.kind == "f":
        wrong.flat[-1] = np.nan
        assert error_share(first, wrong) == math.inf


@pytest.mark.parametrize("spec", CONVOLUTIONS)
@pytest.mark.parametrize("flops", [1, check.CHECKED_FLOPS])
def test_of_convolutions_every_element_is_checked(spec: str, flops: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "CHECKED_FLOPS", flops)
    op = Op.parse(spec)
    shape = Shape.of({axis: 9 if axis != "b" else 2 for axis in op.dynamic})
    first, second = cases_of(op, shape)
    assert resting_bytes(op, shape) == first.operands["weight"].nbytes
    right = rounded_reference(first)
    assert error_share(first, right) < 1 < error_share(second, right)
    nudged = right.copy()
    nudged.flat[3] += np.float32(1e-3)
    for wrong in (nudged, np.sort(right, axis=-1), right[::-1].copy()):
        assert error_share(first, wrong) > 1
    rough = (first.operands["x"].view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)  # as bf16
    cut = replace(first, operands={**first.operands, "x": rough})
    assert error_share(first, cut.reference.astype(np.float32)) > 1


def test_of_a_large_result_the_first_the_last_and_drawn_rows_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    op = Op.parse(f"dense:n=6,k=5,epilogue={STEPS}")
    (case,) = cases_of(op, Shape.of(m=900), 1)
    y = rounded_reference(case)
    monkeypatch.setattr(check, "CHECKED_FLOPS", 300 * 2 * 6 * 5)
    assert error_share(case, y) <= 1
    for row in (0, 899):
        wrong = y.copy()
        wrong[row] = 1e6
        assert error_share(case, wrong) > 1
    wrong = y.copy()
    wrong[1:-1] = 1e6
    assert error_share(case, wrong) > 1
    seen = sum(error_share(case, np.where(np.arange(900)[:, None] == row, np.float32(1e6), y)) > 1 for row in range(900))
    assert seen == 300


def test_of_groups_the_first_and_the_last_rows_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    op = Op.parse("grouped:g=4,n=6,k=5")
    (case,) = cases_of(op, Shape.of(m=500), 1)
    assert case.operands["offsets"][-1] == 500 and list(case.operands) == ["x", "weight", "offsets"]
    y = rounded_reference(case)
    for flops in (check.CHECKED_FLOPS, 1):
        monkeypatch.setattr(check, "CHECKED_FLOPS", flops)
        assert error_share(case, y) <= 1
        for end in case.operands["offsets"]:
            for row in range(max(0, end - 1), min(500, end + 1)):
                wrong = y.copy()
                wrong[row, 2] += 3
                assert error_share(case, wrong) > 1
    ends = routed(np.random.default_rng(0), 1000, 8)
    assert ends[-1] == 1000 and (np.diff(ends) >= 0).all() and np.ptp(np.diff(ends, prepend=0)) > 50


def test_in_16_bits_a_step_may_round_what_it_makes_and_no_more() -> None:
    op = Op.parse("dense:n=64,k=64,dtype=fp16,epilogue=bias+relu")
    (case,) = cases_of(op, Shape.of(m=64), 1)
    wide = {name: values.astype(np.float32) for name, values in case.operands.items()}
    product = (wide["x"] @ wide["weight"].T).astype(np.float16)
    stepwise = np.maximum(product + case.operands["bias"], 0)
    assert error_share(case, stepwise) <= 1 < error_share(case, stepwise * np.float16(1.01))


@pytest.fixture(scope="module", params=("torch", "numpy", "openvino", "onnxruntime"))  # Inductor compiles for minutes
def peer(request: pytest.FixtureRequest) -> tuple[str, Any]:
    pytest.importorskip(request.param, reason=f"library: {request.param}")
    if request.param in ("openvino", "onnxruntime"):
        pytest.importorskip("onnx", reason="library: onnx")
    return request.param, load(HOST.peers[request.param], Setting(threads=1))


@pytest.mark.parametrize("spec", [*FLOATS, *BYTES])
def test_peers_compute_what_the_op_says(spec: str, peer: tuple[str, Any]) -> None:
    op, (name, contender) = Op.parse(spec), peer
    if name not in HOST.peers_of(op):
        pytest.skip(f"said to the user: {name} is not set up for it")
    constants = copies(op, shape_of(op), 3, 0)
    if not EXACT_BYTES & host_flags():
        constants = [{name: v // 2 if v.dtype == np.int8 else v for name, v in copy.items()} for copy in constants]
    try:
        assert max(shares(contender, op, shape_of(op), constants, 3)) <= 1
    except UnsupportedOp as error:
        pytest.skip(f"said to the user: {error}")


def fused_pack(folder: Path) -> Path:
    lanes = LANES[best_level()]
    packed = packed_op("dense_n100_k37_bias_residual_silu", lanes, 2 * lanes, splits=("serial", "n", "m"))
    return make_pack(folder, [packed], best_level()).path


def test_ours_is_raced_as_it_is_served(tmp_path: Path) -> None:
    level = best_level()
    every = {"torch", "openvino", "onnxruntime", "inductor"}
    conv_cells = {"b": 2, "h": 5, "w": 7}
    for pack, peers, weights, shape, plan in (
        (fused_pack(tmp_path / "fused"), every, "cold", {"m": 4}, ""),
        (conv_pack(tmp_path / "conv", CONVOLUTIONS[:2], LANES[level]), every | {"onednn"}, "cold", conv_cells, "cell 1"),
        (
            product_pack(tmp_path / "product", ("batch_matmul:k=6,layout=nt",), LANES[level], level),
            every | {"numpy"}, "hot", {"b": 3, "m": 7, "n": 21}, "cell ",
        ),
    ):  # fmt: skip
        contest = contest_of(pack, environment={}, against=None)
        assert (contest.ours, set(contest.peers), contest.weights) == (HOST.ours, peers, (weights,))
        op, ours = contest.ops[0], Ours(Setting(threads=1, pack=str(pack)))
        assert max(shares(ours, op, Shape.of(shape), copies(op, Shape.of(shape), 2, 0), 2)) <= 1
        assert ours.plan(shape).startswith(plan) and ours.overhead_ns(0.0) is None


def test_one_race_has_ops_with_the_same_axes_and_peers(tmp_path: Path) -> None:
    pack = conv_pack(tmp_path / "pack", CONVOLUTIONS[:2], LANES[best_level()])
    contest = contest_of(pack, environment={}, against=None)
    assert [op.kind for op in contest.ops] == ["conv2d"]  # one race has shapes of the same axes
    assert all(set(shape.as_dict()) == {"b", "h", "w"} for shape in contest.shapes)
    with pytest.raises(UsageError, match="does not give exactly b, h, w"):
        contest_of(pack, environment={}, shapes=[Shape.of(m=1)])
    with pytest.raises(UsageError, match="do not all have the same peers"):
        ops = (Op.parse("dense_n6_k5"), Op.parse("dense:n=6,k=5,epilogue=relu"))
        Contest(pack=pack, ops=ops, shapes=(Shape.of(m=1),), peers={}, environment={})
    with pytest.raises(UsageError, match="softmax has no operand that could be cold; leave --cache-state out, or say hot"):
        Contest(pack=pack, ops=(Op.parse("softmax:"),), shapes=(Shape.of(m=1, n=1),), peers={}, environment={})


def test_who_is_set_up_for_what() -> None:
    for spec in ("dense:m=3,n=6,k=5", "grouped:g=2,n=6,k=5", "batch_matmul:b=1,m=1,n=1,k=1"):
        assert not HOST.raceable(Op.parse(spec))
    layer, fused, experts = (
        Op.parse(spec) for spec in ("dense:n=6,k=5", "dense:n=6,k=5,epilogue=relu", "grouped:g=2,n=6,k=5")
    )
    assert set(HOST.peers_of(layer)) == set(HOST.peers)
    assert HOST.peers_of(fused) == ("torch", "openvino", "onnxruntime", "inductor")
    assert GPU.peers_of(layer) == ("torch", "cublaslt", "cublaslt16", "triton", "inductor")
    assert GPU.peers_of(fused) == ("torch", "inductor") and GPU.peers_of(experts) == ("torch", "torch_grouped")
    assert GPU.raceable(experts) and not GPU.raceable(Op.parse("softmax:dtype=int8"))
    for spec in CONVOLUTIONS:
        assert plain_convolution(Op.parse(spec)) and "onednn" in HOST.peers_of(Op.parse(spec))
    for spec in ("conv2d:c=6,f=8,r=3,s=3,pad=1.0.0.1", "conv_transpose1d:c=5,f=7,s=3,pad=1.0"):
        assert not plain_convolution(Op.parse(spec)) and HOST.raceable(Op.parse(spec))
    attributes = ConvAttributes.of(Op.parse("conv2d:c=6,f=8,r=3,s=3,pad=1.2,stride=2,layout=nhwc"))
    assert (attributes.pad, attributes.stride, attributes.last, attributes.flat) == ((1, 2), (2, 2), True, False)
