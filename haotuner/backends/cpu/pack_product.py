"""A batch_matmul of a pack: a micro-kernel and a way to share for every cell of its shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from haotuner.backends.cpu.pack_op import PackedOperand, axes_of, operands_of
from haotuner.backends.cpu.pack_sliced import PackedSliced, SlicedKernel, SlicedPlan, plan_tables
from haotuner.backends.cpu.product_source import product_data, product_declarations
from haotuner.ops.batch_matmul import BESIDE
from haotuner.spec.op import Op


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedProduct(PackedSliced):
    """Everything the library holds about such an op."""

    @staticmethod
    def of(
        op: Op, ranges: Mapping[str, tuple[int, int]], kernels: Sequence[SlicedKernel], plans: Sequence[SlicedPlan]
    ) -> PackedProduct:
        """``ranges``: (first, last) of each dynamic axis."""
        beside = (PackedOperand(name=name, role="input", axes=axes, optional=True) for name, axes in BESIDE.items())
        return PackedProduct(
            name=op.name,
            kind=op.kind,
            axes=axes_of(op, ranges),
            operands=(*operands_of(op), *beside),
            kernels=tuple(kernels),
            plans=tuple(plans),
        )

    def declarations(self) -> str:
        """C declarations of the programs of all tiles."""
        return "\n".join(product_declarations(self.micro_kernels))

    def tables(self, index: int) -> list[str]:
        """C source of ``plans_<index>`` and ``data_<index>``. ValueError for a plan that is none."""
        for plan in self.plans:
            self._check(plan)
        axis_index = {axis.name: index for index, axis in enumerate(self.axes)}
        return product_data(self.micro_kernels, f"_{index}") + plan_tables(index, self.plans, axis_index)
