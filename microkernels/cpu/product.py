"""The batch_matmul family for CPUs: Y[b] = X[b] · W[b], both factors as they lie in memory or a block of W copied at a time.

A micro-kernel is a tile of at most ``mr`` rows and ``nv`` vectors of columns, whether blocks of W are packed, and how many
terms are summed at a time. Extents are cut evenly into tiles up to it, so it has a program of every smaller tile, too;
micro-kernels share these programs (``product_tile.py``), and the runtime's loops call them (``native/kinds/product_run.c``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from haotuner.microkernels.cpu import product_demand
from haotuner.microkernels.cpu.epilogue import with_epilogue
from haotuner.microkernels.cpu.product_demand import MOST_ROWS
from haotuner.microkernels.cpu.product_tile import FP32_BYTES, tile_program
from haotuner.ops.batch_matmul import BATCH_MATMUL
from haotuner.spec.constraint import ConstraintQuery, Laws
from haotuner.spec.demand import Demand, DemandQuery, Expectation
from haotuner.spec.device import Device
from haotuner.spec.family import Layout
from haotuner.spec.kernel import Footprint, MicroKernel, Tile
from haotuner.spec.op import Op
from haotuner.spec.traffic import Traffic

MOST_VECTORS = 4  # of a tile: six rows of them fill 32 registers; the runtime's table of programs is as large
# Fewer sums at once than this leave the multiply-adders waiting for their own results (latency 4, two start a cycle).
LEAST_SUMS = 8
K_BLOCKS = (
    0,
    256,
)  # 0: as many terms as the runtime's blocks hold. 256 rows of a panel of three vectors are all of a 48 KiB L1


class CpuProduct:
    """Family ``cpu_batch_matmul_fp32``; parameters mr, nv (vectors), vl (lanes), pk (packs W), kb (terms a block), xk, wk.

    ``xk`` and ``wk`` are 1 where X is stored (k, m) and W (n, k): with the latter W is always packed.
    """

    name = "cpu_batch_matmul_fp32"
    backend = "cpu"
    frontier = 24  # all are timed at three shapes in about ten seconds
    kind = BATCH_MATMUL
    shares_programs = True

    def serves(self, op: Op) -> bool:
        """batch_matmul in fp32, whatever is dynamic; with an epilogue of steps that read nothing."""
        return op.kind == self.kind.name and op.plain and not op.epilogue_operands and bool(op.dynamic)

    def suits(self, device: Device) -> bool:
        """Any CPU: the points are made for the device's own vectors."""
        return device.kind == "cpu"

    def points(self, op: Op, device: Device) -> Iterator[MicroKernel]:
        """Every largest tile, read in place or packed, with a long sum whole or in blocks."""
        layout = op.option("layout")
        for rows in range(1, MOST_ROWS + 1):
            for vectors in range(1, MOST_VECTORS + 1):
                for packs in (1,) if layout == "nt" else (0, 1):
                    for block in K_BLOCKS:
                        kernel = self.kernel(rows, vectors, device.wave_width, packs, block, layout)
                        yield with_epilogue(kernel, op.epilogue)

    def kernel(self, mr: int, nv: int, vl: int, pk: int, kb: int = 0, layout: str = "nn") -> MicroKernel:
        """The micro-kernel of these parameters for an op of a layout."""
        across = (("xk", int(layout == "tn")), ("wk", int(layout == "nt")))
        return MicroKernel(self.name, (("mr", mr), ("nv", nv), ("vl", vl), ("pk", pk), ("kb", kb), *across))

    def footprint(self, kernel: MicroKernel) -> Footprint:
        """SIMD registers held through the k loop, and bytes of L1 that one step touches."""
        rows, vectors = kernel["mr"], kernel["nv"]
        step_bytes = (rows + vectors * kernel["vl"]) * FP32_BYTES
        return Footprint(registers_per_thread=rows * vectors + min(vectors, rows) + 1, shared_bytes=step_bytes)

    def tile(self, kernel: MicroKernel) -> Tile:
        """The largest; smaller ones have programs of their own."""
        extent = {"b": 1, "m": kernel["mr"], "n": kernel["nv"] * kernel["vl"]}
        return Tile(extent=extent, edge={"b": "masked", "m": "tail", "n": "tail"}, step={"k": 1})

    def computed(self, kernel: MicroKernel, axis: str, extent: int) -> int:
        """Rows as there are; columns in whole vectors."""
        return -(-extent // kernel["vl"]) * kernel["vl"] if axis == "n" else extent

    def layout(self, kernel: MicroKernel) -> Layout:
        """Nothing is packed before a call."""
        return ()

    def laws(self, op: Op, device: Device) -> Laws:
        """Sums enough to keep the units busy, in tiles that the shapes can fill."""
        return _LAWS

    def demand(self, requested: DemandQuery) -> Demand:
        """See ``product_demand``."""
        return product_demand.demand(requested)

    def expectation(self, op: Op, device: Device, traffic: Traffic) -> Expectation | None:
        """None: the cost model's."""
        return None

    def fuses(self, step: str) -> bool:
        """None: the runtime adds what a call brings beside while the output is in cache."""
        return False

    def schedule(self, kernel: MicroKernel, symbol: str) -> Any:
        """TVM module of the programs that the kernel needs; they have names of their own, since kernels share them."""
        import tvm

        result = {}
        for rows, vectors in programs(kernel):
            name = program_name(kernel, rows, vectors)
            result[name] = tile_program(
                name, rows=rows, vectors=vectors, lanes=kernel["vl"], across=bool(kernel["xk"])
            )  # fmt: skip
        return tvm.IRModule(result)


def programs(kernel: MicroKernel) -> Iterator[tuple[int, int]]:
    """Rows and vectors of every tile that a call of the kernel may be cut into: narrow ones are taller, by as many sums."""
    for vectors in range(1, kernel["nv"] + 1):
        for rows in range(1, min(MOST_ROWS, kernel["mr"] * kernel["nv"] // vectors) + 1):
            yield rows, vectors


def program_name(kernel: MicroKernel, rows: int, vectors: int) -> str:
    """Symbol of a tile's program."""
    return f"cpu_product_{'t' if kernel['xk'] else 'n'}{kernel['vl']}_r{rows}_v{vectors}"


def _sums(q: ConstraintQuery) -> tuple[float, float] | None:
    """No more than the largest tile has that the shapes fill: results of few rows and columns have no others."""
    rows, vectors = _most(q, "m"), -(-_most(q, "n") // q.kernel["vl"])
    largest = min(MOST_ROWS, max(2, rows)) * min(MOST_VECTORS, vectors)
    return float(min(LEAST_SUMS, min(q.kernel["mr"], rows) * MOST_VECTORS, largest)), float(q.kernel["mr"] * q.kernel["nv"])


def _rows(q: ConstraintQuery) -> tuple[float, float] | None:
    return q.kernel["mr"], max(2, _most(q, "m"))


def _columns(q: ConstraintQuery) -> tuple[float, float] | None:
    return q.kernel["nv"], -(-_most(q, "n") // q.kernel["vl"])


def _most(q: ConstraintQuery, axis: str) -> int:
    return q.most[axis] if axis in q.op.dynamic else q.op[axis]


def _depth(q: ConstraintQuery) -> tuple[float, float] | None:
    most = q.most["k"] if "k" in q.op.dynamic else q.op["k"]
    return q.kernel["kb"], max(0, most - 1)


# In the order they are asked; a point counts against the first law it breaks.
_LAWS: Laws = (("rows", _rows), ("columns", _columns), ("depth", _depth), ("sums", _sums))
