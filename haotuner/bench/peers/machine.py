"""Machine speed as a contender, timed between the others, so that a share of peak is of this moment.

It makes fp32 multiply-adds in registers or, at a few rows of cold weights, reads those weights. A shared or boosting host
has no one clock and no one bandwidth: the best ever seen is not what the contenders had while they ran.
"""

from __future__ import annotations

import ctypes
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from haotuner.backends.toolchain import Toolchain
from haotuner.bench.contender import SMALL_M, Call, Operands, Setting
from haotuner.bench.operands import plain_layer
from haotuner.errors import EnvironmentMissing
from haotuner.hw_profiles.cpu_peak import loop_options
from haotuner.hw_profiles.isa import Isa, parse_cpuinfo
from haotuner.isolate import group
from haotuner.isolate.answers import TimedOut
from haotuner.spec.op import Op

CALL_FLOPS = 5e7  # for each thread: 0.2 ms on an AVX-512 core, 1 ms on an SSE one
BUILD_LIMIT_S = 60.0


class Machine:
    """Contender without ops: ``result`` is never asked. A call makes ``flops`` operations or reads ``bytes``, never both."""

    version = "2"
    width = 1
    alone = False

    def __init__(self, setting: Setting) -> None:
        isas = parse_cpuinfo(Path("/proc/cpuinfo").read_text(encoding="utf-8")).isas()
        isa = next((isa for isa in isas if setting.isa in (None, isa.name)), None)
        if isa is None:
            raise ImportError(f"this host has no {setting.isa}")
        try:
            self._library = _build(isa, Toolchain.find().command)
        except (EnvironmentMissing, OSError, TimedOut) as error:
            raise ImportError(str(error)) from error
        for item in (self._library.machine_compute, self._library.machine_read, self._library.machine_crowding):
            item.restype = ctypes.c_double
        if not self._library.machine_start(setting.threads, ctypes.c_double(CALL_FLOPS)):
            raise ImportError(f"could not start {setting.threads} threads")
        self._layers = False
        self.flops: float | None = None
        self.bytes: float | None = None

    def prepare(self, op: Op, copies: Sequence[Operands]) -> None:
        """Nothing is kept: weights are read as they were given."""
        self._layers = plain_layer(op)

    def aim(self, calls: Sequence[Operands], y: NDArray[Any]) -> Sequence[Call]:
        """One read of each weight if they are many and the rows few; else the same arithmetic for every shape."""
        self.flops, self.bytes = float(self._library.machine_compute()), None
        if len(calls) == 1 or not self._layers or calls[0]["x"].shape[0] > SMALL_M:
            return [self._library.machine_compute]
        weights = [operands["weight"] for operands in calls]
        ways = [self._reads(weights, way) for way in range(self._library.machine_ways())]
        if not ways[0][0]():  # too small to be cut into streams
            return [self._library.machine_compute]
        fastest = min(ways, key=_seconds)
        self.flops, self.bytes = None, float(fastest[0]())
        return fastest

    def crowding(self) -> float:
        """Slowdown of multiply-adds on all threads at once over one alone, a factor."""
        return float(self._library.machine_crowding())

    def _reads(self, weights: Sequence[NDArray[Any]], way: int) -> list[Callable[[], float]]:
        return [
            partial(self._library.machine_read, ctypes.c_void_p(w.ctypes.data), ctypes.c_double(w.nbytes), way)
            for w in weights
        ]


def _seconds(calls: Sequence[Call]) -> float:
    """Seconds of the faster of two rounds over the calls."""
    result = []
    for _ in range(2):
        begin = time.perf_counter()
        for call in calls:
            call()
        result.append(time.perf_counter() - begin)
    return min(result)


def _build(isa: Isa, compiler: Sequence[str]) -> ctypes.CDLL:
    source = files("haotuner.bench").joinpath("native/machine.c").read_bytes()
    with tempfile.TemporaryDirectory(prefix="haotuner-machine-") as folder:
        text, library = Path(folder) / "machine.c", Path(folder) / "machine.so"
        text.write_bytes(source)
        done = group.run([*compiler, *loop_options(isa), "-fPIC", "-shared", str(text), "-o", str(library)], BUILD_LIMIT_S)
        if done.code != 0:
            raise OSError(f"{compiler[0]} failed with {done.code}: {done.errors.strip()[-400:]}")
        return ctypes.CDLL(str(library))
