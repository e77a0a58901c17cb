"""Selection asks a family's geometry and nothing else: toy families go through the same funnel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from haotuner.hw_profiles.find import find_device
from haotuner.microkernels.cpu.dense import CpuDense
from haotuner.microkernels.cuda.dense_simt import CudaSimt
from haotuner.search.select.fit import Rejections, fitting, group, padded_axes, unpadded
from haotuner.search.select.funnel import select
from haotuner.search.select.limits import laws_of
from haotuner.spec.constraint import ConstraintQuery, Laws, no_larger
from haotuner.spec.demand import Demand, DemandQuery, Expectation, Work
from haotuner.spec.device import Device
from haotuner.spec.family import Layout, rounded_up
from haotuner.spec.kernel import Candidate, Edge, Footprint, MicroKernel, Tile
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from haotuner.spec.traffic import Traffic
from tests.cost.cost_examples import BIG_CORE

OP = Op.parse("dense:n=100,k=8")
H100 = find_device("h100", measure=False)


class Toy:
    """Tiles of any rows and columns; ``edge`` of its rows says how compositions use them."""

    name, backend, frontier = "toy", "cpu", 3

    def __init__(self, edge: Edge, *, tail: int = 0) -> None:
        self.edge, self.tail_columns = edge, tail

    def serves(self, op: Op) -> bool:
        return True

    def suits(self, device: Device) -> bool:
        return device.wave_width > 1

    def points(self, op: Op, device: Device) -> Iterator[MicroKernel]:
        yield from (point(r, c) for r in (1, 2, 4, 8) for c in (10, 16, 30, 64, 100))

    def tile(self, kernel: MicroKernel) -> Tile:
        extent = {"m": kernel["r"], "n": kernel["c"]}
        return Tile(extent=extent, edge={"m": self.edge, "n": "tail" if self.tail_columns else "masked"}, step={"k": 1})

    def computed(self, kernel: MicroKernel, axis: str, extent: int) -> int:
        if axis == "n" and self.tail_columns:
            return -(-extent // self.tail_columns) * self.tail_columns
        return rounded_up(self.tile(kernel), axis, extent)

    def layout(self, kernel: MicroKernel) -> Layout:
        return (kernel["c"] % 2,)

    def footprint(self, kernel: MicroKernel) -> Footprint:
        return Footprint(registers_per_thread=kernel["r"], shared_bytes=8)

    def laws(self, op: Op, device: Device) -> Laws:
        return (("rows", no_larger("m")),)

    def demand(self, query: DemandQuery) -> Demand:
        cells = query.extents["m"] * query.extents["n"]
        return Demand(
            work=Work.streamed(cells, 4 * cells), tiles=query.tiles(self.tile, self.footprint, vector=0 * cells + 1)
        )

    def expectation(self, op: Op, device: Device, traffic: Traffic) -> Expectation | None:
        return None

    def schedule(self, kernel: MicroKernel, symbol: str) -> None:
        raise AssertionError("selection compiles nothing")


def point(rows: int, columns: int) -> MicroKernel:
    return MicroKernel("toy", (("r", rows), ("c", columns)))


def traffic(*rows: int) -> Traffic:
    return Traffic.of([(Shape.of(m=m), 1.0) for m in rows])


def large_first(kernels: Sequence[MicroKernel]) -> NDArray[np.float64]:
    return np.array([k["r"] * 1000.0 + k["c"] for k in kernels])


def legal(family: Toy) -> list[Candidate]:
    return [Candidate(kernel=k, footprint=family.footprint(k)) for k in family.points(OP, BIG_CORE)]


def test_kernels_of_one_exact_extent_and_layout_stand_in_for_each_other() -> None:
    exact, alone = Toy("exact"), Toy("masked")
    assert group(exact, point(4, 16)) == group(exact, point(4, 64)) != group(exact, point(2, 64))
    assert group(alone, point(4, 16)) != group(alone, point(4, 64))
    dense = CpuDense()
    kernel, other = dense.kernel(4, 64, 32, 1, 16), dense.kernel(4, 32, 32, 8, 16, 64)
    assert group(dense, kernel) == group(dense, other) == (4, 32)
    simt = CudaSimt("cuda_simt_fp32", "fp32")
    assert group(simt, simt.kernel(bm=32, bn=64, bk=8, tm=4, tn=4)) == (32, 64)


def test_where_rows_are_exact_only_columns_are_padded_and_every_height_keeps_its_least() -> None:
    family, ledger = Toy("exact"), Rejections(room=99)
    candidates = unpadded(OP, family, traffic(3, 5), legal(family), ledger)
    assert padded_axes(family.tile(point(1, 10))) == ("n",)
    assert {(c.kernel["r"], c.kernel["c"]) for c in candidates} == {(r, c) for r in (1, 2, 4, 8) for c in (10, 100)}
    assert {(r.law, round(r.requested, 3), r.allowed) for r in ledger.examples} == {
        ("padding", s, 0.03) for s in (0.12, 0.2, 0.28)
    }


def test_what_a_program_for_the_end_does_not_compute_is_not_padding() -> None:
    covering, alone, ledger = Toy("exact", tail=10), Toy("masked", tail=10), Rejections(room=99)
    for candidates in (
        unpadded(OP, covering, traffic(3, 5), legal(covering), ledger),
        fitting(OP, alone, BIG_CORE, traffic(8), legal(alone), ledger),
    ):
        assert len(candidates) == 20 and not ledger.counts, "ten columns at a time make exactly 100"


def test_where_a_tile_serves_a_shape_alone_fill_counts_as_well() -> None:
    family, ledger = Toy("masked"), Rejections(room=99)
    wide = replace(BIG_CORE, compute_units=64)
    candidates = fitting(OP, family, wide, traffic(8), legal(family), ledger)
    heights = [candidate.kernel["r"] for candidate in candidates]
    assert ledger.counts["fill"] > 0 and heights.count(1) > heights.count(8), "eight rows for 64 units: short tiles"


@pytest.mark.parametrize("edge", ["exact", "masked", "tail"])
def test_any_family_goes_through_the_same_funnel(edge: Edge) -> None:
    family = Toy(edge)
    funnel = select(OP, family, BIG_CORE, traffic(2, 4), large_first)
    assert funnel.points == 20 and funnel.refused["rows"] == 5 and len(funnel.candidates) == family.frontier
    assert len(funnel.candidates) + sum(funnel.refused.values()) == funnel.points
    assert len(select(OP, family, BIG_CORE, traffic(2, 4), large_first, most=2).candidates) == 2


def test_the_laws_of_every_family_come_first_and_fit_the_kind_of_device() -> None:
    family = Toy("exact")
    here, there = ([name for name, _ in laws_of(family, OP, device)] for device in (BIG_CORE, H100))
    assert here == ["instructions", "registers", "register_file", "shared", "threads", "l1", "rows"]
    assert there == ["instructions", "registers", "register_file", "shared", "threads", "occupancy", "rows"]


def test_a_tile_may_be_as_large_as_the_largest_extent_there_will_be() -> None:
    family = Toy("exact")

    def sides(rows: int, most: int, least: int) -> tuple[float, float] | None:
        kernel = point(rows, 10)
        return no_larger("m", least=least)(ConstraintQuery(
            kernel=kernel, footprint=family.footprint(kernel), tile=family.tile(kernel), op=OP, device=BIG_CORE,
            most={"m": most},
        ))  # fmt: skip

    assert sides(4, 4, 1) == (4, 4) and sides(4, 3, 1) == (4, 3) and sides(4, 3, 64) == (4, 64)
