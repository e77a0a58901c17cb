"""The CUDA families have a demand: the analysis and the learned model rank them like any other."""

from __future__ import annotations

import numpy as np
import pytest

from haotuner.cost.families import demand
from haotuner.cost.features import FEATURES, features
from haotuner.cost.forest import Forest
from haotuner.cost.machine import machine
from haotuner.cost.model import Analytic
from haotuner.cost.roofline import expected_us, least_us, roofline_us
from haotuner.cost.scores import pairwise_accuracy
from haotuner.hw_profiles.find import find_device
from haotuner.hw_profiles.profile import profiles
from haotuner.microkernels.cuda.conv import conv_families
from haotuner.microkernels.cuda.dense import CudaDense
from haotuner.microkernels.cuda.families import CUDA_FAMILIES
from haotuner.microkernels.index import families_for
from haotuner.spec.device import Device
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape

GPUS = [profile.device for profile in profiles() if profile.device.kind != "cpu"]
H200, A100, T4 = (find_device(name, measure=False) for name in ("h200", "a100-40gb", "t4"))
ROWS = (1, 17, 128, 4096)


def op_of(family: CudaDense, k: int = 768) -> Op:
    kind = "grouped:g=8," if family.grouped else "batch_matmul:b=4,layout=nt," if family.batched else "dense:"
    return Op.parse(f"{kind}n=2304,k={k},dtype={family.dtype}")


def pairs_of(family: CudaDense, op: Op, device: Device, every: int = 11) -> list[tuple[MicroKernel, Shape]]:
    return [(kernel, Shape.of(m=m)) for kernel in list(family.points(op, device))[::every] for m in ROWS]


@pytest.mark.parametrize("family", CUDA_FAMILIES, ids=lambda family: family.name)
def test_every_feature_is_finite_and_in_its_documented_range(family: CudaDense) -> None:
    for device in GPUS:
        for k in (768, 770) if family.serves(op_of(family, 770)) else (768,):
            op = op_of(family, k)
            pairs = pairs_of(family, op, device)
            frame = features(device, family, op, pairs)
            values = frame[[feature.name for feature in FEATURES]].to_numpy(float)  # all at once: half of this test's time
            low, high = (np.array([getattr(feature, end) for feature in FEATURES]) for end in ("low", "high"))
            right = (np.isfinite(values) & (values >= low) & (values <= high)).all(axis=0)
            assert right.all(), (device.id, [f.name for f, in_range in zip(FEATURES, right, strict=True) if not in_range])
            work = demand(device, family, op, pairs)
            assert (expected_us(device, work) >= 0.9 * least_us(device, work)).all(), f"{device.id}: beats the roofline"


def test_the_yardstick_is_the_fastest_unit_that_computes_the_type() -> None:
    shape = [Shape.of(m=8192)]
    half, single = (Op.parse(f"dense:n=8192,k=8192,dtype={dtype}") for dtype in ("fp16", "fp32"))
    assert roofline_us(H200, single, shape)[0] > 5 * roofline_us(H200, half, shape)[0]
    pascal = find_device("p100", measure=False)  # no units for small matrices
    assert roofline_us(pascal, single, shape)[0] == roofline_us(pascal, half, shape)[0]
    assert machine(pascal).tensor_gflops == machine(pascal).peak_gflops
    family = CUDA_FAMILIES[0]
    needs = demand(H200, family, half, [(next(iter(family.points(half, H200))), shape[0])])
    assert least_us(H200, needs)[0] == pytest.approx(roofline_us(H200, half, shape)[0])


def test_the_analysis_knows_that_wgmma_beats_mma_on_hopper_and_small_tiles_lose_on_large_products() -> None:
    op, shape = Op.parse("dense:n=4096,k=4096,dtype=fp16"), Shape.of(m=4096)

    def best(family: CudaDense) -> float:
        return float(expected_us(H200, demand(H200, family, op, [(k, shape) for k in family.points(op, H200)])).min())

    by_name = {family.name: family for family in CUDA_FAMILIES}
    assert best(by_name["cuda_wgmma_fp16"]) < best(by_name["cuda_mma_fp16"])
    simt, single = by_name["cuda_simt_fp32"], Op.parse("dense:n=4096,k=4096")
    kernels = sorted(simt.points(single, A100), key=lambda k: k["bm"] * k["bn"])
    us = expected_us(A100, demand(A100, simt, single, [(k, shape) for k in (kernels[0], kernels[-1])]))
    assert us[0] > 1.4 * us[1]


@pytest.mark.parametrize("family", CUDA_FAMILIES, ids=lambda family: family.name)
def test_a_forest_learns_them(family: CudaDense) -> None:
    op, device = op_of(family), H200
    pairs = pairs_of(family, op, device, every=3)
    frame = features(device, family, op, pairs)
    odd = 0.3 * np.sin(3 * frame["tile_cols_log2"])
    model = Forest().fit(frame.iloc[::2], (frame["expected_log"] + odd)[::2])
    truth = (frame["expected_log"] + odd).to_numpy()[1::2]
    rest = frame.iloc[1::2]
    learned, analytic = (pairwise_accuracy(predictor.predict(rest), truth) for predictor in (model, Analytic()))
    assert learned > analytic and learned > 0.9


@pytest.mark.parametrize("spec", ["dense:n=2304,k=768,dtype=bf16", "dense:n=2304,k=768", "conv2d:c=64,f=64,r=3,s=3,pad=1"])
def test_without_a_model_a_kernel_is_predicted_as_the_analysis_expects_it(spec):
    """Features and labels have one yardstick, whatever units a family computes on, and however little."""
    op = Op.parse(spec)
    device = find_device("epyc-7763" if op.kind == "conv2d" else "h200", measure=False)
    shapes = [Shape.of({axis: extent for axis in op.dynamic}) for extent in (4, 60)]
    for family in families_for(op, device.kind):
        if family.suits(device):
            pairs = [(next(iter(family.points(op, device))), shape) for shape in shapes]
            predicted = Analytic().predict(features(device, family, op, pairs))
            expected = expected_us(device, demand(device, family, op, pairs))
            np.testing.assert_allclose(roofline_us(device, op, shapes) / np.exp(predicted), expected, rtol=1e-9)


