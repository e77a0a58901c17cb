"""Small models that a server of tests serves, and packs of them."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np

from haotuner.graph.extents import dimension
from haotuner.graph.graph import Graph, GraphBuilder
from haotuner.spec.expected_times import ExpectedTable
from tests.runtime.chain_graphs import chosen
from tests.runtime.model_packs import model_pack

B, T = dimension("batch"), dimension("seq")
SIZES = ((1, 8, 64), (1, 64))


def rows(factor: float = 1.0) -> Graph:
    """Each row by itself: a maximum of twice the row, and a sum along it."""
    g = GraphBuilder()
    x = g.input("x", (B, T))
    twice = g.map("mul", x, 2.0 * factor)
    return g.finish(g.map("max", twice, 0.0), g.add("reduce", x, how="sum", axes=(1,)))


def masked() -> Graph:
    """Two inputs of two types."""
    g = GraphBuilder()
    x, mask = g.input("x", (B, T, 4)), g.input("mask", (B, T), "int64")
    shown = g.add("reshape", g.add("cast", mask, dtype="fp32"), shape=(B, T, 1))
    return g.finish(g.map("mul", x, shown))


def centred() -> Graph:
    """Rows less the mean of all: symbolic sizes are those of ``rows``, and the rows depend on each other."""
    g = GraphBuilder()
    x = g.input("x", (B, 8))
    total = g.add("reduce", x, how="sum", axes=(0,))
    return g.finish(g.map("sub", x, g.add("reshape", total, shape=(1, 8))))


def table(slope: float = 1.0) -> list[dict[str, Any]]:
    """Expected times of ``rows``: a fixed part, and one of the elements."""
    us = tuple(500 + slope * batch * seq for batch, seq in itertools.product(*SIZES))
    return [ExpectedTable(1, SIZES, us, 0.9, 1.1).document]


def served_pack(out: Path, factor: float = 1.0) -> Path:
    """A pack of all of them."""
    graphs = {"rows": rows(factor), "masked": masked(), "centred": centred(), "chosen": chosen()}
    return model_pack(out, graphs, times={"rows": table()})


def drawn(seed: int, *shape: int) -> Any:
    """Numbers of a request."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
