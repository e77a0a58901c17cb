"""The CPU dense family: parameters, footprint, the program it writes, and object code without a workspace."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haotuner.backends.cpu.compile import object_code
from haotuner.microkernels.cpu import dense as cpu_dense
from haotuner.microkernels.cpu.dense import (
    FP32_BYTES,
    PREFETCHES,
    TVM_STACK_BYTES,
    UNROLLS,
    CpuDense,
    computed_columns,
    tail_columns,
)
from haotuner.microkernels.cpu.dense_demand import K_BLOCK, K_BLOCK_LEAST_K, LAWS, SPARSE, SPARSE_BYTES, k_block
from haotuner.search.select.limits import question
from haotuner.spec.constraint import refusals
from haotuner.spec.device import Device
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from tests.cost.cost_examples import BARE_CORE, BIG_CORE, OP, SMALL_CORE

FAMILY = CpuDense()


def test_golden_program(golden: Callable[..., None]) -> None:
    golden(FAMILY.schedule(FAMILY.kernel(2, 32, 16, 2, 8), "tile").script() + "\n", part="plain")
    golden(FAMILY.schedule(FAMILY.kernel(1, 32, 16, 1, 8, 16), "tile").script() + "\n", part="prefetch")
    golden(FAMILY.schedule(FAMILY.kernel(1, 64, 32, 4, 16, 16, 24), "tile").script() + "\n", part="tail")
    golden(FAMILY.schedule(FAMILY.kernel(1, 64, 32, 4, 16, SPARSE), "tile").script() + "\n", part="sparse")


@pytest.mark.parametrize(("vectors", "panel", "ku", "fetched"), [(4, 4, 8, 4), (4, 1, 8, 4), (8, 8, 1, 1), (2, 2, 4, 1)])
def test_a_sparse_prefetch_is_a_line_of_every_512_bytes_of_a_stream(vectors: int, panel: int, ku: int, fetched: int) -> None:
    text = FAMILY.schedule(FAMILY.kernel(1, vectors * 16, panel * 16, ku, 16, SPARSE), "tile").script()
    assert text.count("llvm.prefetch") == fetched == vectors * 64 * ku // SPARSE_BYTES


@pytest.mark.parametrize("text", ["dense:n=3072,k=768", "dense:n=16,k=64", "dense:n=40,k=8"])
def test_flat_tiles_that_are_measured_are_fast_wherever_the_weight_lies(text: str) -> None:
    """Whether they are in L3 is never asked: what costs time there and saves none from memory is no candidate."""
    op = Op.parse(text)
    laws = LAWS[-2:]
    left = set()
    for kernel in FAMILY.points(op, BIG_CORE):
        if not list(refusals(question(FAMILY, kernel, op, BIG_CORE, {"m": 64}), laws)) and kernel["mr"] == 1:
            left.add((kernel["nr"] // kernel["vl"], kernel["pf"]))
            assert kernel["pf"] != SPARSE or kernel["ku"] * kernel["pw"] * FP32_BYTES >= SPARSE_BYTES
    least = 1 if op["n"] <= BIG_CORE.wave_width else 2
    assert {fetched for _, fetched in left} == {0, SPARSE} and min(vectors for vectors, _ in left) == least
    tall = FAMILY.kernel(8, 48, 48, 4, 16, 16)
    assert not list(refusals(question(FAMILY, tall, op, BIG_CORE, {"m": 64}), laws))


@given(st.integers(1, 16), st.integers(1, 4), st.sampled_from((4, 8, 16)), st.integers(1, 10_000))
def test_a_tail_has_the_columns_that_whole_tiles_leave_and_less_than_a_vector_more(
    mr: int, vectors: int, vl: int, n: int
) -> None:
    nr = vectors * vl
    kernel = FAMILY.kernel(mr, nr, nr, 1, vl, 0, n)
    tail, rest = tail_columns(kernel), n % nr
    assert MicroKernel.parse(kernel.name) == kernel and tail % min(vl, 8) == 0
    if tail:
        assert rest <= tail < min(rest + 8, nr)
    else:
        assert rest == 0 or rest > nr - 8 and kernel == FAMILY.kernel(mr, nr, nr, 1, vl)
    assert n <= computed_columns(kernel, n) < n + max(8, vl) and computed_columns(kernel, n) % min(vl, 8) == 0


@given(st.integers(1, 200_000))
def test_the_parts_of_a_long_sum_are_alike_and_a_short_one_has_none(k: int) -> None:
    part = k_block(k)
    assert (part == 0) == (k < K_BLOCK_LEAST_K)
    if part:
        count = -(-k // part)
        assert 0.8 * K_BLOCK <= part <= 1.2 * K_BLOCK and k - (count - 1) * part > part - count


@pytest.mark.parametrize(
    ("text", "served"),
    [
        ("dense:n=4,k=4", True),
        ("dense:n=4,k=4,weight=kn", True),
        ("dense:n=4,k=4,dtype=fp16", False),
        ("dense:n=4,k=4,epilogue=bias+gelu", True),
        ("dense:n=4", False),
        ("dense:m=4,n=4,k=4", False),
    ],
)
def test_it_serves_fp32_dense_with_n_and_k_known(text: str, served: bool) -> None:
    assert FAMILY.serves(Op.parse(text)) == served


@pytest.mark.parametrize("device", [BIG_CORE, SMALL_CORE, BARE_CORE], ids=lambda device: device.id)
def test_points_are_whole_vectors_of_the_device_in_whole_panels(device: Device) -> None:
    points = list(FAMILY.points(OP, device))
    assert {p["vl"] for p in points} == {device.wave_width}
    assert {(p["ku"], p["pf"]) for p in points} == set(product(UNROLLS, PREFETCHES))
    assert all(p["nr"] % p["pw"] == 0 and p["pw"] % p["vl"] == 0 for p in points)
    assert {(p["nr"] // p["vl"], p["nr"] // p["pw"]) for p in points} == {
        (v, s) for v in range(1, 13) for s in range(1, v + 1) if v % s == 0
    }


@pytest.mark.parametrize(("nr", "pw", "vl"), [(48, 32, 16), (40, 40, 16)])
def test_a_tile_of_broken_panels_is_refused(nr: int, pw: int, vl: int) -> None:
    with pytest.raises(ValueError, match="needs whole panels"):
        FAMILY.kernel(4, nr, pw, 1, vl)


def test_the_footprint_counts_accumulators_the_shorter_side_and_one_scalar() -> None:
    for mr, vectors, registers in ((1, 1, 1 + 1 + 1), (6, 4, 24 + 4 + 1), (2, 12, 24 + 2 + 1), (14, 2, 28 + 2 + 1)):
        footprint = FAMILY.footprint(FAMILY.kernel(mr, vectors * 16, 16, 4, 16))
        assert footprint.registers_per_thread == registers
        assert footprint.shared_bytes == (mr + vectors * 16) * 4 * FP32_BYTES


def test_object_code_needs_nothing_from_tvm_but_its_errors(tmp_path: Path) -> None:
    lanes = 16
    more_than_a_buffer = TVM_STACK_BYTES // (lanes * FP32_BYTES) + 1
    tiles = [(1, 12, 1, 8, 0), (6, 4, 4, 4, 16), (16, 1, 1, 1, 0), (2, more_than_a_buffer, 1, 1, 8)]
    kernels = [FAMILY.kernel(mr, v * lanes, p * lanes, ku, lanes, pf) for mr, v, p, ku, pf in tiles]
    assert workspaces(object_of(kernels, tmp_path)) == set()


def test_a_buffer_over_the_stack_limit_would_need_a_workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_dense, "TVM_STACK_BYTES", 1 << 20)  # what the family's splitting of rows is for
    assert "__TVMBackendAllocWorkspace" in workspaces(object_of([FAMILY.kernel(1, 17 * 16, 16, 1, 16)], tmp_path))


def object_of(kernels: list[MicroKernel], folder: Path) -> Path:
    out = folder / "kernels.o"
    object_code(kernels, "x86-64-v4", out)
    return out


def workspaces(path: Path) -> set[str]:
    listed = subprocess.run(["nm", str(path)], capture_output=True, text=True, check=True).stdout
    assert "__tvm_ffi_cpu_dense_fp32__" in listed
    return set(re.findall(r"\b\w*Workspace\w*|\b\w*ParallelLaunch\w*", listed))
