"""Generated programs as an op of a CUDA pack that was not tuned."""

from __future__ import annotations

from collections.abc import Sequence

from haotuner.backends.cpu.pack_op import SlicedEntry, SlicedKernel, SlicedPlan, axes_of, in_place_operands, operands_of
from haotuner.backends.cuda.pack_generated import PackedCudaGenerated
from haotuner.microkernels.cpu.generated import in_place_of
from haotuner.microkernels.cuda.generated import CudaGenerated
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op


def packed_generated(name: str, of: CudaGenerated, kernels: Sequence[MicroKernel], last: int) -> PackedCudaGenerated:
    """An op with one plan by its last axis: short rows by the first kernel, long ones by the last."""
    op = Op.parse(name)
    sliced = [
        SlicedKernel(name=kernel.name, tile=of.tile(kernel).extent, kernel=kernel, in_place=in_place_of(of, kernel))
        for kernel in kernels
    ]
    return PackedCudaGenerated(
        op=op,
        name=name,
        kind=op.kind,
        axes=axes_of(op, dict.fromkeys(op.dynamic, (1, last))),
        operands=in_place_operands(operands_of(op), sliced),
        kernels=sliced,
        plans=[
            SlicedPlan(
                threads=1,
                grid={op.dynamic[-1]: (16, last)},
                entries=[SlicedEntry(kernel=0), SlicedEntry(kernel=len(kernels) - 1)],
            )
        ],
        launches=[of.launch(kernel) for kernel in kernels],
        cuts=[of.cut(kernel) for kernel in kernels],
        dimensions=of.plan(kernels[0]).graph.dimensions,
    )
