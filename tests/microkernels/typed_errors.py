"""What typed micro-kernels make of seeded operands, against float64."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from haotuner.backends.cpu.compile import object_code
from haotuner.backends.cpu.timer_process import TimerProcess
from haotuner.backends.cpu.timing_library import measuring_library
from haotuner.microkernels.cpu.typed_source import Ways
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from tests.run_folder import toolchain


def typed_errors(
    op: Op, kernels: Sequence[MicroKernel], mcpu: str, ways: Ways, library: Path, col_block: int
) -> Iterator[float]:
    """The largest error of each kernel, as a share of what is allowed; ``col_block``: columns at a time."""
    compiled = partial(object_code, ways=ways, objects=toolchain().objects)
    measuring_library(kernels, mcpu, toolchain(), library, compiled)
    for index, kernel in enumerate(kernels):
        sizes = {key: kernel[key] for key in ("mr", "nr", "pw")}
        request = {"library": str(library), "op": op.name, "kernel": index, "seed": index, "nt": 0, "k": op["k"],
                 "col_block": col_block, "row_block": 0, "k_block": 0, "threads": 1, "split": 0, "sample_ns": 1,
                 "limit_ns": 1, "least": 1, **sizes}  # fmt: skip
        yield TimerProcess().verify(request)["max_error"]
