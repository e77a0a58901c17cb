"""Packs of batch_matmul: every cell of shapes has a kernel and a way to share of its own."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path

from haotuner.backends.cpu.pack_op import SlicedEntry, SlicedKernel, SlicedPlan
from haotuner.backends.cpu.pack_product import PackedProduct
from haotuner.backends.cpu.pack_source import pack_library
from haotuner.microkernels.cpu.epilogue import with_epilogue
from haotuner.microkernels.cpu.product import CpuProduct
from haotuner.microkernels.cpu.typed import typed_params
from haotuner.microkernels.cpu.typed_product import CpuTypedProduct
from haotuner.microkernels.index import families_for
from haotuner.pack.write import write_pack
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from tests.run_folder import toolchain
from tests.runtime.packs import document

BOUNDS = (4, 9, 40)  # of n, or of m: the largest extent of each cell; the last goes on
# Rows, vectors, packs, terms of a block: extents of a few dozens meet every tile and several blocks.
TILES = ((3, 2, 0, 0), (5, 1, 1, 4), (2, 2, 1, 7))
# Rows and vectors in AMX registers, and words ahead: 1,700 terms come in parts of 1,024 and of 1,632, or whole.
AMX_TILES = ((32, 2, 32), (7, 5, 0), (24, 1, 64))
SHARES = ("n", "m", "b", None)


def packed_product(spec: str, lanes: int, threads: Sequence[int] = (1, 2), *, on_tiles: bool = False) -> PackedProduct:
    """Cells along n or m and along b, each with another kernel and another way to share; ``on_tiles``: of AMX."""
    op = Op.parse(spec)
    (family,) = families_for(op, "cpu")
    layout = op.option("layout")
    if isinstance(family, CpuTypedProduct):
        across = (("xk", int(layout == "tn")), ("wk", int(layout == "nt")))
        shapes = AMX_TILES if on_tiles else [(mr, nv, 0) for mr, nv, _, _ in TILES]
        sizes = ((mr, nv * lanes, lanes, 1, lanes, ahead) for mr, nv, ahead in shapes)
        micro_kernels = [MicroKernel(family.name, (*typed_params(op, tile, on_tiles=on_tiles), *across)) for tile in sizes]
    else:
        assert isinstance(family, CpuProduct)
        micro_kernels = [family.kernel(mr, nv, lanes, pk, kb, layout) for mr, nv, pk, kb in TILES]
    micro_kernels = [with_epilogue(kernel, op.epilogue) for kernel in micro_kernels]
    tiles = [family.tile(kernel) for kernel in micro_kernels]
    kernels = [
        SlicedKernel(name=k.name, tile={**t.extent, **t.step}, kernel=k) for k, t in zip(micro_kernels, tiles, strict=True)
    ]  # fmt: skip
    first = next(axis for axis in ("n", "m", "k", "b") if axis in op.dynamic)
    grid = {axis: BOUNDS if axis == first else (2, 40) if axis == "b" else (40,) for axis in op.dynamic}
    cells = list(product(*(range(len(bounds)) for bounds in grid.values())))
    entries = [SlicedEntry(kernel=at % len(kernels), axis=SHARES[at % len(SHARES)]) for at, _ in enumerate(cells)]
    plans = [SlicedPlan(threads=count, grid=grid, entries=entries) for count in threads]
    return PackedProduct.of(op, dict.fromkeys(op.dynamic, (1, 40)), kernels, plans)


def product_pack(out: Path, specs: Sequence[str], lanes: int, arch: str) -> Path:
    """A pack of these ops with real micro-kernels."""
    ops = [packed_product(spec, lanes) for spec in specs]
    library = out.with_suffix(".so")
    pack_library(ops, arch, toolchain(), library)
    write_pack(out, library, document(ops, arch), lambda _: None)
    library.unlink()
    return out
