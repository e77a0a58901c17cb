"""Generated forwards with branches, taps, loops and second methods: a served model computes what the model computed."""

from __future__ import annotations

import copy
import importlib.util
import pickle
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

import haotuner.torch as adapter  # noqa: E402
from tests.torch.test_torch_chains import close  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
nn = torch.nn
LAYERS = ("conv1", "conv2", "bn1", "bn2", "act", "act2", "drop", "seq", "seq[0]", "seq[1]", "seq[2]", "parts[0]", "parts[1]")
TESTS = (
    "self.flag", "more is None", "more is not None", "isinstance(x, torch.Tensor)", "torch.is_grad_enabled()",
    "x.shape[0] > 1", "len(kept) > 1", "self.training", "not self.flag",
)  # fmt: skip
HEAD = """import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.flag = False
        self.conv1, self.conv2 = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.bn1, self.bn2, self.act, self.act2 = nn.BatchNorm2d(8), nn.BatchNorm2d(8), nn.ReLU(), nn.ReLU({inplace})
        self.drop = nn.Dropout(0.5)
        self.seq = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.parts = nn.ModuleList([nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()])
"""


class Writer:
    """Writes one class; every expression is an image of 8 channels."""

    def __init__(self, seed: int) -> None:
        self.draw, self.lines = random.Random(seed), [HEAD.format(inplace=seed % 3 == 0)]

    def expression(self, depth: int = 0) -> str:
        what = self.draw.random()
        if depth > 3 or what < 0.3:
            return self.draw.choice(("x", "h", "h", "y"))
        if what < 0.8:
            return f"self.{self.draw.choice(LAYERS)}({self.expression(depth + 1)})"
        if what < 0.9:
            return f"({self.expression(depth + 2)} * 0.5 + {self.expression(depth + 2)})"
        return f"torch.tanh({self.expression(depth + 1)})"

    def chain(self, pad: str) -> None:
        name = self.draw.choice(("h", "y"))
        layers = self.draw.choice((("conv1", "bn1", "act"), ("conv2", "act2"), ("conv2", "bn2"), ("parts[0]", "parts[1]")))
        self.lines.append(f"{pad}{name} = self.{layers[0]}({self.expression(2)})")
        for layer in layers[1:]:
            if self.draw.random() < 0.25:
                self.lines.append(f"{pad}{self.draw.choice(('kept.append(h)', 'y = h', 'y = h * 2', 'self.last = h'))}")
            before, name = name, self.draw.choice((name, name, "h"))
            self.lines.append(f"{pad}{name} = self.{layer}({before})")

    def statement(self, pad: str, depth: int) -> None:
        what, inner = self.draw.random(), pad + "    "
        if what < 0.45 or depth > 2:
            self.chain(pad)
        elif what < 0.6:
            self.lines.append(f"{pad}{self.draw.choice('hy')} = {self.expression()}")
        elif what < 0.65:
            self.lines.append(f"{pad}kept.append({self.draw.choice('hy')})")
        elif what < 0.7:
            self.lines += [f"{pad}for layer in self.seq:", f"{inner}h = layer(h)"]
        elif what < 0.75:
            self.lines.append(f"{pad}h = (lambda v: self.act(self.conv1(v)) + h)(y)")
        elif what < 0.8:
            self.lines += [f"{pad}try:"]
            self.block(inner, depth + 1, 2)
            self.lines += [f"{pad}except ValueError:", f"{inner}pass"]
        elif what < 0.85:
            self.lines += [f"{pad}with torch.no_grad():"]
            self.block(inner, depth + 1, 2)
        elif what < 0.9:
            self.lines += [f"{pad}for step in range(2):"]
            self.block(inner, depth + 1, 2)
        else:
            self.lines += [f"{pad}if {self.draw.choice(TESTS)}:"]
            self.block(inner, depth + 1, 2)
            if self.draw.random() < 0.3:
                self.lines.append(f"{inner}return {self.draw.choice(('h', 'h, y', 'self.act(h)'))}")
            elif self.draw.random() < 0.6:
                self.lines.append(f"{pad}else:")
                self.block(inner, depth + 1, 2)

    def block(self, pad: str, depth: int, count: int) -> None:
        for _ in range(self.draw.randint(1, count)):
            self.statement(pad, depth)

    def source(self) -> str:
        for name in ("forward", "tap"):
            self.lines += ["", f"    def {name}(self, x, more=None):", "        kept, h, y = [], x, x * 0.5"]
            self.block("        ", 0, 5)
            self.lines.append(
                f"        return {self.draw.choice(('h', '(h, y, *kept)', 'self.act(h), y', '[self.bn1(h)]'))}"
            )
        return "\n".join(self.lines) + "\n"


def net_of(seed: int, folder: Path) -> Any:
    """A module of generated source, which lies in a file, as sources do."""
    path = folder / f"generated_{seed}.py"
    path.write_text(Writer(seed).source())
    spec: Any = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # pickle looks there
    spec.loader.exec_module(module)
    torch.manual_seed(seed)
    net = module.Net().eval()
    for layer in net.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean.uniform_(-1, 1)
            layer.running_var.uniform_(0.5, 2)
            nn.init.uniform_(layer.weight, 0.5, 1.5)
    return net


def answers(net: Any) -> Iterator[Any]:
    """What a net gives in every way that this file calls it."""
    image = torch.randn(2, 8, 6, 7, generator=torch.Generator().manual_seed(1))
    for flag in (False, True):
        net.flag = flag
        for more in (None, 1):
            yield net(image.clone(), more)
            yield net.tap(image.clone(), more)
        yield net(image[:1].clone())
        yield [net.seq[:2](image.clone()), net.seq[0](image.clone()), net.act(net.conv1(image.clone()))]


@pytest.fixture(scope="module", autouse=True)
def single_thread() -> Iterator[None]:
    """For images this small, torch's threads take longer to meet than one takes to compute."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("first", [0, *(pytest.param(at, marks=pytest.mark.slow) for at in range(3, 300, 3))])
def test_generated_forwards(chained, tmp_path, first):
    fused = 0
    for seed in range(first, first + 3):
        plain = net_of(seed, tmp_path)
        served = copy.deepcopy(plain)
        report = adapter.swap(served, chained)
        fused += len(report.fused) + len(report.folded)
        assert not report.unread and not report.left
        with torch.no_grad():
            expected = list(answers(plain))
            for net in (served, copy.deepcopy(served), copy.copy(served), pickle.loads(pickle.dumps(served))):
                assert all(map(close, answers(net), expected)), (seed, Writer(seed).source())
            for net in (plain, served):
                net.act.register_forward_hook(lambda _, inputs, output: output * 2)
                net.bn2.running_mean.add_(1)
                net.conv2.weight.data.mul_(0.5)
            assert all(map(close, answers(served), answers(plain))), (seed, Writer(seed).source())
        sys.modules.pop(f"generated_{seed}")
    assert fused
