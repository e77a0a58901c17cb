"""What only the sizes of a request can tell to lie inside a tensor is checked by it."""

from __future__ import annotations

from typing import Any

import numpy as np

from haotuner.graph.extents import dimension
from haotuner.graph.graph import GraphBuilder
from haotuner.partition.dim_ranges import shape_constraints, unmet

B, T = dimension("batch"), dimension("seq")


def test_parts_and_first_states_that_no_size_shows_to_fit_are_checked_by_the_request():
    g = GraphBuilder()
    x, h = g.input("x", (T, B, 12)), g.input("h", (dimension("other"), 3))
    zero = g.constant(np.zeros((), np.float32))
    r, bias, peepholes = (g.add("broadcast", zero, shape=shape) for shape in ((3, 12), (12,), (9,)))
    cell = g.add("broadcast", zero, shape=(B, 3))
    lengths = g.add("broadcast", g.constant(np.array(1)), shape=(B,))
    settings: dict[str, Any] = {"kind": "lstm", "hidden": 3, "activations": (("tanh", 0.0, 0.0),) * 3}
    recurrent = g.add("recurrent", x, r, bias, peepholes, h, cell, lengths, **settings)
    first = g.add("slice", x, axes=(0,), starts=(0,), stops=(4,), steps=(1,))
    pairs = shape_constraints(g.finish(recurrent, first))
    assert not unmet(pairs, {"seq": 4, "batch": 2, "other": 2})
    assert unmet(pairs, {"seq": 4, "batch": 2, "other": 1})
    assert unmet(pairs, {"seq": 3, "batch": 2, "other": 2})
