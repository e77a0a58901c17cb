"""What swap fuses is served only where the source calls both: every other way to a layer computes what it computed."""

from __future__ import annotations

import copy
import pickle
import types
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

import haotuner.torch as adapter  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
nn, F = torch.nn, torch.nn.functional


class Head(nn.Module):  # type: ignore[misc, name-defined]
    """A linear and an activation behind it, which ``forward`` of the classes below calls in some way."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.act, self.raw = nn.Linear(16, 24), nn.ReLU(), False

    def logits(self, x: Any) -> Any:
        return self.fc(x)

    def forward(self, x: Any) -> Any:
        return self.act(self.fc(x))


class Optional(Head):
    def forward(self, x: Any, activate: Any = None) -> Any:
        h = self.fc(x)
        return self.act(h) if activate is not None else h


class Typed(Head):
    def forward(self, x: Any) -> Any:
        h = self.fc(x)
        if isinstance(x, torch.Tensor):
            return h
        return self.act(h)


class Flagged(Head):
    def forward(self, x: Any) -> Any:
        h = self.fc(x)
        if self.raw:
            return h
        h = self.act(h)
        return h  # noqa: RET504


class Graded(Head):
    def forward(self, x: Any) -> Any:
        h = self.fc(x)
        if not torch.is_grad_enabled():
            return h
        return self.act(h)


class Kept(Head):
    def forward(self, x: Any) -> Any:
        h = self.fc(x)
        y = self.act(h)
        return y, h


class Walrus(Head):
    def forward(self, x: Any) -> Any:
        y = self.act(h := self.fc(x))
        return y + h


class Closure(Head):
    def forward(self, x: Any) -> Any:
        h = self.fc(x)

        def later() -> Any:
            return h

        h = self.act(h)
        return later() + h


class Caught(Head):
    def forward(self, x: Any) -> Any:
        h = x
        try:
            h = self.fc(x)
            h = self.act(h)
            h = self.act(h, h)
        except TypeError:
            return h
        return None


class Looped(Head):
    def forward(self, x: Any) -> Any:
        h = torch.zeros(x.shape[0], 24)
        for _ in range(2):
            before = h
            h = self.fc(x)
            h = self.act(h) + before
        return h


class Grown(Head):
    def forward(self, x: Any) -> Any:
        h = self.fc(x)
        y = self.act(h)
        h += y
        return h


FORWARDS = (Head, Optional, Typed, Flagged, Graded, Kept, Walrus, Closure, Caught, Looped, Grown)
X = torch.randn(5, 16, generator=torch.Generator().manual_seed(1))
IMAGE = torch.randn(2, 8, 12, 10, generator=torch.Generator().manual_seed(2))


def close(output: Any, expected: Any) -> bool:
    if isinstance(expected, (tuple, list)):
        return len(output) == len(expected) and all(map(close, output, expected))
    return output.shape == expected.shape and bool(torch.allclose(output, expected, atol=2e-5, rtol=1e-4))


def twins(model: Any, pack: Any, *more: Any) -> tuple[Any, Any, Any]:
    """The model, a served copy, and what swap says."""
    torch.manual_seed(0)
    served = copy.deepcopy(model.eval())
    return model, served, adapter.swap(served, pack, *more)


def calls(pack: Any, run: Any) -> dict[str, int]:
    """How often ``run`` calls each op of a pack."""
    before = {name: stats["calls"] for name, stats in pack.stats().items()}
    run()
    after = {name: stats["calls"] - before[name] for name, stats in pack.stats().items()}
    return {name: count for name, count in after.items() if count}


@pytest.mark.parametrize("kind", FORWARDS, ids=lambda kind: kind.__name__)
def test_every_path_of_a_forward_computes_what_it_computed(chained, kind):
    plain, served, report = twins(kind(), chained)
    assert report.replaced == ("fc",) and not report.unread
    for context in (torch.inference_mode, torch.no_grad):
        with context():
            assert close(served(X), plain(X)) and close(served.logits(X), plain.logits(X))
            assert close(copy.deepcopy(served)(X), plain(X)) and close(copy.copy(served)(X), plain(X))
            back = pickle.loads(pickle.dumps(served))
            assert type(back) is kind and type(back.fc) is nn.Linear and close(back(X), plain(X))
    with torch.inference_mode():
        if kind is Optional:
            assert close(served(X, activate=True), plain(X, activate=True))
        plain.raw = served.raw = True
        assert close(served(X), plain(X))
        other = copy.copy(served)
        other.raw = False
        assert close(other.logits(X), plain.logits(X)) and close(served(X), plain(X))


def test_a_fusion_is_served_where_the_source_shows_it(chained):
    plain, served, report = twins(nn.Sequential(Head(), nn.Sequential(nn.Linear(24, 24), nn.ReLU())), chained)
    assert report.fused == {"0.fc": "0.act", "1.0": "1.1"} and "0.fc with 0.act" in str(report)
    with torch.inference_mode():
        assert close(served(X), plain(X))
        counts = calls(chained, lambda: served(X))
    assert counts == {"dense_n24_k16_bias_relu": 1, "dense_n24_k24_bias_relu": 1}
    assert type(served[0].act) is nn.ReLU and isinstance(served, nn.Sequential) and isinstance(served[0], Head)


def test_layers_of_a_sequential_are_met_as_they_are(chained):
    def features(net: Any, x: Any) -> list[Any]:
        outputs = []
        for layer in net:
            x = layer(x)
            outputs.append(x)
        return outputs

    norm = nn.BatchNorm2d(8)
    norm.running_mean.uniform_(-2, 2)
    norm.running_var.uniform_(0.5, 2)
    net = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), norm, nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())
    plain, served, report = twins(net, chained)
    assert report.folded == {"1": "0"} and report.fused == {"0": "2", "3": "4"}
    with torch.inference_mode():
        assert close(served(IMAGE), plain(IMAGE))
        assert calls(chained, lambda: served(IMAGE)) == {"conv2d_c8_f8_r3_s3_pad1_bias_relu": 2}
        assert close(features(served, IMAGE), features(plain, IMAGE))
        for part in (slice(1), slice(2), slice(1, 3), slice(3, 4)):
            assert close(served[part](IMAGE), plain[part](IMAGE))
        for net in (plain, served):
            net.append(nn.Tanh())
            net.pop(2)
        assert close(served(IMAGE), plain(IMAGE)) and close(served[0](IMAGE), plain[0](IMAGE))


def test_hooks_and_forwards_put_on_later_see_what_they_saw(chained):
    for index in range(3):
        plain, served, _ = twins(nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()), chained)
        seen: list[Any] = []
        for net in (plain, served):
            net[index].register_forward_hook(lambda _, inputs, output, seen=seen: seen.append((*inputs, output)))
        with torch.inference_mode():
            assert close(served(IMAGE), plain(IMAGE))
        assert close(seen[1], seen[0])
    plain, served, _ = twins(Head(), chained)
    for net in (plain, served):
        net.act.forward = lambda x: F.leaky_relu(x, 0.1)
    with torch.inference_mode():
        assert close(served(X), plain(X))
        handle, inputs = torch.nn.modules.module.register_module_forward_hook(lambda *_: None), []
        handle.remove()
        handle = torch.nn.modules.module.register_module_forward_pre_hook(lambda module, _: inputs.append(type(module)))
        try:
            served(X)
        finally:
            handle.remove()
    assert nn.ReLU in inputs


def test_a_replaced_forward_is_left_or_used(chained):
    layer = nn.Sequential(nn.Linear(16, 24)).eval()
    layer[0].forward = types.MethodType(lambda self, x: F.linear(x, self.weight, self.bias) * 3, layer[0])
    active = nn.Sequential(nn.Linear(16, 24), nn.ReLU()).eval()
    active[1].forward = lambda x: F.leaky_relu(x, 0.1)
    whole = nn.Sequential(nn.Sequential(nn.Linear(16, 24), nn.ReLU())).eval()
    inner = whole[0]
    inner.forward = lambda x: inner[0](x)
    for net in (layer, active, whole):
        with torch.inference_mode():
            expected = net(X)
            report = adapter.swap(net, chained)
            assert close(net(X), expected)
        assert report.left == ({"0": "its forward was replaced"} if net is layer else {})


class Stateful(Head):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []
        self.mean, self.calls = None, 0

    def forward(self, x: Any) -> Any:
        y = self.act(self.fc(x))
        self.calls += 1
        self.seen.append(y)
        self.mean = y if self.mean is None else 0.5 * self.mean + 0.5 * y
        return self.mean


def test_reading_a_model_changes_nothing_in_it(chained):
    plain, served, _ = twins(Stateful(), chained, X)
    adapter.ops_of(served, fuse=True)
    assert served.mean is None and served.seen == [] and served.calls == 0
    with torch.inference_mode():
        for _ in range(3):
            assert close(served(X), plain(X))
    assert served.calls == 3 and len(served.seen) == 3


def test_a_norm_s_numbers_count_at_every_call(chained):
    plain, served, report = twins(nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()), chained)
    twin = copy.deepcopy(served)
    assert report.folded == {"1": "0"}

    def changes() -> Any:
        yield lambda net: net[1].weight.data.mul_(2)
        yield lambda net: net[1].running_mean.add_(1)
        yield lambda net: setattr(net[1], "eps", 0.5)
        yield lambda net: setattr(net[1], "bias", nn.Parameter(torch.ones(8)))
        yield lambda net: net[0].weight.data.mul_(0.5)
        yield lambda net: net.load_state_dict({key: value * 0.7 for key, value in plain.state_dict().items()})
        yield lambda net: net[1].train()
        yield lambda net: net[1].eval()
        yield lambda net: net.double()

    with torch.inference_mode():
        first = plain(IMAGE)
        for change in changes():
            state = {key: value.clone() for key, value in plain.state_dict().items()}
            change(served)
            change(plain)
            image = IMAGE.to(plain[0].weight.dtype)
            assert close(served(image), plain(image)), state.keys()
            if plain[1].training:
                assert close(served[1].running_mean, plain[1].running_mean)
        assert close(twin(IMAGE), first)


def test_an_example_is_run_before_and_after(chained, monkeypatch):
    plain, served, report = twins(nn.Sequential(Head()), chained, X)
    assert report.fused and close(served(X), plain(X))
    wrong = nn.Sequential(Head(), nn.Sequential(nn.Linear(24, 24), nn.ReLU())).eval()
    before = {name: module for name, module in wrong.named_modules()}
    kinds = {name: type(module) for name, module in before.items()}
    from haotuner.torch.layer import PackedLinear

    computed = PackedLinear._computed
    monkeypatch.setattr(PackedLinear, "_computed", lambda self, x: computed(self, x) + 1)
    with pytest.raises(
        adapter.WrongResult, match="the swapped model computes something else: result 0, float32 .* is off by"
    ):
        adapter.swap(wrong, chained, X)
    assert dict(wrong.named_modules()) == before and {name: type(module) for name, module in before.items()} == kinds


def test_subclasses_are_named_with_their_module(chained):
    class Act(nn.BatchNorm2d):  # type: ignore[misc, name-defined]
        pass

    class Odd(nn.Linear):  # type: ignore[misc, name-defined]
        pass

    _, _, report = twins(nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), Act(8), nn.Flatten(), Odd(960, 24)), chained)
    assert "test_torch_chains." in report.left["3"] and "Odd is not served" in report.left["3"]
    assert "Act is not folded, only nn.BatchNorm1d and nn.BatchNorm2d themselves" in report.unfolded["1"]


def test_a_source_that_is_not_there_leaves_modules_apart(chained):
    spaces: dict[str, Any] = {"nn": nn, "Head": Head}
    exec("class Unseen(Head):\n    def forward(self, x):\n        return self.act(self.fc(x))\n", spaces)
    plain, served, report = twins(nn.Sequential(spaces["Unseen"]()), chained)
    assert report.unread == {"0": "forward: its source is not there to be read"} and not report.fused
    with torch.inference_mode():
        assert close(served(X), plain(X))
