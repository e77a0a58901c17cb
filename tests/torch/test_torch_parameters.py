"""Loops over the parameters of a swapped model: what they read and write is what is served, or they are refused."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

import haotuner  # noqa: E402
import haotuner.torch as adapter  # noqa: E402
from haotuner.errors import UsageError  # noqa: E402
from tests.torch.test_torch_chains import IMAGE, Head, X, close, twins  # noqa: E402
from tests.torch.test_torch_models import encoder_pack  # noqa: E402

__all__ = ["encoder_pack"]
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
nn, F = torch.nn, torch.nn.functional


def drawn(model: Any) -> list[Any]:
    """A tensor of other numbers for each parameter of a model."""
    torch.manual_seed(5)
    return [torch.randn(parameter.shape) for parameter in model.parameters()]


def averaged(model: Any) -> None:
    with torch.no_grad():
        for parameter, other in zip(model.parameters(), drawn(model), strict=True):
            parameter.mul_(0.9).add_(other, alpha=0.1)


def averaged_data(model: Any) -> None:
    for (_, parameter), other in zip(model.named_parameters(), drawn(model), strict=True):
        parameter.data.mul_(0.9).add_(other, alpha=0.1)


def copied(model: Any) -> None:
    with torch.no_grad():
        for parameter, other in zip(model.parameters(), drawn(model), strict=True):
            parameter.copy_(other)


def assigned(model: Any) -> None:
    for parameter, other in zip(model.parameters(), drawn(model), strict=True):
        parameter.data = other


def stepped(model: Any, **options: Any) -> None:
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.5, momentum=0.9, **options)
    for _ in range(2):
        for parameter, other in zip(parameters, drawn(model), strict=True):
            parameter.grad = other.clone()
        optimizer.step()


def from_vector(model: Any) -> None:
    vector = nn.utils.parameters_to_vector(model.parameters())
    nn.utils.vector_to_parameters(vector.detach().flip(0) * 0.5, model.parameters())


def clipped(model: Any) -> None:
    for parameter, other in zip(model.parameters(), drawn(model), strict=True):
        parameter.grad = other.clone()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.sub_(parameter.grad)


def swa(model: Any) -> None:
    other = torch.optim.swa_utils.AveragedModel(model)
    copied(model)
    other.update_parameters(model)
    copied(other.module)
    model.load_state_dict(other.module.state_dict())


def foreach(model: Any) -> None:
    with torch.no_grad():
        torch._foreach_mul_(list(model.parameters()), 0.5)


def stored(model: Any) -> None:
    model.load_state_dict({key: value * 0.5 for key, value in model.state_dict().items()}, assign=True)


LOOPS = [averaged, averaged_data, copied, assigned, stepped, lambda model: stepped(model, foreach=True), from_vector,
         clipped, swa, foreach, stored]  # fmt: skip


def models() -> list[tuple[Any, Any]]:
    """A linear with what is fused and without, a convolution with a norm folded into it: each with an input."""
    norm = nn.BatchNorm2d(8)
    norm.running_mean.uniform_(-2, 2)
    return [
        (nn.Sequential(Head(), nn.LayerNorm(24)), X), (nn.Sequential(nn.Linear(16, 24)), X),
        (nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), norm, nn.ReLU()), IMAGE),
    ]  # fmt: skip


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("which", range(3))
def test_loops_over_parameters_change_what_is_served(chained, which, loop):
    model, x = models()[which]
    plain, served, _ = twins(model, chained)
    assert [(name, p.shape, p.dtype) for name, p in served.named_parameters()] == [
        (name, p.shape, p.dtype) for name, p in plain.named_parameters()
    ]
    with torch.no_grad():
        before = plain(x)
    for net in (plain, served):
        loop(net)
    with torch.no_grad():
        assert close(served(x), plain(x)) and not close(plain(x), before)
        assert all(map(close, served.parameters(), plain.parameters()))
        assert all(map(close, served.state_dict().values(), plain.state_dict().values()))


class Words(nn.Module):  # type: ignore[misc, name-defined]
    """A model whose last linear has its embedding's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(24, 16), nn.Linear(16, 24, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x: Any) -> Any:
        return self.head(self.words(x))


TOKENS = torch.tensor([[3, 1, 23]])


TIED_LOOPS = [
    *LOOPS, lambda model: model.head.weight.data.mul_(2), lambda model: model.words.weight.data.mul_(2),
    lambda model: setattr(model.words.weight, "data", torch.ones(24, 16)),
]  # fmt: skip


