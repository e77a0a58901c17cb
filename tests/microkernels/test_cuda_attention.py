"""Attention on tensor cores: executed by the emulator on ragged shapes, compiled, priced."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from haotuner.backends.cuda.device_code import build_cubin
from haotuner.backends.cuda.sass import find_nvdisasm, operation_of, read
from haotuner.backends.cuda.translation_unit import device_unit
from haotuner.codegen.kinds import graph_of
from haotuner.codegen.online_softmax import match_online_softmax
from haotuner.codegen.online_softmax_tensor import tensor_schedules, tiles_seen
from haotuner.cost.families import demand
from haotuner.cost.roofline import expected_us
from haotuner.hw_profiles.find import find_device
from haotuner.microkernels.cuda.device_calls import warpgroup_text
from haotuner.microkernels.cuda.online_softmax import CudaOnline
from haotuner.microkernels.index import families_for
from haotuner.spec.device import Device
from haotuner.spec.kernel import MicroKernel, shares_terms
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from tests.emulator import build
from tests.microkernels.cuda_attention import CASES, QUICK, entries
from tests.standin.patience import WALL_S, ran

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(bool(build.toolchain_missing()), reason=build.toolchain_missing())
@pytest.mark.parametrize("symbols", [QUICK, pytest.param(tuple(CASES), marks=pytest.mark.slow)], ids=["quick", "all"])
def test_it_is_right_on_ragged_shapes(symbols, tmp_path):
    source = tmp_path / "attention.cu"
    unit = device_unit({symbol: (CASES[symbol].family, CASES[symbol].kernel) for symbol in symbols})
    source.write_text(unit + entries(symbols))
    library = build.build_plain([source], tmp_path / "attention.so")
    done = ran([sys.executable, "-m", "tests.microkernels.cuda_attention", str(library), *symbols], 110, cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_nothing_spills(arch, tmp_path):
    """The largest of each number of rows a warp, at three depths."""
    device = find_device("h200")
    kernels: dict[str, tuple[CudaOnline, MicroKernel]] = {}
    for depth in (64, 128, 256):
        op = Op.parse(f"attention:d={depth},causal=end,dtype=bf16")
        (family,) = families_for(op, "cuda")
        assert isinstance(family, CudaOnline)
        by_rows = {kernel["wr"]: kernel for kernel in family.points(op, device) if kernel["al"] == 2 and kernel["rw"] == 128}
        kernels |= {f"k{depth}_{rows}": (family, kernel) for rows, kernel in by_rows.items()}
    assert len(kernels) == 5, "of 256 columns no warp holds 32 rows"
    source = tmp_path / "attention.cu"
    source.write_text(device_unit(kernels))
    command = ["nvcc", "-cubin", f"-arch={arch}", "-Xptxas=-v", str(source), "-o", str(tmp_path / "attention.cubin")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WALL_S, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.findall(r"(\d+) bytes spill stores", done.stderr) == ["0"] * len(kernels)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None or find_nvdisasm() is None, reason="no nvcc, or no nvdisasm")
@pytest.mark.parametrize("spec", ["attention:d=64,dtype=bf16", "attention:d=128,causal=end,dtype=fp16"])
def test_products_of_four_warps_go_on_while_exponentials_are_computed(spec, tmp_path):
    device, op = find_device("h200"), Op.parse(spec)
    (family,) = families_for(op, "cuda")
    assert isinstance(family, CudaOnline)
    kernels: dict[str, tuple[CudaOnline, MicroKernel]] = {}
    for along in (3, 4):
        points = [kernel for kernel in family.points(op, device) if kernel["al"] == along]
        kernels |= {kernel.name: (family, kernel) for kernel in (points[0], points[len(points) // 2], points[-1])}
    cubin = build_cubin(kernels, tmp_path / "wide.cubin", arch="sm_90a")  # what ptxas makes serial is an error of its own
    nvdisasm = find_nvdisasm()
    assert nvdisasm is not None
    for symbol, code in read(cubin.path, nvdisasm).items():
        kernel, loop = kernels[symbol][1], code.main_loop("HGMMA")
        depth = op["d"]
        assert cubin.resources[symbol]["spill_bytes"] == 0 == loop.count("LDL") + loop.count("R2UR"), kernel.name
        assert loop.count("HGMMA") == -(-depth // 16) + kernel["ky"] // 16, "of keys and of values"
        waits = [at for at, instruction in enumerate(loop.instructions) if "WARPGROUP.DEPBAR" in instruction]
        powers = [at for at, instruction in enumerate(loop.instructions) if operation_of(instruction) == "MUFU"]
        assert len(waits) == 2 and waits[0] < powers[0] and powers[-1] < waits[1], "values' products are waited for last"
        assert len(powers) >= kernel["ky"] // 2


@pytest.mark.parametrize("name", ["parts_causal", "fed2"])
def test_the_text(golden, name):
    case = CASES[name]
    text = case.family.text(case.kernel, "attention")
    assert text is not None
    golden(text)


def test_who_multiplies_with_four_warps_together():
    def wide(spec: str, **changed: Any) -> list[MicroKernel]:
        return points(spec, replace(find_device("h200"), **changed), along=3)

    assert {kernel["rw"] for kernel in wide("attention:d=64,dtype=fp16")} == {64}
    assert {kernel["rw"] for kernel in points("attention:d=64,dtype=fp16", along=4)} == {128, 192}, "four bring"
    assert not wide("attention:d=64,dtype=fp16", arch="sm_100a"), "later ones have other instructions"
    assert not wide("attention:d=264,dtype=fp16") and not wide("attention:d=64")
    narrow = wide("attention:d=128,dtype=bf16", shared_per_block_bytes=99 << 10)
    assert 0 < len(narrow) < len(wide("attention:d=128,dtype=bf16"))
    assert "four multiply 64 rows together" in CASES["wide4"].family.decisions(narrow[0])["parallel"]
    with pytest.raises(ValueError, match="260 columns"):
        warpgroup_text(260, "bf16")


def points(spec: str, device: Device | None = None, along: int = 2) -> list[MicroKernel]:
    op = Op.parse(spec)
    (family,) = families_for(op, "cuda")
    assert isinstance(family, CudaOnline)
    return [kernel for kernel in family.points(op, device or find_device("h200")) if kernel["al"] == along]


def test_who_has_tensor_cores():
    hopper = find_device("h200")
    assert points("attention:d=64,dtype=fp16") and points("attention:d=40,mask=full,dtype=bf16")
    assert not points("attention:d=64"), "fp32 would lose digits"
    assert not points("attention:d=36,dtype=bf16"), "8 elements are read at once"
    assert not points("attention:d=64,dtype=bf16", replace(hopper, arch="sm_75"))
    small = points("attention:d=128,dtype=bf16", replace(hopper, shared_per_block_bytes=99 << 10))
    assert 0 < len(small) < len(points("attention:d=128,dtype=bf16"))
    op = Op.parse("attention:d=128,dtype=bf16")
    (family,) = families_for(op, "cuda")
    assert isinstance(family, CudaOnline)
    assert max(family.launch(kernel).shared_bytes for kernel in small) <= 99 << 10
    assert all(kernel["rw"] <= 64 for kernel in small if shares_terms(kernel)), "many rows fill a GPU without parts"
    words = family.decisions(small[0])
    assert "units for small matrices" in words["parallel"] and "shared memory, a block" in words["movement"]


def test_prices_choose_tensor_cores_and_parts_where_queries_are_few():
    device, op = find_device("h200"), Op.parse("attention:d=64,dtype=bf16")
    (family,) = families_for(op, "cuda")
    assert isinstance(family, CudaOnline)
    every = list(family.points(op, device))
    some = [point for point in every if point["al"] == 2 and point["ky"] == 64] + [
        point for point in every if point["al"] == 1
    ][:3]

    def best(**shape: int) -> tuple[float, MicroKernel]:
        pairs = [(kernel, Shape.of(shape)) for kernel in some]
        us = expected_us(device, demand(device, family, op, pairs, weights="hot"))
        apart = [expected_us(device, demand(device, family, op, [pair], weights="hot"))[0] for pair in (pairs[0], pairs[-1])]
        assert apart == pytest.approx([us[0], us[-1]]), "rows do not depend on those beside them"
        return float(us.min()), some[int(np.argmin(us))]

    us, kernel = best(b=96, t=512, s=512)
    assert 10 < us < 60 and kernel["al"] == 2 and kernel["rw"] >= 64
    moved, operand = family.bytes_by_level(kernel, op.extents(Shape.of(b=96, t=512, s=512)), device), 96 * 512 * 64 * 2
    assert moved["least"] == 4 * operand, "each once"
    assert moved["L1"] == (2 + 2 * 512 // kernel["rw"]) * operand, "keys and values once for each tile of rows"
    us, kernel = best(b=4, t=1, s=8192)
    assert us < 30 and shares_terms(kernel)
    us, kernel = best(b=12, t=333, s=333)
    assert us < 15 and not shares_terms(kernel) and kernel["rw"] == 64, "parts leave and read more than they save"


def test_four_warps_take_as_long_for_one_row_as_for_all():
    device, op = find_device("h200"), Op.parse("attention:d=64,dtype=bf16")
    for along in (3, 4):
        kernel = points("attention:d=64,dtype=bf16", along=along)[0]
        (family,) = families_for(op, "cuda")
        pairs = [(kernel, Shape.of(b=32, t=t, s=1024)) for t in (1, kernel["rw"])]
        one_row, every = expected_us(device, demand(device, family, op, pairs, weights="hot"))
        assert one_row > 0.9 * every > 10, "14 us were measured where 8 were expected"


def test_one_query_is_not_given_to_warps_along_a_deep_head():
    device, op = find_device("h200"), Op.parse("attention:d=128,dtype=fp16")
    (family,) = families_for(op, "cuda")
    depth, tensor = (
        [k for k in family.points(op, device) if k["al"] == along and shares_terms(k) and k["ky"] == 64] for along in (1, 2)
    )
    pairs = [(kernel, Shape.of(b=32, t=1, s=1024)) for kernel in (*depth, *tensor)]
    us = expected_us(device, demand(device, family, op, pairs, weights="hot"))
    assert us[: len(depth)].min() > 1.2 * us[len(depth) :].min(), "15.4 us were measured and 9.0, where 7.9 were expected"


@pytest.mark.parametrize(("causal", "seen"), [("none", [4, 4, 4]), ("end", [3, 4, 4]), ("start", [1, 2, 3])])
def test_tiles_that_rows_see(causal, seen):
    op = Op.parse(f"attention:d=64,causal={causal},dtype=bf16")
    sums = match_online_softmax(graph_of(op.meaning, {**op.all_options(), "d": "64"}))
    assert sums is not None
    schedule = next(candidate for candidate in tensor_schedules(sums) if (candidate.rows, candidate.keys) == (32, 32))
    assert tiles_seen(sums, schedule, {"b": 2, "t": 70, "s": 125}).tolist() == seen
