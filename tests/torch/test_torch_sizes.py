"""Sizes of torch.export that are computed through real numbers, at every size of a range."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from haotuner.frontends.torch_export.exported_program import graph_of_program
from haotuner.graph.interpret import interpret

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore")  # torch warns of itself
nn = torch.nn


def test_real_numbers_of_sizes_are_rounded_as_pythons_are():
    class Parts(nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any) -> Any:
            rows = x.shape[0]
            below = x.new_zeros(torch.sym_int((rows - 9) / 4) + 5)
            return x[: torch.sym_int(rows * 0.7)], x[: math.ceil(rows * 0.1)], below, x + rows * 0.1

    module, free = Parts(), ({0: torch.export.Dim.AUTO},)
    program = torch.export.export(
        module, (torch.zeros(20),), dynamic_shapes=free, prefer_deferred_runtime_asserts_over_guards=True
    )
    graph = graph_of_program(program, {})
    assert graph_of_program(program, {}, sizes={"x_0": 10}).types[graph.outputs[0]].shape == (7,)
    for rows in range(2, 64):
        x = torch.randn(rows)
        found = interpret(graph, {graph.inputs[0]: x.numpy()})
        for name, want in zip(graph.outputs, module(x), strict=True):
            np.testing.assert_allclose(found[name], want.numpy(), rtol=1e-6)
