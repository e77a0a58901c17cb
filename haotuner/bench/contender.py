"""Contender: one library, or our own pack, as the race sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from haotuner.ops.dtypes import DTYPES
from haotuner.spec.op import Op

Array = NDArray[np.float32]
Call = Callable[[], object]

OURS = "ours"
OURS_AGAIN = "ours-again"  # a second process of ours: what it differs by is the noise floor
MACHINE = "machine"  # no library: the multiply-adds and the reads of this moment, what shares of peak are of
SMALL_M = 8  # rows up to which a cold call does little but stream the weight
MACHINE_SPEC = "haotuner.bench.peers.machine:Machine"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Settings that a contender gets before it imports anything."""

    threads: int
    pack: str | None = None  # only ours reads it
    isa: str | None = None  # avx2 | sse: limit the contender to it, where it can be limited
    ordinal: int | None = None  # number of the device that holds the tensors; None: they are in the host's memory


class Contender(Protocol):
    """Lives alone in its process. Raises ImportError from ``__init__`` where its library is not installed.

    Everything is single-threaded from the outside; ``prepare`` may be called again for the next op and then drops
    what it held for the last one.
    """

    version: str
    width: int  # linear layers that one of the calls computes; 1 but for whole-graph compilers
    alone: bool  # prepares by measuring, so everybody else has to stand still meanwhile
    # Optional: ``clock(calls)`` is what times them, `haotuner.bench.timing.Clock` where there is none.

    def __init__(self, setting: Setting) -> None: ...

    def prepare(self, op: Op, weights: Sequence[Array]) -> None:
        """Bring the weights, each ``(n, k)``, into the form this library computes fastest with.

        They are fp32 that the op's dtype holds exactly, and so is ``x``. Of other sides than plain layers see ``sides``.
        """
        ...

    def aim(self, x: Array, count: int) -> Sequence[Call]:
        """Calls that together use the first ``count`` weights once with ``x`` of shape ``(m, k)``, ready to be timed.

        Who asks keeps ``x`` and the weights alive until the next aim: some libraries point into them and hold nothing.
        """
        ...

    def result(self, index: int) -> Array:
        """``x @ weights[index].T`` from the last aim, computed anew by a call that is timed; index is first or last.

        In fp32, whatever the op's dtype.
        """
        ...


def load(spec: str, setting: Setting) -> Any:
    """The contender that ``module:Class`` names. ImportError if its library is missing."""
    import importlib

    module, _, name = spec.partition(":")
    return getattr(importlib.import_module(module), name)(setting)


def only(dtype: str, *known: str) -> str:
    """Numpy's and torch's name of an op's dtype; NotImplementedError where a contender is not set up for it."""
    if dtype not in known:
        raise NotImplementedError(f"it is raced in {', '.join(known)}, not in {dtype}")
    return DTYPES[dtype].numpy
