"""Served layers where torch records, compiles, transforms or differentiates what runs: served by an operator, or refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

import haotuner.torch as adapter  # noqa: E402
from haotuner.errors import UsageError  # noqa: E402
from tests.torch.test_torch_chains import IMAGE, Head, X, close, twins  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
nn = torch.nn


def block() -> Any:
    norm = nn.BatchNorm2d(8)
    norm.running_mean.uniform_(-2, 2)
    return nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), norm, nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))


def test_dual_tensors_are_refused(chained):
    forward = torch.autograd.forward_ad
    with adapter.register(chained) as registered:
        for more in ((), (registered,)):
            _, served, _ = twins(nn.Sequential(Head()), chained, *more)
            with torch.no_grad(), forward.dual_level():
                assert served(X).shape == (5, 24)
                with pytest.raises(ValueError, match="an input is a dual tensor of torch.autograd.forward_ad"):
                    served(forward.make_dual(X, X))
                weight = torch.ones(24, 16)
                with pytest.raises(ValueError, match="an input is a dual tensor"):
                    served[0].fc.weight = forward.make_dual(weight, weight)


def test_what_torch_records_needs_the_operators(chained):
    from torch.fx.experimental.proxy_tensor import make_fx

    _, served, _ = twins(nn.Sequential(Head()), chained)
    with torch.no_grad():
        ways: list[Any] = [
            lambda: make_fx(served)(X),
            lambda: torch.jit.trace(served, (X,)),
            lambda: torch.func.vmap(served)(X[:, None]),
            lambda: torch.export.export(served, (X,)),
        ]
        for record in ways:
            with pytest.raises(Exception, match=r"swap\(model, pack, registered=haotuner.torch.register\(pack\)\)"):
                record()
    with pytest.raises(UsageError, match="dense_n24_k16"), torch.no_grad():
        make_fx(served[0].fc)(X)


def test_operators_are_recorded(chained):
    from torch.fx.experimental.proxy_tensor import make_fx

    with adapter.register(chained) as registered, torch.no_grad():
        plain, served, _ = twins(nn.Sequential(Head()), chained, registered)
        other = X * 2 + 1
        for recorded in (make_fx(served)(X), torch.export.export(served, (X,)).module(), torch.jit.trace(served, (X,))):
            assert close(recorded(other), plain(other))
        assert close(torch.func.vmap(served)(X[:, None])[:, 0], plain(X))


@pytest.mark.long
def test_chains_compiled_without_operators(chained):
    torch._dynamo.reset()
    plain, served, _ = twins(block(), chained)
    with torch.no_grad():
        compiled = torch.compile(served, backend="eager")
        assert close(compiled(IMAGE), plain(IMAGE))
        for net in (plain, served):
            net[1].running_mean.add_(1)
        assert close(compiled(IMAGE), plain(IMAGE))


def test_compiled_chains(chained):
    torch._dynamo.reset()
    with adapter.register(chained) as registered, torch.no_grad():
        plain, served, report = twins(block(), chained, registered)
        assert report.folded and report.fused
        compiled = torch.compile(served, backend="aot_eager", fullgraph=True)
        before = {name: stats["calls"] for name, stats in chained.stats().items()}
        assert close(compiled(IMAGE), plain(IMAGE))
        after = {name: stats["calls"] - before[name] for name, stats in chained.stats().items()}
        assert after["conv2d_c8_f8_r3_s3_pad1_bias_relu"] == 1 == after["conv2d_c8_f8_r3_s3_pad1"]
        layer = torch.compile(served[3], backend="aot_eager", fullgraph=True)
        assert close(layer(IMAGE[0]), plain[3](IMAGE[0]))  # an image without a batch
        twin, expected = copy.deepcopy(served), plain(IMAGE)
        for net in (plain, served):
            net[1].running_mean.add_(1)
        assert close(compiled(IMAGE), plain(IMAGE)) and close(compiled(IMAGE), plain(IMAGE))
        other = {key: value * 0.5 for key, value in plain.state_dict().items()}
        for net in (plain, served):
            net.load_state_dict(other)
        assert close(compiled(IMAGE), plain(IMAGE)) and close(twin(IMAGE), expected)
        tapped = torch.compile(lambda x: [layer(x) for layer in served[:1]], backend="aot_eager", fullgraph=True)
        assert close(tapped(IMAGE)[0], plain[0](IMAGE))
