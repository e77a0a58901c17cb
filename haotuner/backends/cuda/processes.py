"""Programs of the child processes that build, hash and time for CUDA (``haotuner/isolate``)."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from haotuner.backends import fingerprint
from haotuner.backends.cuda.compiler import FLAGS, Compiler
from haotuner.backends.cuda.device_code import GATES, SHARE_DIGITS, Programs, build_cubin
from haotuner.backends.cuda.timing_library import INCLUDES, SOURCES
from haotuner.backends.cuda.translation_unit import device_unit
from haotuner.backends.timing_job import micro_kernel
from haotuner.backends.toolchain import Toolchain
from haotuner.errors import EnvironmentMissing
from haotuner.isolate.answers import Job, Refusal
from haotuner.isolate.child import Child
from haotuner.isolate.program import Program, described
from haotuner.microkernels.cuda.direct import DIRECT_FAMILIES
from haotuner.microkernels.cuda.families import CUDA_FAMILIES
from haotuner.microkernels.cuda.generated import CudaGenerated
from haotuner.microkernels.index import family_named
from haotuner.ops.groups import definitions

STAGE, REASON = "build", "compile_error"


def programs_of(kernels: Sequence[str]) -> Programs:
    """Programs of micro-kernels by name, which is the symbol, too. ValueError for a name that is none of CUDA's."""
    families: dict[str, Any] = {family.name: family for family in CUDA_FAMILIES}
    families |= {family.name: family for family in DIRECT_FAMILIES}
    parsed = [micro_kernel(name) for name in kernels]
    for name in {kernel.family for kernel in parsed} - families.keys():
        with suppress(KeyError):
            result = family_named(name)
            families |= {name: result} if isinstance(result, CudaGenerated) else {}
    strays = sorted({kernel.family for kernel in parsed} - families.keys())
    if strays:
        raise ValueError(f"no CUDA family is called {', '.join(strays)}; known: {', '.join(families)}")
    return {kernel.name: (families[kernel.family], kernel) for kernel in parsed}


def reduced_types(programs: Programs) -> list[str]:
    """Element types whose reduction of partial sums a unit of these programs has."""
    return sorted({family.dtype for family, _ in programs.values() if not isinstance(family, CudaGenerated)})


def build(
    kernels: Sequence[str], arch: str, out: str, cache: str | None, *, compiler: Compiler | None = None
) -> dict[str, Any]:
    """Build micro-kernels, by name, and the reductions of their types into the cubin ``out``.

    Returns:
        ``out``, ``compiler``, ``seconds`` and ``resources`` of each kernel (see ``Cubin``), ready for JSON.

    Raises:
        Refusal: what is wrong with the kernels, ``compile_error`` with the compiler's words.
        EnvironmentMissing: there is no compiler.
    """
    try:
        programs = programs_of(kernels)
        cache_path = None if cache is None else Path(cache)
        built = build_cubin(
            programs, Path(out), arch=arch, reduces=reduced_types(programs), compiler=compiler, cache=cache_path
        )
    except EnvironmentMissing:
        raise  # no kernel's fault
    except Exception as error:  # a compiler's error is data
        raise Refusal(STAGE, REASON, described(error)) from error
    resources: Mapping[str, Mapping[str, float]] = {name: dict(facts) for name, facts in built.resources.items()}
    return {"out": str(built.path), "compiler": built.compiler, "seconds": built.seconds, "resources": resources}


def codes_of(names: Sequence[str], toolchain: Toolchain) -> dict[str, str]:
    """The hash of each kernel's code by name; of one that cannot be generated the hash of the error. No GPU is needed."""
    launching = toolchain.machine_code(SOURCES, list(INCLUDES))
    chosen_by = [FLAGS, sorted((width, gate.limit, gate.enough) for width, gate in GATES.items()), SHARE_DIGITS]
    codes = {}
    for name in names:
        try:
            seen: object = [launching, chosen_by, unit_text(name)]
        except MemoryError:  # of this process, not of the kernel
            raise
        except Exception as error:  # what is wrong with a kernel is data, as where it is built
            seen = ["error", described(error)]
        codes[name] = hashlib.sha256(json.dumps(seen).encode()).hexdigest()[:16]
    return codes


def unit_text(name: str) -> str:
    """CUDA C++ of a kernel and all that it calls, by what it means. What ``device_unit`` raises passes through."""
    programs = programs_of([name])
    return fingerprint.meaning(device_unit(programs, reduces=reduced_types(programs)))


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

    _learn(config)

    # Where there is a driver TVM compiles what it generates, with a package that we do not need: only the text is wanted.
    tvm.register_global_func("tvm_callback_cuda_compile", lambda text: b"", override=True)
    cache = config.get("cache")

    def asked(job: Job) -> Job:
        answer = build(job["kernels"], job["arch"], job["out"], cache)
        return {"out": answer["out"], "resources": answer["resources"]}

    def code(job: Job) -> Job:
        """Hashes of the code that is timed with kernels (by name)."""
        from haotuner.backends.object_cache import CODES, stored_codes
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
