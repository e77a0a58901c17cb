"""The convolution family for CPUs: dense's register tiles over blocks of image columns, residues of a stride included.

Transposed convolutions whose residues of the stride are rows, or columns, of one product (``conv_transpose_gemm.c``).

A convolution is the product of its weight with what each output's window sees (``runtime/native/kinds/conv_run.c``). With
channels last a tile's rows are pixels and its columns features; with channels first the rows are features and the columns
pixels, so that the output is written as it is stored. The program is that of ``dense.py``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from haotuner.microkernels.cpu import dense_demand
from haotuner.microkernels.cpu.dense import FP32_BYTES, MAX_TILE_ROWS, TAIL_LANES, tile_program
from haotuner.microkernels.cpu.dense_demand import MAX_STREAMS
from haotuner.microkernels.cpu.epilogue import with_epilogue
from haotuner.ops.convolution import is_convolution, residue_taps, windows
from haotuner.spec.constraint import ConstraintQuery, Laws
from haotuner.spec.demand import Column, Demand, DemandQuery, Expectation
from haotuner.spec.device import Device
from haotuner.spec.family import Layout, rounded_up
from haotuner.spec.kernel import Footprint, MicroKernel, Tile
from haotuner.spec.op import Op
from haotuner.spec.traffic import Traffic

MOST = 64  # residues, as HT_CONV_RESIDUES in conv.h


def woven_residues(op: Op) -> int:
    """Residues of the stride that one product computes; 0: the op is no such convolution. As ``ht_conv_is_woven``."""
    if not is_convolution(op.kind) or "transpose" not in op.kind or not op.plain:
        return 0
    sides = windows(op.kind, dict(op.static), op.all_options()).values()
    count = prod(side.stride for side in sides)
    fits = all(side.dilation == 1 and side.taps >= side.stride for side in sides)
    return count if fits and 1 < count <= MOST else 0


def residue_classes(op: Op) -> list[tuple[int, int]]:
    """Residues that see the same windows: how many they are, and the taps of such a window. The longest first."""
    sides = windows(op.kind, dict(op.static), op.all_options()).values()
    every = [Counter(residue_taps(side)).items() for side in sides]
    result = [(prod(lines for _, lines in item), prod(taps for taps, _ in item)) for item in product(*every)]
    return sorted(result, key=lambda item: -item[1])


LEAST_SHARE = 0.7  # of the registers that a tile fills with sums: less leaves the pipes of a core idle
LEAST_ROWS = 8  # of tiles of pixels one vector wide, for few features: sums enough to hide a multiply-add's latency
SMALL = 4  # vectors: tiles of so few serve outputs that no large one fits
UNROLLS = (1, 4)


def channels_last(op: Op) -> bool:
    """True if the op's channels are the innermost axis."""
    return op.option("layout") in ("nhwc", "nwc")


def of_group(op: Op, axis: str) -> int:
    """Channels (c) or features (f) of one group."""
    return op[axis] // int(op.option("groups"))


