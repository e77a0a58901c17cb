"""Contender: the interface of one library, or of our own pack, to a race, and its process's environment.

The environment of a contender's process: the thread count asked for, and nothing that could hamper a peer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from haotuner.ops.dtypes import DTYPES
from haotuner.spec.op import Op

Array = NDArray[np.float32]
Call = Callable[[], object]
Operands: TypeAlias = dict[str, NDArray[Any]]  # by name, in the op's order, as the op stores them

OURS = "ours"
OURS_AGAIN = "ours-again"  # a second process of ours: what it differs by is the noise floor
MACHINE = "machine"  # no library: the multiply-adds and the reads of this moment, what shares of peak are of
SMALL_M = 8  # rows up to which a cold call does little but stream the weight
MACHINE_SPEC = "haotuner.bench.peers.machine:Machine"


class UnsupportedOp(Exception):
    """An op, or a type of it, that a contender is not set up for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Settings that a contender gets before it imports anything."""

    threads: int
    pack: str | None = None  # only ours reads it
    isa: str | None = None  # avx2 | sse: limit the contender to it, where it can be limited
    ordinal: int | None = None  # number of the device that holds the tensors; None: they are in the host's memory


class Contender(Protocol):
    """A library's calls of any op. Lives alone in its process, single-threaded from the outside.

    Raises ImportError from ``__init__`` where its library is not installed; UnsupportedOp from ``prepare`` and
    ``aim`` for an op, or a type, that it is not set up for. ``prepare`` may be called again for the next op; it then drops
    what it held for the last one.
    """

    version: str
    width: int  # calls of the op that one of the calls makes; 1 but for whole-graph compilers
    alone: bool  # prepares by measuring, so everybody else has to stand still meanwhile
    # Optional: ``clock(calls)`` is what times them, `haotuner.bench.timing.Clock` where there is none.

    def __init__(self, setting: Setting) -> None: ...

    def prepare(self, op: Op, copies: Sequence[Operands]) -> None:
        """Bring each copy of what a server binds into the form this library computes fastest with.

        Copies are empty of an op of which it binds nothing.
        """
        ...

    def aim(self, calls: Sequence[Operands], y: NDArray[Any]) -> Sequence[Call]:
        """Calls with these operands, ready to be timed. Those that are bound are of the copy with the same number.

        ``y``: an array of the result's shape and type, to write to where the library can. Arrays stay alive until the next
        aim: some libraries point into them and hold nothing.
        """
        ...

    def result(self, index: int) -> NDArray[Any]:
        """The result of the call of that number from the last aim, computed anew by a call that is timed.

        The index is the first or the last; the numbers are the op's, of whatever type holds them.
        """
        ...


def poison(y: NDArray[Any]) -> None:
    """Fill an output, so that an element nobody writes shows: the largest of int8, and near it of any float type."""
    y.view(np.uint8).fill(0x7F)


def load(spec: str, setting: Setting) -> Any:
    """The contender that ``module:Class`` names. ImportError if its library is missing."""
    import importlib

    module, _, name = spec.partition(":")
    return getattr(importlib.import_module(module), name)(setting)


def only(dtype: str, *known: str) -> str:
    """Numpy's and torch's name of an op's dtype; UnsupportedOp where a contender is not set up for it."""
    if dtype not in known:
        raise UnsupportedOp(f"it is raced in {', '.join(known)}, not in {dtype}")
    return DTYPES[dtype].numpy


POOL_VARIABLES = (  # every pool that a peer here may bring; a process has one library, so all get the same count
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "BLIS_NUM_THREADS",
)
# Settings of peers that the caller's environment may hold and that could hamper them (a fixed OpenBLAS core type, say).
DROPPED_PREFIXES = (
    *("OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "GOTO_", "BLIS_", "ONEDNN_", "DNNL_", "ATEN_", "ORT_", "OV_"),
    *("OPENVINO_", "TORCH_", "TORCHINDUCTOR_", "ZENDNN", "ZENTORCH_", "NPY_"),
)
ISA_VARIABLES: Mapping[str, Mapping[str, str]] = {  # the names under which each library takes such a limit
    "avx2": {
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "OPENBLAS_CORETYPE": "Haswell",
        "ATEN_CPU_CAPABILITY": "avx2",
    },
    "sse": {
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "OPENBLAS_CORETYPE": "Nehalem",
        "ATEN_CPU_CAPABILITY": "default",
    },
}


def child_environment(environment: Mapping[str, str], setting: Setting) -> dict[str, str]:
    """The caller's environment without settings that could hamper a peer, with the thread count."""
    selected = {name: value for name, value in environment.items() if not name.startswith(DROPPED_PREFIXES)}
    selected.update(dict.fromkeys(POOL_VARIABLES, str(setting.threads)))
    selected.update(ISA_VARIABLES[setting.isa] if setting.isa else {})
    return selected
