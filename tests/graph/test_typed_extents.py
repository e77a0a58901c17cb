"""Sizes that are computed in the types of files: as functions of extents, as text, in tables, and with known numbers."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from haotuner.errors import PackInvalid, UsageError
from haotuner.frontends.onnx.proofs import Proof
from haotuner.frontends.onnx.symbolic_values import applied, objects
from haotuner.frontends.onnx.typed_numbers import DataDependentError, cast, exact, is_number, mapped
from haotuner.graph.extents import canonical, dimension, evaluate, parse, same, smallest, text
from haotuner.graph.typed_extents import never_negative, typed
from haotuner.partition.segmented_model import SizeTable
from haotuner.runtime.schedule import ExecutionPlan, sizes_of
from haotuner.spec.shape import Span
from haotuner.spec.size_arithmetic import TYPED

N, M = dimension("n"), dimension("m")
ASKED = {"n": Span(first=1, last=64), "m": Span(first=1, last=64)}


def times(dtype: str, factor: float, value: Any = N) -> Any:
    return mapped("mul", (cast(value, "int64", dtype, Proof(ASKED)), exact(factor)), dtype, Proof(ASKED))


SEVEN_TENTHS = cast(
    mapped("floor", (times("fp32", float(np.float32(0.7))),), "fp32", Proof(ASKED)), "fp32", "int64", Proof(ASKED)
)
EXTENTS = (
    SEVEN_TENTHS,
    typed("quotient", N - 9, 4),
    typed("to_uint8", 10 * N),
    smallest([SEVEN_TENTHS, M]) * 2 + typed("to_int8", N * M),
    cast(cast(999 * N, "int64", "fp16", Proof(ASKED)), "fp16", "int64", Proof(ASKED)),
)


@pytest.mark.parametrize("extent", EXTENTS, ids=range(len(EXTENTS)))
def test_an_extent_is_the_same_by_itself_in_a_table_and_read_from_its_text(extent: Any) -> None:
    table = SizeTable()
    index = table.index(extent)
    for sizes in ({"n": n, "m": m} for n, m in itertools.product((1, 3, 10, 26, 64), (1, 7))):
        value = evaluate(extent, sizes)
        assert table.values(sizes)[index] == sizes_of(table.lines, sizes)[index] == value
        assert evaluate(parse(text(extent)), sizes) == value == int(extent.subs({N: sizes["n"], M: sizes["m"]}))
    assert same(parse(text(extent)), extent)


def test_sizes_are_what_the_file_computes():
    for n in range(1, 65):
        assert evaluate(SEVEN_TENTHS, {"n": n}) == int(np.floor(np.float32(n) * np.float32(0.7)))
        assert evaluate(EXTENTS[1], {"n": n}) == int((n - 9) / 4)
        assert evaluate(EXTENTS[2], {"n": n}) == 10 * n % 256
        assert evaluate(EXTENTS[4], {"n": n}) == int(np.float16(999 * n))


@pytest.mark.parametrize("bad", ["real_add(n, 1.5)", "whole(n)", "quotient(n)", "n + 0.5", "real_add(1.5)", "to_fp32(n, 2)"])
def test_text_of_other_kinds_of_numbers_is_refused(bad: str) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        parse(bad)


def test_a_real_number_is_no_extent():
    with pytest.raises(UsageError, match="has no program"):
        SizeTable().index(canonical(times("fp32", float(np.float32(0.7))) + 1))


def test_a_size_that_no_whole_number_is_is_refused_in_words():
    nothing = typed("whole", typed("real_div", typed("real", N), typed("real", M)))
    assert evaluate(nothing, {"n": 7, "m": 2}) == 3
    with pytest.raises(UsageError, match="the model takes no such request"):
        evaluate(nothing, {"n": 7, "m": 0})


def test_a_schedule_with_an_operand_too_many_is_damaged():
    with pytest.raises(PackInvalid, match="size 1 reads"):
        ExecutionPlan.of(b'{"sizes": [["dim", "n"], ["to_int8", 0, 0]]}', "a schedule")


def test_what_the_type_holds_stays_an_expression():
    proof = Proof(ASKED)
    half = mapped("mul", (cast(N, "int64", "fp32", proof), mapped("div", (1, 2), "fp32", proof)), "fp32", proof)
    assert same(cast(mapped("floor", (half,), "fp32", proof), "fp32", "int64", proof), N // 2)
    third = mapped("div", (cast(N, "int64", "fp32", proof), 3), "fp32", proof)
    assert same(cast(mapped("ceil", (third,), "fp32", proof), "fp32", "int64", proof), -(-N // 3))
    assert same(mapped("div", (N + 7, 8), "int64", proof), (N + 7) // 8)
    assert cast(N, "int64", "int8", proof) == N
    assert list(proof.assumed.values()) == ["n <= 16777215", "n <= 127"]


def test_a_bound_that_only_the_asked_range_shows_is_assumed():
    proof = Proof({"n": Span(first=16, last=64)})
    assert same(mapped("div", (N - 9, 4), "int64", proof), (N - 9) // 4)
    assert list(proof.assumed) == [N - 9]
    wide = Proof(ASKED)
    assert "quotient" in text(mapped("div", (N - 9, 4), "int64", wide))
    assert not wide.assumed
    assert not never_negative(N - 9)


def test_unsigned_numbers_of_64_bits_that_may_wrap_are_left_to_the_request():
    with pytest.raises(DataDependentError):
        mapped("sub", (N, 9), "uint64", Proof(ASKED))
    assert same(mapped("add", (N, 9), "uint64", Proof(ASKED)), N + 9)


@pytest.mark.parametrize("function", ["exp", "log", "tanh"])
def test_functions_that_libraries_round_in_their_own_ways_are_left_to_the_request(function: str) -> None:
    with pytest.raises(DataDependentError):
        mapped(function, (N,), "fp32", Proof(ASKED))
    assert is_number(mapped(function, (1,), "fp32", Proof(ASKED)))


def test_sums_of_whole_numbers_keep_their_type():
    (total,) = applied("reduce", [objects(np.array([[100, N, 27]], object))], {"how": "sum", "axes": (1,)}, "int8",
                       proof=Proof(ASKED))  # fmt: skip
    assert [evaluate(total, {"n": n}) for n in (0, 1, 30)] == [127, -128, -99]


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_rounding_is_that_of_the_type(dtype: str) -> None:
    kind = {"fp32": np.float32, "fp16": np.float16}.get(dtype) or pytest.importorskip("ml_dtypes").bfloat16
    draw = np.random.default_rng(0)
    values = draw.standard_normal(500) * 10.0 ** draw.integers(-9, 9, 500)
    with np.errstate(over="ignore"):
        expected = values.astype(np.float32).astype(kind) if dtype == "bf16" else values.astype(kind)
    rounded = [TYPED[f"to_{dtype}"].compute(float(value)) for value in values]
    np.testing.assert_array_equal(np.array(rounded), expected.astype(np.float64))
