"""Work adds up, tiles are counted from geometry, and a family's numbers are asked once a kernel."""

from __future__ import annotations

import numpy as np

from haotuner.spec.demand import Work, demand_query
from haotuner.spec.kernel import Footprint, MicroKernel, Tile
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from tests.cost.cost_examples import BIG_CORE

OP = Op.parse("dense:n=100,k=8")
SMALL, LARGE = (MicroKernel("toy", (("r", r), ("c", c))) for r, c in ((1, 30), (4, 100)))


def tile(kernel: MicroKernel) -> Tile:
    return Tile(extent={"m": kernel["r"], "n": kernel["c"]}, edge={"m": "exact", "n": "masked"}, step={"k": 1})


def test_the_work_of_two_calls_is_their_sum_whatever_units_do_it() -> None:
    work = Work.streamed(np.array([10.0, 20.0]), np.array([1.0, 2.0]))
    other = Work(
        flops={"tensor": np.array([5.0, 5.0]), "simd": np.array([1.0, 1.0])}, least_bytes=np.array([3.0, 3.0]),
        far_bytes=np.array([4.0, 4.0]), mid_bytes=np.array([5.0, 5.0]), near_bytes=np.array([6.0, 6.0]),
    )  # fmt: skip
    for both in (work + other, other + work):
        assert {kind: flops.tolist() for kind, flops in both.flops.items()} == {"simd": [11, 21], "tensor": [5, 5]}
        assert both.least_bytes.tolist() == [4, 5] and both.far_bytes.tolist() == [5, 6]
        assert both.mid_bytes.tolist() == [6, 7] and both.near_bytes.tolist() == [7, 8]


def test_a_family_is_asked_once_for_every_kernel_and_answers_stand_in_its_rows() -> None:
    seen = []

    def rows(kernel: MicroKernel) -> float:
        seen.append(kernel)
        return kernel["r"]

    pairs = [(kernel, Shape.of(m=m)) for m in (1, 2, 3) for kernel in (SMALL, LARGE)]
    query = demand_query(BIG_CORE, OP, pairs, element_bytes=4, cold=True)
    assert query.each(rows).tolist() == [1, 4] * 3 and sorted(k.name for k in seen) == sorted([SMALL.name, LARGE.name])


def test_tiles_cover_every_axis_rounded_up() -> None:
    pairs = [(kernel, Shape.of(m=9)) for kernel in (SMALL, LARGE)]
    query = demand_query(BIG_CORE, OP, pairs, element_bytes=4, cold=True)
    tiles = query.tiles(tile, lambda kernel: Footprint(registers_per_thread=3, shared_bytes=kernel["c"]), vector=np.ones(2))
    assert tiles.count.tolist() == [9 * 4, 3 * 1]
    assert tiles.registers.tolist() == [3, 3] and tiles.l1_set_bytes.tolist() == [30, 100] and tiles.waves.tolist() == [1, 1]
