"""Every kind that programs are generated for, and groups of files with several outputs, on devices, over the stand-in."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
from haotuner.backends.cpu.pack_op import SlicedEntry, SlicedKernel, SlicedPlan, axes_of, operands_of  # noqa: E402  # noqa: E402
from haotuner.backends.cuda.pack_generated import PackedCudaGenerated  # noqa: E402
from haotuner.backends.cuda.translation_unit import device_unit  # noqa: E402
from haotuner.hw_profiles.find import find_device  # noqa: E402
from haotuner.microkernels.cuda.generated import CudaGenerated  # noqa: E402
from haotuner.microkernels.index import families_for, family_named  # noqa: E402
from haotuner.ops.index import KINDS  # noqa: E402
from haotuner.spec.op import Op  # noqa: E402
from haotuner.tuning.request import ops_of  # noqa: E402
from tests.runtime.cuda_packs import make_pack  # noqa: E402
from tests.runtime.test_group import files, node, saved  # noqa: E402
from tests.standin import ROOT, environment, toolchain_missing  # noqa: E402
from tests.standin.cubins import cubin_of  # noqa: E402
from tests.standin.patience import ran  # noqa: E402

ARCH = "sm_90a"
LAST = 64
MORE = (
    "attention:d=40",
    "attention:d=40,causal=end,dtype=bf16",
    "attention:d=128,dtype=fp16",
    "attention:d=64,causal=end,mask=keys",
    "reduce_sum:over=first",
    "reduce_max:over=first",
    "transpose:",
    "resize:mode=nearest,scale=3",
    "rms_norm:affine=scale,eps=1e-6,dtype=fp16",
    "group_norm:affine=scale_bias,dtype=bf16",
    "max_pool:dtype=bf16",
)


def every_op() -> list[Op]:
    """Each kind by its example, some by other options and types."""
    named = [Op.parse(kind.example) for kind in KINDS.values() if CudaGenerated.covers(kind)]
    return list(dict.fromkeys([*named, *map(Op.parse, MORE)]))


def more_files(folder: Path) -> list[Path]:
    """The place of the greatest, a product with what is next to it, and a border that repeats the edge."""
    x, b = ["Rows", "Cols"], ["Cols", "Three"]
    return [
        saved(folder / "greatest.onnx", [
            node("Abs", ["x"], ["a"]), node("ArgMax", ["a"], ["at"], axis=1, keepdims=0), node("Cast", ["at"], ["y"], to=1),
        ], {"x": x}, ["y"]),
        saved(folder / "product.onnx", [
            node("Neg", ["x"], ["n"]), node("MatMul", ["n", "b"], ["s"]), node("Relu", ["s"], ["y"]),
        ], {"x": x, "b": b}, ["y"]),
        saved(folder / "padded.onnx", [node("Pad", ["x", "border"], ["y"], mode="edge")], {"x": x}, ["y"],
              border=np.array([1, 0, 2, 3])),
    ]  # fmt: skip


def packed(op: Op) -> PackedCudaGenerated:
    """An op with the first kernel that is proposed, everywhere."""
    (family,) = families_for(op, "cuda")
    assert isinstance(family, CudaGenerated)
    kernel = next(family.points(op, find_device("h100", measure=False)))
    sliced = [SlicedKernel(name=kernel.name, tile=family.tile(kernel).extent, kernel=kernel)]
    return PackedCudaGenerated(
        op=op, name=op.name, kind=op.kind, axes=axes_of(op, dict.fromkeys(op.dynamic, (1, LAST))), operands=operands_of(op),
        kernels=sliced, launches=[family.launch(kernel)], cuts=[family.cut(kernel)],
        plans=[SlicedPlan(threads=1, grid={op.dynamic[0]: (LAST,)}, entries=[SlicedEntry(kernel=0)])],
        dimensions=family.plan(kernel).graph.dimensions,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(bool(toolchain_missing()), reason=f"compiler: {toolchain_missing()}")
def test_every_kind_and_groups_of_files_are_served_on_a_device(tmp_path):
    ops = [*every_op(), *(op for file in (*files(tmp_path), *more_files(tmp_path)) for op in ops_of(f"group:{file}"))]
    packed_ops = [packed(op) for op in ops]
    micro_kernels = [sliced.kernel for op in packed_ops for sliced in op.kernels if sliced.kernel is not None]
    kernels: dict[str, Any] = {kernel.name: (family_named(kernel.family), kernel) for kernel in micro_kernels}
    code = tmp_path / "code"
    code.mkdir()
    unit = code / "kinds.cu"
    unit.write_text(device_unit(kernels, reduces=()))
    pack = make_pack(tmp_path / "pack", packed_ops, ARCH, cubin_of(unit, code, ARCH))
    where = {**os.environ, **environment(tmp_path / "images", device=ARCH, sources=code)}
    done = ran([sys.executable, "-m", "tests.runtime.cuda_kinds", pack], 200, cwd=ROOT, env=where)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
