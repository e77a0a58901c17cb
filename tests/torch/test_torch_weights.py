"""Weights and attributes of served layers: read, written, assigned, merged, tied, cast and copied as torch's own."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

import haotuner  # noqa: E402
import haotuner.torch as adapter  # noqa: E402
from haotuner.errors import UsageError  # noqa: E402
from tests.torch.test_torch_chains import IMAGE, Head, X, close, twins  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
nn, F = torch.nn, torch.nn.functional
prune = pytest.importorskip("torch.nn.utils.prune")


def nets() -> list[tuple[Any, Any]]:
    """A linear, one with an activation fused, a convolution, and one with a norm and an activation: with an input."""
    norm = nn.BatchNorm2d(8)
    norm.running_mean.uniform_(-2, 2)
    conv = nn.Conv2d(8, 8, 3, padding=1)
    return [
        (nn.Sequential(nn.Linear(16, 24)), X), (nn.Sequential(nn.Linear(16, 24), nn.ReLU()), X),
        (nn.Sequential(conv), IMAGE), (nn.Sequential(copy.deepcopy(conv), norm, nn.ReLU()), IMAGE),
    ]  # fmt: skip


def changes() -> dict[str, Any]:
    """Ways to change a layer's parameters."""

    def merged(layer: Any) -> None:  # as peft merges an adapter
        layer.weight.data += 0.1
        layer.bias.data -= 0.2

    def sliced(layer: Any) -> None:
        layer.weight[0].zero_()
        layer.weight.view(-1)[3:7] = 5
        layer.weight.data[1:3].mul_(2)

    def assigned(layer: Any) -> None:
        layer.weight = nn.Parameter(torch.ones_like(layer.weight) * 0.01)
        layer.bias = nn.Parameter(torch.arange(len(layer.bias)).float())

    def copied(layer: Any) -> None:
        with torch.no_grad():
            layer.weight.copy_(layer.weight * 3)
            torch.add(layer.bias, 1, out=layer.bias)

    def data(layer: Any) -> None:
        layer.weight.data = layer.weight.data.flip(0)
        layer.bias.data = torch.zeros(len(layer.bias))

    def initialised(layer: Any) -> None:
        torch.manual_seed(3)
        nn.init.normal_(layer.weight)
        nn.init.constant_(layer.bias, 2.0)

    def stored(layer: Any) -> None:
        weight = layer.weight
        layer.load_state_dict({key: value * 0.5 for key, value in layer.state_dict().items()})
        assert close(weight * 1, layer.state_dict()["weight"])

    def state(layer: Any) -> None:
        for value in layer.state_dict().values():
            value *= 0.5
        layer.state_dict(keep_vars=True)["weight"].data.add_(0.1)

    return {change.__name__: change for change in (merged, sliced, assigned, copied, data, initialised, stored, state)}


@pytest.mark.parametrize("name", changes())
@pytest.mark.parametrize("which", range(4))
def test_what_is_written_is_served(chained, which, name):
    model, x = nets()[which]
    plain, served, report = twins(model, chained)
    assert report.replaced == ("0",)
    for context in (torch.no_grad, torch.inference_mode):
        twin, with_twin = copy.deepcopy(served), plain(x)
        with context():
            for net in (plain, served):
                changes()[name](net[0])
            assert close(served(x), plain(x)) and close(served[0](x), plain[0](x))
            assert close(served.state_dict()["0.weight"], plain.state_dict()["0.weight"])
            assert close(twin(x), with_twin)


def test_weights_are_read_as_tensors(chained):
    plain, served, _ = twins(nn.Sequential(nn.Linear(16, 24)), chained)
    weight, expected = served[0].weight, plain[0].weight.detach()
    assert (weight.shape, weight.dtype, weight.device, weight.requires_grad) == (
        expected.shape,
        expected.dtype,
        expected.device,
        False,
    )
    assert torch.equal(weight, expected) and torch.equal(weight.T, expected.T) and weight.tolist() == expected.tolist()
    assert torch.equal(torch.from_numpy(weight.numpy()), expected) and torch.equal(copy.deepcopy(weight), expected)
    assert torch.equal(pickle.loads(pickle.dumps(weight)), expected) and "tensor(" in repr(weight)
    with torch.no_grad():
        assert close(F.linear(X, weight, served[0].bias), plain(X)) and close(X @ weight.T, X @ expected.T)
        weight.data = expected * 2
        assert close(served(X) - served[0].bias, 2 * (plain(X) - plain[0].bias))
    with pytest.raises(ValueError, match=r"weight has shape \(3, 16\); a served layer has \(24, 16\)"):
        served[0].weight = nn.Parameter(torch.zeros(3, 16))
    with pytest.raises(TypeError, match="weight = NoneType; a served layer takes a tensor there"):
        served[0].weight = None


