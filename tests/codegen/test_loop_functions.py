"""Element-wise functions of loops in C: their bounds over all exponents, C99's special values, and no subnormal steps.

For each instruction set of this host and each C compiler that it has.
"""

from __future__ import annotations

import ctypes
import math
import subprocess
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from haotuner.backends.cpu.pack_source import GROUP_FLAGS
from haotuner.codegen.loops.c_math import head_of
from haotuner.codegen.vector_functions import BOUNDS, OF_TWO
from haotuner.ops.formula import FUNCTIONS
from tests.codegen.test_node_rounding import ARCHITECTURES, compilers, here
from tests.underflow import underflows

POINTS = 1 << 20
SPECIAL = (0.0, 1.0, 0.5, 2.0, 3.0, 2.5, math.inf, math.nan, 1e-45, 1.1754944e-38, 3.4028235e38, 2.0**22 + 0.5,
           2.0**23 - 0.5, 2.0**23 + 1, 2.0**24 - 1, 2.0**24 + 2, 1 - 2.0**-24, 1 + 2.0**-23, 16367173 * 2.0**72, 1.5707964,
           88.72284, 103.98)  # fmt: skip
EXACT: Mapping[str, Callable[..., Any]] = {
    **FUNCTIONS,
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}
CASES = [
    pytest.param(compilers()[0], max(filter(here, ARCHITECTURES))),
    *(pytest.param(item, arch, marks=pytest.mark.long) for item in compilers() for arch in ARCHITECTURES if here(arch)),
]


@cache
def points(count: int) -> tuple[Any, ...]:
    """Operands: of all exponents, where functions bend, and special values with each other."""
    draw = np.random.default_rng(0)
    with np.errstate(all="ignore"):
        return _points(count, draw)


def _points(count: int, draw: np.random.Generator) -> tuple[Any, ...]:
    every = draw.integers(0, 2**32, POINTS, np.uint64).astype(np.uint32).view(np.float32)
    special = np.array([sign * value for value in SPECIAL for sign in (1, -1)], np.float32)
    if count == 1:
        quarters = np.arange(POINTS // 8) * (np.pi / 2)
        near = (draw.uniform(-1.2, 1.2, POINTS // 4), draw.uniform(-110, 110, POINTS // 4), quarters,
                1 + draw.normal(0, 0.01, POINTS // 8))  # fmt: skip
        return (np.concatenate([every, *near, special]).astype(np.float32),)
    x, y = (item.ravel() for item in np.meshgrid(special, special))
    bases = (
        every,
        draw.uniform(0, 4, POINTS // 4),
        1 + draw.normal(0, 1e-3, POINTS // 4),
        draw.integers(-20, 20, POINTS // 8),
    )
    others = (draw.permutation(every), draw.uniform(-40, 40, POINTS // 4), draw.uniform(-2e4, 2e4, POINTS // 4))
    other = (*others, draw.integers(-20, 20, POINTS // 8))
    return tuple(np.concatenate(item).astype(np.float32) for item in ((*bases, x), (*other, y)))


def compiled(compiler: str, arch: str, folder: Path) -> ctypes.CDLL:
    """A library of loops, ``of_log`` and the like."""
    source, library = folder / "functions.c", folder / "functions.so"
    loops = []
    for name in BOUNDS:
        operands = ("x", "y") if name in OF_TWO else ("x",)
        head = ", ".join([*(f"const float* restrict {item}" for item in operands), "float* restrict z", "long n"])
        call = f"ht_{name}({', '.join(f'{item}[i]' for item in operands)})"
        loops.append(f"void of_{name}({head}) {{ for (long i = 0; i < n; ++i) z[i] = {call}; }}\n")
    source.write_text(head_of(loops) + "".join(loops), encoding="utf-8")
    flags = ("-std=c11", "-O3", f"-march={arch}", *GROUP_FLAGS, "-fPIC", "-shared")
    subprocess.run([compiler, *flags, "-o", str(library), str(source), "-lm"], check=True)
    return ctypes.CDLL(str(library))


def applied(library: ctypes.CDLL, name: str, *operands: Any) -> Any:
    result = np.empty_like(operands[0])
    pointers = [ctypes.c_void_p(item.ctypes.data) for item in (*operands, result)]
    getattr(library, f"of_{name}")(*pointers, ctypes.c_long(len(result)))
    return result


def distance(computed: Any, exact: Any) -> Any:
    """Error in units of the last place; infinite where a sign, a NaN or an infinity differs."""
    with np.errstate(all="ignore"):
        rounded = exact.astype(np.float32)
        unit = np.maximum(np.spacing(np.abs(rounded)), np.float32(2.0**-149)).astype(np.float64)
        off = np.abs(computed.astype(np.float64) - exact) / unit
    off = np.where(computed == rounded, np.where(np.isfinite(off), off, 0.0), np.where(np.isnan(off), np.inf, off))
    signs = (np.signbit(computed) != np.signbit(rounded)) & ~np.isnan(rounded)
    return np.where(np.isnan(computed) & np.isnan(rounded), 0.0, np.where(signs, np.inf, off))


@pytest.mark.parametrize(("compiler", "arch"), CASES)
def test_functions_are_within_their_bounds(compiler: str, arch: str, tmp_path: Path) -> None:
    library = compiled(compiler, arch, tmp_path)
    for name, bound in BOUNDS.items():
        operands = points(2 if name in OF_TWO else 1)
        result = applied(library, name, *operands)
        with np.errstate(all="ignore"):
            exact = np.asarray(EXACT[name](*(item.astype(np.float64) for item in operands)))
        off = distance(result, exact)
        worst = int(np.argmax(off))
        assert off[worst] <= bound, (name, [item[worst] for item in operands], result[worst], exact[worst], off[worst])
    hidden = np.array([-105, -1e4, -1e9, -3.4e38, -np.inf] * 16, np.float32)  # as masks leave it
    for name in ("exp", "sigmoid"):
        assert not underflows(partial(applied, library, name, hidden)), name
        assert (applied(library, name, hidden) == 0).all()
