"""Cold weights: how much memory a timed loop walks through, so that no weight is still cached when its turn comes."""

from __future__ import annotations

from haotuner.spec.op import Op

CPU_CACHES = 4  # last-level caches full of weights: nothing survives a round
GPU_CACHES = 3  # L2s full of weights: with LRU-like replacement twice would do, three allows for hashing
UNKNOWN_CACHE_BYTES = 32 << 20  # where nobody knows the last-level cache: that of common desktops and of one EPYC die


def state_of(op: Op, weights: str) -> str:
    """The state that an op is timed in where ``weights`` was asked for: hot, where no matrix of it only waits for calls.

    What comes with a call was just written.
    """
    return weights if waits(op) else "hot"


def waits(op: Op) -> bool:
    """True if an op has a matrix that only waits for calls: a weight."""
    return bool(waiting(op))


def waiting(op: Op) -> tuple[str, ...]:
    """The matrices of an op that only wait for calls, by name."""
    options = op.all_options()
    return tuple(
        operand.name for operand in op.meaning.operands if operand.role == "constant" and len(operand.axes(options)) > 1
    )
