"""Progress of the check of a new pack's models: how many shapes of how many, as their processes write it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from haotuner.graph.extents import dimension
from haotuner.graph.graph import GraphBuilder
from haotuner.partition.dim_ranges import spans_of
from haotuner.tuning.publisher import _checked
from haotuner.verify.model_check import check_model, shapes_checked
from tests.runtime.model_packs import model_pack


def test_shapes_are_counted_where_they_are_checked(tmp_path: Path) -> None:
    g = GraphBuilder()
    x = g.input("x", (dimension("batch"), 16))
    graph = g.finish(g.map("mul", x, g.constant(np.ones(16, np.float32))))
    counter = tmp_path / "0.count"
    assert shapes_checked([counter]) == (0, 0) and _checked(0, 2, [counter]).endswith("0 of 2 checks done")
    check_model(
        model_pack(tmp_path / "pack", {"net": graph}),
        "net",
        graph,
        spans_of(graph, "batch=1..8"),
        lambda sizes: graph,
        counter,
    )
    checked, total = shapes_checked([counter])
    assert checked == total > 3
    (tmp_path / "1.count").write_text("2 7")
    words = _checked(1, 3, [counter, tmp_path / "1.count"])
    assert words == f"checking what it computes: 1 of 3 checks done, {checked + 2} of {total + 7} shapes of models"
