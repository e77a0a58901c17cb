"""A pack whose ops serve linears and convolutions alone, and with a ReLU behind them; models of those sizes."""

from __future__ import annotations

from pathlib import Path

from tests.serving.conv_packs import packed_conv
from tests.serving.native_builds import c_pack
from tests.serving.packs import LANES, best_level, packed_op

DENSE = ("dense_n24_k16", "dense_n24_k16_bias_relu", "dense_n24_k24", "dense_n24_k24_bias_relu")
CONV = "conv2d:c=8,f=8,r=3,s=3,pad=1"


def chain_pack(out: Path) -> Path:
    """The pack, at ``out``."""
    lanes = LANES[best_level()]
    convolutions = [packed_conv(spec, lanes, (1,)) for spec in (CONV, f"{CONV},epilogue=bias+relu")]
    return c_pack(out, [*(packed_op(name, lanes, lanes, (1,)) for name in DENSE), *convolutions])
