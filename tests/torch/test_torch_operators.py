"""ATen operators through torch.export, many in a module: graphs give what modules do at sizes never exported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from haotuner.errors import UsageError
from haotuner.graph.interpret import interpret

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore")  # torch warns of itself
nn, F = torch.nn, torch.nn.functional


def rounding(x: Any) -> Any:
    """(rows, 8)."""
    return (torch.div(x, 0.3, rounding_mode="trunc"), torch.div(x, 0.3, rounding_mode="floor"), F.selu(x), F.celu(x, 0.7),
            F.hardtanh(x), x.fmod(0.4), x.trunc(), torch.log1p(x.abs()), torch.expm1(x), torch.log2(x.abs() + 1), 2.0**x,
            torch.sinh(x), x.sign(), x.isnan(), torch.addmm(x[:1], x, x.new_ones(8, 8), beta=0.5, alpha=2.0),
            x.argmax())  # fmt: skip


def places(x: Any) -> Any:
    """(rows, 8)."""
    z = x.clone()
    z[:, 0] = 0
    z[:, -1] = 2
    z[:, ::3] = 1.0
    return (x.roll(3, 0), x.roll((1, -2), (0, 1)), x.flip(0, 1), *x.split((3, 5), 1), *x.chunk(2, 1), *x.unbind(1), z,
            x.repeat(2, 1, 3), x.unfold(1, 4, 2), (x @ x.T).diagonal(), (x.T @ x).diagonal(1), x.T.diagonal(-1),
            torch.arange(x.shape[0] - 1, -x.shape[0], -1.0), torch.arange(0, x.shape[0], 0.5))  # fmt: skip


def indices(x: Any) -> Any:
    """(rows, 8), rows at least 2."""
    rows = torch.arange(x.shape[0] - 1, -1, -1)
    columns = rows % 8
    three = x.reshape(-1, 2, 4)
    z, at = x.clone(), three.clone()
    z[rows, columns] = 5.0
    z[x > 1] = -1.0
    at[:, :, torch.tensor([0, 2])] = 7.0
    added = torch.zeros(3, 8).index_add(0, rows % 3, x)
    put = torch.zeros(3, 4).index_put((rows % 3, rows % 4), x[:, 0], accumulate=True)
    return (x[rows], x[rows, columns], three[rows, :, rows % 4], three[:, torch.tensor([1, 0]), torch.tensor([3, 1])],
            x[:, [1, 1, 4]], z, at, added, put, torch.zeros(x.shape[0], 9).scatter_add(1, columns[:, None].expand(-1, 8), x),
            x.scatter(1, columns[:, None], 3.0), *x.topk(3, 1), *x.sort(1, descending=True), *x.max(1), *x.min(0),
            x.scatter_reduce(1, columns[:, None], x[:, :1], "amax"))  # fmt: skip


def masked(x: Any) -> Any:
    """How many rows are chosen only the data tell."""
    keep = x[:, 0] > 0
    chosen = x[keep]
    return chosen.relu(), keep.nonzero(), chosen.sum(0), torch.zeros_like(x).index_add(0, torch.where(keep)[0], chosen)


def rows(x: Any) -> Any:
    """(rows, 8)."""
    y = x.reshape(-1, 8, 1).expand(-1, 8, 5) * torch.arange(1.0, 6.0)
    return (x.var(1), x.std(0, correction=0), *torch.var_mean(x, 1), x.norm(dim=1), x.norm(p=1, dim=1), x.norm(p=3, dim=1),
            x.abs().amax(1), F.normalize(x, dim=1), F.group_norm(y, 4), F.instance_norm(y), F.rms_norm(x, (8,)),
            F.group_norm(y, 2, torch.arange(8.0), torch.ones(8)), x.prod(1), x.logsumexp(1))  # fmt: skip


def images(x: Any) -> Any:
    """(rows, 8) as images of one channel."""
    y = x[:, None, None] * torch.ones(1, 1, 6, 1)  # (rows, 1, 6, 8)
    return (F.interpolate(y, size=(9, 5), mode="bicubic"), F.interpolate(y, size=(9, 5), mode="bilinear"),
            F.interpolate(y, scale_factor=1.5, mode="bilinear"),
            F.interpolate(y, size=(7, 7), mode="bilinear", align_corners=True),
            F.interpolate(y, size=(4, 13)), F.interpolate(y, size=(4, 13), mode="nearest-exact"),
            F.interpolate(y[0].expand(3, -1, -1), size=7, mode="linear"), F.adaptive_avg_pool2d(y, (4, 3)),
            F.pad(y, (1, 2, 3, 0), mode="reflect"), F.pad(y, (1, 2, 3, 0), mode="replicate"),
            F.pixel_shuffle(y.reshape(-1, 4, 3, 4), 2))  # fmt: skip


def of_models(x: Any) -> Any:
    """(rows, 8): what models write: one element in place, an empty cache, a view of attention, sizes as tensors."""
    table = torch.zeros(3, 8, dtype=torch.int64)
    table[0, 0] = 7
    h = torch.stack([x, x + 1])
    q, k, v = (chunk.view(2, -1, 2, 4).transpose(1, 2) for chunk in torch.cat([h, h, 2 * h], -1).split(8, -1))
    mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).contiguous().view(-1, 8)
    span = torch.tensor(x.shape[0])
    return table + x[:1], torch.cat([torch.tensor([]), x], -2), mixed, torch.arange(99.0)[40 - span : 40 + span]


def ends(x: Any) -> Any:
    """(rows, 8), rows at least 2: of an image's rows the last one, whose number torch knows."""
    y = F.conv2d(x[None, None], x.new_ones(1, 1, 3, 3), stride=2, padding=1)
    return y / y[:, :, -1:], y[:, :, -1:, 1:] + x[0, 0]


