"""An op of a CUDA pack that generated programs compute: one of them for every cell of its shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from haotuner.backends.backend import Choice
from haotuner.backends.cpu.pack_op import axes_of, operands_of
from haotuner.backends.cpu.pack_sliced import PackedSliced, in_place_bits, in_place_kernel, in_place_operands, plan_tables
from haotuner.backends.cpu.packing import cell_plans, tiled
from haotuner.microkernels.cuda.generated import CudaGenerated, Cut
from haotuner.microkernels.cuda.launch import Launch
from haotuner.spec.op import Op


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedCudaGenerated(PackedSliced):
    """Everything the library holds about such an op on a CUDA device.

    ``dimensions``: those of the programs' graph, which are axes of the op.
    """

    op: Op
    launches: Sequence[Launch]
    cuts: Sequence[Cut]
    dimensions: Sequence[str]
    splits = False
    reads_kn = False

    @staticmethod
    def chosen(choice: Choice) -> PackedCudaGenerated:
        """Packed op from the result of tuning."""
        family = choice.family
        assert isinstance(family, CudaGenerated)
        kernels = tiled(choice)
        return PackedCudaGenerated(
            op=choice.op,
            name=choice.op.name,
            kind=choice.op.kind,
            axes=axes_of(choice.op, choice.ranges),
            operands=in_place_operands(operands_of(choice.op), kernels),
            kernels=kernels,
            plans=cell_plans(choice),
            launches=[family.launch(kernel) for kernel in choice.kernels],
            cuts=[family.cut(kernel) for kernel in choice.kernels],
            dimensions=family.plan(choice.kernels[0]).graph.dimensions,
        )

    @property
    def dtype(self) -> str:
        """Of the operands that have no type of their own."""
        return self.op.dtype

    def declarations(self) -> str:
        """Nothing: kernels are found in the device code by their names."""
        return ""

    def placed_tables(self, index: int, places: Mapping[str, int]) -> list[str]:
        """C source of ``plans_<index>`` and ``data_<index>``; ``places``: of kernels in the pack's list, by name."""
        for plan in self.plans:
            self._check(plan)
        axes = {axis.name: index for index, axis in enumerate(self.axes)}
        own = ", ".join(str(places[name]) for name in self.kernel_names)
        cuts = ", ".join(cut.initializer() for cut in self.cuts)
        over = ", ".join(f"{in_place_bits(self.operands, kernel)}u" for kernel in self.kernels)
        known = ", ".join(str(axes[name]) for name in self.dimensions) or "0"
        return [
            f"static const int32_t kernels_{index}[] = {{{own}}};",
            f"static const ht_cuda_generated_kernel programs_{index}[] = {{{cuts}}};",
            f"static const uint8_t dimensions_{index}[] = {{{known}}};",
            f"static const uint32_t over_{index}[] = {{{over}}};",
            f"static const ht_cuda_generated data_{index} = "
            f"{{kernels_{index}, programs_{index}, {len(self.cuts)}, {len(self.dimensions)}, dimensions_{index}, "
            f"over_{index}, {in_place_kernel(self.operands, self.kernels)}}};",
            *plan_tables(index, self.plans, axes),
        ]
