"""batch_matmul in bf16, fp16 and int8 for CPUs: the tiles of ``typed.py`` over blocks of W that are packed as words.

In fp32 with results of another type, too.

Both factors come with the call: a block of W is packed as typed dense has its weight, and rows of X are read in place or
copied (``runtime/native/kinds/product_typed.c``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from haotuner.microkernels.cpu import product, typed_source
from haotuner.microkernels.cpu.dense_demand import MAX_STREAMS
from haotuner.microkernels.cpu.epilogue import with_epilogue
from haotuner.microkernels.cpu.product import CpuProduct
from haotuner.microkernels.cpu.typed import MAX_ROWS, WORDS, serves_type, typed_name, typed_params
from haotuner.spec.constraint import ConstraintQuery, Laws
from haotuner.spec.demand import Demand, DemandQuery
from haotuner.spec.device import Device
from haotuner.spec.family import Layout, rounded_up
from haotuner.spec.kernel import Footprint, MicroKernel, Tile
from haotuner.spec.op import Op

LEAST_SUMS = 8  # vectors: fewer leave the multiply-adders waiting for their own results


class CpuTypedProduct(CpuProduct):
    """Families ``cpu_batch_matmul_bf16``, ``_fp16``, ``_int8``, ``_converted_fp32``.

    Parameters of typed dense, then xk, wk as fp32 has them.
    """

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self.name = typed_name("batch_matmul", dtype)

    def serves(self, op: Op) -> bool:
        """batch_matmul in the family's type, whatever is dynamic; of an epilogue what reads nothing."""
        return op.kind == self.kind.name and serves_type(op, self.dtype) and not op.epilogue_operands and bool(op.dynamic)

    def points(self, op: Op, device: Device) -> Iterator[MicroKernel]:
        """Every tile that fits the registers, SIMD and AMX."""
        lanes, layout = device.wave_width, op.option("layout")
        across = (("xk", int(layout == "tn")), ("wk", int(layout == "nt")))
        for rows in range(1, MAX_ROWS + 1):
            for vectors in range(1, MAX_STREAMS + 1):
                params = typed_params(op, (rows, vectors * lanes, lanes, 1, lanes, 0))
                yield with_epilogue(MicroKernel(self.name, (*params, *across)), op.epilogue)
        if typed_source.has_tiles(device, self.dtype):
            for tile in typed_source.shapes(lanes, panels="vectors"):
                params = typed_params(op, tile, on_tiles=True)
                yield with_epilogue(MicroKernel(self.name, (*params, *across)), op.epilogue)

    def footprint(self, kernel: MicroKernel) -> Footprint:
        """As typed dense."""
        if typed_source.on_tiles(kernel):
            return typed_source.footprint(kernel)
        rows, vectors = kernel["mr"], kernel["nr"] // kernel["vl"]
        step_bytes = (rows + kernel["nr"]) * WORDS[self.dtype].bytes
        return Footprint(registers_per_thread=rows * vectors + vectors + 1, shared_bytes=step_bytes)

    def tile(self, kernel: MicroKernel) -> Tile:
        """Rows of whole tiles, what is beyond the output is dropped; columns of whole vectors, but for AMX tiles."""
        return Tile(
            extent={"b": 1, "m": kernel["mr"], "n": kernel["nr"]},
            edge={"b": "masked", "m": "tail", "n": "tail"},
            step={"k": 1},
        )

    def computed(self, kernel: MicroKernel, axis: str, extent: int) -> int:
        """Whole tiles of rows; columns in whole vectors, or in whole tiles of AMX."""
        if axis == "n" and not typed_source.on_tiles(kernel):
            return super().computed(kernel, axis, extent)
        return rounded_up(self.tile(kernel), axis, extent)

    def layout(self, kernel: MicroKernel) -> Layout:
        """Nothing is packed before a call; the order of sums alone."""
        return typed_source.order(kernel, self.dtype)

    def laws(self, op: Op, device: Device) -> Laws:
        """Sums enough to keep the units busy, in tiles that the shapes can fill."""
        return _LAWS

    def demand(self, requested: DemandQuery) -> Demand:
        """See ``product_demand``: W is always packed, sums are never cut."""
        vectors = requested.param("nr") / requested.param("vl")
        zero = vectors * 0.0
        params = {**requested.params, "nv": vectors, "pk": zero + 1.0, "kb": zero}
        required = product.demand(replace(requested, params=params), taller=False)
        return typed_source.demand(requested, required, WORDS[self.dtype].terms)

    def schedule(self, kernel: MicroKernel, symbol: str) -> Any:
        """An empty TVM module: ``typed_source`` says the program in C."""
        import tvm

        return tvm.IRModule({})


def _rows(q: ConstraintQuery) -> tuple[float, float] | None:
    return q.kernel["mr"], max(1, q.most["m"] if "m" in q.op.dynamic else q.op["m"])


def _columns(q: ConstraintQuery) -> tuple[float, float] | None:
    most = q.most["n"] if "n" in q.op.dynamic else q.op["n"]
    return q.kernel["nr"] // q.kernel["vl"], -(-most // q.kernel["vl"])


def _sums(q: ConstraintQuery) -> tuple[float, float] | None:
    rows = min(MAX_ROWS, q.most["m"] if "m" in q.op.dynamic else q.op["m"])
    most = q.most["n"] if "n" in q.op.dynamic else q.op["n"]
    vectors = min(MAX_STREAMS, -(-most // q.kernel["vl"]))  # that the shapes fill
    return float(min(LEAST_SUMS, rows * vectors)), float(q.kernel["mr"] * q.kernel["nr"] // q.kernel["vl"])


# In the order they are asked; a point counts against the first law it breaks.
_LAWS: Laws = (("rows", _rows), ("columns", _columns), ("sums", _sums))

TYPED_PRODUCT_FAMILIES = tuple(CpuTypedProduct(dtype) for dtype in WORDS)
