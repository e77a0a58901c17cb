"""A BERT-base-sized encoder with random weights, and the lengths of real sentences to feed it."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

# Tokens a sentence in GLUE's tasks at the 10th, 50th and 90th percentile (FTuner, figure 1a's data).
GLUE = {
    "cola": (7, 10, 20), "sst2": (5, 11, 29), "stsb": (14, 20, 42), "qqp": (17, 26, 45),
    "wnli": (24, 34, 69), "mnli": (18, 38, 63), "mrpc": (33, 50, 65), "rte": (31, 56, 127),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Extents of an encoder; the defaults are BERT-base (Devlin et al. 2019)."""

    layers: int = 12
    hidden: int = 768
    heads: int = 12
    feed: int = 3072
    words: int = 30522
    places: int = 512


TINY = Size(layers=2, hidden=64, heads=2, feed=128, words=100)


class Block(nn.Module):  # type: ignore[misc]
    """Attention and feed-forward, each with a residual and a norm after it, as BERT has them."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.qkv = nn.Linear(size.hidden, 3 * size.hidden)
        self.out = nn.Linear(size.hidden, size.hidden)
        self.up = nn.Linear(size.hidden, size.feed)
        self.down = nn.Linear(size.feed, size.hidden)
        self.norms = nn.ModuleList(nn.LayerNorm(size.hidden, eps=1e-12) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x (batch, tokens, hidden)."""
        batch, tokens, hidden = x.shape
        q, k, v = (
            part.view(batch, tokens, self.heads, hidden // self.heads).transpose(1, 2)
            for part in self.qkv(x).split(hidden, dim=-1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, tokens, hidden)
        x = self.norms[0](x + self.out(mixed))
        return self.norms[1](x + self.down(F.gelu(self.up(x))))


class Encoder(nn.Module):  # type: ignore[misc]
    """Token ids (batch, tokens) to hidden states (batch, tokens, hidden)."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.word = nn.Embedding(size.words, size.hidden)
        self.place = nn.Embedding(size.places, size.hidden)
        self.norm = nn.LayerNorm(size.hidden, eps=1e-12)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """No padding: a request is one sentence of its own length."""
        x = self.norm(self.word(ids) + self.place.weight[: ids.shape[1]])
        for block in self.blocks:
            x = block(x)
        return x


def encoder(size: Size, seed: int = 0) -> Encoder:
    """The same weights for the same seed, in evaluation mode."""
    torch.manual_seed(seed)
    model: Encoder = Encoder(size).eval()
    return model


def lengths(count: int, seed: int = 0) -> list[int]:
    """Sentence lengths: tasks in turn, each from its three quantiles by straight lines between them."""
    draw = random.Random(seed)
    drawn = []
    for index in range(count):
        low, middle, high = list(GLUE.values())[index % len(GLUE)]
        draw_ = draw.random()
        drawn.append(
            round(low + (middle - low) * draw_ / 0.5 if draw_ < 0.5 else middle + (high - middle) * (draw_ - 0.5) / 0.5)
        )
    return drawn
