"""Cold weights in a race: copies outgrow the caches, or other memory does between rounds; every call has its own."""

from __future__ import annotations

import math

import numpy as np
import pytest

from haotuner.bench.check import error_share
from haotuner.bench.contest import usual_weights
from haotuner.bench.field import HOST
from haotuner.bench.operands import calls, copies, plain_layer
from haotuner.bench.rotation import ENOUGH_COPIES, MOST_COPIES, ROOM_BYTES, Rotation, cold, resting, resting_bytes
from haotuner.bench.timing import Clock
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape

CACHE = 32 << 20
COLD = HOST.caches * CACHE
FUSED = Op.parse("dense:n=2304,k=768,epilogue=bias+gelu")
CONV = Op.parse("conv2d:c=64,f=64,r=3,s=3,pad=1,epilogue=bias+relu")
PRODUCTS = Op.parse("batch_matmul:k=64,layout=nt")


@pytest.mark.parametrize("op", [Op.parse("dense_n2304_k768"), FUSED])
def test_copies_outgrow_the_cache_where_they_can(op: Op) -> None:
    size = 4 * 2304 * 768
    assert resting_bytes(op, Shape.of(m=4)) == size
    assert HOST.cold(op, Shape.of(m=4), CACHE) == Rotation(copies=-(-COLD // size))
    assert HOST.cold(op, Shape.of(m=4), 1) == Rotation(copies=2)


@pytest.mark.parametrize("op, shape", [
    (Op.parse("dense_n4_k4"), Shape.of(m=3)), (CONV, Shape.of(b=1, h=14, w=14)), (CONV, Shape.of(b=8, h=56, w=56)),
    (CONV, Shape.of(b=8, h=112, w=112)), (PRODUCTS, Shape.of(b=1, m=2, n=3)), (PRODUCTS, Shape.of(b=96, m=512, n=512)),
])  # fmt: skip
def test_a_round_walks_through_cold_memory_whatever_is_raced(op: Op, shape: Shape) -> None:
    rotation, size = HOST.cold(op, shape, CACHE), resting_bytes(op, shape)
    passed = op.least_bytes(shape) - size
    assert 2 <= rotation.copies <= ENOUGH_COPIES
    assert rotation.copies * size + passed + rotation.evicted_bytes >= COLD
    assert rotation.copies == 2 or plain_layer(op) or 2 * rotation.copies * passed <= ROOM_BYTES


def test_where_nothing_may_be_evicted_copies_alone_are_there() -> None:
    assert cold(CONV, Shape.of(b=1, h=14, w=14), COLD, evicts=False) == Rotation(copies=MOST_COPIES)


def test_what_may_rest_and_what_is_raced_cold_unless_asked() -> None:
    attention, rows = Op.parse("attention:d=8"), Op.parse("softmax:")
    assert [resting(op) for op in (FUSED, CONV, PRODUCTS, attention, rows)] == [
        ("weight",), ("weight",), ("w",), ("k", "v"), ()
    ]  # fmt: skip
    assert [HOST.can_be_cold(op) for op in (FUSED, CONV, PRODUCTS, attention, rows)] == [True] * 4 + [False]
    assert [usual_weights(HOST, [op]) for op in (FUSED, PRODUCTS, rows)] == [("cold",), ("hot",), ("hot",)]
    assert usual_weights(HOST, [FUSED, rows]) == ("hot",)


@pytest.mark.parametrize("spec", [
    "dense:n=6,k=5", "dense:n=6,k=5,epilogue=bias+residual+clamp", "batch_matmul:k=5,layout=nt",
    "batch_matmul:k=5,epilogue=relu", "attention:d=8", "grouped:g=2,n=6,k=5",
])  # fmt: skip
def test_each_call_has_a_copy_of_its_own_and_shares_the_rest(spec: str) -> None:
    op = Op.parse(spec)
    shape = Shape.of({axis: 3 + index for index, axis in enumerate(op.dynamic)})
    cases = calls(op, shape, 0, copies(op, shape, 3, 0), 3)
    for name in cases[0].operands:
        differ = name in resting(op) or name in ("bias", "low", "high")
        own = {case.operands[name].ctypes.data for case in cases}
        assert len(own) == (3 if differ else 1), name
        assert len({case.operands[name].tobytes() for case in cases}) == len(own)
    assert list(cases[1].operands) == [*(operand.name for operand in op.meaning.inputs), *op.epilogue_operands]
    right = cases[1].reference.astype(np.float32)
    assert error_share(cases[1], right) <= 1 < error_share(cases[2], right)


def test_copies_are_the_same_for_any_number_of_them_and_at_any_shape_of_a_call() -> None:
    op = Op.parse("dense_n6_k5")
    many = [copy["weight"] for copy in copies(op, Shape.of(m=2), 20, 0)]
    assert len({weight.tobytes() for weight in many}) == len({weight.ctypes.data for weight in many}) == 20
    assert copies(op, Shape.of(m=2), 1, 0)[0]["weight"].tobytes() == many[0].tobytes()
    (case,) = calls(op, Shape.of(m=9), 0, [{"weight": many[3]}], 1)
    assert case.operands["weight"] is many[3]


@pytest.mark.parametrize("count", [1, 5])
def test_the_first_call_behind_other_memory_is_not_timed(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Clock, "_warm", lambda clock: None)
    seen: list[int] = []
    clock = Clock([lambda index=index: seen.append(index) for index in range(count)], 1 << 12)  # type: ignore[misc]
    assert seen == list(range(count)), "some libraries get ready in a first call"
    for seconds in (0.0, 0.001):
        seen.clear()
        block = clock.block(seconds)
        assert seen == list(range(count)) * (len(seen) // count), "a block begins with a round; each is whole at this pace"
        assert block.calls == len(seen) // count * max(1, count - 1) and math.isfinite(block.call_ns)
