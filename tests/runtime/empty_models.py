"""A model whose operands may be empty while its outputs are not, and inputs in memory that nobody may read."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np

from haotuner.graph.extents import dimension
from haotuner.graph.graph import Graph, GraphBuilder

B, T, PAST = dimension("batch"), dimension("seq"), dimension("past")
NAME = "cached"
SIZES = ({"batch": 2, "seq": 3, "past": 0}, {"batch": 2, "seq": 3, "past": 4}, {"batch": 1, "seq": 0, "past": 5},
         {"batch": 3, "seq": 0, "past": 0})  # fmt: skip
NONE = 0  # PROT_NONE of sys/mman.h


def cached() -> Graph:
    """Rows behind those of before, as they lie and as one row each; what was before between pads."""
    g = GraphBuilder()
    x, past, marks = g.input("x", (B, 3, T)), g.input("past", (B, 3, PAST)), g.input("marks", (B, PAST), "int64")
    both = g.map("neg", g.add("concat", past, x, axis=2))
    flat = (g.add("reshape", tensor, shape=(B, 3 * extent)) for tensor, extent in ((past, PAST), (x, T)))
    rows = g.map("mul", g.add("concat", *flat, axis=1), 2.0)
    wide = g.add("pad", past, before=(0, 0, 1), after=(0, 0, T), mode="constant", value=0.5)
    turned = g.add("transpose", past, order=(2, 0, 1))
    around = g.add("pad", turned, before=(2, 0, 0), after=(0, 0, 1), mode="constant", value=1.5)
    seen = g.add("concat", marks, g.add("cast", g.add("reduce", x, how="max", axes=(1,)), dtype="int64"), axis=1)
    return g.finish(both, rows, g.map("abs", wide), around, seen)


def given(sizes: dict[str, int]) -> dict[str, Any]:
    """Inputs of a request."""
    draw = np.random.default_rng(sum(sizes.values()))
    shapes = {"x": (sizes["batch"], 3, sizes["seq"]), "past": (sizes["batch"], 3, sizes["past"])}
    inputs: dict[str, Any] = {name: draw.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    return inputs | {"marks": draw.integers(-9, 9, (sizes["batch"], sizes["past"]))}


def nowhere() -> int:
    """The address of a page that may be neither read nor written."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    page = libc.mmap(None, ctypes.c_size_t(mmap.PAGESIZE), NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, ctypes.c_long(0))
    assert page not in (None, ctypes.c_void_p(-1).value), "no page"
    return int(page)


class _Placed:
    """An array without elements at an address, as numpy takes it."""

    def __init__(self, like: Any, address: int) -> None:
        self.__array_interface__ = {"version": 3, "data": (address, False), "shape": like.shape, "typestr": like.dtype.str}


def guarded(arrays: dict[str, Any]) -> dict[str, Any]:
    """The same arrays; those without elements lie where nobody may read."""
    page = nowhere()
    placed_arrays = {name: array if array.size else np.asarray(_Placed(array, page)) for name, array in arrays.items()}
    assert all(array.size or array.ctypes.data == page for array in placed_arrays.values())
    return placed_arrays
