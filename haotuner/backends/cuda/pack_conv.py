"""A convolution of a CUDA pack: a micro-kernel of the product that it is for every cell of its shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from haotuner.backends.backend import Choice
from haotuner.backends.cpu.conv_source import initializer
from haotuner.backends.cpu.pack_conv import PLACES, PackedConv
from haotuner.backends.cpu.pack_op import PackedOperand, operands_of
from haotuner.backends.cpu.pack_sliced import plan_tables
from haotuner.backends.cpu.packing import cell_plans
from haotuner.backends.cuda.pack_dense import DTYPES, channels_in_own_type, has_free_bias
from haotuner.microkernels.cuda.conv import transposed
from haotuner.microkernels.cuda.fused import initializer as told
from haotuner.microkernels.cuda.launch import Launch
from haotuner.microkernels.index import family_named


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedCudaConv(PackedConv):
    """Everything the library holds about such an op on a CUDA device."""

    launches: Sequence[Launch]
    splits = False  # no cell sums k in parts

    @property
    def reads_kn(self) -> bool:
        """True if the product's second factor lies as (k, n)."""
        return transposed(self.op)

    @staticmethod
    def chosen(choice: Choice) -> PackedCudaConv:
        """Packed op from the result of tuning."""
        tiles = [choice.family.tile(kernel) for kernel in choice.kernels]
        return PackedCudaConv(
            op=choice.op,
            ranges=choice.ranges,
            micro_kernels=tuple(choice.kernels),
            tiles=tuple({**tile.extent, **tile.step} for tile in tiles),
            plans=tuple(cell_plans(choice)),
            packed_floats=1,  # nothing is packed
            launches=[family_named(kernel.family).launch(kernel) for kernel in choice.kernels],  # type: ignore[attr-defined]
        )

    @property
    def dtype(self) -> str:
        """Of x, weight, bias and y."""
        return self.op.dtype

    @property
    def operands(self) -> tuple[PackedOperand, ...]:
        """x, the weight as its owner stores it, a bias where the epilogue has one, y; else perhaps an optional bias."""
        x, _, *more, y = operands_of(self.op)
        weight = PackedOperand(name="weight", role="constant", axes=("packed",), dtype=self.dtype, compact=True)
        optional = has_free_bias(self.op)
        bias = PackedOperand(name="bias", role="constant", axes=("f",), dtype=self.dtype, optional=optional, compact=True)
        if optional:
            return x, weight, y, bias
        return x, weight, *channels_in_own_type(self.op, more), y

    def declarations(self) -> str:
        """Nothing: kernels are found in the device code by their names."""
        return ""

    def entry(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """The op's entry in the manifest."""
        result = PackedConv.entry(self, facts)
        del result["operands"][1]["packed"]
        return result

    def placed_tables(self, index: int, places: Mapping[str, int]) -> list[str]:
        """C source of ``plans_<index>`` and ``data_<index>``; ``places``: of kernels in the pack's list, by name."""
        own = ", ".join(str(places[name]) for name in self.kernel_names)
        conv, dtype = initializer(self.op, 1, (), "NULL", "NULL"), DTYPES.index(self.dtype)
        return [
            f"static const int32_t kernels_{index}[] = {{{own}}};",
            f"static const ht_cuda_conv data_{index} = {{{conv}, {dtype}, {told(self.op)}, kernels_{index}}};",
            *plan_tables(index, self.plans, {axis: index for index, axis in enumerate(PLACES)}),
        ]
