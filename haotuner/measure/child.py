"""What the measuring processes serve: one builds kernels, one times them. Each runs alone (see isolate)."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from haotuner.isolate.answers import Job, Refusal
from haotuner.isolate.child import Child
from haotuner.isolate.limits import Limits
from haotuner.isolate.program import Program, described

BUILDING = "haotuner.measure.child:building"
TIMING = "haotuner.measure.child:timing"


def measuring_process(program: str, environment: Mapping[str, str]) -> Child:
    """A process that builds or times (``BUILDING``, ``TIMING``), not yet started."""
    # Without this tvm_ffi imports torch for its tensors, which costs a second.
    return Child(program, environment={**environment, "TVM_FFI_DISABLE_TORCH_C_DLPACK": "1"}, limits=Limits())


def building(told: Mapping[str, Any]) -> Program:
    """Compiles kernels. It pays for the compiler's start once, before the first job's clock runs."""
    _without_torch()
    from haotuner.compile.cpu import warm

    warm()
    return Program(verbs={"build": build, "object": compile_object})


def timing(told: Mapping[str, Any]) -> Program:
    """Verifies and times kernels that were built."""
    _without_torch()
    from haotuner.measure.bench_table import Table

    table = Table()
    return Program(verbs={"time": table.time, "verify": table.verify, "watch": table.watch})


def build(job: Job) -> Job:
    """Compile kernels (by name) into a measuring library."""
    from haotuner.compile.cpu import measuring_library
    from haotuner.compile.toolchain import Toolchain
    from haotuner.words.kernel import MicroKernel

    kernels = [MicroKernel.parse(name) for name in job["kernels"]]
    try:
        measuring_library(kernels, job["mcpu"], Toolchain.find(), Path(job["out"]))
    except Exception as error:  # a compiler's error is data
        raise Refusal("build", "compile_error", described(error)) from error
    return {"out": job["out"]}


def compile_object(job: Job) -> Job:
    """Compile kernels (by name) into one object file, for a pack."""
    from haotuner.compile.cpu import object_code
    from haotuner.words.kernel import MicroKernel

    try:
        object_code([MicroKernel.parse(name) for name in job["kernels"]], job["mcpu"], Path(job["out"]))
    except Exception as error:  # a compiler's error is data
        raise Refusal("build", "compile_error", described(error)) from error
    return {"out": job["out"]}


def _without_torch() -> None:
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]  # tvm_ffi imports it where it is: 1.5 s for nothing
