"""The race on a GPU: its clock, what spoils a block, numbers of other types, and ours raced over the stand-in driver."""

from __future__ import annotations

import itertools
import os
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from haotuner.backends.cuda.clocks import Clocks
from haotuner.backends.cuda.pack_products import CudaEntry
from haotuner.bench.check import error_share
from haotuner.bench.contender import OURS, OURS_AGAIN
from haotuner.bench.contest import Contest, usual_weights
from haotuner.bench.field import GPU, HOST, field_of
from haotuner.bench.operands import calls, copies, decoded, encoded
from haotuner.bench.peers.gpu_driver import LEAST_LAUNCHES, LEAST_SAMPLES, GraphClock
from haotuner.bench.peers.torch_expressions import expression
from haotuner.bench.race import run
from haotuner.bench.retry import TRIES, Throttling
from haotuner.bench.rotation import MOST_COPIES, Rotation
from haotuner.errors import EnvironmentMissing, UsageError
from haotuner.microkernels.cuda.generated import CudaGenerated
from haotuner.ops.index import KINDS
from haotuner.runtime.device_memory import find_gpu
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from tests.conftest import has_gpu
from tests.runtime.cuda_device_code import build_pack
from tests.runtime.cuda_packs import CONV_ONE_TAP, GENERATED_PICKS, LAST, PICKS, STEPPED_PICKS, Pick
from tests.standin import environment, toolchain_missing

needs_compilers = pytest.mark.skipif(bool(toolchain_missing()), reason=f"compiler: {toolchain_missing()}")


def rounded(values: NDArray[Any], dtype: str) -> NDArray[Any]:
    """The nearest numbers of the dtype, ties to even, as fp32."""
    return decoded(encoded(values, dtype), dtype)


@pytest.mark.parametrize("dtype, bits", [("fp32", 23), ("fp16", 10), ("bf16", 7)])
def test_numbers_are_rounded_to_the_nearest_that_a_type_has(dtype, bits):
    values = np.random.default_rng(1).standard_normal((50, 7)).astype(np.float32)
    nearest = rounded(values, dtype)
    assert nearest.dtype == np.float32 and (np.abs(nearest - values) <= 2.0 ** -(bits + 1) * np.abs(values) * 1.001).all()
    assert np.array_equal(decoded(encoded(nearest, dtype), dtype), nearest)
    assert encoded(values, dtype).dtype.itemsize == (4 if dtype == "fp32" else 2)


def test_a_tie_of_bf16_goes_to_the_even_one():
    ties = np.array([1 + 2.0**-8, 1 + 3 * 2.0**-8], np.float32)
    assert rounded(ties, "bf16").tolist() == [1.0, 1 + 2 * 2.0**-7]


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_sums_in_fp32_pass_and_sums_in_the_type_itself_do_not(dtype):
    if dtype == "bf16":
        pytest.importorskip("ml_dtypes", reason="library: ml_dtypes")
    op = Op.parse(f"dense:n=48,k=256,dtype={dtype}")
    (case,) = calls(op, Shape.of(m=33), 0, copies(op, Shape.of(m=33), 1, 0), 1)
    x, weight = (np.asarray(case.operands[name], np.float32) for name in ("x", "weight"))
    right = rounded(case.reference.astype(np.float32), dtype)
    assert error_share(case, right) <= 1
    total = np.zeros_like(right)
    for step in range(0, 256, 8):  # as tensor cores that keep their sums in halves, or TF32 for fp32
        part = x[:, step : step + 8] @ weight[:, step : step + 8].T
        total = rounded(total + part, dtype if dtype != "fp32" else "bf16")
    assert error_share(case, total) > 1
    wrong = right.copy()
    wrong[32, 47] = 0
    assert error_share(case, wrong) > 1


