"""Keywords, metaclasses, scripted children and methods that name their class: a served model computes what it computed."""

from __future__ import annotations

import abc
import pickle
from typing import Any, ClassVar

import pytest

torch: Any = pytest.importorskip("torch")

import haotuner.torch as adapter  # noqa: E402
from tests.torch.test_torch_chains import Head, close  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
nn = torch.nn


class Named(Head):
    def forward(self, x: Any) -> Any:
        return self.act(input=self.fc(input=x)) + self.act(self.fc(input=x))


class Abstract(Head, abc.ABC):
    @abc.abstractmethod
    def scale(self) -> float: ...


class Concrete(Abstract):
    def scale(self) -> float:
        return 1.0


class Registering(type(nn.Module)):  # type: ignore[misc]
    """A metaclass that notes each class made with it."""

    made: ClassVar[list[str]] = []

    def __init__(cls, *words: Any) -> None:
        super().__init__(*words)
        cls.made.append(cls.__name__)


class Noted(Head, metaclass=Registering):
    pass


@pytest.mark.parametrize("kind", [Named, Concrete, Noted])
def test_keywords_and_metaclasses(chained, kind):
    model, x, before = kind().eval(), torch.randn(3, 16), list(Registering.made)
    with torch.no_grad():
        expected = model(x)
        done = adapter.swap(model, chained)
        assert close(model(x), expected)
        assert close(pickle.loads(pickle.dumps(model))(x), expected)
    assert bool(done.fused) is (kind is not Noted)
    assert bool(done.unread) is (kind is Noted)
    assert before == Registering.made


def test_scripted_children_stay(chained):
    parts = [nn.Sequential(nn.Linear(16, 16), nn.ReLU()).eval() for _ in range(2)]
    model = nn.Sequential(torch.jit.script(parts[0]), torch.jit.trace(parts[1], torch.randn(3, 16)), Head()).eval()
    x = torch.randn(3, 16)
    with torch.no_grad():
        expected = model(x)
        assert adapter.swap(model, chained).replaced == ("2.fc",)
        assert close(model(x), expected)


class Parent(Head):
    def forward(self, x: Any) -> Any:
        return super(Parent, self).forward(x) + self.act(self.fc(x))  # noqa: UP008


def test_a_method_may_name_its_class(chained):
    class Inner(Head):
        def forward(self, x: Any) -> Any:
            return super(Inner, self).forward(x) - self.act(self.fc(x))  # noqa: UP008

    for kind in (Parent, Inner):
        model, x = kind().eval(), torch.randn(3, 16)
        with torch.no_grad():
            expected = model(x)
            done = adapter.swap(model, chained)
            assert close(model(x), expected)
        assert done.fused and not done.unread
