"""Convolutions in libraries and packs: the fields of ``ht_conv``, and a kernel for every cell of their shapes.

A convolution as its C loops know it: the fields of ``ht_conv`` (``native/kinds/conv.h``), for packs and for timing.

A convolution of a pack: dense's micro-kernels, and a kernel and a way to share for every cell of its shapes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from haotuner.backends.cpu.compile import kernel_table, types_of
from haotuner.backends.cpu.pack_op import PackedAxis, PackedOperand, SlicedPlan, entry_of, operands_of, plan_tables
from haotuner.microkernels.cpu.conv import residue_classes, woven_residues
from haotuner.microkernels.cpu.conv_direct import is_direct
from haotuner.microkernels.cpu.conv_lines import LINES
from haotuner.microkernels.cpu.conv_pixel_major import TURNED
from haotuner.microkernels.cpu.typed import word_for, word_of
from haotuner.ops.convolution import ONE_TAP, Window, filter_axes, windows
from haotuner.ops.minimal_filtering import points
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op


def is_flat(op: Op) -> bool:
    """True if images of the op have no height."""
    return "h" not in op.axes


def transformed(kernels: Iterable[MicroKernel]) -> tuple[int, ...]:
    """Forms that kernels read weights in, beside the plain one: TURNED, and tiles of ``conv_winograd.c``."""
    return tuple(sorted({dict(kernel.params).get("wt", 0) for kernel in kernels} - {0, LINES}))


def words(op: Op, lanes: int, tiles: tuple[int, ...]) -> list[int]:
    """The fields of ``ht_conv`` in their order, but for its kernels; ``tiles`` as ``transformed`` says them."""
    result = windows(op.kind, dict(op.static), op.all_options())
    tall, wide = result.get("h", ONE_TAP), result["w"]
    last = op.option("layout") in ("nhwc", "nwc")
    flags, forms = (wide.transposed, last, is_flat(op)), sum(1 << tile for tile in tiles)
    return [op["c"], op["f"], int(op.option("groups")), *_window(tall), *_window(wide), *map(int, flags), forms, lanes]


def _window(w: Window) -> list[int]:
    return [w.taps, w.stride, w.dilation, w.before, w.after, w.more]


def initializer(op: Op, lanes: int, tiles: tuple[int, ...], kernels: str, typed: str) -> str:
    """The C initializer of the op's ``ht_conv``; ``kernels``: the name of its table; ``typed``: of its types, or NULL."""
    result = [str(word) for word in words(op, lanes, tiles)]
    head, tall, wide, rest = result[:3], result[3:9], result[9:15], result[15:]
    return f"{{{', '.join(head)}, {{{', '.join(tall)}}}, {{{', '.join(wide)}}}, {', '.join(rest)}, {kernels}, {typed}}}"


# As kinds/conv_phase.c lays a weight out: what tiles may read beyond it, and rows an odd number of cache lines apart.
_SLACK_ROWS, _SLACK_PANELS, _LINE = 16, 4, 16


def packed_floats(op: Op, lanes: int, tiles: tuple[int, ...]) -> int:
    """Floats of the packed weight; ``ht_conv_packed`` counts the same."""
    axes = filter_axes(windows(op.kind, dict(op.static), op.all_options()))
    vectors = -(-op["f"] // lanes) * prod(axis.residues for axis in axes)
    panels = [points(tile, axes) * vectors + _SLACK_PANELS for tile in tiles if tile != TURNED]
    turned = _product_floats(op, lanes, last=True) if TURNED in tiles else 0
    depth = op["c"] * prod(axis.phases for axis in axes)
    return plain_floats(op, lanes) + turned + sum(panels) * _apart(depth * lanes)


def _apart(floats: int) -> int:
    return (-(-floats // _LINE) | 1) * _LINE


def plain_floats(op: Op, lanes: int) -> int:
    """Floats of the weight as products of image columns read it, the first part of the packed one."""
    last = op.option("layout") in ("nhwc", "nwc")
    if woven_residues(op):
        return _woven_floats(op, lanes, last=last)
    if not is_direct(op):
        return _product_floats(op, lanes, last=last)
    taps = prod(side.taps for side in windows(op.kind, dict(op.static), op.all_options()).values())
    return taps * (op["f"] if last else -(-op["f"] // lanes) * lanes)


def _woven_floats(op: Op, lanes: int, *, last: bool) -> int:
    """As ``ht_conv_woven_packed`` counts: a product for each class of residues that see as many taps."""
    groups, channels = int(op.option("groups")), op["c"] // int(op.option("groups"))
    longest, total = 0, 0
    for lines, taps in residue_classes(op):
        depth, rows = channels * taps, op["f"] // groups * lines
        panels = -(-rows // lanes) + _SLACK_PANELS
        total += groups * (_apart(depth * lanes) * panels if last else _apart(depth) * rows)
        longest = max(longest, depth)
    return total + (0 if last else _SLACK_ROWS * _apart(longest))


def _product_floats(op: Op, lanes: int, *, last: bool) -> int:
    result = windows(op.kind, dict(op.static), op.all_options())
    tall, wide = result.get("h", ONE_TAP), result["w"]
    groups = int(op.option("groups"))
    channels, features = op["c"] // groups, op["f"] // groups
    total, word = 0, word_for(op)
    signed = op.dtype_of(op.meaning.operands[0]) == "int8"
    for rows in _taps(tall):
        for columns in _taps(wide):
            depth = channels * rows * columns
            panels = -(-features // lanes) + _SLACK_PANELS
            if word is not None:
                total += groups * panels * (_apart(word.depth(depth) * word.floats(lanes)) + signed * lanes)
                continue
            total += groups * (_apart(depth * lanes) * panels if last else _apart(depth) * features)
    return total + (0 if last or word is not None else _SLACK_ROWS * _apart(channels * tall.taps * wide.taps))


def _taps(side: Window) -> list[int]:
    """Taps that reach the outputs of each phase of the stride."""
    if not side.transposed:
        return [side.taps]
    meets = [(tap * side.dilation - side.before) % side.stride for tap in range(side.taps)]
    return [meets.count(phase) for phase in range(side.stride)]


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
