"""Cold weights: how much memory a timed loop walks through, so that no weight is still cached when its turn comes."""

from __future__ import annotations

CPU_CACHES = 4  # last-level caches full of weights: nothing survives a round
GPU_CACHES = 3  # L2s full of weights: with LRU-like replacement twice would do, three allows for hashing
UNKNOWN_CACHE_BYTES = 32 << 20  # where nobody knows the last-level cache: that of common desktops and of one EPYC die
