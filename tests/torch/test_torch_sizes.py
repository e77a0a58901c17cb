"""Sizes of torch.export that are computed through real numbers, at every size of a range."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from haotuner.errors import UsageError
from haotuner.frontends.torch_export.exported_program import graph_of_program
from haotuner.graph.interpret import interpret

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore")  # torch warns of itself
nn = torch.nn

from haotuner.torch import export  # noqa: E402, after the skip


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
        outputs = interpret(graph, {graph.inputs[0]: x.numpy()})
        for name, expected in zip(graph.outputs, module(x), strict=True):
            np.testing.assert_allclose(outputs[name], expected.numpy(), rtol=1e-6)


CHOICES = {
    "a share": lambda x: x[: int(x.shape[0] * 0.7)],
    "a root": lambda x: x[: int(x.shape[0] ** 0.5)],
    "half": lambda x: x * 2 if x.shape[0] * 0.5 > 3 else x,
    "at most": lambda x: x * 2 if 0.5 * x.shape[0] <= 3.5 else x,
    "other than": lambda x: x * 2 if x.shape[0] / 2 != 3.5 else x,
    "even": lambda x: x * (2 if x.shape[0] % 2 == 0 else 1),
}


@pytest.mark.parametrize("name", list(CHOICES))
def test_sizes_at_which_a_module_chooses_otherwise_are_refused(name: str) -> None:
    """What torch took for granted in real numbers, or of a remainder, was left out: answers were those of the example."""

    class Choosing(nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any) -> Any:
            return CHOICES[name](x)

    graph = export(Choosing(), (torch.randn(7),), ({0: "rows"},))
    served = 0
    for rows in range(2, 30):
        x = torch.randn(rows)
        try:
            answer = interpret(graph, {graph.inputs[0]: x.numpy()})[graph.outputs[0]]
        except UsageError as error:
            assert "export it once for each side of its condition" in str(error)
            continue
        np.testing.assert_allclose(answer, CHOICES[name](x).numpy())
        served += 1
    assert 0 < served < 28


def test_roots_of_sizes_and_norms_of_any_number_of_channels() -> None:
    class Rooted(nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any) -> Any:
            return nn.functional.instance_norm(x[None]) / x.shape[0] ** 0.5

    graph = export(Rooted(), (torch.randn(7, 8),), ({0: "rows"},))
    for rows in (2, 5, 12):
        x = torch.randn(rows, 8)
        answer = interpret(graph, {graph.inputs[0]: x.numpy()})[graph.outputs[0]]
        np.testing.assert_allclose(answer, Rooted()(x).numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rows", [0, 1, 2, 9])
def test_variances_of_few_rows_are_torchs(rows: int) -> None:
    class Spread(nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any) -> Any:
            return x.var(0), x.std(0, unbiased=False)

    graph = export(Spread(), (torch.randn(7, 8),), ({0: "rows"},))
    x = torch.randn(rows, 8)
    answers = interpret(graph, {graph.inputs[0]: x.numpy()})
    for name, expected in zip(graph.outputs, Spread()(x), strict=True):
        np.testing.assert_allclose(answers[name], expected.numpy(), rtol=1e-4, atol=1e-6)


VIEWS = {
    "turned": lambda x: x.t().as_strided((x.shape[0], 8), (8, 1)),
    "turned_flat": lambda x: (x + 1)[:, None].permute(2, 1, 0).as_strided((4, 2 * x.shape[0]), (1, 4)),
    "copied": lambda x: x.t().contiguous().as_strided((x.shape[0] * 8,), (1,)),
    "begins_before": lambda x: x[:, 4:].contiguous()[1:].as_strided((4,), (1,), 0),
    "gaps": lambda x: x[:, :4].as_strided((x.shape[0] * 4,), (1,)),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_by_strides_count_through_memory_or_are_refused(name: str) -> None:
    class Viewed(nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any) -> Any:
            return VIEWS[name](x)

    if name in ("turned_flat", "begins_before", "gaps"):
        with pytest.raises(UsageError, match="as_strided"):
            export(Viewed(), (torch.randn(7, 8),), ({0: "rows"},))
        return
    graph = export(Viewed(), (torch.randn(7, 8),), ({0: "rows"},))
    for rows in (2, 5, 12):
        x = torch.randn(rows, 8)
        answer = interpret(graph, {graph.inputs[0]: x.numpy()})[graph.outputs[0]]
        assert np.array_equal(answer, VIEWS[name](x).numpy())


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("edge", ["zeros", "border", "reflection"])
def test_the_nearest_pixel_of_places_halfway_between_two(edge: str, ends: bool) -> None:
    class Sampled(nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, image: Any, grid: Any) -> Any:
            return nn.functional.grid_sample(image, grid, "nearest", edge, align_corners=ends)

    line = torch.linspace(-3, 3, 25)
    grid = torch.stack(torch.meshgrid(line, line, indexing="xy"), -1)[None]
    image = torch.arange(32.0).reshape(1, 1, 4, 8)
    graph = export(Sampled(), (image, grid), ({2: "high"}, {}))
    answer = interpret(graph, {"image": image.numpy(), "grid": grid.numpy()})[graph.outputs[0]]
    assert np.array_equal(answer, Sampled()(image, grid).numpy())
