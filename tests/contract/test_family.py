"""What every family of micro-kernels promises, checked for each family of the index."""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from haotuner.backends.script_parser import shallow
from haotuner.codegen.kinds import has_graph
from haotuner.cost.families import demand
from haotuner.hw_profiles.find import find_device
from haotuner.microkernels.cpu.online_softmax import CpuOnline
from haotuner.microkernels.cpu.product import program_name, programs
from haotuner.microkernels.cpu.typed import word_of
from haotuner.microkernels.cuda.conv import conv_families
from haotuner.microkernels.cuda.dense import CudaDense
from haotuner.microkernels.cuda.generated import CudaGenerated
from haotuner.microkernels.index import FAMILIES, families_for, family_named
from haotuner.ops.convolution import is_convolution
from haotuner.ops.index import KINDS
from haotuner.spec.device import Device
from haotuner.spec.family import Family
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from tests.cost.cost_examples import BIG_CORE, SMALL_CORE

OPS = [
    Op(kind="dense", static=(("n", n), ("k", k)), dtype=dtype, options=(("weight", weight),))
    for dtype in ("fp32", "fp16", "bf16")
    for weight in ("nk", "kn")
    for n, k in ((2304, 768), (100, 33))
]
OPS += [replace(op, kind="grouped", static=(("g", 8), *op.static)) for op in OPS]
OPS += [Op.parse(f"conv2d:c=64,f=100,r=3,s=3,pad=1,layout={layout}") for layout in ("nchw", "nhwc")]
OPS += [Op.parse(f"batch_matmul:n=100,k=33,layout={layout}") for layout in ("nn", "nt", "tn")]
OPS += [
    Op.parse(f"batch_matmul:n=104,k=32,layout={layout},dtype={dtype}")
    for layout in ("nn", "nt")
    for dtype in ("fp16", "bf16")
]
OPS += [Op.parse("conv2d:c=64,f=64,r=3,s=3,pad=1,groups=64")]
OPS += [Op.parse("attention:d=16")]
OPS += [Op(kind=kind.name, static=()) for kind in KINDS.values() if has_graph(kind) and not CpuOnline.covers(kind)]
OPS += [Op.parse("dense:n=100,k=33,dtype=int8"), Op.parse("batch_matmul:n=100,k=33,dtype=int8")]
OPS += [
    Op.parse(f"conv2d:c=64,f=64,r=3,s=3,pad=1,groups={groups},dtype={dtype}")
    for groups in (1, 64)
    for dtype in ("bf16", "fp16", "int8")
]
OPS += [
    Op.parse(f"{op},out=bf16")
    for op in ("dense:n=100,k=33", "batch_matmul:n=100,k=33", "conv2d:c=8,f=9,r=3,s=3", "conv2d:c=8,f=8,r=3,s=3,groups=8")
]
OPS += [Op.parse("conv_transpose1d:c=6,f=10,s=4,stride=2,groups=2")]
OPS += [
    Op.parse(f"{op},dtype=int8,in={sign}")
    for op in ("dense:n=104,k=32", "batch_matmul:n=104,k=32,layout=nt")
    for sign in ("own", "int8")
]
OPS += [
    Op.parse(f"conv2d:c=64,f=64,r=3,s=3,pad=1,layout=nhwc,dtype={dtype}")
    for dtype in ("fp16", "bf16", "int8", "int8,in=int8")
]
OPS += [
    Op.parse(f"conv_transpose2d:c=64,f=64,r=4,s=4,stride=2,pad=1,layout=nhwc{dtype}")
    for dtype in ("", ",dtype=fp16", ",dtype=bf16", ",dtype=int8", ",dtype=int8,in=int8")
]
# Of convolutions alone, which find them by themselves (``conv_families``).
WITHIN = [family.name for family in FAMILIES if isinstance(family, CudaDense) and (family.windows or family.signs == "su")]
TESTED = [family for family in FAMILIES if family.name not in WITHIN]


DEVICES = {"cpu": (BIG_CORE, SMALL_CORE), "cuda": (find_device("h200"), find_device("rtx-2080-ti"))}


def cases(family: Family) -> list[tuple[Op, Device]]:
    return [(op, device) for op in OPS if family.serves(op) for device in DEVICES[family.backend]]


@functools.cache
def _points(name: str, op: Op, index: int) -> list[MicroKernel]:
    family = family_named(name)
    return list(family.points(op, DEVICES[family.backend][index]))


def points_of(family: Family, op: Op, device: Device) -> list[MicroKernel]:
    """What a first asking gave: only the order's own test asks again."""
    return _points(family.name, op, DEVICES[family.backend].index(device))


