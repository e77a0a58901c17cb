"""The C source of a pack: its ops, their micro-kernels, and the plan tables, all constant data."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from haotuner.backends.cpu.compile import RUNTIME_SOURCES, direct_program, object_code
from haotuner.backends.cpu.pack_dense import Entry, PackedOp, PackedPlan
from haotuner.backends.cpu.pack_op import PackedAny, head, row
from haotuner.backends.toolchain import Toolchain
from haotuner.ops.convolution import is_convolution
from haotuner.spec.kernel import MicroKernel

__all__ = ["PACK_SOURCES", "CompileObject", "Entry", "PackedAny", "PackedOp", "PackedPlan", "pack_data", "pack_library"]

CONV = tuple(
    f"conv{part}.c"
    for part in (
        "",
        "_run",
        "_phase",
        "_residue",
        "_image",
        "_lines",
        "_direct",
        "_filter",
        "_epilogue",
        "_tiles",
        "_pixel_major",
        "_winograd",
        "_winograd_pack",
        "_transpose_gemm",
        "_transpose_gemm_pack",
        *(f"_typed{part}" for part in ("", "_direct", "_epilogue", "_image", "_lines", "_pack")),
    )
)
PRODUCT = tuple(
    f"product{part}.c"
    for part in ("_epilogue", "_check", "_skinny", "_skinny_8", "_skinny_16", "_pack", "_run", "_dot", "_small", "_typed")
)
KINDS = ("dense.c", "dense_plan.c", "dense_run.c", "typed_run.c", "typed_pack.c", "sliced.c", *PRODUCT)
MODEL = (
    "host_ops",
    "branches",
    "cache",
    "chain",
    "crc32",
    "expected_times",
    "model_api",
    "host",
    "liveness",
    "memory_planner",
    "plan",
    "read",
    "read_chain",
    "run",
    "sizes",
    "loop_exec",
    "weights",
)
MODEL_SOURCES = ("loops.c", "programs.c", *(f"model/{name}.c" for name in MODEL))  # of packs with whole models
CONV_SOURCES = tuple(f"kinds/{name}" for name in CONV)  # of packs with convolutions; they take a second to compile
PACK_SOURCES = (
    "ffi.c",
    "arrays.c",
    "c_api.c",
    "serve.c",
    "tvm_ffi_stubs.c",
    "check.c",
    "pool.c",
    "scratchpad.c",
    *(f"kinds/{name}" for name in KINDS),
)

# Of generated loops: none that lets a compiler change what a node of a model computes. Every node rounds its own result,
# -0, NaN and infinity stay what they are; sums are vectors where codegen/loops/c_sums.py says so. Whole numbers wrap around:
# what a compiler concludes from sums of data that do not could take away what keeps an index inside its tensor.
GROUP_FLAGS = (
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",
    "-fwrapv",
    "-Wno-unused",
)

CompileObject = Callable[[Sequence[MicroKernel], str, Path], None]


def sources_of(ops: Sequence[PackedAny]) -> tuple[str, ...]:
    """The runtime's sources that a pack of these ops needs."""
    kernels = [kernel for op in ops if is_convolution(op.kind) for kernel in op.micro_kernels]
    return PACK_SOURCES + ((*CONV_SOURCES, *direct_sources(kernels)) if kernels else ())


def direct_sources(kernels: Iterable[MicroKernel]) -> tuple[str, ...]:
    """Loops of the depthwise convolutions among these kernels; each width and type is a source: they compile slowly."""
    names = sorted({direct_program(kernel) or "" for kernel in kernels} - {""})
    return tuple(f"kinds/{name.removeprefix('ht_')}.c" for name in names)


def pack_data(ops: Sequence[PackedAny]) -> str:
    """``pack_data.c``: kernels, plans and ops of a pack, and one exported function an op."""
    text = [f'#include "{name}"' for name in ("ht_pack.h", "kinds/dense.h", "kinds/sliced.h", "kinds/product.h")]
    text += sorted({line for op in ops for line in op.declarations().splitlines()})
    for index, op in enumerate(ops):
        text += [*head(op, index), *op.tables(index)]
    text += ["const ht_op ht_ops[] = {", *(row(op, index) for index, op in enumerate(ops)), "};"]
    text.append(f"const int ht_op_count = {len(ops)};")
    for index, op in enumerate(ops):
        text.append(
            f"HT_EXPORT int __tvm_ffi_{op.name}(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) "
            f"{{ (void)self; return ht_ffi_call({index}, args, count, result); }}"
        )
    return "\n".join(text) + "\n"


def pack_library(
    ops: Sequence[PackedAny],
    mcpu: str,
    toolchain: Toolchain,
    out: Path,
    compile_object: CompileObject | None = None,
    groups: str = "",
    programs: Sequence[MicroKernel] = (),
) -> None:
    """Build the pack's library: kernels (TVM), tables and runtime (C compiler). RuntimeError with the compiler's words.

    ``groups``: C of whole models' loops and schedules; ``programs``: kernels that it calls. ``compile_object`` turns kernels
    into one object file; a tuner has it done by a process that TVM is loaded in already.
    """
    compiled = compile_object or partial(object_code, objects=toolchain.objects)
    with tempfile.TemporaryDirectory(prefix="haotuner-", dir=out.parent) as scratch:
        data, code = Path(scratch) / "pack_data.c", Path(scratch) / "kernels.o"
        data.write_text(pack_data(ops))
        objects, sources = [code], list(sources_of(ops))
        with ThreadPoolExecutor() as pool:  # TVM, the groups and the runtime take about as long as one another
            kernels = sorted({*programs, *(k for op in ops for k in op.micro_kernels)}, key=lambda k: k.name)
            parts = [pool.submit(compiled, kernels, mcpu, code)]
            if groups:
                loops = Path(scratch) / "groups.c"
                loops.write_text(groups)
                objects.append(loops.with_suffix(".o"))
                flags = (*GROUP_FLAGS, f"-march={mcpu}")
                parts.append(pool.submit(toolchain.object, loops, [RUNTIME_SOURCES, toolchain.include], objects[-1], flags))
                sources += MODEL_SOURCES
            toolchain.compile_ahead([RUNTIME_SOURCES / name for name in sources], [RUNTIME_SOURCES])
            for part in parts:
                part.result()
        toolchain.link(objects, [data, *(RUNTIME_SOURCES / name for name in sources)], [RUNTIME_SOURCES], out)
