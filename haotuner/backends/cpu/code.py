"""Hashes of what runs when a CPU kernel is timed: its generated programs, and the machine code of the loops above it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from haotuner.backends import sources
from haotuner.backends.cpu.compile import PASSES, TALL, TALL_OPTIONS, TIMING_INCLUDES, programs_of
from haotuner.backends.cpu.measuring import timed_sources
from haotuner.backends.cpu.typed_library import source_of
from haotuner.backends.jobs import micro_kernel
from haotuner.backends.toolchain import KERNEL_FLAGS, Toolchain
from haotuner.hw_profiles.isa import ISAS
from haotuner.isolate.program import described
from haotuner.microkernels.cpu.typed import word_of
from haotuner.microkernels.cpu.typed_source import NATIVE
from haotuner.spec.kernel import MicroKernel


def codes_of(names: Sequence[str], arch: str, toolchain: Toolchain) -> dict[str, str]:
    """The hash of each kernel's code by name; of one that cannot be generated the hash of the error.

    RuntimeError where the package's own C does not compile.
    """
    loops: dict[tuple[Path, ...], str] = {}
    codes = {}
    for name in names:
        try:
            kernel = micro_kernel(name)
            timed = tuple(timed_sources([kernel]))
            generated: object = [program_hashes(kernel), typed_text(kernel, arch)]
        except MemoryError:  # of this process, not of the kernel
            raise
        except Exception as error:  # what is wrong with a kernel is data, as where it is built
            codes[name] = _hash(["error", described(error)])
            continue
        if timed not in loops:
            loops[timed] = toolchain.machine_code(timed, [*TIMING_INCLUDES])
        codes[name] = _hash([loops[timed], generated])
    return codes


def _hash(seen: object) -> str:
    return hashlib.sha256(json.dumps(seen).encode()).hexdigest()[:16]


def program_hashes(kernel: MicroKernel) -> object:
    """TVM's programs of a kernel by their structure, and how they are compiled; names in them count for nothing."""
    functions = programs_of([kernel])
    if not functions:
        return []
    from tvm_ffi import structural_hash

    hashes = sorted(structural_hash(function) for function in functions.values())
    tall = TALL_OPTIONS if any(map(TALL.match, functions)) else ()
    return [hashes, PASSES, tall]


def typed_text(kernel: MicroKernel, arch: str) -> object:
    """C text of a typed kernel with what it includes; empty of another."""
    if word_of(kernel) is None:
        return ""
    flags = next((isa.compile_flags for isa in ISAS if isa.arch == arch), ())
    return [*map(sources.meaning, source_of([kernel])), _included(), KERNEL_FLAGS, flags]


@lru_cache(maxsize=1)
def _included() -> str:
    headers = [sources.meaning(path.read_text(encoding="utf-8")) for path in sorted(NATIVE.glob("*.h"))]
    return hashlib.sha256("\0".join(headers).encode()).hexdigest()
