"""The CPU backend: how kernels are compiled, timed and packed, and in which ways threads share a call."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from haotuner.backends.backend import OBJECTS_WORD, Choice, CompileObject, Follow, GroupSources
from haotuner.backends.cpu import packing
from haotuner.backends.cpu.compile import left_out_here
from haotuner.backends.cpu.pack_dense import Blocking
from haotuner.backends.cpu.pack_op import PackedAny
from haotuner.backends.cpu.pack_source import pack_library
from haotuner.backends.cpu.processes import BUILDING, TIMING, process
from haotuner.backends.cpu.timer import CpuTimer
from haotuner.backends.fingerprint import Policy, fingerprint
from haotuner.backends.toolchain import Toolchain
from haotuner.errors import NothingLegal, UsageError
from haotuner.isolate.child import Child
from haotuner.microkernels.cpu.dense import computed_columns
from haotuner.microkernels.cpu.generated import joins_of
from haotuner.microkernels.index import families_for, family_named
from haotuner.ops.convolution import is_convolution
from haotuner.ops.groups import definitions
from haotuner.plan.compose import Curve
from haotuner.spec.composition import COLUMNS, ROWS, SERIAL, TERMS, Composition
from haotuner.spec.device import Device
from haotuner.spec.family import Family
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.limits import PART_TERMS, PARTIAL_FLOATS, ROW_PIECES
from haotuner.spec.op import Op
from haotuner.spec.record import Trial
from haotuner.spec.shape import Shape

# Columns a thread from which on cutting columns keeps every thread busy: two panels of the usual widths. Narrower outputs
# (routers, heads) leave threads idle or unevenly loaded; there parts of k are timed as well.
NARROW = 64
# About what it takes from the caller to a worker that waits for it and back: the best compositions of 1 to 9 rows shared by
# columns, hot, 22 to 101 us, take -0.5 to 5.7 us more than half of one thread's time (two cores, three ops; median 1.9).
HANDOFF_US = 1.5
AGAIN = 1.05  # where each thread lays out all of an image, or of W: an even choice is for the other axes


def ways(op: Op, threads: int, *, one_order: bool = False) -> tuple[str, ...]:
    """Ways worth timing for so many threads. ``one_order``: every element sums its terms in one order, k stays whole."""
    if threads == 1:
        return (SERIAL,)
    deep = op["n"] < NARROW * threads and op["k"] >= 2 * PART_TERMS and not one_order and op.plain
    return (COLUMNS, ROWS, TERMS, SERIAL) if deep else (COLUMNS, ROWS, SERIAL)


def rows_of(way: str, op: Op, threads: int, limit: int) -> int:
    """Rows up to which the runtime shares a call of ``threads`` in this way, at most ``limit``; 0 if it never does."""
    if way != TERMS:
        return limit
    others = min(threads, op["k"] // PART_TERMS) - 1
    return min(limit, PARTIAL_FLOATS // op["n"] // others)


def shared(curve: Curve, way: str, op: Op, threads: int) -> Curve:
    """Curve of a region when so many threads share a call: their part of one thread's curve, as even as whole tiles allow.

    Measured curves of several threads foretold compositions worse (3.5 % behind the best against 2.7, four ops): each has
    its own noise, and what cores share is known. What memory cannot give to all of them is seen when compositions contend.
    """
    if way == SERIAL:
        return curve
    kernel = curve.micro_kernel
    units = -(-op["n"] // kernel["nr"])

    def part(tiles: int) -> float:
        if way == TERMS:
            return 1.0 / min(threads, op["k"] // PART_TERMS)
        if way == COLUMNS:
            return widest_share(op["n"], kernel, threads)
        pieces = tiles * min(units, ROW_PIECES)
        return -(-pieces // threads) / pieces

    points = {tiles: us * part(tiles) + HANDOFF_US for tiles, us in curve.lead_us}
    return Curve.of(curve.kernel, curve.rows, points, curve.follow_us / threads)


def untimed_us(us: float, tile: int, axis: str, extents: Mapping[str, int], threads: int) -> float:
    """One thread's time in as even parts as whole tiles of an axis allow; q is the pixels of all rows and images."""
    matrices = extents.get("b", 1) if axis in ("q", "m", "n") else 1
    units = matrices * -(-extents[axis] * (extents.get("p", 1) if axis == "q" else 1) // tile)
    return us * (-(-units // threads) / units) * (AGAIN if axis in ("f", "m") else 1.0) + HANDOFF_US


def widest_share(n: int, kernel: MicroKernel, threads: int) -> float:
    """The share of the columns computed that the busiest thread has; ``column_of`` in dense_run.c cuts them so."""
    nr, computed = kernel["nr"], computed_columns(kernel, n)
    bounds = [min((2 * computed * i + threads * nr) // (2 * threads * nr) * nr, computed) for i in range(threads)]
    return max(later - sooner for sooner, later in pairwise([*bounds, computed])) / computed


def _shareable(op: Op) -> tuple[str, ...]:
    """Axes of the output that threads may share: those that its operands have, too."""
    return tuple(axis for axis in op.parallel if axis in op.axes)


class CpuBackend:
    """x86-64 CPUs."""

    name = "cpu"
    libraries_mix = False  # one loop runs all regions

    def owns(self, device: Device) -> bool:
        """Any CPU."""
        return device.kind == "cpu"

    def families(self, op: Op) -> tuple[Family, ...]:
        """The CPU families that compute an op; NothingLegal names what of a product none does."""
        if op.kind == "batch_matmul" and op.epilogue_operands:
            raise NothingLegal(
                f"{op.name}: bias, scale and mask of products side by side come with the call, run(x, w, bias=…); leave "
                f"{' and '.join(op.epilogue_operands)} out of the epilogue"
            )
        if op.kind == "dense" and op.dynamic != ("m",):
            left = f"leaves {', '.join(op.dynamic)} to run time" if op.dynamic else "leaves nothing to run time"
            raise NothingLegal(
                f"{op.name} {left}; plans of dense are by m alone: give n and k an extent, as in dense:n=2304,k=768, or "
                "write it as batch_matmul, whose axes may all be dynamic"
            )
        return families_for(op, self.name)

    def searched(self, op: Op, device: Device) -> tuple[Family, ...]:
        """The best one, and beside it those whose sums are cheaper but less exact; measurements choose."""
        first, *others = self.families(op)
        return (first, *(family for family in others if getattr(family, "own_order", False)))

    def family_of(self, kernel: MicroKernel) -> Family:
        """The family of a micro-kernel."""
        return family_named(kernel.family)

    def own_device(self, text: str, *, measure: bool, cache_dir: Path | None) -> Device | None:
        """None: ``haotuner.hw_profiles`` knows CPUs by their names."""
        return None

    def check(self, device: Device, requested: str, *, measures: bool) -> None:
        """Any x86-64 CPU can be packed for; only this host's is measured."""
        if measures and not re.fullmatch(r"cpu(:.*)?", requested.strip().lower()):
            raise UsageError(
                f"--device {requested}: tuning measures, and {device.id} is not this host's CPU; add --zero-measure for a "
                "pack from predictions, or name cpu, cpu:avx512, cpu:avx2 or cpu:sse"
            )

    def missing_requirement(self, device: Device) -> str:
        """Nothing beside instructions of its CPU, which the serving side knows by level."""
        return ""

    def threads(self, requested: Sequence[int], device: Device) -> tuple[int, ...]:
        """One and all cores, unless others are asked for; 0 is all."""
        result = tuple(dict.fromkeys(count or device.compute_units for count in requested or (1, 0)))
        for count in result:
            if not 1 <= count <= device.compute_units:
                raise UsageError(
                    f"--threads {count}: this process may use {device.compute_units} cores; give 1..{device.compute_units}"
                )
        return result

    def fingerprint(self, device: Device, policy: Policy) -> str:
        """Of the device, the toolchain, and how times are taken."""
        return fingerprint(device, policy, self.toolchain())

    def toolchain(self) -> dict[str, str]:
        """Versions of the C compiler, TVM and tvm-ffi, and what of this CPU the compiler does not know."""
        result = Toolchain.find()
        return result.words() | left_out_here(result.command)

    def builder(self, environment: Mapping[str, str]) -> Child:
        """A process that compiles. It keeps the compiled runtime where the environment names a folder for it."""
        return process(BUILDING, environment, {"objects": environment.get(OBJECTS_WORD)})

    def code_request(self, kernels: Sequence[str], device: Device, *, in_groups: bool = False) -> dict[str, Any]:
        """For hashes of kernels' programs and of the loops that call them."""
        request = {"do": "code", "kernels": list(kernels), "arch": device.arch, "in_groups": in_groups}
        return {**request, "groups": definitions()} if in_groups else request

    def build_request(self, kernels: Sequence[str], device: Device, out: str) -> dict[str, Any]:
        """For a library that times kernels."""
        return {"do": "build", "kernels": list(kernels), "arch": device.arch, "out": out}

    def object_request(self, kernels: Sequence[MicroKernel], arch: str, out: str) -> dict[str, Any]:
        """For the object code of a pack."""
        names = [kernel.name for kernel in kernels]
        return {"do": "object", "kernels": names, "groups": definitions(), "arch": arch, "out": out}

    def timer(self, device: Device, policy: Policy, environment: Mapping[str, str], *, seed: int) -> CpuTimer:
        """Timer that verifies and times on this host."""
        return CpuTimer(device, policy, process(TIMING, environment), self.family_of, seed=seed)

    def follow(self, op: Op, kernel: MicroKernel, device: Device, tiles: int) -> Follow:
        """So many tiles over one block of columns, hot, as they are behind another region."""
        nr, n = kernel["nr"], op["n"]
        columns = min(max(nr, Blocking.of(op, [kernel], device).col_block // nr * nr), -(-n // nr) * nr)
        block = replace(op, static=(("n", columns), ("k", op["k"])))
        shape = Shape.of({op.dynamic[0]: tiles * kernel["mr"]})
        trial = Trial.of(block, Composition.of(kernel.name), shape, cache="hot")
        return Follow(trial=trial, scale=computed_columns(kernel, n) / columns / tiles)

    def ways(self, op: Op, threads: int, *, one_order: bool) -> tuple[str, ...]:
        """Of dense columns, rows, terms of the sum, or nothing; of other ops each axis of the output that may be cut."""
        if op.kind == "dense":
            return ways(op, threads, one_order=one_order)
        axes = ("q", "f") if is_convolution(op.kind) else _shareable(op)  # q: pixels of all rows and images
        folded = () if one_order or is_convolution(op.kind) else tuple(joins_of(self.families(op)[0], op))
        return (SERIAL,) if threads == 1 else (*axes, *folded, SERIAL)

    def untimed_us(
        self, us: float, kernel: MicroKernel, composition: Composition, shape: Shape, op: Op, threads: int
    ) -> float:
        """See ``ways.untimed_us``; infinity of parts of a folded axis, which are joined at a cost of their own."""
        if composition.share not in op.every_axis:
            return math.inf
        tile = self.family_of(kernel).tile(kernel)
        return untimed_us(us, tile.extent.get(composition.share, 1), composition.share, op.extents(shape), threads)

    def rows_of(self, way: str, op: Op, threads: int, limit: int) -> int:
        """Rows up to which the runtime shares a call in this way."""
        return rows_of(way, op, threads, limit)

    def shared(self, curve: Curve, way: str, op: Op, threads: int) -> Curve:
        """A region's cost when threads share the call."""
        return shared(curve, way, op, threads)

    def packed(self, choice: Choice, device: Device) -> PackedAny:
        """Dense with its compositions, any other op with a kernel a cell."""
        return packing.packed(choice, device)

    def packed_ratio(self, choice: Choice, device: Device) -> float:
        """Columns of the packed weight over those there are."""
        return packing.packed_ratio(choice, device)

    def write_library(
        self,
        choices: Sequence[Choice],
        device: Device,
        out: Path,
        compile_object: CompileObject,
        groups: GroupSources | None = None,
        objects: Path | None = None,
    ) -> dict[str, Any]:
        """Kernels, tables and the serving runtime in one library."""
        packed = [self.packed(choice, device) for choice in choices]
        source, programs = ("", ()) if groups is None else (groups.c, groups.programs)
        pack_library(packed, device.arch, Toolchain.find(objects), out, compile_object, source, programs)
        return {}
