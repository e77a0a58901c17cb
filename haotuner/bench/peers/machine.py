"""The machine itself: fp32 multiply-adds in registers, timed between the others, so that a share of peak is of this moment.

A shared or boosting host has no one clock: the best rate ever seen is not what the contenders had while they ran.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from haotuner.bench.contender import Array, Call, Setting
from haotuner.compile.toolchain import Toolchain
from haotuner.errors import EnvironmentMissing
from haotuner.hw_profiles.cpu_peak import fma_options
from haotuner.hw_profiles.isa import Isa, parse_cpuinfo
from haotuner.op import Op

CALL_FLOPS = 5e7  # for each thread: 0.2 ms on an AVX-512 core, 1 ms on an SSE one
BUILD_LIMIT_S = 60.0


class Machine:
    """Answers no op: ``result`` is never asked for, and a call makes ``flops`` operations whatever the shape."""

    version = "1"
    width = 1
    alone = False

    def __init__(self, setting: Setting) -> None:
        isas = parse_cpuinfo(Path("/proc/cpuinfo").read_text(encoding="utf-8")).isas()
        isa = next((isa for isa in isas if setting.isa in (None, isa.name)), None)
        if isa is None:
            raise ImportError(f"this host has no {setting.isa}")
        try:
            self._library = _build(isa, Toolchain.find().compiler)
        except (EnvironmentMissing, OSError, subprocess.SubprocessError) as error:
            raise ImportError(str(error)) from error
        self._library.machine_start.restype = ctypes.c_double
        self.flops = float(self._library.machine_start(setting.threads, ctypes.c_double(CALL_FLOPS)))
        if not self.flops:
            raise ImportError(f"could not start {setting.threads} threads")

    def prepare(self, op: Op, weights: Sequence[Array]) -> None:
        """There is nothing to prepare."""

    def aim(self, x: Array, count: int) -> Sequence[Call]:
        """The same work for every shape."""
        return [self._library.machine_run]


def _build(isa: Isa, compiler: str) -> ctypes.CDLL:
    source = files("haotuner.bench").joinpath("native/machine.c").read_bytes()
    with tempfile.TemporaryDirectory(prefix="haotuner-machine-") as folder:
        text, library = Path(folder) / "machine.c", Path(folder) / "machine.so"
        text.write_bytes(source)
        command = [compiler, *fma_options(isa), "-fPIC", "-shared", str(text), "-o", str(library)]
        subprocess.run(command, check=True, timeout=BUILD_LIMIT_S)
        return ctypes.CDLL(str(library))
