"""Half types in the C of generated loops: every value there is, and every way to round to one."""

from __future__ import annotations

import ctypes
import subprocess
from typing import Any

import numpy as np
import pytest

from haotuner.backends.toolchain import Toolchain
from haotuner.codegen.loops.c_math import PRELUDE

SOURCE = """
void from16(const uint16_t* x, float* y, int n) { for (int i = 0; i < n; ++i) y[i] = from_fp16(x[i]); }
void to16(const float* x, uint16_t* y, int n) { for (int i = 0; i < n; ++i) y[i] = to_fp16(x[i]); }
void round_b(const float* x, float* y, int n) { for (int i = 0; i < n; ++i) y[i] = from_bf16(to_bf16(x[i])); }
"""
EVERY = np.arange(1 << 16, dtype=np.uint16)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("halves")
    (folder / "halves.c").write_text(PRELUDE + SOURCE)
    command = [Toolchain.find().compiler, "-std=c11", "-O2", "-fPIC", "-shared", "-w", "halves.c", "-o", "halves.so", "-lm"]
    subprocess.run(command, check=True, cwd=folder)
    return ctypes.CDLL(str(folder / "halves.so"))


def called(function: Any, x: Any, dtype: Any) -> Any:
    y = np.empty(x.size, dtype)
    function(ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(y.ctypes.data), x.size)
    return y


def test_every_half_is_the_number_that_it_says(library):
    assert np.array_equal(
        called(library.from16, EVERY, np.float32), EVERY.view(np.float16).astype(np.float32), equal_nan=True
    )


def test_numbers_are_rounded_to_the_nearest_half_and_of_two_to_the_even_one(library):
    halves = np.sort(EVERY.view(np.float16)[np.isfinite(EVERY.view(np.float16))].astype(np.float32))
    middles = (halves[1:] + halves[:-1]) / 2
    draw = np.random.default_rng(0).integers(0, 1 << 32, 200_000, dtype=np.uint32).view(np.float32)
    edges = np.array([65519.996, 65520, np.inf, -np.inf, 2**-25, 2**-26, -0.0], np.float32)
    for x in (middles, np.nextafter(middles, np.float32(np.inf)), np.nextafter(middles, np.float32(-np.inf)), draw, edges):
        with np.errstate(over="ignore"):
            expected = x.astype(np.float16)
        assert np.array_equal(called(library.to16, x, np.uint16).view(np.float16), expected, equal_nan=True)


def test_a_bfloat_is_the_nearest_of_its_neighbours(library):
    x = np.random.default_rng(1).standard_normal(50_000).astype(np.float32)
    rounded = called(library.round_b, x, np.float32)
    below = (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    above = (below.view(np.uint32) + np.uint32(0x10000)).view(np.float32)
    assert np.all(rounded.view(np.uint32) & 0xFFFF == 0)
    assert np.array_equal(np.abs(rounded - x), np.minimum(np.abs(below - x), np.abs(above - x)))
    odd = np.array([np.nan, np.inf, -np.inf], np.float32)
    assert np.array_equal(called(library.round_b, odd, np.float32), odd, equal_nan=True)
