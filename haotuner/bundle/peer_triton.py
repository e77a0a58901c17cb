"""A plain Triton matmul by the bundle's policy.

Written for this comparison as a user without a library would: blocked, masked, grouped order; of a few configurations from a
small to a large tile the fastest is taken for each shape. fp32 multiplies in IEEE fp32, as ours does.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from haotuner.bundle.peer_torch import Clock, torch_with_gpu
from haotuner.isolate.answers import MISSING, Refusal
from haotuner.isolate.program import Program

# (rows, columns, k step, warps, stages)
HALF_CONFIGURATIONS = (
    (16, 64, 64, 4, 4),
    (32, 64, 64, 4, 4),
    (64, 64, 64, 4, 4),
    (64, 128, 64, 4, 4),
    (128, 128, 64, 8, 3),
    (128, 256, 64, 8, 3),
)
FP32_CONFIGURATIONS = ((16, 64, 32, 4, 2), (32, 64, 32, 4, 2), (64, 64, 16, 4, 2), (64, 128, 16, 8, 2), (128, 128, 16, 8, 2))
GROUPED = 8
TRIES = 3


def peer(told: Mapping[str, Any]) -> Program:
    """Times the Triton matmul. It is missing where triton, torch or a GPU is not there."""
    torch_with_gpu()
    try:
        from haotuner.bundle.peer_triton_kernel import multiply
    except ImportError as error:
        raise Refusal("load", MISSING, str(error)) from error
    return Program(verbs={"time": Clock(told, Matmul(multiply)).time})


class Matmul:
    """y = x · w^T by the configuration that was fastest at this shape."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._chosen: dict[tuple[Any, ...], tuple[int, ...]] = {}

    def __call__(self, x: Any, w: Any, y: Any) -> None:
        """Launch on the current stream; the first call of a shape tries every configuration."""
        shape = (*x.shape, w.shape[0], x.dtype)
        if shape not in self._chosen:
            self._chosen[shape] = self._fastest(x, w, y)
        self._launch(x, w, y, self._chosen[shape])

    def _launch(self, x: Any, w: Any, y: Any, configuration: tuple[int, ...]) -> None:
        rows, columns, step, warps, stages = configuration
        (m, k), n = x.shape, w.shape[0]
        self._kernel[(-(-m // rows) * -(-n // columns),)](
            x, w, y, m, n, k, ROWS=rows, COLUMNS=columns, STEP=step, GROUPED=GROUPED, num_warps=warps, num_stages=stages
        )

    def _fastest(self, x: Any, w: Any, y: Any) -> tuple[int, ...]:
        import torch

        times: dict[tuple[int, ...], float] = {}
        for configuration in FP32_CONFIGURATIONS if x.dtype == torch.float32 else HALF_CONFIGURATIONS:
            try:
                self._launch(x, w, y, configuration)  # compiles
            except Exception as error:  # a configuration that this GPU or this Triton refuses is left out
                print(f"{configuration}: {type(error).__name__}: {error}", file=sys.stderr)
                continue
            start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            for _ in range(TRIES):
                self._launch(x, w, y, configuration)
            stop.record()
            stop.synchronize()
            times[configuration] = start.elapsed_time(stop)
        if not times:
            raise RuntimeError("no configuration runs")
        return min(times, key=lambda configuration: times[configuration])
