"""Generated programs as CUDA C++: compiled for sm_80 and sm_90a, and executed by the emulator on ragged shapes."""

from __future__ import annotations

import ctypes
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from haotuner.codegen.emit import AnyPlan
from haotuner.codegen.kinds import graph_of
from haotuner.codegen.schedule import Schedule, planned
from haotuner.cost.families import demand
from haotuner.cost.roofline import expected_us
from haotuner.errors import NothingLegal, UsageError
from haotuner.hw_profiles.find import find_device
from haotuner.microkernels.cuda.device_calls import DEVICE
from haotuner.microkernels.cuda.generated import PARTS, CudaGenerated
from haotuner.microkernels.cuda.generated_kernel import kernel_text, shared_text
from haotuner.microkernels.cuda.online_softmax import CudaOnline
from haotuner.microkernels.index import families_for, family_named
from haotuner.spec.kernel import MicroKernel, shares_terms
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from tests.emulator import build
from tests.microkernels.cuda_generated import PROGRAMS, QUICK, entries, plan_of
from tests.standin.patience import WALL_S, ran

ROOT = Path(__file__).parents[2]


def cuda_unit(plans: Mapping[str, AnyPlan]) -> str:
    """CUDA C++ of programs by symbol."""
    return "\n".join([shared_text(), *(kernel_text(symbol, plan) for symbol, plan in plans.items())])


@pytest.fixture(scope="module")
def unit() -> str:
    return cuda_unit({symbol: plan for symbol, (_, plan) in PROGRAMS.items()})