@pytest.mark.parametrize("family", TESTED, ids=lambda family: family.name)
class TestFamily:
    """FamilyContract: one behaviour a test, named as a sentence."""

    def test_it_is_found_by_its_name_and_for_what_it_serves(self, family: Family) -> None:
        assert family_named(family.name) is family
        assert re.fullmatch(r"[a-z0-9]+(_[a-z0-9]+)*", family.name) and family.backend in ("cpu", "cuda")
        served = [op for op in OPS if family.serves(op)]
        assert served and all(family in families_for(op, family.backend) for op in served)
        assert not family.serves(Op(kind="dense", static=(("m", 4), ("n", 4), ("k", 4))))  # nothing left to tune

    @pytest.mark.long
    def test_points_come_in_a_fixed_order_each_once(self, family: Family) -> None:
        for op, device in cases(family):
            points = points_of(family, op, device)
            assert points and points == list(family.points(op, device))
            assert len(set(points)) == len({p.name for p in points}) == len(points)

    def test_names_parse_back_and_name_the_family(self, family: Family) -> None:
        for op, device in cases(family):
            for point in points_of(family, op, device):
                assert MicroKernel.parse(point.name) == point and point.family == family.name

    def test_every_point_asks_for_registers_and_memory(self, family: Family) -> None:
        for op, device in cases(family):
            for point in points_of(family, op, device):
                footprint = family.footprint(point)
                assert footprint.registers_per_thread >= 1 and footprint.shared_bytes >= 0 and footprint.threads >= 1
                assert footprint == family.footprint(point)

    def test_its_points_are_priced(self, family: Family) -> None:
        for op, device in cases(family):
            if not family.frontier:
                continue
            shapes = [Shape.of(dict.fromkeys(op.dynamic, extent)) for extent in (4, 33)]
            pairs = [(point, shape) for point in points_of(family, op, device)[::997] for shape in shapes]
            needs = demand(device, family, op, pairs)
            assert all(np.isfinite(column).all() for column in (*needs.work.flops.values(), needs.tiles.count))

    def test_a_tile_covers_the_axes_of_the_output_and_steps_along_the_others(self, family: Family) -> None:
        for op, device in cases(family):
            for point in islice(points_of(family, op, device), 0, None, 37):
                tile = family.tile(point)
                if tile.edge:  # otherwise some axes are numbered through and end in no tiles of their own
                    assert set(tile.extent) == set(tile.edge) == set(op.parallel)
                    assert set(tile.step) == {axis for axis, role in op.meaning.axes.items() if role == "reduction"}
                assert set(tile.extent) <= set(op.parallel)
                assert min(*tile.extent.values(), *tile.step.values()) >= 1
                counts = [tile.count(op.extents(Shape.of(dict.fromkeys(op.dynamic, m)))) for m in (3, 4, 17, 128, 129, 4096)]
                assert counts == sorted(counts) and counts[0] >= 1

    def test_what_is_computed_is_no_less_than_asked_and_under_a_tile_more(self, family: Family) -> None:
        for op, device in cases(family):
            for point in islice(points_of(family, op, device), 0, None, 37):
                extent = family.tile(point).extent
                axis = next(axis for axis in ("n", "f", *extent) if axis in extent)
                size, whole = extent[axis], dict(op.static).get(axis, 100)
                for n in (1, size - 1, size, size + 1, whole):
                    if n == whole or not {"nt", "mt"} & set(dict(point.params)):  # a tail is made for the op's own n
                        assert n <= family.computed(point, axis, n) < n + size

    def test_layouts_are_small_and_can_be_ordered(self, family: Family) -> None:
        for op, device in cases(family):
            layouts = {family.layout(point) for point in points_of(family, op, device)}
            assert len(sorted(layouts)) < 100

    @pytest.mark.long
    def test_a_schedule_is_a_module_of_one_function_of_that_symbol_and_its_tail_or_of_shared_ones(
        self, family: Family
    ) -> None:
        op, device = cases(family)[0]
        first = min(points_of(family, op, device), key=lambda point: len({"nt", "mt"} & set(dict(point.params))))
        if isinstance(family, CudaGenerated):  # CUDA C++ of our own
            assert " a_symbol_of_ours(" in (family.text(first, "a_symbol_of_ours") or "")
            return
        module = shallow(lambda: family.schedule(first, "a_symbol_of_ours"))
        symbols = [str(f.attrs["global_symbol"]) for f in module.functions.values()]
        in_c = family.name == "cpu_conv_direct_fp32" or word_of(first) is not None
        if family.name == "cpu_batch_matmul_fp32":  # programs of tiles have names of their own, whoever needs them
            assert symbols == [program_name(first, *tile) for tile in programs(first)]
        else:
            tail = ["a_symbol_of_ours_tail"] if {"nt", "mt"} & set(dict(first.params)) else []
            assert symbols == ([] if in_c else ["a_symbol_of_ours", *tail])


def test_families_of_convolutions_alone_are_found_by_convolutions() -> None:
    names = {family.name for op in OPS if is_convolution(op.kind) for family in conv_families(op)}
    assert WITHIN and set(WITHIN) <= names
    assert not any(family_named(name).serves(op) for name in WITHIN for op in OPS)


def test_the_index_names_each_family_once() -> None:
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)
    with pytest.raises(KeyError, match="no family 'nobody'; known: cpu_dense_fp32"):
        family_named("nobody")
