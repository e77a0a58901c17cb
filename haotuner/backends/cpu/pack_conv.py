"""A convolution of a pack: dense's micro-kernels, and a kernel and a way to share for every cell of its shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from haotuner.backends.cpu.compile import kernel_table
from haotuner.backends.cpu.conv_source import initializer, is_flat, plain_floats, transformed
from haotuner.backends.cpu.pack_op import PackedAxis, PackedOperand, entry_of, operands_of
from haotuner.backends.cpu.pack_sliced import SlicedPlan, plan_tables
from haotuner.backends.cpu.typed_library import types_of
from haotuner.microkernels.cpu.typed import word_of
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op

# The C loops know the axes by place, whatever the kind (kinds/conv.h).
PLACES = ("b", "h", "w", "p", "q", "c", "f", "packed")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedConv:
    """Everything the library holds about a convolution. ``packed_floats``: of its weight as the loops read it."""

    op: Op
    ranges: Mapping[str, tuple[int, int]]
    micro_kernels: tuple[MicroKernel, ...]
    tiles: tuple[Mapping[str, int], ...]
    plans: tuple[SlicedPlan, ...]
    packed_floats: int

    @property
    def name(self) -> str:
        """Canonical name of the op."""
        return self.op.name

    @property
    def kind(self) -> str:
        """Kind of the op."""
        return self.op.kind

    @property
    def axes(self) -> tuple[PackedAxis, ...]:
        """The axes in the places that the loops know."""
        op, flat = self.op, is_flat(self.op)
        fixed = {**dict(op.static), "packed": self.packed_floats, **({"h": 1, "p": 1} if flat else {})}

        def axis(name: str) -> PackedAxis:
            if name in fixed:
                return PackedAxis(name=name, extent=fixed[name])
            first, last = self.ranges.get(name, (1, 1))
            return PackedAxis(name=name, first=first, last=last)

        return tuple(axis(name) for name in PLACES)

    @property
    def dynamic(self) -> tuple[str, ...]:
        """The axes that a plan is looked up by; the others follow from them."""
        return self.op.dynamic

    @property
    def operands(self) -> tuple[PackedOperand, ...]:
        """As a call passes them: the weight is packed."""
        x, _, *extra, y = operands_of(self.op)
        weight = PackedOperand(name="weight", role="constant", axes=("packed",), compact=True)
        bias = PackedOperand(name="bias", role="constant", axes=("f",), optional=True, compact=True)
        return (x, weight, *extra, y, *(() if self.op.epilogue or self.op.sums != "fp32" else (bias,)))

    @property
    def kernel_names(self) -> tuple[str, ...]:
        """Names in the order of the library's table."""
        return tuple(kernel.name for kernel in self.micro_kernels)

    @property
    def threads(self) -> tuple[int, ...]:
        """The thread count of each plan."""
        return tuple(plan.threads for plan in self.plans)

    def declarations(self) -> str:
        """C includes that its tables need; the kernels' functions stand with their table."""
        return '#include "kinds/conv.h"'

    def entry(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """The op's entry in the manifest: axes and operands as users know them."""
        result = entry_of(self, facts)
        static, options = dict(self.op.static), self.op.all_options()
        result["axes"] = [
            PackedAxis(name=axis, extent=static[axis]).entry()
            if axis in static
            else PackedAxis(name=axis, first=self.ranges[axis][0], last=self.ranges[axis][1]).entry()
            for axis in self.op.axes
        ]
        result["axes"] += [{"name": axis, "derived": True} for axis in self.op.meaning.derived]
        weight = self.op.meaning.operands[1]
        result["operands"][1] |= {
            "dtype": self.op.dtype_of(weight),
            "dims": list(weight.axes(options)),
            "packed": {"floats": self.packed_floats, **self._plain()},
        }
        return result

    def _plain(self) -> dict[str, int]:
        """Floats of the packed weight that are no transformed copy, by name; empty without such copies."""
        some = bool(transformed(self.micro_kernels))
        return {"plain": plain_floats(self.op, self.micro_kernels[0]["vl"])} if some else {}

    def tables(self, index: int) -> list[str]:
        """C source of ``plans_<index>`` and ``data_<index>``."""
        lanes, tiles = self.micro_kernels[0]["vl"], transformed(self.micro_kernels)
        text = kernel_table(self.micro_kernels, f"kernels_{index}", "static ").splitlines()
        typed = "NULL"
        if word_of(self.micro_kernels[0]) is not None:
            text.append(types_of(self.micro_kernels[0], f"typed_{index}"))
            typed = f"&typed_{index}"
        text.append(f"static const ht_conv data_{index} = {initializer(self.op, lanes, tiles, f'kernels_{index}', typed)};")
        slot_of = {axis: index for index, axis in enumerate(PLACES)}
        return text + plan_tables(index, self.plans, slot_of)
