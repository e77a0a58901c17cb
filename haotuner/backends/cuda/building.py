"""Work of a child process that builds for CUDA: named kernels to one cubin, failures as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from haotuner.backends.cuda.compiler import Compiler
from haotuner.backends.cuda.device_code import Programs, build_cubin
from haotuner.backends.jobs import micro_kernel
from haotuner.errors import EnvironmentMissing
from haotuner.isolate.answers import Refusal
from haotuner.isolate.program import described
from haotuner.microkernels.cuda.direct import DIRECT_FAMILIES
from haotuner.microkernels.cuda.families import CUDA_FAMILIES
from haotuner.microkernels.cuda.generated import CudaGenerated
from haotuner.microkernels.index import family_named

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
