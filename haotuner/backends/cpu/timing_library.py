"""Libraries that time micro-kernels: their object code, the loop that takes samples, and hashes of what runs."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path

from haotuner.backends import fingerprint
from haotuner.backends.backend import CompileObject
from haotuner.backends.cpu.compile import (
    PASSES,
    RUNTIME_SOURCES,
    TALL,
    TALL_OPTIONS,
    TIMING_INCLUDES,
    TIMING_SOURCES,
    TYPED_INCLUDES,
    kernel_table,
    object_code,
    source_of,
    tir_programs,
    types_of,
    way_here,
)
from haotuner.backends.cpu.pack_op import kernel_row
from haotuner.backends.cpu.pack_product import product_table, timed
from haotuner.backends.cpu.pack_source import CONV_SOURCES, PRODUCT, direct_sources
from haotuner.backends.timing_job import micro_kernel
from haotuner.backends.toolchain import KERNEL_FLAGS, Toolchain
from haotuner.hw_profiles.isa import ISAS
from haotuner.isolate.program import described
from haotuner.microkernels.cpu.generated import CpuGenerated, stages_of
from haotuner.microkernels.cpu.typed import word_of
from haotuner.microkernels.index import family_named
from haotuner.ops.kind import OpKind
from haotuner.spec.family import Family
from haotuner.spec.kernel import MicroKernel

# What is timed is what is served.
TYPED_SERVING = ("kinds/typed_pack.c", "kinds/typed.h", "kinds/typed_tile.h")
DENSE_SERVING = ("pool.c", "kinds/dense_run.c", "kinds/typed_run.c", *TYPED_SERVING)
SLICED_SERVING = ("pool.c", "check.c", "kinds/sliced.c")
ROOM_SERVING = ("scratchpad.c", "scratchpad.h")
PRODUCT_SERVING = (
    "pool.c",
    "check.c",
    *ROOM_SERVING,
    *(f"kinds/{name}" for name in (*PRODUCT, "product.h", "product_skinny.h", "product_skinny_lanes.h")),
    "kinds/turn.h",
    *TYPED_SERVING,
)
_CONV_HEADERS = tuple(
    f"kinds/{name}.h" for name in ("conv", "conv_filter", "conv_filter_wide", "conv_image", "conv_winograd", "transpose")
)
_CONV_LOOPS = tuple(name for name in CONV_SOURCES if name != "kinds/conv.c")  # all but what packs' ops are bound by
CONV_SERVING = tuple(dict.fromkeys(("pool.c", *ROOM_SERVING, *_CONV_LOOPS, *_CONV_HEADERS, *TYPED_SERVING)))


def is_dense(kernel: MicroKernel) -> bool:
    """True if dense's own loops run the kernel (``native/kinds/dense_run.c``); any other is run by slices."""
    return kernel.family.startswith("cpu_dense_")


def is_convolution(kernel: MicroKernel) -> bool:
    """True if the loops of convolutions run the kernel (``native/kinds/conv_run.c``)."""
    return kernel.family.startswith("cpu_conv_")


def is_product(kernel: MicroKernel) -> bool:
    """True if the loops of batch_matmul run the kernel (``native/kinds/product_run.c``)."""
    return kernel.family.startswith("cpu_batch_matmul_")


def _loops(kernel: MicroKernel) -> str:
    return (
        "dense" if is_dense(kernel) else "conv" if is_convolution(kernel) else "product" if is_product(kernel) else "sliced"
    )


def measuring_library(
    kernels: Sequence[MicroKernel],
    arch: str,
    toolchain: Toolchain,
    out: Path,
    compile_object: CompileObject | None = None,
    family_of: Callable[[str], Family] = family_named,
) -> None:
    """A library that times these kernels through the serving runtime. ValueError if they are not run by the same loops."""
    loops = {_loops(kernel) for kernel in kernels}
    if len(loops) != 1:
        raise ValueError("micro-kernels that different loops run do not share a measuring library")
    # It is timed on this host alone.
    here = compile_object or partial(object_code, ways=way_here(kernels[0]), objects=toolchain.objects)
    with tempfile.TemporaryDirectory(prefix="haotuner-") as scratch:
        table, code = Path(scratch) / "kernels.c", Path(scratch) / "kernels.o"
        here(kernels, arch, code)
        sources = timed_sources(kernels)
        if not loops & {"sliced", "product"}:
            count = f"const int ht_kernel_count = {len(kernels)};\n"
            text = '#include "kinds/conv.h"\n' + kernel_table(kernels, "ht_kernels") + count
            table.write_text(text + _timed_types(kernels))
        else:
            table.write_text(product_table(kernels) if loops == {"product"} else _sliced_table(kernels, family_of))
        toolchain.link([code], [table, *sources], [*TIMING_INCLUDES], out)


