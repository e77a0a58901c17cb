"""Forms that forwards take in the wild: a served model computes what it computed, also after it was copied or changed."""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from tests.torch.test_torch_chains import IMAGE, Head, X, close, twins  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
nn, F = torch.nn, torch.nn.functional
FORMS: list[Any] = []


def form(kind: Any) -> Any:
    FORMS.append(kind)
    return kind


def normed() -> Any:
    norm = nn.BatchNorm2d(8)
    norm.running_mean.uniform_(-1, 1)
    norm.running_var.uniform_(0.5, 2)
    return norm


class Image(nn.Module):  # type: ignore[misc, name-defined]
    """A convolution, a norm and an activation in place."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.relu = nn.Conv2d(8, 8, 3, padding=1), normed(), nn.ReLU(inplace=True)


@form
class Starred(Head):
    def forward(self, x: Any) -> Any:
        return self.act(*[self.fc(x)]), self.act(**{"input": self.fc(*(x,))})


@form
class Partly(Head):
    def forward(self, x: Any) -> Any:
        layer, act = functools.partial(self.fc, x), self.act
        return act(layer()), functools.reduce(lambda h, module: module(h), (self.fc, self.act), x)


@form
class Comprehended(Head):
    def forward(self, x: Any) -> Any:
        parts = [self.act(self.fc(part)) for part in x.split(2)]
        return (*parts, *(self.act(h) for h in map(self.fc, x.split(2))), {k: self.act(self.fc(x)) for k in "ab"}["a"])


@form
class Nested(Head):
    def forward(self, x: Any) -> Any:
        def inner(self: Any, y: Any) -> Any:
            h = self.fc(y)
            h = self.act(h)
            return h  # noqa: RET504

        return inner(self, x), (lambda y: self.act(self.fc(y)))(x)


@form
class ByName(Head):
    def forward(self, x: Any) -> Any:
        h = getattr(self, "fc")(x)  # noqa: B009
        for name in ("act",):
            h = getattr(self, name)(h)
        return h, self.act(self._modules["fc"](x)), self.get_submodule("act")(self.fc(x))


@form
class Unpacked(Head):
    def forward(self, x: Any) -> Any:
        a, b = self.fc(x), x
        a = self.act(a)
        c = d = self.fc(b)
        c = self.act(c)
        [e] = (self.act(self.fc(x)),)
        return a, c, d, e


@form
class Stored(Head):
    def forward(self, x: Any) -> Any:
        self.seen = self.fc(x)
        y = self.act(self.seen)
        self.seen = self.act(self.seen) + y
        return self.seen, y


@form
class Changing(Head):
    """Its argument changes what the name of a module means in the statement behind."""

    def other(self, x: Any) -> Any:
        self._modules["act"] = nn.Tanh() if type(self.act) is nn.ReLU else nn.ReLU()
        return x

    def forward(self, x: Any) -> Any:
        h = self.fc(self.other(x))
        h = self.act(h)
        g = self.act(self.fc(self.other(x)))
        return h, g


@form
class Finally(Head):
    def forward(self, x: Any) -> Any:
        h = x
        try:
            h = self.fc(x)
            return self.act(h)
        finally:
            self.last = h


@form
class Raising(Head):
    def forward(self, x: Any) -> Any:
        h = x
        try:
            h = self.fc(x)
            h = self.act(h).reshape(7, 7, 7)
        except RuntimeError:
            h = -h
        with pytest.raises((RuntimeError, ValueError)):
            self.act(self.fc(x[:, :3]))
        return h


@form
class Matching(Head):
    def forward(self, x: Any, kind: str = "a") -> Any:
        match (kind, x.dim()):
            case ("a", 2):
                h = self.fc(x)
                h = self.act(h)
            case _:
                h = self.fc(x)
        return h


@form
class Deleted(Head):
    def forward(self, x: Any) -> Any:
        h = self.fc(x)
        y = self.act(h)
        del h
        assert self.act(self.fc(x)).min() >= 0
        y: Any = self.fc(x) * y  # type: ignore[no-redef]
        return y  # noqa: RET504


@form
class Graded(Head):
    @torch.no_grad()
    def inner(self, x: Any) -> Any:
        h = self.fc(x)
        h = self.act(h)
        return h  # noqa: RET504

    def forward(self, x: Any) -> Any:
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            h = self.fc(x)
            h = self.act(h)
        return h, self.inner(x), torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=False)


@form
class Above(Head):
    def forward(self, x: Any) -> Any:
        y = super().forward(x)
        return y, Head.forward(self, x), super().logits(x)


@form
class Properties(Head):
    @property
    def layer(self) -> Any:
        return self.fc

    @property
    def whole(self) -> Any:
        return nn.Sequential(self.fc, self.act)

    def forward(self, x: Any) -> Any:
        h = self.layer(x)
        h = self.act(h)
        return h, self.whole(x), self.whole[:1](x)


@form
class Outside(nn.Module):  # type: ignore[misc, name-defined]
    """Parts of a child, called past its forward; the child itself; the child in a second parent."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.act = Head(), nn.Tanh()
        self.pair = nn.ModuleList([self.head, nn.Sequential(self.head, nn.ReLU())])

    def forward(self, x: Any) -> Any:
        h = self.head.fc(x)
        h = self.act(h)
        g = self.head.act(self.head.fc(x))
        return h, g, self.head(x), self.act(self.head.fc(x)), [part(x) for part in self.pair]


