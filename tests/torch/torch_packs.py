"""A pack whose ops serve linears and convolutions alone, and with a ReLU behind them."""

from __future__ import annotations

from pathlib import Path

from haotuner.backends.cpu.pack_source import PackedAny, pack_library
from haotuner.pack.write import write_pack
from tests.run_folder import toolchain
from tests.runtime.conv_packs import packed_conv
from tests.runtime.packs import LANES, best_level, document, packed_op

DENSE = ("dense_n24_k16", "dense_n24_k16_bias_relu", "dense_n24_k24_bias_relu")
CONV = "conv2d:c=8,f=8,r=3,s=3,pad=1"


def chain_pack(folder: Path) -> Path:
    """The pack, in ``folder``."""
    level = best_level()
    lanes = LANES[level]
    convolutions = [packed_conv(spec, lanes, (1,)) for spec in (CONV, f"{CONV},epilogue=bias+relu")]
    ops: list[PackedAny] = [*(packed_op(name, lanes, 2 * lanes, (1,)) for name in DENSE), *convolutions]
    pack_library(ops, level, toolchain(), folder / "pack.so")
    write_pack(folder / "pack", folder / "pack.so", document(ops, level), lambda _: None)
    return folder / "pack"