def experts(x: Any) -> Any:
    """(rows, 8): whole numbers, which bf16 and any order of sums keep."""
    weights = torch.arange(192.0).remainder(5).sub(2).reshape(3, 8, 8)
    ends = torch.stack([torch.tensor(x.shape[0]) // part for part in (4, 2, 1)]).to(torch.int32)
    return F.grouped_mm(x.round().bfloat16(), weights.bfloat16(), offs=ends).float()


def exact(x: Any) -> Any:
    """(rows, 8): what a rounding, an element type or nothing to look at would change."""
    eight, none = torch.arange(8.0), x[:0]
    return (torch.div(x.round(), 0.1, rounding_mode="floor"), (x * 0 + eight * 0.1) // -0.1, x // 0.0,
            torch.log2(x * 0 + 2**eight).floor(), torch.log10(x * 0 + 10**eight).floor(), torch.exp2(x.round()).floor(),
            (0.4 * x.abs()).any(1), (x * 0).any(), none.any(), none.all(), none.any(0), (x * torch.nan).any(),
            x.half() < x, x >= x.half(), x == torch.tensor(0.1, dtype=torch.float64), x.round() == x.round().long(),
            torch.arange(0, 0.3, 0.1) + x[:1, :1], torch.arange(0.0, 1.0, 0.1) * x[0, 0], torch.hypot(1e30 * x, 1e30 * x),
            (x.long().abs() + 1).rsqrt(), torch.cat([x.long(), x], 1))  # fmt: skip


def between(x: Any) -> Any:
    """(rows, 8): bounds of another element type than the numbers, and no number at all."""
    halves = torch.tensor([-0.5, 0.5, 1.5])
    unknown = torch.where(x > 0, x, torch.nan)
    return (torch.bucketize((2 * x).long(), halves), torch.bucketize((2 * x).long(), halves, right=True),
            torch.bucketize(unknown, halves), torch.searchsorted(torch.tensor([-1, 0, 1]), x),
            torch.searchsorted(halves, unknown), torch.bucketize(x.half(), halves / 3))  # fmt: skip


FUNCTIONS = {
    net.__name__: net for net in (rounding, places, indices, masked, rows, images, of_models, ends, experts, exact, between)
}


class Called(nn.Module):  # type: ignore[name-defined, misc]
    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


def check(module: Any, drawn: Callable[[int], Any]) -> None:
    from haotuner.torch import export

    graph = export(module.eval(), (drawn(7),), ({0: "rows"},))
    for count in (2, 5, 12):
        x = drawn(count)
        with torch.no_grad():
            expected = module(x)
        outputs = interpret(graph, {graph.inputs[0]: x.numpy()})
        flat = torch.utils._pytree.tree_leaves(expected)
        assert len(graph.outputs) == len(flat)
        for index, (name, theirs) in enumerate(zip(graph.outputs, flat, strict=True)):
            np.testing.assert_allclose(outputs[name], theirs.numpy(), rtol=1e-4, atol=1e-5, err_msg=f"output {index}")


def drawn(count: int) -> Any:
    return torch.from_numpy(np.random.default_rng(count).standard_normal((count, 8)).astype(np.float32))


@pytest.mark.long
@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_operators_give_what_torch_gives(name: str) -> None:
    check(Called(FUNCTIONS[name]), drawn)


def test_weights_in_bf16_are_read_by_their_bits() -> None:
    from haotuner.torch import export

    pytest.importorskip("ml_dtypes")
    module = nn.Linear(8, 4).bfloat16()
    graph = export(module, (drawn(7).bfloat16(),), ({0: "rows"},))
    constants = {
        str(constant.dtype): constant.astype(np.float32) for constant in graph.constants.values() if constant.size == 32
    }
    np.testing.assert_array_equal(
        np.sort(constants["bfloat16"], None), np.sort(module.weight.detach().float().numpy(), None)
    )


@pytest.mark.long
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_layers_with_a_state_are_one_operator_a_layer(kind: str) -> None:
    torch.manual_seed(0)

    class Tagger(nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = getattr(nn, kind)(2, 6, 2, bidirectional=True, batch_first=True)

        def forward(self, x: Any) -> Any:
            return self.inner(x.reshape(-1, 4, 2))

    check(Tagger(), drawn)


class Changing(nn.Module):  # type: ignore[name-defined, misc]
    """A module that counts its calls, and remembers its last rows where it reads them again."""

    def __init__(self, *, reads: bool) -> None:
        super().__init__()
        self.reads = reads
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("scratch", torch.zeros(8))

    def forward(self, x: Any) -> Any:
        self.calls.add_(1)
        self.scratch.copy_(x.amax(0))
        self.mean.mul_(0.5).add_(x.mean(0))
        return x - self.mean if self.reads else x - self.scratch


def test_what_a_module_changes_is_no_result() -> None:
    check(Changing(reads=False), drawn)


def test_a_buffer_that_each_call_reads_and_changes_is_refused() -> None:
    from haotuner.torch import export

    with pytest.raises(UsageError, match="buffer 'mean'"):
        export(Changing(reads=True), (drawn(7),), ({0: "rows"},))


def test_a_projected_state_is_refused() -> None:
    from haotuner.torch import export

    with pytest.raises(UsageError, match="proj_size"):
        export(nn.LSTM(8, 6, proj_size=3), (drawn(7)[None],), ({1: "rows"},))
