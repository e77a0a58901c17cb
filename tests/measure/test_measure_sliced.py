"""Kinds without loops of their own: built, verified and timed through the code that serves them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from haotuner.backends.cpu import timing_library
from haotuner.backends.cpu.compile import PASSES
from haotuner.backends.cpu.timer_process import WHOLE, Libraries, SlicedTimer
from haotuner.isolate.answers import Refusal
from haotuner.microkernels.cpu.generated import CpuGenerated
from haotuner.ops.index import KINDS
from haotuner.ops.kind import OpKind
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from tests.codegen.formula_kinds import FORMULA_KINDS, ROW_SUM
from tests.run_folder import toolchain

FAMILIES = {family.name: family for family in map(CpuGenerated, FORMULA_KINDS)}


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The index as if these kinds were in it."""
    for kind in FORMULA_KINDS:
        monkeypatch.setitem(KINDS, kind.name, kind)


def objects(kernels: Any, arch: str, out: Path) -> None:
    import tvm
    from tvm.target import Target

    module = tvm.IRModule({})
    for kernel in kernels:
        module.update(FAMILIES[kernel.family].schedule(kernel, kernel.name))
    with tvm.transform.PassContext(opt_level=3, config=PASSES):
        tvm.compile(module, target=Target({"kind": "llvm", "mcpu": arch})).mod.write_to_file(str(out), "o")


def library(kind: OpKind, folder: Path) -> tuple[str, list[MicroKernel]]:
    kernels = [
        MicroKernel(
            f"cpu_generated_{kind.name}_fp32",
            (("vl", vl), ("u", u), ("ax", 0 if kind.name == "row_sum" else len(kind.output.axes({}))), ("kp", 0)),
        )
        for vl, u in ((1, 1), (4, 2))
    ]
    out = folder / f"{kind.name}.so"
    timing_library.measuring_library(kernels, "x86-64", toolchain(), out, objects, FAMILIES.__getitem__)
    return str(out), kernels


def job(kind: OpKind, path: str, index: int, **more: Any) -> dict[str, Any]:
    family = FAMILIES[f"cpu_generated_{kind.name}_fp32"]
    tile = family.tile(MicroKernel(family.name, (("vl", 4), ("u", 2), ("ax", 0), ("kp", 0))))
    return {
        "library": path, "op": kind.name, "kernel": index, "tile": {**tile.extent, **tile.step}, "seed": 0,
        "least_tiles": 1, "threads": 1, "axis": WHOLE, "sample_ns": 20_000, "limit_ns": 1_000_000, "least": 3, "most": 4,
        "cold_bytes": 0, **more,
    }  # fmt: skip


@pytest.mark.parametrize("kind", FORMULA_KINDS, ids=lambda kind: kind.name)
def test_a_kernel_is_verified_whole_and_cut_and_timed_cold_and_hot(kind: OpKind, tmp_path: Path) -> None:
    path, kernels = library(kind, tmp_path)
    timer, op = SlicedTimer(Libraries()), Op.parse(kind.name)
    for index in range(len(kernels)):
        assert 0 <= timer.verify(job(kind, path, index))["max_error"] < 1
    shape = {axis: 24 for axis in op.dynamic}
    two: dict[str, Any] = {"threads": 2, "axis": op.axes.index(op.parallel[0])}
    one_row = {**two, "shape": {**shape, op.parallel[0]: 1}}
    for more in ({}, {"cold_bytes": 1 << 16}, two, one_row):
        timing = timer.time(job(kind, path, 1, **{"shape": shape, **more}))
        assert any(timing["together_us"]) == (more is two), "one row is one thread's: others' cores do not matter"
        assert len(timing["samples_us"]) >= 3 and min(timing["samples_us"]) > 0
        assert ("cold_bytes" in more) == (min(timing["memory_us"]) > 0) or sum(shape.values()) < 1 << 20


def test_a_wrong_kernel_and_a_wrong_job_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = library(ROW_SUM, tmp_path)
    timer = SlicedTimer(Libraries())
    with pytest.raises(Refusal, match="no such kernel"):
        timer.verify(job(ROW_SUM, path, 2))
    monkeypatch.setattr("haotuner.spec.numerics.reference", lambda op, inputs: np.sum(inputs["x"], axis=1) + 1.0)
    with pytest.raises(Refusal, match=r"m=1;n=1, whole: 1 wrong results, the first at \[0\]"):
        timer.verify(job(ROW_SUM, path, 0))


def test_dense_kernels_have_loops_of_their_own() -> None:
    dense, sum_ = MicroKernel("cpu_dense_fp32", (("mr", 1),)), MicroKernel("cpu_generated_row_sum_fp32", (("vl", 1),))
    assert timing_library.is_dense(dense) and not timing_library.is_dense(sum_)
    with pytest.raises(ValueError, match="do not share"):
        timing_library.measuring_library([dense, sum_], "x86-64", toolchain(), Path("no.so"))
