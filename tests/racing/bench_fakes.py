"""Made-up contenders for the race: each misbehaves in one way, and is otherwise right."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from haotuner.bench.contender import Array, Call, Operands, Setting
from haotuner.spec.op import Op

BAD_M = 3  # the shape at which those that misbehave at one shape do


def spec(contender: type[Any]) -> str:
    """How the race finds one of these."""
    return f"{__name__}:{contender.__name__}"


class Right:
    """Computes the product and takes at least 100 us a call; it sleeps, for other tests want the core."""

    width = 1
    alone = False
    call_us = 100.0

    def __init__(self, setting: Setting) -> None:
        self.version = "1"
        self.setting = setting
        self.weights: list[Array] = []
        self.x: Any = None

    def prepare(self, op: Op, copies: Sequence[Operands]) -> None:
        self.weights = [copy["weight"] for copy in copies]

    def aim(self, calls: Sequence[Operands], y: Array) -> Sequence[Call]:
        self.x = calls[0]["x"]
        return [partial(self.compute, index) for index in range(len(calls))]

    def result(self, index: int) -> Array:
        return np.asarray(self.compute(index))

    def compute(self, index: int) -> Array:
        until = time.perf_counter() + self.call_us / 1e6
        product = self.x @ self.weights[index].T
        while (left := until - time.perf_counter()) > 0:
            time.sleep(left)
        return np.asarray(product)


class Slow(Right):
    call_us = 400.0


class Graph(Right):
    """Computes all its weights in one call, as a compiled graph does."""

    def aim(self, calls: Sequence[Operands], y: Array) -> Sequence[Call]:
        self.x, self.width = calls[0]["x"], len(calls)
        return [lambda: [self.compute(index) for index in range(len(calls))]]


class Wrong(Right):
    """One element a little off, at one shape."""

    def compute(self, index: int) -> Array:
        product = super().compute(index)
        if len(self.x) == BAD_M:
            product[1, 2] += 0.01
        return product


class WrongWeight(Right):
    """Right for the first weight, which it uses for all."""

    def compute(self, index: int) -> Array:
        return super().compute(0)


class Crashing(Right):
    """Dies on a signal at one shape, later than it is aimed: aiming makes at most 63 calls of 100 us, timing hundreds."""

    good_calls = 70

    def aim(self, calls: Sequence[Operands], y: Array) -> Sequence[Call]:
        self.left = self.good_calls
        return super().aim(calls, y)

    def compute(self, index: int) -> Array:
        self.left -= 1
        if len(self.x) == BAD_M and self.left < 0:
            self.misbehave()
        return super().compute(index)

    def misbehave(self) -> None:
        print("about to die", file=sys.stderr)
        os.kill(os.getpid(), signal.SIGSEGV)


class CrashingAtOnce(Crashing):
    good_calls = 0


class Hanging(Crashing):
    """Never returns from a call, at one shape."""

    def misbehave(self) -> None:
        time.sleep(600)


class HangingAtOnce(Hanging):
    good_calls = 0


class Raising(Right):
    def prepare(self, op: Op, copies: Sequence[Operands]) -> None:
        raise RuntimeError("cannot pack this")


class Doomed(Right):
    """Dies whenever it is prepared."""

    def prepare(self, op: Op, copies: Sequence[Operands]) -> None:
        os._exit(7)


class Absent(Right):
    def __init__(self, setting: Setting) -> None:
        import no_such_library_at_all  # type: ignore[import-not-found]  # noqa: F401


class Broken(Right):
    def __init__(self, setting: Setting) -> None:
        raise OSError("its library needs another kernel")


class Chatty(Right):
    """Prints where answers go."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        print('{"version": "a lie"}')
        os.write(1, b"loading...\n")

    def prepare(self, op: Op, copies: Sequence[Operands]) -> None:
        super().prepare(op, copies)
        print("optimising", flush=True)


class Spinning(Right):
    """Has a pool that never sleeps."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        threading.Thread(target=self._spin, daemon=True).start()

    @staticmethod
    def _spin() -> None:
        while True:
            continue


class Parent(Right):
    """Starts a process of its own; its id is the version."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.version = str(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid)


class Knowing(Right):
    """Says what it was told and what its environment holds, as its version."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        names = ("OMP_NUM_THREADS", "OPENBLAS_CORETYPE", "MKL_ENABLE_INSTRUCTIONS", "HAOTUNER_TEST")
        self.version = ",".join([str(setting.pack), *(f"{name}={os.environ.get(name)}" for name in names)])
