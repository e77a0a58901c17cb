"""Selection: laws with both sides, a funnel whose counts add up, and something left for every op and device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from haotuner.cost.families import problem_of
from haotuner.cost.features import features
from haotuner.cost.model import Analytic
from haotuner.errors import NothingLegal
from haotuner.microkernels.cpu.dense import CpuDense
from haotuner.microkernels.cpu.dense_demand import FLAT
from haotuner.microkernels.cpu.product import CpuProduct
from haotuner.microkernels.cpu.typed_product import TYPED_PRODUCT_FAMILIES
from haotuner.microkernels.index import FAMILIES
from haotuner.search.observations import expectation
from haotuner.search.select.funnel import EXAMPLES, Funnel, select
from haotuner.search.select.limits import laws_of, question
from haotuner.spec.constraint import refusals
from haotuner.spec.device import Device
from haotuner.spec.kernel import MicroKernel, Refused
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape, ShapeRange
from haotuner.spec.traffic import Traffic
from tests.cost.cost_examples import BARE_CORE, BIG_CORE, OP, SMALL_CORE, kernel

FAMILY = CpuDense()
LAWS = [name for name, _ in laws_of(FAMILY, OP, BIG_CORE)]
RANGE = Traffic.of_range(ShapeRange.parse("dynamic"))

DEVICES = st.builds(
    lambda lanes, registers, l1, l2: Device(
        id="any-core", kind="cpu", name="any", arch="x86-64", compute_units=2, wave_width=lanes,
        registers_per_thread=registers, l1_bytes=l1, l2_bytes=l2,
    ),
    lanes=st.sampled_from([4, 8, 16]),
    registers=st.sampled_from([8, 16, 32]),
    l1=st.sampled_from([None, 16 << 10, 32 << 10, 48 << 10]),
    l2=st.sampled_from([None, 256 << 10, 2 << 20]),
)  # fmt: skip
EXTENT = st.one_of(st.integers(1, 70), st.integers(1, 5000), st.sampled_from([1, 2, 3, 50257, 2**31 - 1]))


def by_rows(kernels: Sequence[MicroKernel]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array([1.0 / k["mr"] + k["nr"] / 1e4 for k in kernels])


def test_the_counts_add_up_for_the_readme_op() -> None:
    funnel = select(OP, FAMILY, BIG_CORE, RANGE, expectation(OP, FAMILY, BIG_CORE, "cold"))
    check_counts(funnel)
    assert 50 <= len(funnel.candidates) <= FAMILY.frontier
    assert funnel.line() == (
        f"{funnel.points:,} points → {funnel.legal:,} legal → {len(funnel.candidates):,} on the frontier"
    )
    scores = [candidate.score for candidate in funnel.candidates]
    assert scores == sorted(scores, reverse=True) and all(0 < score <= 1.01 for score in scores)


@pytest.mark.long
@settings(max_examples=12, deadline=None)
@given(device=DEVICES, n=EXTENT, k=EXTENT, first=st.integers(1, 40), more=st.integers(0, 3000))
def test_any_cpu_and_op_keep_a_kernel_of_one_row_and_the_counts_add_up(
    device: Device, n: int, k: int, first: int, more: int
) -> None:
    op = Op(kind="dense", static=(("n", n), ("k", k)))
    traffic = Traffic.of_range(ShapeRange.parse(f"m={first}..{first + more}"), samples=5)
    funnel = select(op, FAMILY, device, traffic, by_rows)
    check_counts(funnel)
    rows = {candidate.kernel["mr"] for candidate in funnel.candidates}
    assert 1 in rows and max(rows) <= first + more
    # Every tile height that has a legal kernel keeps one: padding relaxes until it does.
    heights: set[int] = set()
    for point in FAMILY.points(op, device):  # one of a height is enough
        if point["mr"] not in heights and not broken(point, op, device, first + more):
            heights.add(point["mr"])
    assert rows == heights
    for candidate in funnel.candidates:
        assert candidate.kernel["ku"] <= k and not broken(candidate.kernel, op, device, first + more)


@settings(max_examples=6, deadline=None)
@given(n=EXTENT, k=EXTENT, device=st.sampled_from([BIG_CORE, SMALL_CORE, BARE_CORE]))
def test_the_analytic_expectation_is_finite_wherever_selection_asks(n: int, k: int, device: Device) -> None:
    op = Op(kind="dense", static=(("n", n), ("k", k)))
    funnel = select(op, FAMILY, device, RANGE, expectation(op, FAMILY, device, "cold"))
    check_counts(funnel)
    assert all(np.isfinite(candidate.score) and candidate.score > 0 for candidate in funnel.candidates)


@pytest.mark.parametrize(
    ("law", "point", "requested", "allowed"),
    [
        ("registers", kernel(14, 32), 14 * 2 + 2 + 1, 16),
        ("l1", kernel(4, 64, ku=8), 68 * 8 * 4, 1024),
        ("rows", kernel(9, 16), 9, 8),
        ("columns", kernel(1, 64), 64, 48),
        ("depth", kernel(1, 16, ku=8), 8, 5),
        ("streams", kernel(1, 96, pw=16), 6, 4),
        ("body", kernel(16, 80, ku=8), 16 * 5 * 8, 512),
    ],
)
def test_each_law_gives_both_sides_of_what_it_refuses(
    law: str, point: MicroKernel, requested: float, allowed: float
) -> None:
    device = Device(id="tiny-core", kind="cpu", name="t", arch="x86-64", compute_units=1, wave_width=16,
                    registers_per_thread=16, l1_bytes=2048)  # fmt: skip
    op = Op.parse("dense:n=33,k=5")
    by_law = {r.law: r for r in refused_of(point, op, device, 8)}
    assert (by_law[law].requested, by_law[law].allowed) == (requested, allowed) and requested > allowed
    assert by_law[law].kernel == point
    assert [name for name in LAWS if name in by_law] == list(by_law)  # in the order of the laws


def test_an_unknown_cache_refuses_nothing() -> None:
    assert "l1" not in {r.law for r in refused_of(kernel(1, 96, ku=8), OP, BARE_CORE, 8)}


@pytest.mark.parametrize("last", [1, 2, 5])
def test_small_ranges_keep_one_row_kernels_of_every_panel_width_that_fits(last: int) -> None:
    funnel = select(OP, FAMILY, BIG_CORE, Traffic.of_range(ShapeRange.parse(f"m=1..{last}")), by_rows)
    assert {c.kernel["mr"] for c in funnel.candidates} == set(range(1, last + 1))
    assert {c.kernel["pw"] for c in funnel.candidates if c.kernel["mr"] == 1} >= {16, 32, 48, 64}


def test_a_small_frontier_still_spreads_over_tile_heights_and_keeps_the_best() -> None:
    funnel = select(OP, FAMILY, BIG_CORE, RANGE, by_rows, most=20)
    assert len(funnel.candidates) == 20
    groups = Counter((c.kernel["mr"], c.kernel["pw"]) for c in funnel.candidates)
    assert max(groups.values()) == 1  # the best of every group comes before anybody's second
    assert all(r.requested > r.allowed == 20 for r in funnel.examples if r.law == "frontier")


def test_the_best_of_every_use_comes_before_the_seconds_of_any() -> None:
    def best(rows: int) -> int:  # flat tiles fetch no line of every step
        return 16 if rows > max(FLAT) else 0

    def by_use(kernels: Sequence[MicroKernel]) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
        alone = np.array([1.0 if k["pf"] == best(k["mr"]) else 0.5 for k in kernels])
        bulk = np.array([1.0 if k["pf"] == 4 else 0.1 for k in kernels])
        return np.stack([alone, bulk], axis=1)

    every = select(OP, FAMILY, BIG_CORE, RANGE, by_use, most=10_000).candidates
    heights = {c.kernel["mr"] for c in every if c.kernel["pf"] == 4}
    groups = {(c.kernel["mr"], c.kernel["pw"]) for c in every}
    frontier = [c.kernel for c in select(OP, FAMILY, BIG_CORE, RANGE, by_use, most=2 * len(groups)).candidates]
    for group in groups:
        fetches = {k["pf"] for k in frontier if (k["mr"], k["pw"]) == group}
        assert best(group[0]) in fetches and (4 in fetches or group[0] not in heights)


def test_many_opinions_leave_room_for_every_group() -> None:
    """An Intel host without a model of its own had eight opinions of four uses, and no kernel of one row among 512."""

    def torn(kernels: Sequence[MicroKernel]) -> np.ndarray[tuple[int, int, int], np.dtype[np.float64]]:
        tall = np.array([float(k["mr"]) for k in kernels])
        drawn = np.random.default_rng(0).normal(size=(8, len(kernels), 4))
        return np.asarray(drawn + tall[:, None], np.float64)

    every = select(OP, FAMILY, BIG_CORE, RANGE, torn, most=100_000).candidates
    groups = {(c.kernel["mr"], c.kernel["pw"]) for c in every}
    frontier = select(OP, FAMILY, BIG_CORE, RANGE, torn).candidates
    assert len(frontier) == FAMILY.frontier < len(every)
    assert {(c.kernel["mr"], c.kernel["pw"]) for c in frontier} == groups


def test_a_model_decides_what_is_kept() -> None:
    class LikesUnroll(Analytic):
        def predict(self, frame: pd.DataFrame) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
            return np.asarray(frame["unroll_log2"], np.float64)

    score = expectation(OP, FAMILY, BIG_CORE, "cold", LikesUnroll())
    assert {c.kernel["ku"] for c in select(OP, FAMILY, BIG_CORE, RANGE, score, most=40).candidates} == {8}


def test_a_device_too_small_for_any_tile_says_which_laws_refused() -> None:
    device = Device(id="no-core", kind="cpu", name="n", arch="x86-64", compute_units=1, wave_width=4, registers_per_thread=2)
    with pytest.raises(
        NothingLegal, match=r"dense_n2304_k768 on no-core: none of [0-9]+ points .* \(registers refused [0-9]+\)"
    ):
        select(OP, FAMILY, device, RANGE, by_rows)


def test_a_wider_device_loses_no_kernel_to_the_register_law() -> None:
    for point in FAMILY.points(OP, SMALL_CORE):
        if "registers" not in broken(point, OP, SMALL_CORE, 2048):
            assert "registers" not in broken(point, OP, BIG_CORE, 2048)


def check_counts(funnel: Funnel) -> None:
    assert funnel.points == funnel.legal + sum(funnel.refused.get(law, 0) for law in LAWS)
    assert funnel.legal == len(funnel.candidates) + funnel.refused.get("padding", 0) + funnel.refused.get("frontier", 0)
    assert set(funnel.refused) <= {*LAWS, "padding", "frontier"}
    assert 0 < len(funnel.candidates) <= FAMILY.frontier
    assert len({candidate.kernel for candidate in funnel.candidates}) == len(funnel.candidates)
    assert len(funnel.examples) == min(EXAMPLES, sum(funnel.refused.values()))
    assert all(example.requested > example.allowed for example in funnel.examples)


def refused_of(point: MicroKernel, op: Op, device: Device, rows: int) -> list[Refused]:
    return list(refusals(question(FAMILY, point, op, device, {"m": rows}), laws_of(FAMILY, op, device)))


def broken(point: MicroKernel, op: Op, device: Device, rows: int) -> list[str]:
    return [refused.law for refused in refused_of(point, op, device, rows)]


@pytest.mark.parametrize(("n", "computed"), [(600, 600), (1000, 1000), (388, 392)])
def test_no_width_is_refused_for_columns_that_it_does_not_compute(n: int, computed: int) -> None:
    op = Op.parse(f"dense:n={n},k=600")
    funnel = select(op, FAMILY, BIG_CORE, RANGE, by_rows, most=10_000)
    assert "padding" not in funnel.refused
    assert {c.kernel["nr"] for c in funnel.candidates} == {16 * vectors for vectors in range(1, 13)}
    assert {FAMILY.computed(c.kernel, "n", n) for c in funnel.candidates} == {computed}


def test_a_width_is_refused_for_columns_that_it_computes_in_vain() -> None:
    class WithoutTails(CpuDense):
        def points(self, op: Op, device: Device) -> Iterator[MicroKernel]:
            for point in super().points(op, device):
                yield MicroKernel(point.family, tuple(pair for pair in point.params if pair[0] != "nt"))

    funnel = select(Op.parse("dense:n=388,k=600"), WithoutTails(), BIG_CORE, RANGE, by_rows, most=10_000)
    assert funnel.refused["padding"] > 0 and {c.kernel["nr"] for c in funnel.candidates} == {16, 32, 80}
    assert {round(r.requested, 4) for r in funnel.examples if r.law == "padding"} <= {
        round(w / 388 - 1, 4) for w in range(388, 600)
    }


def test_points_of_one_footprint_are_refused_as_each_by_itself() -> None:
    op = Op.parse("dense:n=40,k=6,epilogue=bias+relu")
    funnel = select(op, FAMILY, SMALL_CORE, RANGE, by_rows)
    points = list(FAMILY.points(op, SMALL_CORE))
    first = [next(iter(refused_of(point, op, SMALL_CORE, 2048)), None) for point in points]
    counts = Counter(refusal.law for refusal in first if refusal is not None)
    assert counts["registers"] and counts["columns"] and counts == {law: funnel.refused.get(law, 0) for law in counts}
    assert list(funnel.examples) == [refusal for refusal in first if refusal is not None][:EXAMPLES]


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "int8"])
def test_convolutions_of_other_types_have_expectations(dtype: str) -> None:
    op = Op.parse(f"conv2d:c=32,f=32,r=3,s=3,pad=1.1.1.1,dtype={dtype},layout=nhwc")
    (family,) = (family for family in FAMILIES if family.name == f"cpu_conv_{dtype}")
    few = [(kernel, Shape.of(b=1, h=9, w=9)) for kernel in islice(family.points(op, BIG_CORE), 4)]
    rows = features(BIG_CORE, family, problem_of(op), few)
    assert np.isfinite(rows["expected_log"]).all()


def test_traffic_of_single_shapes_is_enough() -> None:
    check_counts(select(OP, FAMILY, BIG_CORE, Traffic.of([(Shape.of(m=7), 1.0)]), by_rows))


@settings(max_examples=40, deadline=None)
@given(
    device=st.sampled_from([BIG_CORE, SMALL_CORE]),
    n=st.sampled_from([1, 2, 5, 16, 40]),
    k=st.sampled_from([1, 2, 16, 300]),
    rows=st.integers(1, 6),
    dtype=st.sampled_from(["fp32", "bf16", "int8"]),
)
def test_products_of_few_rows_and_columns_have_kernels(device: Device, n: int, k: int, rows: int, dtype: str) -> None:
    op = Op.parse(f"batch_matmul:n={n},k={k},dtype={dtype}")
    (family,) = (family for family in (CpuProduct(), *TYPED_PRODUCT_FAMILIES) if family.serves(op))
    laws, most = laws_of(family, op, device), {"b": 8, "m": rows}
    legal = (not any(refusals(question(family, point, op, device, most), laws)) for point in family.points(op, device))
    assert any(legal), f"no point of {family.name} for {op.name}, m up to {rows}"
