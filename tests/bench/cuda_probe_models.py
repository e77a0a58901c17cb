"""Whole models on a GPU beside torch eager: an encoder and a convolutional net with random weights.

``python -m tests.bench.cuda_probe_models export encoder FILE.onnx`` here; ``haotuner tune FILE.onnx`` for a device; there
``python -m tests.bench.cuda_probe_models run encoder PACK NAME --out FILE`` (PACK's model NAME). Needs torch.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tests.bench.cuda_probe import REPLAYS, Probe

WORDS, LONGEST, QUEUED, IN_GRAPH = 1000, 512, 10, 5


class Layer(nn.Module):  # type: ignore[misc]
    """Attention by two products and a softmax, and two dense layers; sums and norms behind each."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, width)."""
        b, t, width = x.shape
        q, k, v = (
            projection(x).view(b, t, self.heads, width // self.heads).transpose(1, 2)
            for projection in (self.q, self.k, self.v)
        )
        shares = torch.softmax(q @ k.transpose(-1, -2) / (width // self.heads) ** 0.5 + mask, -1)
        x = self.first(x + self.out((shares @ v).transpose(1, 2).reshape(b, t, width)))
        result: torch.Tensor = self.second(x + self.down(functional.gelu(self.up(x))))
        return result


class Encoder(nn.Module):  # type: ignore[misc]
    """Two layers of 384, six heads."""

    def __init__(self, layers: int = 2, width: int = 384, heads: int = 6) -> None:
        super().__init__()
        self.words, self.places, self.norm = nn.Embedding(WORDS, width), nn.Embedding(LONGEST, width), nn.LayerNorm(width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """(batch, tokens) and a mask of ones."""
        x = self.norm(self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device)))
        far = (1.0 - mask[:, None, None, :].float()) * -10000.0
        for layer in self.layers:
            x = layer(x, far)
        return x


class Net(nn.Module):  # type: ignore[misc]
    """Depthwise, 1x1, 3x3 of both strides, a residual and a transposed convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.blocks = nn.Conv2d(3, 32, 3, 2, 1), nn.ModuleList()
        for a, b in ((32, 64), (64, 128)):
            depthwise, wide = nn.Conv2d(a, a, 3, 1, 1, groups=a), nn.Conv2d(a, b, 1)
            self.blocks.append(nn.ModuleList([depthwise, wide, nn.Conv2d(b, b, 3, 2, 1), nn.Conv2d(b, b, 3, 1, 1)]))
        self.up, self.last = nn.ConvTranspose2d(128, 32, 2, 2), nn.Conv2d(32, 10, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, 3, height, width)."""
        x = functional.hardswish(self.first(x))
        for depthwise, wide, down, same in self.blocks:
            x = functional.relu(down(functional.relu(wide(functional.relu(depthwise(x))))))
            x = x + functional.relu(same(x))
        return torch.sigmoid(self.last(self.up(x)))


class Kept(nn.Module):  # type: ignore[misc]
    """Rows whose largest number is above 2.7, three of five as data tell, through two layers."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(rows, width)."""
        result: torch.Tensor = self.down(functional.gelu(self.up(x[x.amax(1) > 2.7])))
        return result


MODELS: dict[str, Callable[[], nn.Module]] = {"encoder": Encoder, "net": Net, "kept": Kept}
ASKED = ("kept",)  # whose sizes the host asks for: no graph holds them
SIZES = {
    "encoder": ((1, 16), (1, 128), (8, 64), (8, 128), (4, 333), (8, 512)),
    "net": ((1, 64, 64), (1, 224, 224), (4, 97, 131), (8, 224, 224)),
    "kept": ((16,), (128,), (1000,), (4096,)),
}


def made(kind: str) -> nn.Module:
    """The model with its weights, the same here and there."""
    torch.manual_seed(3)
    return MODELS[kind]().eval()


def feeds(kind: str, size: Sequence[int], device: str = "cpu") -> dict[str, torch.Tensor]:
    """Inputs of a size; half of the first row is masked where there are several."""
    maker = torch.Generator().manual_seed(sum(size))
    if kind != "encoder":
        shape = (size[0], 3, *size[1:]) if kind == "net" else (size[0], 256)
        return {"x": torch.randn(shape, generator=maker).to(device)}
    mask = torch.ones(tuple(size), dtype=torch.int64)
    if size[0] > 1:
        mask[0, size[1] // 2 :] = 0
    return {"ids": torch.randint(0, WORDS, tuple(size), generator=maker).to(device), "mask": mask.to(device)}


def export(kind: str, path: Path) -> None:
    """Write the model as ONNX with open dimensions."""
    inputs = feeds(kind, SIZES[kind][1])
    axes = {"net": {"x": {0: "batch", 2: "h", 3: "w"}}, "kept": {"x": {0: "rows"}}}.get(kind)
    axes = axes or {name: {0: "batch", 1: "seq"} for name in inputs}
    torch.onnx.export(made(kind), tuple(inputs.values()), str(path), input_names=list(inputs), output_names=["y"],
                      dynamic_axes=axes, opset_version=17, dynamo=False)  # fmt: skip


def run(kind: str, path: Path, name: str, out: Path) -> int:
    """Every size; how many were wrong."""
    import haotuner

    probe, model, wrong = Probe(), made(kind).cuda(), 0
    served = haotuner.load(path, device="cuda:0").model(name)

    def queued(call: Callable[[], Any]) -> float:
        result: list[float] = []
        with torch.cuda.stream(probe.stream):
            call()
            for _ in range(REPLAYS):
                first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                first.record()
                for _ in range(QUEUED):
                    call()
                last.record()
                last.synchronize()
                result.append(first.elapsed_time(last) * 1000 / QUEUED)
        return statistics.median(result)

    with torch.inference_mode(), out.open("a") as file:
        for size in SIZES[kind]:
            inputs = feeds(kind, size, "cuda")
            expected = model(**inputs)
            y = torch.full_like(expected, 77.0)
            call, peer = partial(served.run, inputs, out={"y": y}, stream=probe.stream.cuda_stream), partial(model, **inputs)
            torch.cuda.synchronize()
            began = time.perf_counter()
            call()
            probe.stream.synchronize()
            line: dict[str, Any] = {"model": kind, "size": size, "first_ms": (time.perf_counter() - began) * 1e3}
            line["error"] = float((y - expected).abs().max() / expected.abs().max())
            line |= {"ours": queued(call), "torch": queued(peer)}
            if kind not in ASKED:
                line |= {"ours_graph": probe.timed(call, IN_GRAPH), "torch_graph": probe.timed(peer, IN_GRAPH)}
            wrong += line["error"] > 1e-5
            file.write(json.dumps(line) + "\n")
            print(json.dumps(line), flush=True)
    return wrong


def main(arguments: Sequence[str]) -> int:
    """Export or run."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.cuda_probe_models", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    exports, runs = verbs.add_parser("export"), verbs.add_parser("run")
    for command in (exports, runs):
        command.add_argument("kind", choices=sorted(MODELS))
        command.add_argument("path", type=Path)
    runs.add_argument("name")
    runs.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(arguments)
    if args.verb == "export":
        export(args.kind, args.path)
        return 0
    return int(run(args.kind, args.path, args.name, args.out) > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
