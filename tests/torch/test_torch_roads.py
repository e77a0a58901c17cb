"""One module by ONNX and by ``.pt2``: both files need the same ops, epilogues included, and compute what torch does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from haotuner.graph.interpret import interpret

torch = pytest.importorskip("torch")
for package in ("onnx", "onnxscript"):
    pytest.importorskip(package)
pytestmark = pytest.mark.filterwarnings("ignore")  # torch warns of itself
nn, functional = torch.nn, torch.nn.functional


class Layer(nn.Module):  # type: ignore[name-defined, misc]
    """A transformer's layer, by the names that torch has for its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.last = nn.LayerNorm(32), nn.LayerNorm(32)
        self.qkv, self.out = nn.ModuleList([nn.Linear(32, 32) for _ in range(3)]), nn.Linear(32, 32)
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: Any, mask: Any) -> Any:
        h = self.norm(x)
        q, k, v = (projection(h).view(*h.shape[:2], 4, 8).transpose(1, 2) for projection in self.qkv)
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :] > 0)
        x = x + self.out(mixed.transpose(1, 2).reshape(*h.shape))
        return x + self.down(functional.gelu(self.up(self.last(x))))


class Windows(nn.Module):  # type: ignore[name-defined, misc]
    """Linears of four axes, gates without a bias, products of activations, and einsum."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(16, 24, bias=False), nn.Linear(16, 24, bias=False), nn.Linear(24, 16)
        self.mix = nn.Parameter(torch.randn(16, 20) / 4)

    def forward(self, x: Any) -> Any:
        x = x + self.down(functional.silu(self.gate(x)) * self.up(x))
        alike = torch.matmul(x, x.transpose(-1, -2)).softmax(-1)
        return torch.relu(torch.einsum("bwtd,de->bwte", torch.matmul(alike, x), self.mix))


class Image(nn.Module):  # type: ignore[name-defined, misc]
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.each = nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3, 1, 1, groups=8)
        self.tokens, self.steps, self.last = nn.Linear(8, 16), nn.LSTM(16, 12, batch_first=True), nn.Linear(12, 5)

    def forward(self, x: Any) -> Any:
        x = functional.hardswish(self.each(torch.relu(self.norm(self.first(x)))))
        tokens = torch.relu(self.tokens(x.flatten(2).transpose(1, 2)))
        return self.last(self.steps(tokens)[0]).sigmoid()


CASES: dict[str, tuple[Any, Any, Any]] = {
    "layer": (
        Layer,
        lambda b, t: (torch.randn(b, t, 32), (torch.arange(t) < b).long().expand(b, t)),
        ({0: "b", 1: "t"},) * 2,
    ),
    "windows": (Windows, lambda b, t: (torch.randn(b, 3, t, 16),), ({0: "b", 2: "t"},)),
    "image": (Image, lambda b, t: (torch.randn(b, 3, 16, 16),), ({0: "b"},)),
}
NEEDS = {
    "layer": ["bias_gelu", "bias_residual"],
    "windows": ["silu_mul", "bias_residual"],
    "image": ["dense_n16_k8_bias_relu"],
}


@pytest.mark.long
@pytest.mark.parametrize("kind", ["layer", "windows", pytest.param("image", marks=pytest.mark.slow)])
def test_both_files_need_the_same_ops_and_compute_the_same(kind, tmp_path):
    from tests.torch.torch_roads import by_both, ops_of

    torch.manual_seed(0)
    make, inputs, dynamic = CASES[kind]
    module = make().eval()
    shapes = "b=1..4" if kind == "image" else "b=1..4;t=1..32"
    graphs = by_both(module, inputs(2, 7), dynamic, shapes, tmp_path)
    first, second = map(ops_of, graphs)
    assert first == second
    assert all(any(name.endswith(end) for name in second) for end in NEEDS[kind])
    arguments = inputs(3, 5)
    with torch.no_grad():
        expected = module(*arguments).numpy()
    for graph in graphs:
        (output,) = interpret(
            graph, {name: tensor.numpy() for name, tensor in zip(graph.inputs, arguments, strict=True)}
        ).values()
        np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-5)


class Heads(nn.Module):  # type: ignore[name-defined, misc]
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def forward(self, q: Any, k: Any, v: Any, *mask: Any) -> Any:
        return functional.scaled_dot_product_attention(q, k, v, *mask, **self.options)


@pytest.mark.parametrize(
    ("options", "mask"),
    [({}, "none"), ({}, "bool"), ({}, "float"), ({"is_causal": True}, "none"), ({"scale": -0.3}, "float"),
     ({"enable_gqa": True}, "none")],
)  # fmt: skip
def test_attention_is_read_whole(options, mask):
    """Queries that may see no key give 0, and a NaN stays one."""
    from haotuner.torch import export

    torch.manual_seed(0)
    heads = 2 if options.get("enable_gqa") else 4
    q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, heads, 7, 8), torch.randn(2, heads, 7, 6)
    q[0, 0, 0, 0] = float("nan")
    seen = torch.rand(2, 1, 5, 7) > 0.4
    seen[0, 0, 1] = False
    masks = {"none": [], "bool": [seen], "float": [torch.where(seen, 0.5, float("-inf"))]}[mask]
    graph = export(Heads(**options), (q, k, v, *masks))
    inputs = (q, k, v, *masks)
    (output,) = interpret(graph, {name: tensor.numpy() for name, tensor in zip(graph.inputs, inputs, strict=True)}).values()
    expected = Heads(**options)(*inputs).numpy()
    np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-5)
    assert np.isnan(output[0, 0, 0]).all() and np.isfinite(output[1]).all()


EINSUMS = {
    "bij,bjk->bik": ((2, 3, 4), (2, 4, 5)), "bij,bjk": ((2, 3, 4), (2, 4, 5)),
    "...ij,...jk->...ik": ((7, 1, 3, 4), (2, 4, 5)),
    "bi,bj,kj->ik": ((2, 3), (2, 4), (5, 4)), "bi,bj->bij": ((1, 3), (4, 5)), "ii->i": ((3, 3),), "i,j->ij": ((3,), (4,)),
    "b...i,ij,j...->b...j": ((2, 6, 3), (3, 4), (4, 6)),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("equation", EINSUMS)
def test_einsum_is_read_whole(equation):
    from haotuner.torch import export

    class Sums(nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, *operands: Any) -> Any:
            return torch.einsum(equation, *operands)

    inputs = tuple(torch.randn(shape) for shape in EINSUMS[equation])
    graph = export(Sums(), inputs)
    (output,) = interpret(graph, {name: tensor.numpy() for name, tensor in zip(graph.inputs, inputs, strict=True)}).values()
    np.testing.assert_allclose(output, torch.einsum(equation, *inputs).numpy(), rtol=1e-4, atol=1e-5)


PRODUCTS = [((5,), (5,)), ((5,), (5, 3)), ((5,), (2, 5, 3)), ((2, 5), (5,)), ((2, 3, 4, 5), (3, 5, 6)),
            ((3, 4, 5), (2, 1, 5, 6)), ((3, 0), (0, 2))]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("shapes", PRODUCTS)
def test_products_of_any_rank(shapes):
    from haotuner.torch import export

    class Product(nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any, y: Any) -> Any:
            turned = y if y.dim() == 1 else y.transpose(-1, -2)
            extra = functional.linear(x, turned) if y.dim() < 3 else x.sum()
            return torch.matmul(x, y), extra

    inputs = tuple(torch.randn(shape) for shape in shapes)
    graph = export(Product(), inputs)
    outputs = interpret(graph, {name: tensor.numpy() for name, tensor in zip(graph.inputs, inputs, strict=True)}).values()
    for mine, theirs in zip(outputs, Product()(*inputs), strict=True):
        assert mine.shape == tuple(theirs.shape)
        np.testing.assert_allclose(mine, theirs.numpy(), rtol=1e-4, atol=1e-5)