@pytest.mark.skipif(bool(build.toolchain_missing()), reason=build.toolchain_missing())
@pytest.mark.parametrize("symbols", [QUICK, pytest.param(tuple(PROGRAMS), marks=pytest.mark.slow)], ids=["quick", "all"])
def test_programs_are_right_on_ragged_shapes(symbols, tmp_path):
    source = tmp_path / "generated.cu"
    source.write_text(cuda_unit({symbol: PROGRAMS[symbol][1] for symbol in symbols}) + entries(symbols))
    library = build.build_plain([source], tmp_path / "generated.so")
    command = [sys.executable, "-m", "tests.microkernels.cuda_generated", str(library), *symbols]
    done = ran(command, 110, cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_the_unit_compiles(unit, arch, tmp_path):
    source = tmp_path / "generated.cu"
    source.write_text(unit)
    command = ["nvcc", "-cubin", f"-arch={arch}", "-Xptxas=-v", str(source), "-o", str(tmp_path / "generated.cubin")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WALL_S, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    spilled = re.findall(r"(\d+) bytes spill stores", done.stderr)
    assert len(spilled) == len(PROGRAMS) and max(map(int, spilled)) <= 24


def test_what_the_text_is(unit):
    softmax = unit[unit.index("softmax(const") : unit.index("softmax_kept(const")]
    assert softmax.count("__shfl_xor_sync") == 2 and "= ht_group;" in softmax, "two folds over lanes, rows shared by groups"
    block = unit[unit.index("softmax_block(const") : unit.index("layer_norm_short(const")]
    assert block.count("__shared__") == 2 and "ht_groups = (long long)gridDim.x * blockDim.x / 64;" in block
    gelu = unit[unit.index(" gelu(const") : unit.index(" bias_gelu(const")]
    assert "__shfl" not in gelu and "erff(" in gelu
    joined = unit[unit.index(" joined_of(const") :]
    loads = [line for line in joined.splitlines() if " = " in line and re.search(r"t[01]\[", line)]
    assert loads and all(" > 0" in line and " ? t" in line for line in loads), "an empty operand is not read"


def test_short_types_are_computed_in_fp32():
    op = Op.parse("layer_norm:dtype=bf16")
    (family,) = families_for(op, "cuda")
    assert isinstance(family, CudaGenerated) and family is family_named("cuda_generated_layer_norm_bf16")
    points = list(family.points(op, find_device("h200")))
    assert {point["vl"] for point in points} == {4, 8, 32, 128, 512} and not any(point["kp"] for point in points)
    text = family.text(points[0], "norm")
    assert text is not None and "(const ht_bf16*)a.data[0]" in text and "float w" in text and "float v" in text
    with pytest.raises(NothingLegal, match="on cpu"):
        families_for(op, "cpu")


def test_neighbours_are_one_access_where_all_tensors_lie_so():
    op = Op.parse("rms_norm:affine=scale,dtype=bf16")
    (family,) = families_for(op, "cuda")
    assert isinstance(family, CudaGenerated)
    (kernel,) = [point for point in family.points(op, find_device("h200")) if "vl32_u8_ax2_kp0_pk8_hd1_oa" in point.name]
    text = family.text(kernel, "norm") or ""
    (condition,) = re.findall(r"  if \((.*)\) norm_of<1>\(a\);", text)
    assert [condition.count(f"a.data[{at}] % (8 * sizeof(ht_bf16))") for at in range(3)] == [1, 1, 1]
    assert [condition.count(f"a.strides[{at}][0] % 8 == 0") for at in range(3)] == [1, 0, 1], "the scale has one row"


@pytest.mark.skipif(bool(build.toolchain_missing()), reason=build.toolchain_missing())
def test_functions_of_16_bits_are_near(tmp_path):
    source = tmp_path / "near.cu"
    calls = "".join(f"y[{index}][i] = ht_{name}(x[i]);" for index, name in enumerate(("erf", "exp")))
    loop = f'extern "C" void near(const float* x, float** y, int n) {{ for (int i = 0; i < n; i++) {{ {calls} }} }}'
    source.write_text((DEVICE / "short.cuh").read_text() + loop)
    library = ctypes.CDLL(str(build.build_plain([source], tmp_path / "near.so")))
    size = np.concatenate([np.logspace(-30, 1, 4000), [0.0, 0.015625, np.inf]])
    x = np.concatenate([size, -size]).astype(np.float32)
    outputs = np.empty((2, len(x)), np.float32)
    rows = (ctypes.c_void_p * 2)(*(row.ctypes.data for row in outputs))
    library.near(x.ctypes.data_as(ctypes.c_void_p), rows, len(x))
    with np.errstate(over="ignore"):
        expected = np.array([[math.erf(value) for value in x.tolist()], np.exp(x.astype(np.float64))])
    finite = np.isfinite(x)
    off = np.abs(outputs[:, finite] - expected[:, finite])
    assert (off <= 1e-4 * np.abs(expected[:, finite])).all(), "half of fp16's last digit is 2.4e-4"
    assert outputs[0, ~finite].tolist() == [1.0, -1.0] and outputs[1, ~finite].tolist() == [np.inf, 0.0]
    text = {dtype: _text(Op.parse(f"gelu:dtype={dtype}")) for dtype in ("bf16", "fp32")}
    assert "ht_erf(" in text["bf16"] and "erff(" not in text["bf16"] and "ht_erf(" not in text["fp32"]


def _text(op: Op) -> str:
    (family,) = families_for(op, "cuda")
    assert isinstance(family, CudaGenerated)
    return family.text(next(iter(family.points(op, find_device("h200")))), "one") or ""


def test_the_end_of_a_row_is_one_masked_iteration():
    (family,) = families_for(op := Op.parse("reduce_sum:"), "cuda")
    (kernel,) = [point for point in family.points(op, find_device("h200")) if "vl32_u8_ax0_kp0_pk4_hd1_oa" in point.name]
    assert isinstance(family, CudaGenerated)
    text = family.text(kernel, "total") or ""
    assert text.count("ht_take<4, true>") == 2 and text.count("ht_take<4, false>") == 1 and "? t0[" not in text


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_attention_is_one_program_whose_memory_is_a_warps(dtype):
    device, op = find_device("h200"), Op.parse(f"attention:d=64,causal=end,dtype={dtype}")
    (family,) = families_for(op, "cuda")
    assert isinstance(family, CudaOnline) and family_named(family.name).name == family.name
    points = list(family.points(op, device))
    space = family.space(op, device)
    assert {family.kernel_of(space.schedule(point), op) for point in space.points} == set(points), "what policies search"
    units = {kernel["al"] for kernel in points if kernel["al"] > 1}
    assert units == ({2, 3, 4} if dtype == "bf16" else set()), "tensor cores multiply 16 bits"
    for kernel in points:
        text = family.text(kernel, "attention")
        assert text is not None and text.count("__global__") == 1
        if kernel["al"] > 1:  # test_cuda_attention.py
            continue
        assert "__syncwarp" in text and "__syncthreads" not in text
        (floats,) = re.findall(r"float ht_memory\[(\d+)\]", text)
        assert int(floats) * 4 <= 48 << 10
        assert "of shared memory, a warp" in family.decisions(kernel)["movement"]
    with pytest.raises(NothingLegal, match="known d"):
        families_for(Op.parse("attention:"), "cuda")


@pytest.mark.parametrize("spec", ["reduce_sum:", "softmax:"])
def test_few_long_rows_are_expected_to_be_shared_by_blocks(spec):
    op, device = Op.parse(spec), find_device("h200")
    family = CudaGenerated(op.meaning)
    points = list(family.points(op, device))
    assert {family.cut(point).parts for point in points} == set(PARTS) == {1, 8, 32, 128}
    assert {family.cut(point).stages for point in points if shares_terms(point)} == {3 if op.kind == "softmax" else 0}

    few = [point for point in points if point["ax"] != 1 and point["vl"] in (32, 512) and point["u"] == 8]

    def best(m: int, n: int) -> MicroKernel:
        pairs = [(point, Shape.of(m=m, n=n)) for point in few]
        us = expected_us(device, demand(device, family, op, pairs, weights="hot"))
        return few[int(np.argmin(us))]

    assert shares_terms(best(1, 65536)) and not any(shares_terms(best(m, n)) for m, n in ((512, 256), (1, 64)))
    space = family.space(op, device)
    assert {space.schedule(point).parts for point in space.points} == set(PARTS)
    assert "blocks fold" in family.decisions(best(1, 65536))["computation"]


def test_what_has_no_program_is_told():
    op = Op.parse("softmax:")
    graph = graph_of(op.meaning, op.all_options())
    with pytest.raises(UsageError, match="vectors of 48; on a GPU they are 4, 8, 16"):
        cuda_unit({"softmax": planned(graph, Schedule(lane_axis=1, lanes=48, unroll=1))})
    assert "ht_floordiv(" in cuda_unit({"resize": plan_of("resize:mode=nearest")})
