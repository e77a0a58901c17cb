"""Programs of the child processes that build and time for CPUs (``haotuner/isolate``)."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from haotuner.isolate.answers import Job, Refusal
from haotuner.isolate.child import Child
from haotuner.isolate.group import Limits
from haotuner.isolate.program import Program, described
from haotuner.ops.groups import definitions

BUILDING = "haotuner.backends.cpu.processes:building"
TIMING = "haotuner.backends.cpu.processes:timing"


def process(program: str, environment: Mapping[str, str], description: Mapping[str, Any] | None = None) -> Child:
    """A process that builds or times, not yet started."""
    # Without this tvm_ffi imports torch for its tensors, which costs a second.
    description = {**(description or {}), "groups": definitions()}
    return Child(program, description, environment={**environment, "TVM_FFI_DISABLE_TORCH_C_DLPACK": "1"}, limits=Limits())


def building(config: Mapping[str, Any]) -> Program:
    """Compiles kernels; ``told["objects"]``: a folder of the compiled runtime and of kernels, or None.

    It pays for the compiler's start once, before the first request's clock runs.
    """
    _without_torch()
    _learn(config)
    from haotuner.backends.cpu.compile import warm

    objects = None if config.get("objects") is None else Path(config["objects"])
    warm(objects)
    verbs = {"build": partial(build, objects), "object": partial(compile_object, objects), "code": partial(code, objects)}
    return Program(verbs=verbs)


def timing(config: Mapping[str, Any]) -> Program:
    """Verifies and times kernels that were built."""
    _without_torch()
    _learn(config)
    from haotuner.backends.cpu.timer_conv import ConvTimer
    from haotuner.backends.cpu.timer_process import Libraries, SlicedTimer, TimerProcess

    libraries = Libraries()
    dense, sliced, conv = TimerProcess(libraries), SlicedTimer(libraries), ConvTimer(libraries)
    verbs = {"time": dense.time, "verify": dense.verify, "watch": dense.watch}
    verbs |= {"time_conv": conv.time, "verify_conv": conv.verify}
    return Program(verbs={**verbs, "time_sliced": sliced.time, "verify_sliced": sliced.verify})


def build(objects: Path | None, job: Job) -> Job:
    """Compile kernels (by name) into a library that times them."""
    from haotuner.backends.cpu.timing_library import measuring_library
    from haotuner.backends.timing_job import kernels_of
    from haotuner.backends.toolchain import Toolchain

    kernels = kernels_of(job)
    try:
        measuring_library(kernels, job["arch"], Toolchain.find(objects), Path(job["out"]))
    except Exception as error:  # a compiler's error is data
        raise Refusal("build", "compile_error", described(error)) from error
    return {"out": job["out"]}


def compile_object(objects: Path | None, job: Job) -> Job:
    """Compile kernels (by name) into one object file, for a pack; ``groups``: kinds that were learned since the start."""
    from haotuner.backends.cpu.compile import object_code
    from haotuner.backends.timing_job import kernels_of

    _learn(job)
    try:
        object_code(kernels_of(job), job["arch"], Path(job["out"]), objects=objects)
    except Exception as error:  # a compiler's error is data
        raise Refusal("build", "compile_error", described(error)) from error
    return {"out": job["out"]}


def code(objects: Path | None, job: Job) -> Job:
    """Hashes of the code that is timed with kernels (by name); ``in_groups``: as programs of models' groups."""
    from haotuner.backends.cpu.timing_library import codes_of, group_sources, timed_sources
    from haotuner.backends.object_cache import CODES, stored_codes
    from haotuner.backends.toolchain import Toolchain

    _learn(job)
    in_groups = bool(job.get("in_groups"))
    toolchain = Toolchain.find(objects)
    words = [job["arch"], *toolchain.words().values(), *(("groups",) if in_groups else ())]
    folder = None if objects is None else objects / CODES
    callers = group_sources if in_groups else timed_sources
    make = partial(codes_of, arch=job["arch"], toolchain=toolchain, callers=callers)
    return {"code": stored_codes(folder, words, job["kernels"], make)}


def _learn(config: Mapping[str, Any]) -> None:
    """Know the kinds that files brought to the parent."""
    if config.get("groups"):
        from haotuner.graph.group import learned

        for definition in config["groups"]:
            learned(definition)


def _without_torch() -> None:
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]  # tvm_ffi imports it where it is: 1.5 s for nothing
