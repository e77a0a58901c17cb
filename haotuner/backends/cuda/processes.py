"""Programs of the child processes that build and time for CUDA (``haotuner/isolate``)."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from haotuner.isolate.answers import Job
from haotuner.isolate.child import Child
from haotuner.isolate.program import Program
from haotuner.ops.groups import definitions

BUILDING = "haotuner.backends.cuda.processes:building"
TIMING = "haotuner.backends.cuda.processes:timing"


def process(program: str, environment: Mapping[str, str], description: Mapping[str, Any]) -> Child:
    """A process that builds or times, not yet started. Without limits: a CUDA context reserves terabytes of addresses."""
    description = {**description, "groups": definitions()}
    return Child(program, description, environment={**environment, "TVM_FFI_DISABLE_TORCH_C_DLPACK": "1"})


def building(config: Mapping[str, Any]) -> Program:
    """Compiles kernels; ``told["cache"]``: a folder of cubins by content, ``told["objects"]``: of compiled C, or None."""
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]  # tvm_ffi imports it where it is: 1.5 s for nothing
    import tvm  # paid for before the first request's clock runs

    from haotuner.backends.cuda.building import build

    _learn(config)

    # Where there is a driver TVM compiles what it generates, with a package that we do not need: only the text is wanted.
    tvm.register_global_func("tvm_callback_cuda_compile", lambda text: b"", override=True)
    cache = config.get("cache")

    def asked(job: Job) -> Job:
        answer = build(job["kernels"], job["arch"], job["out"], cache)
        return {"out": answer["out"], "resources": answer["resources"]}

    def code(job: Job) -> Job:
        """Hashes of the code that is timed with kernels (by name)."""
        from haotuner.backends.code_store import CODES, stored_codes
        from haotuner.backends.cuda.code import codes_of
        from haotuner.backends.toolchain import Toolchain

        objects = None if config.get("objects") is None else Path(config["objects"])
        toolchain = Toolchain.find(objects)
        words = ["cuda", *toolchain.words().values()]
        folder = None if objects is None else objects / CODES
        return {"code": stored_codes(folder, words, job["kernels"], partial(codes_of, toolchain=toolchain))}

    return Program(verbs={"build": asked, "code": code})


def timing(config: Mapping[str, Any]) -> Program:
    """Verifies and times kernels of cubins on ``told["units"]`` multiprocessors (0: all) of GPU ``told["ordinal"]``."""
    from haotuner.backends.cuda.timer_process import TimerProcess

    _learn(config)
    result = TimerProcess(int(config["ordinal"]), int(config.get("units", 0)))
    return Program(verbs={"verify": result.verify, "time": result.time}, greeting=result.greeting)


def _learn(config: Mapping[str, Any]) -> None:
    """Know the kinds that files brought to the parent."""
    if config.get("groups"):
        from haotuner.graph.group import learned

        for definition in config["groups"]:
            learned(definition)