def test_parameters_of_a_call_and_tied_ones(chained):
    plain, served, _ = twins(nn.Sequential(Head()), chained)
    fresh = {"0.fc.weight": torch.randn(24, 16), "0.fc.bias": torch.randn(24)}
    with torch.no_grad():
        before = plain(X)
        assert close(torch.func.functional_call(served, fresh, (X,)), torch.func.functional_call(plain, fresh, (X,)))
        assert close(served(X), before)
        handle, was = served[0].fc.weight, plain[0].fc.weight.detach().clone()
        words = nn.Embedding(24, 16)
        served[0].fc.weight = plain[0].fc.weight = words.weight  # as tie_weights does
        assert close(served(X), plain(X)) and torch.equal(handle, was)
        handle.zero_()
        assert close(served(X), plain(X))
    assert next(served.parameters()) is words.weight and len(list(served.parameters())) == 2
    assert next(served.bfloat16().parameters()).dtype is torch.bfloat16
    assert list(served.state_dict()) == list(plain.state_dict())


@pytest.mark.parametrize(("to", "of"), [("first", "second"), ("second", "first")])
def test_served_layers_that_are_tied_follow_each_other(chained, to, of):
    plain, served, _ = twins(nn.ModuleDict({"first": nn.Linear(16, 24), "second": nn.Linear(16, 24)}), chained)
    handles = [net[of].weight for net in (plain, served)]
    changed: list[Any] = [
        lambda net, handle: setattr(net[to], "weight", net[of].weight),
        lambda net, handle: net[to].weight.copy_(torch.ones(24, 16)),
        lambda net, handle: net[of].weight.mul_(3),
        lambda net, handle: handle.add_(0.5),
        lambda net, handle: setattr(net[to], "bias", net[of].bias),
        lambda net, handle: net[of].bias.data.add_(1),
        lambda net, handle: setattr(net[of], "weight", nn.Parameter(torch.full((24, 16), 0.25))),
        lambda net, handle: net[to].weight.sub_(1),
    ]
    with torch.no_grad():
        for step, change in enumerate(changed):
            for net, handle in zip((plain, served), handles, strict=True):
                change(net, handle)
            assert (served[to].weight is served[of].weight) == (plain[to].weight is plain[of].weight)
            assert all(close(served[name](X), plain[name](X)) for name in (to, of)), step
    assert len(list(served.parameters())) == len(list(plain.parameters()))


@pytest.mark.parametrize("which", range(4))
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_weights_that_were_rounded_to_halves_stay_so(chained, which, half):
    model, x = nets()[which]
    plain, served, _ = twins(model, chained)
    with torch.no_grad():
        for net in (plain, served):
            net.to(half).float()
        assert close(served(x), plain(x)) and torch.equal(served[0].weight * 1, plain[0].weight.detach())


def test_a_clone_of_a_served_weight_takes_a_gradient(chained):
    plain, served, _ = twins(nn.Sequential(nn.Linear(16, 24)), chained)
    other = nn.Sequential(nn.Linear(16, 24))
    with pytest.raises(RuntimeError, match=r"its clone\(\) takes one"):
        other.load_state_dict(served.state_dict(), assign=True)
    other.load_state_dict({name: tensor.clone() for name, tensor in served.state_dict().items()}, assign=True)
    assert torch.equal(other(X), plain(X)) and other[0].weight.requires_grad


def test_attributes_are_those_of_the_layer(chained):
    net = nn.Sequential(
        nn.Conv2d(8, 8, 3, padding=1), nn.Linear(16, 24), nn.Conv2d(8, 8, 3, padding="same", bias=False)
    ).eval()
    net[0].tag = "first"
    plain, served, report = twins(net, chained)
    assert len(report.replaced) == 3
    for layer, other in zip(served, plain, strict=True):
        words = [*other.__constants__, *(word for word in vars(other) if not word.startswith("_"))]
        assert {word: getattr(layer, word) for word in words} == {word: getattr(other, word) for word in words}
        back = pickle.loads(pickle.dumps(layer))
        assert type(back) is type(other) and repr(back) == repr(other) and vars(back).keys() >= vars(layer).keys() & {*words}
    assert served[0].tag == "first" == copy.deepcopy(served)[0].tag == pickle.loads(pickle.dumps(served))[0].tag
    with torch.inference_mode():
        assert close(pickle.loads(pickle.dumps(served))[2](IMAGE), plain[2](IMAGE))


class Reading(Head):
    def forward(self, x: Any) -> Any:
        return F.linear(x, self.fc.weight, self.fc.bias)


class Both(Head):
    def forward(self, x: Any) -> Any:
        assert self.fc.weight.dtype is x.dtype
        return self.fc(x) + F.linear(x, self.fc.weight)