def test_cold_weights_exceed_the_l2_three_times():
    op = Op.parse("dense:n=768,k=768,dtype=bf16")
    assert GPU.cold(op, Shape.of(m=9), 50 << 20) == Rotation(copies=-(-3 * (50 << 20) // (2 * 768 * 768)))
    assert GPU.cold(Op.parse("dense_n4_k4"), Shape.of(m=9), 50 << 20) == Rotation(copies=MOST_COPIES), "nothing is evicted"
    assert GPU.caches == 3 and HOST.caches == 4


def test_each_field_has_its_peers_and_types():
    half, bytewise = Op.parse("dense:n=64,k=64,dtype=bf16"), Op.parse("dense:n=64,k=64,dtype=int8")
    assert GPU.raceable(half) and HOST.raceable(half) and field_of(1) is GPU and field_of(None) is HOST
    assert HOST.raceable(bytewise) and not GPU.raceable(bytewise)
    assert list(GPU.named(["cublaslt16", "torch"])) == ["cublaslt16", "torch"]
    with pytest.raises(UsageError, match="no such peer; known are torch, cublaslt, cublaslt16, triton, inductor"):
        GPU.named(["numpy"])


class Engine:
    """Counts; a launch takes 4 us."""

    def __init__(self) -> None:
        self.captured = self.replays = self.dropped = 0

    def capture(self, run: Any) -> int:
        run()
        self.captured += 1
        return self.captured

    def drop(self, graph: int) -> None:
        self.dropped += 1

    def replay_us(self, graph: int, times: int) -> list[float]:
        self.replays += times
        return [80.0] * times


def test_a_graph_walks_over_all_weights_whole_rounds():
    engine, seen = Engine(), []
    calls = [lambda index=index: seen.append(index) for index in range(7)]
    clock = GraphClock(engine, calls)
    launched = seen[2:]
    assert launched == list(range(7)) * 3 and len(launched) >= LEAST_LAUNCHES
    block = clock.block(0.0)
    assert block.call_ns == pytest.approx(80e3 / 21) and block.calls == 21 * LEAST_SAMPLES
    assert clock.block(0.002).calls == 21 * 25
    del clock
    assert engine.dropped == 1


def nvml(reasons: list[int]) -> Any:
    """NVML whose reasons to throttle are these, one a question, the last for ever."""

    def told(handle: Any) -> int:
        return reasons.pop(0) if len(reasons) > 1 else reasons[0]

    class Refused(Exception):
        pass

    def refuse(*_: Any) -> None:
        raise Refused

    return SimpleNamespace(
        NVMLError=Refused, NVML_CLOCK_SM=1, NVML_CLOCK_MEM=2, NVML_TEMPERATURE_GPU=0, nvmlInit=lambda: None,
        nvmlDeviceGetHandleByIndex=lambda ordinal: ordinal, nvmlDeviceGetClockInfo=refuse, nvmlDeviceGetPowerUsage=refuse,
        nvmlDeviceGetTemperature=refuse, nvmlDeviceGetCurrentClocksThrottleReasons=told,
    )  # fmt: skip


@pytest.mark.parametrize(
    "reasons, blocks, spoilt",
    [([0, 0, 0], 1, False), ([0, 0, 0x40, 0, 0], 2, False), ([0x8], TRIES, True), ([0x4], 1, False)],
)
def test_a_block_is_timed_again_while_the_gpu_is_slowed(reasons, blocks, spoilt):
    watch, timed = Throttling(0, Clocks(0, nvml(list(reasons))), pause_s=0), itertools.count()
    assert watch.watched == "reasons to throttle"
    seen, slowed = watch.block(lambda: {"us": float(next(timed))})
    assert (next(timed), slowed, seen) == (blocks, spoilt, {"us": blocks - 1.0})


def test_why_nvml_is_not_there_is_told():
    module = SimpleNamespace(NVMLError=OSError, nvmlInit=lambda: 1 / 0)
    assert Throttling(0, Clocks(0, module), pause_s=0).watched == "nothing: ZeroDivisionError: division by zero"
    assert Throttling(0, Clocks(0, nvml([0])), pause_s=0).watched == "reasons to throttle"


class Whole(Pick):
    """One region and the sum whole: the stand-in need not carry out a launch whose result the next one overwrites."""

    @property
    def cells(self) -> tuple[tuple[int, CudaEntry], ...]:
        return ((LAST, CudaEntry(regions=((0, 0),))),)


@needs_compilers
@pytest.mark.parametrize("pick", PICKS, ids=lambda pick: pick.arch)
def test_ours_is_raced_as_it_is_served_and_peers_that_are_not_there_are_missing(pick, tmp_path):
    code = tmp_path / "code"
    pack = build_pack(tmp_path / "pack", Whole(arch=pick.arch, op=pick.op, kernels=pick.kernels, dtype=pick.dtype), code)
    driver = environment(tmp_path / "images", device=pick.arch, sources=code, execute="demand")
    contest = Contest(
        pack=pack,
        ops=(Op.parse(pick.op),),
        shapes=(Shape.of(m=3), Shape.of(m=150)),
        peers=GPU.named(None),
        field=GPU,
        ordinal=0,
        ours=GPU.ours,
        environment={**os.environ, **driver},
        weights=("cold", "hot"),
        cache_bytes=20_000,
        seconds_per_row=0.05,
        block_s=0.01,
    )
    outcome = run(contest)
    assert [(row.shape["m"], row.weights, row.failed) for row in outcome.rows] == [
        (3, "cold", {}), (150, "cold", {}), (3, "hot", {}), (150, "hot", {})
    ]  # fmt: skip
    assert (
        {row.rotation.copies for row in outcome.rows if row.weights == "cold"} == {contest.weights_of(contest.ops[0])} != {1}
    )
    for row in outcome.rows:
        assert {OURS, OURS_AGAIN} <= set(row.blocks_us) and min(row.blocks_us[OURS]) > 0 and row.foreign_cores == 0
        assert row.composition and (OURS_AGAIN in row.blocks_us)
    if not has_gpu():
        assert set(outcome.missing) == set(GPU.peers) and outcome.watched.startswith("nothing")


@pytest.mark.skipif(has_gpu(), reason="host: has a driver of its own")
def test_without_a_driver_the_race_says_what_is_missing():
    with pytest.raises(EnvironmentMissing, match="no CUDA driver"):
        find_gpu(0)


def test_threads_and_instruction_sets_are_for_cpus():
    with pytest.raises(UsageError, match="are for CPUs"):
        Contest(
            pack=None, ops=(Op.parse("dense_n8_k8"),), shapes=(Shape.of(m=1),), peers={}, field=GPU, ordinal=0,
            environment={}, threads=(2,),
        )  # fmt: skip


@needs_compilers
@pytest.mark.parametrize("pick, shapes", [
    (GENERATED_PICKS[1], (Shape.of(m=3, n=40), Shape.of(m=2, n=9))),  # layer_norm with scale and bias, in bf16
    (STEPPED_PICKS[0], (Shape.of(m=5), Shape.of(m=2))),
    pytest.param(CONV_ONE_TAP, (Shape.of(b=1, h=2, w=3),), marks=pytest.mark.slow),
], ids=lambda value: getattr(value, "op", ""))  # fmt: skip
def test_any_op_is_raced_as_it_is_served(pick, shapes, tmp_path):
    code = tmp_path / "code"
    pack, op = build_pack(tmp_path / "pack", pick, code), Op.parse(pick.op)
    driver = environment(tmp_path / "images", device=pick.arch, sources=code, execute="demand")
    driver |= {"PYTHONMALLOC": "malloc", "MALLOC_PERTURB_": "165"}  # who reads what was freed meets garbage
    peers = GPU.entrants([op], None)
    contest = Contest(
        pack=pack, ops=(op,), shapes=shapes, peers=peers, field=GPU, ordinal=0, ours=GPU.ours,
        environment={**os.environ, **driver}, weights=usual_weights(GPU, [op]), seconds_per_row=0.05, block_s=0.01,
    )  # fmt: skip
    assert set(peers) == {"torch", "inductor"}
    rows = run(contest).rows
    assert len(rows) == len(shapes)
    for row in rows:
        assert not row.failed and row.weights == "hot" and {OURS, OURS_AGAIN} <= set(row.blocks_us)
    with pytest.raises(UsageError, match="has no operand that could be cold|is raced hot on GPUs"):
        replace(contest, weights=("cold",))


@pytest.mark.parametrize("kind", [
    *(kind.example for kind in KINDS.values() if CudaGenerated.covers(kind)),
    "attention:d=16", "attention:d=16,causal=end,mask=keys", "attention:d=16,causal=start,heads=apart,scale=one",
])  # fmt: skip
def test_every_generated_kind_is_written_down_for_torch(kind):
    torch = pytest.importorskip("torch", reason="library: torch")
    op = Op.parse(kind)
    assert GPU.raceable(op)
    (case,) = calls(op, Shape.of(dict.fromkeys(op.dynamic, 6)), 0, [], 1)
    result = expression(torch, op)(*(torch.from_numpy(value) for value in case.operands.values()))
    assert error_share(case, result.numpy()) <= 1
