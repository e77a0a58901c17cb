"""Tiles of batched products: those of few columns are taller, so that they have as many sums at once."""

from __future__ import annotations

from dataclasses import replace

from haotuner.microkernels.cpu import typed_source
from haotuner.microkernels.cpu.product import CpuProduct, programs
from haotuner.microkernels.cpu.typed import programs_of
from haotuner.microkernels.cpu.typed_product import CpuTypedProduct
from haotuner.spec.demand import demand_query
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from tests.cost.cost_examples import BIG_CORE

WITH_TILES = replace(BIG_CORE, tensor_tflops=BIG_CORE.compute_units * 2.5)


def test_narrow_tiles_have_as_many_sums_as_wide_ones() -> None:
    small, large = CpuProduct().kernel(4, 2, 16, 1), CpuProduct().kernel(9, 3, 16, 1)
    assert max(rows for rows, vectors in programs(small) if vectors == 1) == 8
    assert {width: max(r for r, v in programs(large) if v == width) for width in (1, 2, 3)} == {1: 14, 2: 13, 3: 9}


def test_they_are_priced_so() -> None:
    op, kernel = Op.parse("batch_matmul:k=64"), CpuProduct().kernel(4, 2, 16, 1)
    pairs = [(kernel, Shape.of(b=12, m=16, n=n)) for n in (16, 32)]
    matmul = CpuProduct().demand(demand_query(BIG_CORE, op, pairs, element_bytes=4, cold=False)).matmul
    assert matmul is not None and list(matmul.tile_rows) == [8, 4]


def test_other_types_have_tiles_of_their_height() -> None:
    op, family = Op.parse("batch_matmul:k=64,dtype=bf16"), CpuTypedProduct("bf16")
    kernel = next(point for point in family.points(op, WITH_TILES) if (point["mr"], point["nr"]) == (32, 32))
    pairs = [(kernel, Shape.of(b=12, m=64, n=n)) for n in (16, 64)]
    matmul = family.demand(demand_query(WITH_TILES, op, pairs, element_bytes=2, cold=False)).matmul
    assert matmul is not None and list(matmul.tile_rows) == [32, 32]


def test_other_types_have_programs_of_every_width_but_on_amx() -> None:
    op, family = Op.parse("batch_matmul:k=64,dtype=bf16"), CpuTypedProduct("bf16")
    kernels = {
        (kernel["mr"], kernel["nr"], typed_source.on_tiles(kernel)): kernel for kernel in family.points(op, WITH_TILES)
    }
    vectors, tiles = kernels[8, 48, False], kernels[32, 32, True]
    assert [(tile["mr"], tile["nr"]) for tile in programs_of(vectors)] == [(8, 16), (8, 32), (8, 48)]
    assert [family.computed(vectors, "n", extent) for extent in (1, 17, 136)] == [16, 32, 144]
    assert [(tile["mr"], tile["nr"]) for tile in programs_of(tiles)] == [(32, 32)]
    assert [family.computed(tiles, "n", extent) for extent in (1, 33)] == [32, 64]
    assert family.computed(vectors, "m", 9) == 16
