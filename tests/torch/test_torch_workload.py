"""``ops_of`` with an example: what each layer saw, as a trace that ``haotuner tune`` takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

import haotuner.torch as adapter  # noqa: E402
from haotuner.errors import UsageError  # noqa: E402
from haotuner.spec.op import Op  # noqa: E402
from haotuner.spec.traffic import arrivals_of  # noqa: E402

nn = torch.nn


class Stages(nn.Module):  # type: ignore[misc, name-defined]
    """A stem of large windows, and a last stage that sees 3x3."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.last = nn.Conv2d(3, 4, 16, 16), nn.Conv2d(4, 4, 3, padding=1)
        self.line, self.head = nn.Conv1d(4, 4, 3), nn.Linear(4, 8)

    def forward(self, x: Any) -> Any:
        x = self.last(self.stem(x))
        return self.head(input=self.line(x.flatten(2)).transpose(1, 2))


STEM, LAST, LINE, HEAD = (
    "conv2d:c=3,f=4,r=16,s=16,stride=16",
    "conv2d:c=4,f=4,r=3,s=3,pad=1",
    "conv1d:c=4,f=4,s=3",
    "dense:n=8,k=4",
)


def test_each_layer_has_the_shapes_that_it_saw(tmp_path: Path) -> None:
    model = Stages().eval()
    small, large = (adapter.ops_of(model, torch.zeros(b, 3, side, side)) for b, side in ((1, 48), (2, 64)))
    assert small == dict.fromkeys((STEM, LAST, LINE, HEAD), 1)
    both = small + large
    assert both == dict.fromkeys((STEM, LAST, LINE, HEAD), 2)
    assert both.layers == {
        "stem": ("b=1;h=48;w=48", "b=2;h=64;w=64"), "last": ("b=1;h=3;w=3", "b=2;h=4;w=4"),
        "line": ("b=1;w=9", "b=2;w=16"), "head": ("m=7", "m=28"),
    }  # fmt: skip
    file = both.write_trace(tmp_path / "net.jsonl")
    arrivals = arrivals_of(str(file))
    assert set(arrivals.ops) == {Op.parse(spec).name for spec in both}
    for spec, shapes in zip((STEM, LAST, LINE, HEAD), both.layers.values(), strict=True):
        assert sorted(map(str, arrivals.traffic(Op.parse(spec)).shapes())) == sorted(shapes)


def test_a_layer_that_is_called_often_counts_as_often(tmp_path: Path) -> None:
    layer = nn.Linear(4, 4)
    model = nn.Sequential(layer, nn.ReLU(), layer).eval()
    needed = adapter.ops_of(model, torch.zeros(5, 3, 4))
    assert needed == {"dense:n=4,k=4": 2} and needed.layers == {"0": ("m=15",)}
    assert needed.write_trace(tmp_path / "t.jsonl").read_text() == '{"op": "dense:n=4,k=4", "m": 15, "weight": 2}\n'
    assert not adapter.ops_of(model, torch.zeros(0, 4)).layers  # empty requests need no kernel
    with pytest.raises(UsageError, match="give ops_of the arguments of a run"):
        adapter.ops_of(model).write_trace(tmp_path / "t.jsonl")
    with pytest.raises(UsageError, match=r"ends in \.jsonl"):
        needed.write_trace(tmp_path / "t.csv")


@pytest.mark.parametrize("apart", [False, True])
def test_attention_sees_queries_and_keys(apart: bool) -> None:
    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.MultiheadAttention(8, 2)

        def forward(self, x: Any, y: Any) -> Any:
            return self.mix(x, y, y) if apart else self.mix(query=x, key=x, value=x)

    needed = adapter.ops_of(Block().eval(), torch.zeros(5, 1, 8), torch.zeros(3, 2, 8)[:, :1])
    assert set(needed.layers["mix"]) == ({"m=5", "m=3"} if apart else {"m=5"})
    assert needed.calls["mix", "dense:n=8,k=8", next(iter(needed.calls))[2]] == 1