@form
class Shared(nn.Module):  # type: ignore[misc, name-defined]
    """One activation behind three layers, and one layer behind two names."""

    def __init__(self) -> None:
        super().__init__()
        self.act = nn.ReLU()
        self.a, self.b = nn.Linear(16, 24), nn.Linear(16, 24)
        self.again, self.last = self.a, nn.Sequential(nn.Linear(24, 24), self.act)

    def forward(self, x: Any) -> Any:
        return self.act(self.a(x)), self.last(self.act(self.b(x))), self.again(x), self.act(self.last[0](self.b(x)))


@form
class Listed(nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleList([nn.Linear(16, 24), nn.ReLU()]) for _ in range(2))
        self.by_name = nn.ModuleDict({"fc": nn.Linear(16, 24), "act": nn.ReLU()})

    def forward(self, x: Any) -> Any:
        outputs = []
        for index in range(len(self.layers)):
            h = self.layers[index][0](x)
            outputs.append(self.layers[index][1](h))
        for layer, act in self.layers:
            outputs.append(act(layer(x)))
        h = self.layers[-1][0](x)
        h = self.layers[-1][-1](h)
        g = self.layers[0][0](x)
        g = self.layers[0][1](g)
        for key in self.by_name:
            x = self.by_name[key](x)
        return *outputs, h, g, x, self.by_name["act"](self.by_name["fc"](X)), self.by_name.act(self.by_name.fc(X))


@form
class InPlace(Image):
    def forward(self, x: Any) -> Any:
        h = self.conv(x)
        y = self.relu(h)
        g = self.norm(self.conv(x))
        z = g
        self.relu(g)
        copied = x.clone()
        self.relu(copied)
        return h, y, g, z, self.conv(copied), self.relu(self.norm(self.conv(x)))


@form
class Tapped(Image):
    def forward(self, x: Any) -> Any:
        activations = {}
        x = activations["conv"] = self.conv(x)
        x = activations["norm"] = self.norm(x)
        x = self.relu(x.clone())
        activations["again"] = self.relu(self.norm(self.conv(x)))
        return tuple(activations.values())


@form
class Scripted(Image):
    def __init__(self) -> None:
        super().__init__()
        self.part = torch.jit.script(nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()).eval())

    def forward(self, x: Any) -> Any:
        x = self.part(x)
        x = self.conv(x)
        x = self.norm(x)
        return self.relu(x)


@form
class Wrapped(nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.DataParallel(nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), normed(), nn.ReLU(inplace=True)))

    def forward(self, x: Any) -> Any:
        return self.inner(x), self.inner.module[:2](x), self.inner.module[0](x)


def _twice(forward: Any) -> Any:
    @functools.wraps(forward)
    def both(self: Any, *args: Any, **kwargs: Any) -> Any:
        return forward(self, *args, **kwargs) * 2

    return both


@form
class Decorated(Head):
    @_twice
    def forward(self, x: Any) -> Any:
        return self.act(self.fc(x))


@form
class Called(Head):
    def __call__(self, *args: Any) -> Any:
        return super().__call__(*args) + 1


@form
class Static(Head):
    @staticmethod
    def both(self: Any, x: Any) -> Any:
        return self.act(self.fc(x))

    @classmethod
    def scaled(cls, x: Any) -> Any:
        return x * len(cls.__name__)

    def forward(self, x: Any, *more: Any, scale: float = 2.0, **named: Any) -> Any:
        return self.both(self, x) * scale, self.scaled(self.act(self.fc(x))), len(more) + len(named)


def _input(kind: Any) -> Any:
    return IMAGE if issubclass(kind, (Image, Wrapped)) else X


def alike(output: Any, expected: Any) -> bool:
    pairs = zip(*(torch.utils._pytree.tree_leaves(tree) for tree in (output, expected)), strict=True)
    return all(close(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in pairs)


@pytest.mark.parametrize("kind", FORMS, ids=lambda kind: kind.__name__)
def test_a_form_computes_what_it_computed(chained, kind):
    x = _input(kind)
    plain, served, report = twins(nn.Sequential(kind()), chained)
    assert report.replaced
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert alike(served(x.clone()), plain(x.clone()))
    if kind is not Scripted:  # torch copies no scripted module's classes
        twin = copy.deepcopy(served)
        with torch.no_grad():
            for parameter in twin.parameters():
                parameter.zero_()
            assert alike(served(x.clone()), plain(x.clone()))