def timed_sources(kernels: Sequence[MicroKernel]) -> list[Path]:
    """C sources of the package that take samples of these kernels, and that serve them; all are run by the same loops."""
    loops = _loops(kernels[0])
    clock, serving = {
        "dense": ("timing.c", DENSE_SERVING),
        "conv": ("timing_conv.c", (*CONV_SERVING, *direct_sources(kernels))),
        "product": ("timing_sliced.c", PRODUCT_SERVING),
        "sliced": ("timing_sliced.c", SLICED_SERVING),
    }[loops]
    return [
        *(TIMING_SOURCES / name for name in (clock, "watch.c")),
        *(RUNTIME_SOURCES / name for name in serving if name.endswith(".c")),
    ]


def group_sources(_: Sequence[MicroKernel]) -> list[Path]:
    """C source of the package that calls kernels as programs of models' groups."""
    return [RUNTIME_SOURCES / "programs.c"]


def _timed_types(kernels: Sequence[MicroKernel]) -> str:
    """C source of the element types for ``timing.c``; all kernels of a library have the same."""
    if word_of(kernels[0]) is None:
        return "const ht_typed* const ht_kernels_typed = NULL;\n"
    return types_of(kernels[0], "typed") + "\nconst ht_typed* const ht_kernels_typed = &typed;\n"


def kind_of(family: Family) -> OpKind:
    """The kind of operator that a family's programs are made for; ValueError of one that serves several."""
    kind = getattr(family, "kind", None)
    if not isinstance(kind, OpKind):
        raise ValueError(f"family {family.name} does not say its kind of operator, so its kernels cannot be run by slices")
    return kind


def _sliced_table(kernels: Sequence[MicroKernel], family_of: Callable[[str], Family]) -> str:
    names = [kernel.name for kernel in kernels]
    lines = ['#include "kinds/sliced.h"']
    lines += [f"extern int __tvm_ffi_{name}(void*, const TVMFFIAny*, int32_t, TVMFFIAny*);" for name in names]
    lines.append("static const ht_sliced_kernel kernels[] = {")
    for kernel in kernels:
        family = family_of(kernel.family)
        tile = family.tile(kernel)
        joins = family.joins(kernel) if isinstance(family, CpuGenerated) else {}
        lines.append(kernel_row(kernel.name, {**tile.extent, **tile.step}, tuple(kind_of(family).axes), joins,
                                stages=stages_of(family, kernel)))  # fmt: skip
    lines += ["};", "static const ht_sliced data = {kernels, 0};"]
    return "\n".join([*lines, *timed("ht_sliced_kind", "data", len(kernels)), ""])


def codes_of(
    names: Sequence[str],
    arch: str,
    toolchain: Toolchain,
    callers: Callable[[Sequence[MicroKernel]], list[Path]] = timed_sources,
) -> dict[str, str]:
    """The hash of each kernel's code by name; of one that cannot be generated the hash of the error.

    ``callers``: C sources of the package that run with a kernel. RuntimeError where they do not compile.
    """
    loops: dict[tuple[Path, ...], str] = {}
    codes = {}
    for name in names:
        try:
            kernel = micro_kernel(name)
            timed = tuple(callers([kernel]))
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
    functions = tir_programs([kernel])
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
    texts = source_of([kernel])
    headers = fingerprint.included(texts, TYPED_INCLUDES)
    included = hashlib.sha256("\0".join(map(_meaning_of, headers)).encode()).hexdigest()
    return [*map(fingerprint.meaning, texts), included, KERNEL_FLAGS, flags]


@lru_cache(maxsize=64)  # the same headers for all kernels
def _meaning_of(header: Path) -> str:
    return fingerprint.meaning(header.read_text(encoding="utf-8"))
