"""Pack: an opened pack directory; ops by name, statistics, close."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from haotuner.errors import PackClosed, UsageError
from haotuner.pack.manifest import PackOp
from haotuner.runtime.arena import Arena
from haotuner.runtime.host import usable_cores
from haotuner.runtime.library import Library
from haotuner.runtime.linear import Bound, Linear
from haotuner.words.composition import WAYS, Composition, Part

MAX_THREADS = 256  # HT_MAX_THREADS in native/ht.h
WARMUP_ROWS = 64  # enough for every plan to use all of its workers


class Pack:
    """An open pack. ``with`` closes it; calls that run while it is closed finish."""

    def __init__(self, path: str | Path, threads: int | None = None) -> None:
        self.path = Path(path)
        self.threads = min(usable_cores(), MAX_THREADS) if threads is None else checked_threads(threads)
        self._library: Library | None = Library(self.path)
        self.manifest = self._library.manifest
        self._ops = {op.name: op for op in self.manifest.ops}
        self._linears: weakref.WeakSet[Linear] = weakref.WeakSet()
        self.arena = Arena()

    @property
    def ops(self) -> tuple[str, ...]:
        """Names of the ops, in the pack's order."""
        return tuple(self._ops)

    @property
    def device(self) -> str:
        """Id of the device the pack was tuned on."""
        return self.manifest.device_id

    def op(self, name: str) -> DenseOp:
        """One op by its canonical name; UsageError lists the names."""
        if name not in self._ops:
            raise UsageError(f"{self.path} holds no op {name!r}; it holds {', '.join(self._ops)}")
        return DenseOp(self, self._ops[name])

    def stats(self) -> dict[str, dict[str, int]]:
        """Calls, fallbacks (calls with a thread count that was not tuned) and out-of-range shapes of each op."""
        function = self.library().function("ht_stats")
        found = {}
        for index, name in enumerate(self._ops):
            values = np.zeros(3, np.int64)
            function(index, values)
            found[name] = {"calls": int(values[0]), "fallbacks": int(values[1]), "out_of_range": int(values[2])}
        return found

    def warmup(self) -> None:
        """Run every bound linear once at one row and once at many.

        No request then pays for starting workers, mapping code or reading a weight for the first time. The calls are
        counted like any other.
        """
        for linear in list(self._linears):
            op = linear.bound.op
            for m in (1, min(op.last_m, WARMUP_ROWS)):
                linear(np.zeros((m, op.k), np.float32))

    def close(self) -> None:
        """Let go of the library; later calls raise PackClosed. Calling it twice is harmless."""
        self._library = None
        for linear in list(self._linears):
            linear.close()
        self.arena.clear()

    def library(self) -> Library:
        """The open library; PackClosed after ``close``."""
        if self._library is None:
            raise PackClosed(f"{self.path} was closed; load the pack again")
        return self._library

    def plan_index(self, op: PackOp, threads: int | None = None) -> int:
        """Which of the op's plans serves a thread count (None: the pack's): the exact one, or the nearest."""
        count = threads or self.threads
        return min(range(len(op.threads)), key=lambda i: (abs(op.threads[i] - count), op.threads[i]))

    def entry(self, op: PackOp, threads: int | None = None) -> tuple[Callable[..., Any], int]:
        """The native call of an op and the setting it wants for a thread count (None: the pack's)."""
        count = self.threads if threads is None else checked_threads(threads)
        return self.library().function(op.name), self.plan_index(op, count) + 256 * count

    def own(self, linear: Linear) -> None:
        """Close this linear with the pack."""
        self._linears.add(linear)

    def hand_over(self, new: Pack) -> None:
        """Serve every linear bound from this pack from ``new`` from its next call on, then close this pack.

        Weights are packed anew where the new pack lays them out differently; all linears are ready before the first one is
        switched, and each is switched in one step, so calls go on throughout. UsageError, and nothing is switched, if
        ``new`` lacks an op that is in use.
        """
        linears = list(self._linears)
        ready = []
        for linear in linears:
            bound = linear.bound
            call, setting = new.entry(new.op(bound.op.name).entry, bound.setting >> 8)
            ready.append(bound.moved(new.op(bound.op.name).entry, call, setting, new.arena))
        for linear, bound in zip(linears, ready, strict=True):
            linear.serve(bound)
            new.own(linear)
            self._linears.discard(linear)
        self.close()

    def __enter__(self) -> Pack:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def checked_threads(threads: int) -> int:
    """``threads``, or UsageError if it is no thread count."""
    if type(threads) is not int or not 1 <= threads <= MAX_THREADS:
        raise UsageError(
            f"threads={threads!r} must be a whole number in 1..{MAX_THREADS}, or None for all {usable_cores()} cores"
        )
    return threads


class DenseOp:
    """One op of an open pack."""

    def __init__(self, pack: Pack, op: PackOp) -> None:
        self._pack, self._op = pack, op

    @property
    def name(self) -> str:
        """Canonical name."""
        return self._op.name

    @property
    def entry(self) -> PackOp:
        """The op's entry in the manifest."""
        return self._op

    @property
    def n(self) -> int:
        """Columns of the output."""
        return self._op.n

    @property
    def k(self) -> int:
        """Columns of the input."""
        return self._op.k

    def bind(self, weight: Any, bias: Any = None, *, threads: int | None = None) -> Linear:
        """Pack a weight once; see ``Linear``. Weight and bias (n,) are copied: later changes to them do not show.

        ``threads`` replaces the pack's count for this linear.
        """
        call, setting = self._pack.entry(self._op, threads)
        linear = Linear(Bound.of(self._op, call, setting, weight, bias, self._pack.arena))
        self._pack.own(linear)
        return linear

    def composition(self, m: int, threads: int | None = None) -> Composition:
        """How m rows are served, from the library's own look-up."""
        index = self._pack.plan_index(self._op) if threads is None else self._op.threads.index(threads)
        values = np.zeros(10, np.int64)
        place = list(self._pack._ops).index(self._op.name)
        self._pack.library().function("ht_look_up")(place, index, m, values)
        pairs = values[2 : 2 + 2 * int(values[0])].reshape(-1, 2).tolist()
        parts = tuple(Part(self._op.kernels[kernel], tiles) for kernel, tiles in pairs)
        return Composition(parts, tuple(WAYS)[int(values[1])])


def load(path: str | Path, threads: int | None = None) -> Pack:
    """Open a pack for serving with ``threads`` threads (None: all cores this process may use).

    Raises:
        PackInvalid: files are missing or changed; none of the pack's code was run.
        PackMismatch: the pack needs another CPU or platform.
    """
    return Pack(path, threads)
