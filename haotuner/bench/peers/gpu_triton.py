"""A plain Triton matmul, autotuned for every shape.

Written for this comparison as a user without a library would: blocked, masked, grouped order; of some configurations from a
small to a large tile the fastest is taken for each shape. fp32 multiplies in IEEE fp32, as ours does.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from numpy.typing import NDArray

from haotuner.bench.contender import Call, Operands, Setting
from haotuner.bench.peers.gpu_torch import GpuTorch

# (rows, columns, k step, warps, stages)
HALF_CONFIGURATIONS = (
    (16, 32, 128, 2, 4),
    (16, 64, 64, 4, 4),
    (32, 64, 64, 4, 4),
    (64, 64, 64, 4, 4),
    (64, 128, 64, 4, 4),
    (128, 64, 64, 4, 4),
    (128, 128, 64, 8, 3),
    (128, 256, 64, 8, 3),
)
FP32_CONFIGURATIONS = ((16, 64, 32, 4, 2), (32, 64, 32, 4, 2), (64, 64, 16, 4, 2), (64, 128, 16, 8, 2), (128, 128, 16, 8, 2))
GROUPED = 8
TRIES = 5


class GpuTriton(GpuTorch):
    """y = x · w^T by the configuration that was fastest at this shape."""

    alone = True  # it times its configurations

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        from haotuner.bench.peers.gpu_triton_kernel import multiply, triton

        self._kernel = multiply
        self.version = f"{triton.__version__}, torch {self._engine.version}"
        self._chosen: tuple[int, ...] = FP32_CONFIGURATIONS[0]

    def aim(self, calls: Sequence[Operands], y: NDArray[Any]) -> Sequence[Call]:
        """Try every configuration, then one call a weight by the fastest. RuntimeError if none runs."""
        made = super().aim(calls, y)
        times: dict[tuple[int, ...], float] = {}
        for configuration in FP32_CONFIGURATIONS if self._op.dtype == "fp32" else HALF_CONFIGURATIONS:
            self._chosen = configuration
            try:
                made[0]()  # compiles
                turns = [made[turn % len(made)] for turn in range(TRIES)]
                times[configuration] = statistics.median(self._engine.timed_us(partial(call)) for call in turns)
            except Exception as error:  # a configuration that this GPU or this Triton refuses is left out
                print(f"{configuration}: {type(error).__name__}: {error}", file=sys.stderr)
        if not times:
            raise RuntimeError("no configuration runs")
        self._chosen = min(times, key=lambda configuration: times[configuration])
        return made

    def _multiply(self, x: Any, w: Any, y: Any) -> None:
        rows, columns, step, warps, stages = self._chosen
        (m, k), n = x.shape, w.shape[0]
        self._kernel[(-(-m // rows) * -(-n // columns),)](
            x, w, y, m, n, k, ROWS=rows, COLUMNS=columns, STEP=step, GROUPED=GROUPED, num_warps=warps, num_stages=stages
        )
