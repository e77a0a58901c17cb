"""Operands that a group reads where they are: no tensor of their own is made of them first."""

from __future__ import annotations

import numpy as np
import pytest

from haotuner.graph.extents import dimension
from haotuner.graph.graph import GraphBuilder
from haotuner.graph.interpret import interpret
from haotuner.partition.greedy_fusion import Greedy, Loops

B = dimension("batch")


def test_a_sum_reads_windows_of_an_image_where_they_are():
    """A convolution that no product serves: its windows, up to 41 times the image, are no tensor of their own."""
    g = GraphBuilder()
    x = g.input("x", (B, 1, 1, dimension("w")))
    padded = g.add("pad", x, before=(0, 0, 0, 19), after=(0, 0, 0, 22), mode="constant", value=0.0)
    windows = g.add("window", padded, axes=(2, 3), sizes=(1, 41), strides=(1, 3), dilations=(1, 1))
    weight = g.constant(np.ones((1, 1, 1, 41), np.float32))
    graph = g.finish(g.add("contract", windows, weight, labels="bcijuv,fcuv->bfij"))
    (step,) = Greedy(graph).steps
    assert isinstance(step, Loops) and {"window", "contract"} <= {node.primitive for node in step.graph.nodes}


@pytest.mark.parametrize("scales", [(40, 1), (1, 8), (1,)])
def test_rows_of_a_table_of_bytes_are_real_numbers_where_they_are_read(scales: tuple[int, ...]) -> None:
    """A table of embeddings with a scale a row: of 30,522 rows a short sentence reads few."""
    rng = np.random.default_rng(0)
    g = GraphBuilder()
    table = g.constant(rng.integers(-128, 128, (40, 8)).astype(np.int8))
    real = g.map("sub", g.add("cast", table, dtype="fp32"), g.constant(np.float32(3)))
    real = g.map("mul", real, g.constant(rng.random(scales).astype(np.float32)))
    graph = g.finish(g.add("gather", real, g.input("ids", (B,), "int64"), axis=0))
    (step,) = Greedy(graph).steps
    assert isinstance(step, Loops) and {"cast", "gather"} <= {node.primitive for node in step.graph.nodes}
    ids = np.array([39, 0, 7])
    (rows,) = interpret(graph, {"ids": ids}).values()
    assert rows.shape == (3, 8)