class Typed(Head):
    def forward(self, x: Any) -> Any:
        return self.fc(x.to(self.fc.weight.dtype))


def test_a_forward_that_reads_a_weight(chained):
    for kind in (Reading, Both, Typed):
        with adapter.register(chained) as registered, torch.no_grad():
            plain, served, report = twins(nn.Sequential(kind()), chained, registered)
            assert report.left == (
                {"0.fc": "Reading.forward reads its weight and never calls it"} if kind is Reading else {}
            )
            assert close(served(X), plain(X))
            if kind is not Typed:
                torch._dynamo.reset()
                assert close(torch.compile(served, backend="aot_eager", fullgraph=True)(X), plain(X))


def test_double_is_computed_in_double(chained):
    for model, x in nets():
        plain, served, _ = twins(model, chained)
        with torch.no_grad():
            output, expected = served.double()(x.double()), plain.double()(x.double())
            assert output.dtype is torch.float64 and torch.allclose(output, expected, atol=1e-12, rtol=1e-12)
            assert close(served.float()(x), plain.float()(x))


class Conv1D(nn.Module):  # type: ignore[misc, name-defined]
    """As transformers' of that name: a linear whose weight is stored (in, out)."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf, self.nx = nf, nx
        self.weight, self.bias = nn.Parameter(torch.randn(nx, nf)), nn.Parameter(torch.randn(nf))

    def forward(self, x: Any) -> Any:
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view((*x.shape[:-1], self.nf))


def test_a_linear_that_is_stored_by_input(built_pack, monkeypatch):
    monkeypatch.setattr(Conv1D, "__module__", "transformers.pytorch_utils")
    with haotuner.load(built_pack.path, threads=1) as pack, torch.inference_mode():
        assert adapter.ops_of(nn.Sequential(Conv1D(64, 16))) == {"dense:n=64,k=16,weight=kn": 1}
        plain, served, report = twins(nn.Sequential(Conv1D(64, 16)), pack)
        assert report.replaced == ("0",) and served[0].nf == 64 and served[0].weight.shape == (16, 64)
        x = torch.randn(2, 5, 16)
        assert close(served(x), plain(x)) and close(copy.deepcopy(served)(x), plain(x))
        for net in (plain, served):
            net[0].weight.data += 1
        assert close(served(x), plain(x)) and close(served.double()(x.double()), plain.double()(x.double()))
        assert served.state_dict().keys() == plain.state_dict().keys()


class Doubled(nn.Module):  # type: ignore[misc, name-defined]
    def forward(self, weight: Any) -> Any:
        return weight * 2


PUTTING: dict[str, Any] = {
    "parametrized": lambda layer: nn.utils.parametrize.register_parametrization(layer, "weight", Doubled()),
    "normed": nn.utils.parametrizations.weight_norm,
    "spectral": nn.utils.parametrizations.spectral_norm,
    "orthogonal": nn.utils.parametrizations.orthogonal,
    "normed as before": nn.utils.weight_norm,
    "spectral as before": nn.utils.spectral_norm,
    "pruned": lambda layer: prune.l1_unstructured(layer, "weight", 0.5),
    "bias pruned": lambda layer: prune.random_unstructured(layer, "bias", 0.5),
    "deleted": lambda layer: delattr(layer, "weight"),
}


@pytest.mark.parametrize("how", PUTTING)
def test_what_computes_a_weight_anew_comes_before_the_swap(chained, how):
    plain, served, _ = twins(nn.Sequential(Head()), chained)
    with pytest.raises(UsageError, match="Do that before the swap"):
        PUTTING[how](served[0].fc)
    assert close(served(X), plain(X)) and served.state_dict().keys() == plain.state_dict().keys()
    if how == "deleted":
        return
    with torch.no_grad():
        PUTTING[how](plain[0].fc)
    after = copy.deepcopy(plain)
    report = adapter.swap(after, chained)
    assert ("at each call" in report.left["0.fc"]) and close(after(X), plain(X))


def test_parameters_are_there_by_name(chained):
    plain, served, _ = twins(nn.Sequential(Head()), chained)
    named = served[0].fc._parameters
    assert "weight" in named and "bias" in named and "other" not in named and list(named) == ["weight", "bias"]
    assert torch.equal(named["weight"].clone(), plain[0].fc.weight) and named.get("other") is None
    for net in (plain, served):
        net[0].fc._parameters["weight"] = nn.Parameter(torch.ones(24, 16))
        net[0].fc.register_parameter("bias", nn.Parameter(torch.ones(24)))
        net[0].fc.extra = nn.Parameter(torch.ones(3))
        del net[0].fc.extra
    assert close(served(X), plain(X)) and close(copy.deepcopy(served)(X), plain(X))
    with pytest.raises(KeyError):
        named["other"]
