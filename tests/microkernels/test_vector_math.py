"""Vector math of generated programs: at most 2 ulp over all exponents, and numpy's special values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm_ffi

from haotuner.codegen.schedule import Schedule, planned
from haotuner.codegen.vector_functions import BOUNDS, FORMULAS, OF_TWO
from haotuner.graph.extents import dimension
from haotuner.graph.graph import GraphBuilder
from haotuner.microkernels.cpu.generated_function import program
from haotuner.ops.formula import FUNCTIONS
from tests.codegen import tvm_programs
from tests.underflow import underflows

AVX512, ARCHS = pytest.mark.isa("avx512f", "avx512vl"), {16: "x86-64-v4"}


def compiled(function: str, lanes: int, arch: str = "x86-64", dtype: str = "fp32") -> Any:
    g = GraphBuilder()
    operands = [g.input(name, (dimension("n"),), dtype) for name in ("x", "y")[: 2 if function in OF_TWO else 1]]
    graph = g.finish(g.map(function, *operands))
    plan = planned(graph, Schedule(lane_axis=0, lanes=lanes, unroll=1))
    return tvm_programs.compiled([{"f": program(plan, "f")}], arch)["f"]


def every_exponent() -> Any:
    """Numbers of both signs with every exponent, subnormal ones among them, and many where functions bend."""
    rng = np.random.default_rng(0)
    bits = (np.arange(255, dtype=np.uint32) << 23)[:, None] | rng.integers(0, 1 << 23, (255, 40), dtype=np.uint32)
    whole = bits.ravel().view(np.float32)
    dense = rng.uniform(0, 110, 20_000).astype(np.float32)
    near = rng.uniform(0, 5, 20_000).astype(np.float32)
    values = np.concatenate([whole, dense, near])
    return np.concatenate([values, -values])


def distance(results: Any, exact: Any) -> Any:
    """How far results are from exact ones, in units of the last place of the latter in float32."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        rounded = exact.astype(np.float32)
        unit = np.maximum(np.spacing(np.abs(rounded)), np.float32(2.0**-149)).astype(np.float64)
        off = np.abs(results.astype(np.float64) - exact) / unit
    return np.where((results == rounded) | (np.isnan(results) & np.isnan(rounded)), 0.0, off)


@pytest.mark.parametrize("function", BOUNDS)
@pytest.mark.parametrize("lanes", [1, 4, pytest.param(16, marks=AVX512)])
def test_functions_are_within_their_limit_everywhere(function: str, lanes: int) -> None:
    x = every_exponent()
    operands = (x, np.random.default_rng(1).permutation(x)) if function in OF_TWO else (x,)
    result = np.empty_like(x)
    run = compiled(function, lanes, ARCHS.get(lanes, "x86-64"))
    run(*map(tvm_ffi.from_dlpack, (*operands, result)))
    with np.errstate(all="ignore"):
        exact = np.asarray(FUNCTIONS[function](*(item.astype(np.float64) for item in operands)))
    off = distance(result, exact)
    worst = int(np.argmax(off))
    assert off[worst] <= BOUNDS[function], f"{function}({x[worst]!r}) = {result[worst]!r}, off by {off[worst]:.2f} ulp"


@pytest.mark.parametrize("function", BOUNDS)
@pytest.mark.parametrize("lanes", [4, pytest.param(16, marks=AVX512)])
def test_special_values_are_numpys(function: str, lanes: int) -> None:
    x = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 3.4e38, -3.4e38, 1, -1, 0.5, -2.5, 3], np.float32)
    operands = tuple(item.ravel() for item in np.meshgrid(x, x)) if function in OF_TWO else (x,)
    result = np.empty_like(operands[0])
    run = compiled(function, lanes, ARCHS.get(lanes, "x86-64"))
    run(*map(tvm_ffi.from_dlpack, (*operands, result)))
    with np.errstate(all="ignore"):
        exact = np.asarray(FUNCTIONS[function](*(item.astype(np.float64) for item in operands))).astype(np.float32)
    assert (distance(result, exact.astype(np.float64)) <= BOUNDS[function] + 0.5).all()
    if function in ("tanh", "erf"):  # odd functions
        np.testing.assert_array_equal(np.signbit(result[:2]), [False, True])


@pytest.mark.parametrize("function", ["exp", "sigmoid"])
@pytest.mark.parametrize("lanes", [4, pytest.param(16, marks=AVX512)])
def test_what_masks_hide_does_not_underflow(function: str, lanes: int) -> None:
    x = np.array([-105, -1e4, -1e9, -3.4e38, -np.inf, 0, -1, 5] * 6, np.float32)
    result = np.empty_like(x)
    run, arguments = (
        compiled(function, lanes, ARCHS.get(lanes, "x86-64")),
        (tvm_ffi.from_dlpack(x), tvm_ffi.from_dlpack(result)),
    )
    assert not underflows(lambda: run(*arguments))
    assert (result.reshape(6, 8)[:, :5] == 0).all() and (result.reshape(6, 8)[:, 5:] > 0).all()


@pytest.mark.parametrize("function", FORMULAS)
@pytest.mark.parametrize("lanes", [1, 4])
def test_functions_of_doubles_are_the_librarys(function: str, lanes: int) -> None:
    x = np.concatenate([np.linspace(-3.0, 3.0, 4000), [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-200, -1e-200, 2.0]])
    operands = (x, np.roll(x, 1234)) if function in OF_TWO else (x,)
    result = np.empty_like(x)
    compiled(function, lanes, dtype="fp64")(*map(tvm_ffi.from_dlpack, (*operands, result)))
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(result, FUNCTIONS[function](*operands), rtol=1e-14, atol=1e-15)
