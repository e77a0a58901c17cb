"""A batch_matmul of a CUDA pack: a micro-kernel for every cell of its shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from haotuner.backends.backend import Choice
from haotuner.backends.cpu.pack_op import PackedOperand, axes_of, operands_of
from haotuner.backends.cpu.pack_sliced import PackedSliced, plan_tables
from haotuner.backends.cpu.packing import cell_plans, tiled
from haotuner.backends.cuda.pack_dense import DTYPES
from haotuner.microkernels.cuda.fused import initializer
from haotuner.microkernels.cuda.launch import Launch
from haotuner.microkernels.index import family_named
from haotuner.ops.batch_matmul import BESIDE
from haotuner.spec.op import Op


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedCudaProduct(PackedSliced):
    """Everything the library holds about such an op on a CUDA device."""

    op: Op
    launches: Sequence[Launch]
    splits = False  # no cell sums k in parts

    @staticmethod
    def chosen(choice: Choice) -> PackedCudaProduct:
        """Packed op from the result of tuning."""
        return PackedCudaProduct(
            op=choice.op,
            name=choice.op.name,
            kind=choice.op.kind,
            axes=axes_of(choice.op, choice.ranges),
            operands=placed_operands(choice.op),
            kernels=tiled(choice),
            plans=cell_plans(choice),
            launches=[family_named(kernel.family).launch(kernel) for kernel in choice.kernels],  # type: ignore[attr-defined]
        )

    @property
    def dtype(self) -> str:
        """Of x, w and y."""
        return self.op.dtype

    @property
    def reads_kn(self) -> bool:
        """True if w lies as (k, n)."""
        return self.op.option("layout") != "nt"

    def declarations(self) -> str:
        """Nothing: kernels are found in the device code by their names."""
        return ""

    def placed_tables(self, index: int, places: Mapping[str, int]) -> list[str]:
        """C source of ``plans_<index>`` and ``data_<index>``; ``places``: of kernels in the pack's list, by name."""
        for plan in self.plans:
            self._check(plan)
        own = ", ".join(str(places[name]) for name in self.kernel_names)
        x_across = int(self.op.option("layout") == "tn")
        across = f"NULL, 0, {x_across}, {int(not self.reads_kn)}, NULL, ht_cuda_product_type"
        return [
            f"static const int32_t kernels_{index}[] = {{{own}}};",
            f"static const ht_cuda_product data_{index} = "
            f"{{{{{across}}}, {DTYPES.index(self.dtype)}, {initializer(self.op)}, kernels_{index}}};",
            *plan_tables(index, self.plans, {axis.name: index for index, axis in enumerate(self.axes)}),
        ]


def placed_operands(op: Op) -> tuple[PackedOperand, ...]:
    """Both factors and y, and what a call may bring beside: bias and mask of its type (of bytes fp32), a scale in fp32."""
    return *operands_of(op), *(
        PackedOperand(
            name=name,
            role="input",
            axes=axes,
            dtype="fp32" if name == "scale" or op.sums != "fp32" else op.dtype,
            optional=True,
        )
        for name, axes in BESIDE.items()
    )
