"""Long sums over k: the parts in which they are computed."""

from __future__ import annotations

# From so many rows on the runtime computes a long sum over k in parts of about K_BLOCK terms, so that a weight panel of them
# stays in L2 while the rows pass. Cold, one Zen 5 core, best of three tiles: k=4096 m=32 from 212 to 235 GFLOP/s, m=256 from
# 210 to 230; k=3072 m=64 from 232 to 240; k=2048 and 2560 no gain; under 16 rows a loss where the weight is cold. Parts of
# 512 and 2048 terms were level or slower.
K_BLOCK = 1024
K_BLOCK_LEAST_K = 3072
K_BLOCK_LEAST_ROWS = 32


def k_block(k: int) -> int:
    """Terms of a part of the sum over k; 0 where it is not cut."""
    return -(-k // round(k / K_BLOCK)) if k >= K_BLOCK_LEAST_K else 0
