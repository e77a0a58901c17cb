"""Hashes of what runs when a CUDA kernel is timed: the text of its unit, how it is compiled, and what launches it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from haotuner.backends import sources
from haotuner.backends.cuda.building import programs_of, reduced_types
from haotuner.backends.cuda.compiler import FLAGS
from haotuner.backends.cuda.device_code import GATES, SHARE_DIGITS
from haotuner.backends.cuda.timing_library import INCLUDES, SOURCES
from haotuner.backends.cuda.translation_unit import device_unit
from haotuner.backends.toolchain import Toolchain
from haotuner.isolate.program import described


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
    return sources.meaning(device_unit(programs, reduces=reduced_types(programs)))
