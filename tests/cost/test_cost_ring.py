"""Products with a ring of stages: what the analysis knows of rounds, of bytes on their way, and of where a round is bare."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from haotuner.cost import features as columns
from haotuner.cost.expected import over_traffic
from haotuner.cost.families import demand
from haotuner.cost.features import NAMES, RING_FEATURES, features
from haotuner.cost.forest import Forest, Settings
from haotuner.cost.machine import machine
from haotuner.cost.roofline import Flow, expected_us, flow_of, parts_of, resident_tiles, roofline_us
from haotuner.hw_profiles.find import find_device
from haotuner.microkernels.cuda.dense import CudaDense
from haotuner.microkernels.cuda.dense_gemv import CudaGemv
from haotuner.microkernels.cuda.dense_mma import CudaMma
from haotuner.microkernels.cuda.dense_simt import CudaSimt
from haotuner.microkernels.cuda.dense_wgmma import CudaWgmma, CudaWgmmaShort
from haotuner.microkernels.index import families_for
from haotuner.spec.device import Device
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape, ShapeRange
from haotuner.spec.traffic import Traffic

H200, A100, CORE = (find_device(name, measure=False) for name in ("h200", "a100-80gb", "epyc-7763"))
MMA, WGMMA = CudaMma("cuda_mma_fp16", "fp16"), CudaWgmma("cuda_wgmma_fp16", "fp16")
SHORT = CudaWgmmaShort("cuda_wgmmas_fp16", "fp16")
OP = Op.parse("dense:n=4096,k=4096,dtype=fp16")
RING = [feature.name for feature in RING_FEATURES]


def us(family: CudaDense, kernel: MicroKernel, m: int, device: Device = H200, op: Op = OP) -> float:
    return float(expected_us(device, demand(device, family, op, [(kernel, Shape.of(m=m))]))[0])


def flow(family: CudaDense, kernel: MicroKernel, m: int, device: Device = H200) -> Flow:
    demands, numbers = demand(device, family, OP, [(kernel, Shape.of(m=m))]), machine(device)
    return flow_of(demands, numbers, resident_tiles(demands, numbers)[0])


def test_time_is_a_staircase_of_rounds() -> None:
    kernel = WGMMA.kernel(bm=128, bn=256, st=4)  # 16 tiles a row of them, 132 units: 8 rows of tiles fit one round
    almost_full, full, more = (us(WGMMA, kernel, m) for m in (1024 - 127, 1024, 1025))
    assert almost_full == pytest.approx(full, rel=0.02)
    assert more > 1.6 * full
    assert [float(flow(WGMMA, kernel, m).rounds[0]) for m in (1024, 1025)] == [1, 2]


def test_stages_ahead_bring_bytes_on_their_way_until_memory_gives_all_it_has() -> None:
    kernels = [MMA.kernel(bm=16, bn=64, bk=64, wm=1, wn=4, st=st) for st in (2, 3, 4, 5)]
    reach = [float(flow(MMA, kernel, 16).reach[0]) for kernel in kernels]
    assert reach == sorted(reach) and reach[0] < reach[-1] <= 1
    times = [us(MMA, kernel, 16) for kernel in kernels]
    assert times == sorted(times, reverse=True) and times[0] > 1.3 * times[-1]


def test_few_rows_are_bound_by_the_bytes_of_the_weight() -> None:
    for op in (OP, Op.parse("dense:n=8192,k=8192,dtype=fp16")):
        score = over_traffic(op, SHORT, H200, Traffic.of_range(ShapeRange.parse("m=16")))
        assert 0.5 < float(max(score(list(SHORT.points(op, H200))))) <= 1.0  # 0.59 was measured


def test_a_scheduler_without_a_wave_does_nothing() -> None:
    two, eight = MMA.kernel(bm=32, bn=32, bk=64, wm=1, wn=2, st=5), MMA.kernel(bm=128, bn=128, bk=32, wm=2, wn=4, st=4)
    assert float(flow(MMA, two, 32).awake[0]) == 0.5
    assert float(flow(MMA, eight, 4096).awake[0]) == 1.0


def test_a_round_alone_on_its_unit_pays_for_filling_and_writing() -> None:
    shape, numbers = [(WGMMA.kernel(bm=128, bn=256, st=4), Shape.of(m=1024))], machine(H200)
    demands = demand(H200, WGMMA, OP, shape)
    _, ring = parts_of(demands)
    assert float(ring.written_bytes[0]) == 128 * 256 * 2
    unwritten = replace(demands, ring=replace(ring, written_bytes=np.zeros(1)))
    saved = float(expected_us(H200, demands)[0] - expected_us(H200, unwritten)[0])
    assert saved == pytest.approx(128 * 256 * 2 / numbers.mid_bytes / numbers.clock_ghz / 1e3)


def test_a_cache_that_holds_both_operands_keeps_later_rounds_from_memory() -> None:
    pair = [(WGMMA.kernel(bm=64, bn=64, st=4), Shape.of(m=2048))]
    cached = demand(H200, WGMMA, Op.parse("dense:n=2304,k=768,dtype=fp16"), pair)
    assert float(cached.work.far_bytes[0]) == float(cached.work.least_bytes[0])
    spread = demand(replace(H200, l2_bytes=2**20), WGMMA, OP, pair)
    assert float(spread.work.far_bytes[0]) > 2 * float(spread.work.least_bytes[0])


def test_only_products_with_a_ring_have_its_columns() -> None:
    pairs = [(kernel, Shape.of(m=m)) for kernel in list(MMA.points(OP, A100))[::40] for m in (1, 64, 3000)]
    frame = features(A100, MMA, OP, pairs)
    assert list(frame.columns) == [*NAMES, *RING]
    for feature in RING_FEATURES:
        assert frame[feature.name].between(feature.low, feature.high).all(), feature.name
    op = Op.parse("dense:n=64,k=64")
    (family, *_) = families_for(op, "cpu")
    kernel = next(iter(family.points(op, CORE)))
    assert list(features(CORE.with_units(1), family, op, [(kernel, Shape.of(m=4))]).columns) == list(NAMES)


def test_a_forest_that_is_told_of_them_uses_them_and_its_file_says_so() -> None:
    pairs = [(kernel, Shape.of(m=m)) for kernel in list(MMA.points(OP, A100))[::6] for m in (1, 64, 3000)]
    frame = features(A100, MMA, OP, pairs)
    labels = frame["expected_log"] - 0.5 * frame["ring_ahead_log2"]
    informed, blind = (
        Forest(settings=Settings(columns=names)).fit(frame[::2], labels[::2]) for names in ((*NAMES, *RING), NAMES)
    )
    truth = labels.to_numpy()[1::2]
    errors = [float(np.abs(model.predict(frame[1::2]) - truth).mean()) for model in (informed, blind)]
    assert errors[0] <= errors[1]
    assert columns.versions(informed.uses)["ring_ahead_log2"] == 1


def test_the_expectation_is_the_mean_over_the_traffic_by_its_weights() -> None:
    traffic = Traffic.of([(Shape.of(m=16), 3.0), (Shape.of(m=2048), 1.0)])
    kernels = [WGMMA.kernel(bm=64, bn=64, st=4), WGMMA.kernel(bm=128, bn=256, st=4)]
    scores = over_traffic(OP, WGMMA, H200, traffic)(kernels)
    for kernel, score in zip(kernels, scores, strict=True):
        shares = [float(roofline_us(H200, OP, [Shape.of(m=m)])[0]) / us(WGMMA, kernel, m) for m in (16, 2048)]
        assert score == pytest.approx(0.75 * shares[0] + 0.25 * shares[1])


def test_a_ring_without_a_product_is_no_demand() -> None:
    demands = demand(H200, WGMMA, OP, [(WGMMA.kernel(bm=64, bn=64, st=4), Shape.of(m=64))])
    with pytest.raises(ValueError, match="groups matmul and ring"):
        parts_of(replace(demands, matmul=None))


def test_a_product_on_cuda_cores_is_priced_by_them_alone() -> None:
    """Of half types too: an H200 reaches 22 to 29 TFLOP/s with these kernels, at any number of rows."""
    family = CudaGemv("cuda_gemv_fp16", "fp16")
    kernel, shape = family.kernel(bm=16, c=4, wn=4, wk=1, v=8), Shape.of(m=384)
    work = demand(H200, family, OP, [(kernel, shape)]).work
    assert float(work.flops["tensor"][0]) == 0.0 and float(work.flops["simd"][0]) == OP.flops(shape)
    assert us(family, kernel, 384) > OP.flops(shape) / (machine(H200).peak_gflops * 1e3)
    assert us(family, kernel, 384) > 5 * us(WGMMA, WGMMA.kernel(bm=64, bn=128, st=6), 384)


def test_a_wave_alone_waits_for_its_loads() -> None:
    """Three tiles of a unit take less than twice the time of one, whose waits nothing fills."""
    family, op = CudaSimt("cuda_simt_fp32", "fp32"), Op.parse("dense:n=2304,k=768")
    kernel = family.kernel(bm=64, bn=128, bk=8, tm=8, tn=8)
    single, three = (us(family, kernel, m, op=op) for m in (448, 1408))  # tiles of a unit; 66 and 112 us on an H200
    assert 1.2 * single < three < 2.2 * single


def test_every_call_pays_for_its_launch() -> None:
    least = us(SHORT, SHORT.kernel(bm=8, bn=64, st=8), 1, op=Op.parse("dense:n=64,k=64,dtype=fp16"))
    assert 2.0 < least < 4.0  # 3.4 us were the least of an H200