class CpuConv:
    """Family ``cpu_conv_fp32``; parameters cl (channels last), mr, nr, pw, ku, vl as dense has them, nt or mt, and rs.

    ``nt`` columns, channels last, or ``mt`` rows, are what a program of its own computes where tiles end the features.
    ``rs``: of a transposed convolution, residues of its stride that are features of one product (``conv.py``).
    """

    name = "cpu_conv_fp32"
    backend = "cpu"
    frontier = 28  # all are raced at a few shapes, within a minute
    features_are_columns = False  # of a tile, with channels first, too

    def serves(self, op: Op) -> bool:
        """Any convolution in fp32, with any epilogue."""
        return is_convolution(op.kind) and op.plain and bool(op.dynamic)

    def suits(self, device: Device) -> bool:
        """Any CPU: the points are made for the device's own vectors."""
        return device.kind == "cpu"

    def points(self, op: Op, device: Device) -> Iterator[MicroKernel]:
        """Tiles that fill most of the registers, and small ones."""
        lanes, registers = device.wave_width, device.registers_per_thread
        for rows in range(1, MAX_TILE_ROWS + 1):
            for vectors in range(1, MAX_STREAMS + 1):
                sums = rows * vectors
                if LEAST_SHARE * registers <= sums < registers or (sums <= SMALL and rows <= SMALL):
                    for unroll in UNROLLS:
                        yield self.kernel(op, rows, vectors * lanes, unroll, lanes)

    def kernel(self, op: Op, mr: int, nr: int, ku: int, vl: int) -> MicroKernel:
        """The micro-kernel of these parameters for an op."""
        last, features, residues = channels_last(op), of_group(op, "f"), woven_residues(op)
        if residues:
            features *= residue_classes(op)[0][0]
        end = features % mr
        more = features_end(features, nr, vl) if last else (("mt", end),) if end else ()
        pw = vl if last else nr
        params = (("cl", int(last)), ("mr", mr), ("nr", nr), ("pw", pw), ("ku", ku), ("vl", vl), ("pf", 0), *more)
        params += (("rs", residues),) if residues else ()
        return with_epilogue(MicroKernel(self.name, params), op.epilogue)

    def footprint(self, kernel: MicroKernel) -> Footprint:
        """As dense: registers of the sums and of one operand, and what one unrolled step touches."""
        rows, vectors = kernel["mr"], kernel["nr"] // kernel["vl"]
        step_bytes = (kernel["mr"] + kernel["nr"]) * kernel["ku"] * FP32_BYTES
        return Footprint(registers_per_thread=rows * vectors + min(vectors, rows) + 1, shared_bytes=step_bytes)

    def tile(self, kernel: MicroKernel) -> Tile:
        """Features and pixels. Pixels of all rows and images are numbered through, so no axis of its own ends in tiles."""
        pixels, features = ("mr", "nr") if kernel["cl"] else ("nr", "mr")
        size = -(-kernel[features] // residues_of(kernel))
        return Tile(extent={"q": kernel[pixels], "f": size}, edge={}, step={"c": kernel["ku"]})

    def computed(self, kernel: MicroKernel, axis: str, extent: int) -> int:
        """Whole tiles; of the features what the last tile's program has."""
        if axis != "f":
            return rounded_up(self.tile(kernel), axis, extent)
        columns = self.features_are_columns or kernel["cl"]
        size, end, residues = kernel["nr" if columns else "mr"], last_tile(kernel), residues_of(kernel)
        whole, rest = divmod(extent * residues, size)
        return -(-(whole * size + (rest > 0) * (end or size)) // residues)

    def layout(self, kernel: MicroKernel) -> Layout:
        """Lanes of the packed weight: the same for all kernels of an op."""
        return (kernel["cl"], kernel["vl"])

    def laws(self, op: Op, device: Device) -> Laws:
        """No tile of more features than there are, but the least."""

        def features(q: ConstraintQuery) -> tuple[float, float] | None:
            there, least = of_group(q.op, "f") * residues_of(q.kernel), device.wave_width if q.kernel["cl"] else 1
            return q.kernel["nr" if q.kernel["cl"] else "mr"], max(-(-there // least) * least, least)

        return (("features", features),)

    def demand(self, requested: DemandQuery) -> Demand:
        """That of the product: pixels times features over a group's channels and taps."""
        last = requested.param("cl") > 0
        return self.product_demand(requested, last, last)

    def product_demand(
        self, requested: DemandQuery, last: NDArray[np.bool_] | bool, met: NDArray[np.bool_] | bool
    ) -> Demand:
        """``last``: where rows are pixels; elsewhere they are features. ``met``: where taps of padding alone are skipped."""
        e = requested.extents
        item = np.ones_like(e["b"])
        deep, features = (e["cg"], e["f"]) if "cg" in e else (e["c"], e["fg"])
        residues = np.maximum(requested.param("rs", 0.0), 1.0)
        pixels, features = e["b"] * e.get("p", item) * e["q"] / residues, features * residues
        taps = np.where(met, _taps_met(e), e.get("r", item) * e["s"]) / residues
        rows, columns = np.where(last, pixels, features), np.where(last, features, pixels)
        return dense_demand.demand(replace(requested, extents={"m": rows, "n": columns, "k": deep * taps}))

    def expectation(self, op: Op, device: Device, traffic: Traffic) -> Expectation | None:
        """None: the cost model's."""
        return None

    def schedule(self, kernel: MicroKernel, symbol: str) -> Any:
        """TVM module of the tile's program, see ``dense.py``, and of the last tile's, ``symbol_tail``."""
        import tvm

        programs = {symbol: tile_program(kernel, symbol)}
        params = dict(kernel.params)
        if "nt" in params:
            programs[f"{symbol}_tail"] = tile_program(kernel, f"{symbol}_tail", params["nt"])
        elif "mt" in params:
            short = MicroKernel(kernel.family, tuple((k, params["mt"] if k == "mr" else v) for k, v in kernel.params))
            programs[f"{symbol}_tail"] = tile_program(short, f"{symbol}_tail")
        return tvm.IRModule(programs)


def pixel_tiles(device: Device, least_share: float) -> Iterator[tuple[int, int]]:
    """Rows (pixels) and columns (features) of tiles that fill such a share of the registers, and of tall narrow ones."""
    lanes, registers = device.wave_width, device.registers_per_thread
    for rows in range(1, MAX_TILE_ROWS + 1):
        for vectors in range(1, MAX_STREAMS + 1):
            few = vectors == 1 and rows >= LEAST_ROWS
            if few or least_share * registers <= rows * vectors < registers:
                yield rows, vectors * lanes


def features_end(features: int, nr: int, vl: int) -> tuple[tuple[str, int], ...]:
    """Parameter ``nt`` where the features end within a tile: the columns that a program of its own computes there."""
    least = min(vl, TAIL_LANES)
    end = -(-(features % nr) // least) * least
    return (("nt", end),) if 0 < end < nr else ()


def _taps_met(extents: Mapping[str, Column]) -> Column:
    """Taps of the window that meet the image at some output: the runtime leaves others out (``ht_conv_shorten``)."""
    every = extents.get("r", np.ones_like(extents["b"])) * extents["s"]
    if "cg" not in extents:  # transposed: phases share the taps
        return every

    def met(taps: str, image: str, output: str) -> Column:
        outputs = extents[output]
        return np.minimum(extents[taps], extents[image] + (outputs - 1) * np.maximum(np.round(extents[image] / outputs), 1))

    lines = met("r", "h", "p") if "r" in extents else np.ones_like(every)
    return np.asarray(np.where(lines > 1, lines * extents["s"], met("s", "w", "q")))


def residues_of(kernel: MicroKernel) -> int:
    """Residues of a transposed convolution's stride that are features of one product; 1 of other convolutions."""
    return dict(kernel.params).get("rs", 1)


def last_tile(kernel: MicroKernel) -> int:
    """Columns (channels last) or rows that a program of its own computes at the features' end; 0 where there is none."""
    params = dict(kernel.params)
    return params.get("nt", params.get("mt", 0))