@pytest.mark.parametrize("loop", TIED_LOOPS)
def test_tied_weights_stay_one_parameter(chained, loop):
    plain, served, report = twins(Words(), chained)
    assert report.tied == {"head": "words.weight"} and served.head.weight is served.words.weight
    copied, other = copy.deepcopy(served), copy.deepcopy(plain)
    with torch.no_grad():
        before = plain(TOKENS)
    for net in (plain, served):
        loop(net)
    with torch.no_grad():
        assert close(served(TOKENS), plain(TOKENS)) and not close(plain(TOKENS), before) and close(copied(TOKENS), before)
        for net in (other, copied):
            loop(net)
        assert close(copied(TOKENS), other(TOKENS))
        assert [*served.state_dict()] == [*plain.state_dict()]
        back = pickle.loads(pickle.dumps(served))
        assert type(back.words.weight) is nn.Parameter and close(back(TOKENS), plain(TOKENS))
        for net in (plain, served):
            net.head.weight = nn.Parameter(torch.ones(24, 16))
            net.words.weight.zero_()
        assert close(served(TOKENS + 0), plain(TOKENS)) and len([*served.parameters()]) == 2


@pytest.mark.parametrize("kind", ["half", "bfloat16", "double"])
def test_parameters_follow_the_type_of_the_model(chained, kind):
    plain, served, _ = twins(nn.Sequential(Head(), Words()), chained)
    for net in (plain, served):
        getattr(net, kind)()
    assert [p.dtype for p in served.parameters()] == [p.dtype for p in plain.parameters()]
    for net in (plain, served):
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.mul_(0.5)
    assert all(torch.equal(a, b) for a, b in zip(served.parameters(), plain.parameters(), strict=True))
    for net in (plain, served):
        net.float()
    with torch.no_grad():
        assert close(served[0](X), plain[0](X)) and close(served[1](TOKENS), plain[1](TOKENS))


def test_gradients_of_served_weights_are_refused(chained):
    plain, served, _ = twins(nn.Sequential(Head()), chained)
    with pytest.raises(UsageError, match="weight of a served layer takes no gradient"):
        served.requires_grad_()
    with pytest.raises(UsageError, match="takes no gradient"):
        served[0].fc.bias.requires_grad = True
    served.requires_grad_(False)
    with torch.no_grad():
        assert close(served(X), plain(X))


def test_attention_shows_its_projections(encoder_pack):
    layer = nn.TransformerEncoderLayer(8, 2, 24, batch_first=True).eval()
    plain, x = nn.Sequential(layer), torch.randn(3, 5, 8)
    served = copy.deepcopy(plain)
    with haotuner.load(encoder_pack, threads=1) as pack, torch.no_grad():
        assert adapter.swap(served, pack).replaced
        assert [name for name, _ in served.named_parameters()] == [name for name, _ in plain.named_parameters()]
        for loop in (averaged, averaged_data, copied, assigned, from_vector):
            for net in (plain, served):
                loop(net)
            assert close(served(x), plain(x)) and close(copy.deepcopy(served)(x), plain(x))
        served[0].self_attn.in_proj_weight = nn.Parameter(torch.ones(24, 8))
        plain[0].self_attn.in_proj_weight = nn.Parameter(torch.ones(24, 8))
        assert close(served(x), plain(x))


class Penalised(Head):
    """Its forward reads a type and all parameters."""

    def forward(self, x: Any) -> Any:
        return super().forward(x.to(next(self.parameters()).dtype)) + sum(p.sum() for p in self.parameters())


def test_forwards_that_list_parameters_are_compiled_and_exported(chained):
    with adapter.register(chained) as registered, torch.no_grad():
        plain, served, _ = twins(nn.Sequential(Penalised()), chained, registered)
        torch._dynamo.reset()
        assert close(torch.compile(served, backend="aot_eager")(X), plain(X))
        program = torch.export.export(served, (X,))
        assert close(program.module()(X), plain(X))
        assert not {"0.fc.weight", "0.fc.bias"} & {*program.state_dict}


def test_a_parameter_keeps_its_layer_and_a_model_frees_its_own(chained):
    _, served, _ = twins(nn.Sequential(Head()), chained)
    layer, parameters = weakref.ref(served[0].fc), list(served.parameters())
    assert all(a is b for a, b in zip(parameters, served.parameters(), strict=True))
    del served
    assert parameters[0].sum().isfinite() and layer() is not None
    del parameters
    gc.collect()
    assert layer() is None