def test_image_columns_are_priced_where_they_are_laid_out():
    """Channels last, windows of one tap and stride 1 read the image as it lies: one launch without columns costs less."""
    device, expected = find_device("h200", measure=False), {}
    for options in ("", ",stride=2", ",layout=nhwc", ",layout=nhwc,stride=2"):
        op = Op.parse(f"conv2d:c=64,f=64,r=1,s=1,dtype=fp16{options}")
        family = next(candidate for candidate in conv_families(op) if candidate.name == "cuda_batched_mma_fp16")
        # Twice the image where the stride is 2: all have as many outputs.
        extent = 256 if "stride" in options else 128
        shape = Shape.of({axis: 8 if axis == "b" else extent for axis in op.dynamic})
        kernel = next(iter(family.points(op, device)))
        (expected[options],) = expected_us(device, demand(device, family, op, [(kernel, shape)]))
    assert expected[",layout=nhwc"] < 0.95 * expected[",layout=nhwc,stride=2"]
    assert expected[""] == pytest.approx(expected[",stride=2"], rel=0.02)


def test_windows_of_a_large_image_are_cheaper_than_its_columns():
    """Columns are nine times the image, and no product starts before they lie there."""
    device, shape, least = find_device("h200", measure=False), Shape.of(b=8, h=112, w=112), []
    op = Op.parse("conv2d:c=64,f=64,r=3,s=3,pad=1,layout=nhwc")
    for family in conv_families(op):
        pairs = [(kernel, shape) for kernel in family.points(op, device)]
        least.append(expected_us(device, demand(device, family, op, pairs)).min())
    windows, columns = least
    assert device.memory_gbps is not None
    written_us = 8 * 112 * 112 * 64 * 9 * 4 / (device.memory_gbps * 1e3)
    assert windows < columns - 0.9 * written_us


def generated_us(spec: str, shape: Shape, *schedules: str) -> list[float]:
    """What is expected of kernels of a generated op, by a part of their names."""
    op = Op.parse(spec)
    (family,) = families_for(op, "cuda")
    points = list(family.points(op, H200))
    kernels = [next(kernel for kernel in points if kernel.name.partition("__")[2].startswith(name)) for name in schedules]
    return [
        float(us)
        for us in expected_us(H200, demand(H200, family, op, [(kernel, shape) for kernel in kernels], weights="hot"))
    ]


def test_lanes_that_walk_rows_of_their_own_are_dearer_than_lanes_that_share_a_row():
    """An H200 took 83.8 and 29.1 us; a row a lane had been priced as if there were one group of lanes in all."""
    rows, shared = generated_us("reduce_sum:", Shape.of(m=4096, n=4096), "vl32_u1_ax1_kp0_pt128", "vl512_u8_ax0_kp0_pk4_hd1")
    assert rows > 2 * shared
    columns, folded = generated_us(
        "reduce_sum:over=first", Shape.of(m=4096, n=4096), "vl32_u4_ax1_kp0_pk4_pt128", "vl32_u8_ax0"
    )
    assert columns < folded, "lanes on neighbouring columns read neighbours"


def test_rows_are_shared_by_blocks_where_threads_are_idle_without():
    """As the runtime cuts them: 4,096 rows of 512 threads are more than the device has at a time."""
    names = ("vl512_u2_ax2_kp0_pk2_hd1", "vl512_u2_ax2_kp0_pk2_hd1_pt32")
    alone, parts = generated_us("softmax:", Shape.of(m=4096, n=4096), *names)
    assert parts == pytest.approx(alone, rel=0.01)
    alone, parts = generated_us("softmax:", Shape.of(m=1, n=1 << 20), *names)
    assert parts < alone / 4


@pytest.mark.parametrize(
    ("spec", "shape", "fast", "slow", "least"),
    [  # what an H200 took: 3.3 and 19.3 us, 6.4 and 12.4, 8.7 and 32.4, 37.4 and 64.6
        ("reduce_sum:", (4096, 768), "vl32_u8_ax0_kp0_pk4_hd1_oa", "vl512_u8_ax0_kp0_pk4_hd1_oa", 4.0),
        ("reduce_sum:", (2048, 4096), "vl32_u8_ax0_kp0_pk4_hd1_oa", "vl512_u8_ax0_kp0_pk4_hd1_oa", 1.5),
        ("softmax:", (4096, 768), "vl32_u4_ax2_kp0_pk4_hd1", "vl512_u2_ax2_kp0_pk2_hd1", 2.5),
        ("silu:", (4096, 4096), "vl32_u4_ax2_kp0_pk4", "vl32_u1_ax2_kp0", 1.3),
    ],
)
def test_what_was_slow_on_a_gpu_is_dear(spec: str, shape: tuple[int, int], fast: str, slow: str, least: float) -> None:
    fast_us, slow_us = generated_us(spec, Shape.of(m=shape[0], n=shape[1]), fast, slow)
    assert slow_us > least * fast_us


def test_all_streams_share_what_l2_gives() -> None:
    """33.5 MB at some 7 TB/s; an H200 took 6.4 us."""
    (us,) = generated_us("reduce_sum:", Shape.of(m=2048, n=4096), "vl32_u8_ax0_kp0_pk4_hd1_oa")
    assert 5.0 < us < 8.0
