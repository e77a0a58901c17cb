"""The C source of a CUDA pack: device code as bytes, how its kernels are launched, and plan tables, all constant data."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence, Set
from pathlib import Path
from typing import Any

from haotuner.backends.backend import CompileObject, GroupSources
from haotuner.backends.cpu.compile import RUNTIME_SOURCES
from haotuner.backends.cpu.pack_op import head, row
from haotuner.backends.cuda.cubin import read_cubin
from haotuner.backends.cuda.pack_generated import PackedCudaGenerated, build_groups, group_tables
from haotuner.backends.cuda.pack_products import DTYPES, MOST_SPLITS, PackedCudaConv, PackedCudaDense, PackedCudaProduct
from haotuner.backends.toolchain import Toolchain
from haotuner.microkernels.cuda.dense import WINDOWS
from haotuner.microkernels.cuda.fused import ANY_STEPS, built_for, steps_of
from haotuner.microkernels.cuda.launch import Launch, fold_symbol, reduce_symbol, unfold_symbol
from haotuner.spec.cuda_arch import cuda_arch, needed_driver
from haotuner.spec.kernel import MicroKernel

# What every pack has, then what only one with CUDA code has.
CUDA_SOURCES = ("driver.c", "generated.c", "weight_cache.c", "launch.c", "loaded.c", "placed.c", "workspace.c")
KIND_SOURCES = (
    "cuda_epilogue.c",
    "cuda_dense.c",
    "cuda_queue.c",
    "cuda_product.c",
    "cuda_conv.c",
    "cuda_conv_phases.c",
    "cuda_conv_transposed.c",
    "cuda_conv_windows.c",
    "cuda_generated.c",
    "cuda_kind.c",
    "conv_residue.c",
    "product_check.c",
)
PACK_SOURCES = ("ffi.c", "arrays.c", "c_api.c", "serve.c", "tvm_ffi_stubs.c", "check.c", "pool.c",
                *(f"kinds/{name}" for name in KIND_SOURCES), *(f"cuda/{name}" for name in CUDA_SOURCES))  # fmt: skip
MODEL = ("host_ops", "branches", "cache", "chain", "crc32", "expected_times", "model_api", "liveness", "memory_planner",
         "plan", "read", "read_chain", "run", "sizes", "loop_exec", "weights")  # fmt: skip
ON_DEVICE = ("cuda/model.c", "cuda/model_host.c", "cuda/model_door.c")
MODEL_SOURCES = (*(f"model/{name}.c" for name in MODEL), *ON_DEVICE)  # of packs with whole models
CONVOLVED = ("conv1d", "conv2d", "conv_transpose1d", "conv_transpose2d")
TABLES = {"dense": "ht_cuda_dense_kind", "grouped": "ht_cuda_grouped_kind", "batch_matmul": "ht_cuda_product_kind",
          **{kind: "ht_cuda_conv_kind" for kind in CONVOLVED}}  # fmt: skip
GENERATED = "ht_cuda_generated_kind"  # of every other kind
QUEUES = {"dense": "ht_ffi_queue", "grouped": "ht_ffi_queue", "batch_matmul": "ht_ffi_queue_all",
          **{kind: "ht_ffi_queue" for kind in CONVOLVED}}  # fmt: skip
PackedOnDevice = PackedCudaDense | PackedCudaProduct | PackedCudaConv | PackedCudaGenerated


def needs(cubin: bytes, arch: str) -> int:
    """The oldest CUDA whose driver takes a cubin, as the driver says versions: 13000 for code of a CUDA 13 compiler.

    ValueError unless it holds code for ``arch``, variant included: code for sm_90a must not pass for sm_90's.
    """
    facts = read_cubin(cubin)
    if facts.arch != arch:
        raise ValueError(f"the device code is for {facts.arch}, the pack for {arch}")
    return needed_driver(arch, facts.toolkit // 10)


def reduced(ops: Sequence[PackedOnDevice]) -> tuple[str, ...]:
    """Dtypes whose partial sums some plan adds up: what the device code must have reductions for."""
    return tuple(dtype for dtype in DTYPES if any(op.dtype == dtype and op.splits for op in ops))


def pack_data(ops: Sequence[PackedOnDevice], cubin: Path, arch: str, *, models: bool = False) -> str:
    """``pack_data.c``: device code, kernels, plans and ops of a pack, and one exported function an op.

    ``models``: the pack has ``ht_cuda_pack_groups``, too.
    """
    kernels = {kernel.name: (kernel, launch, op) for op in ops
               for kernel, launch in zip(op.micro_kernels, op.launches, strict=True)}  # fmt: skip
    kernel_index = {name: index for index, name in enumerate(kernels)}
    text = [
        f'#include "{name}"'
        for name in ("ht_pack.h", *(f"kinds/cuda_{kind}.h" for kind in ("dense", "product", "conv", "generated")))
    ]
    text += _image(cubin)
    text.append("static const ht_cuda_kernel kernels[] = {")
    text += [_kernel(*kernel) for kernel in kernels.values()]
    text.append("};")
    code = cuda_arch(arch)
    sums = reduced(ops)
    symbols = ", ".join(f'"{reduce_symbol(dtype)}"' if dtype in sums else "NULL" for dtype in DTYPES)
    helped = [op for op in ops if op.kind in CONVOLVED and not all(launch.direct for launch in op.launches)]
    gathered = [op for op in helped if "transpose" in op.kind]
    seen = [op for op in helped if op not in gathered or any(launch.windows for launch in op.launches)]
    helpers = (_symbols(unfold_symbol, {op.dtype for op in seen}), _symbols(fold_symbol, {op.dtype for op in gathered}))
    text += ["extern const ht_cuda_groups_code ht_cuda_pack_groups;"] * models
    text.append(
        f'const ht_cuda_code ht_cuda_pack_code = {{ht_cuda_image, "{arch}", {code.major}, {code.minor}, {int(code.exact)}, '
        f"{needs(cubin.read_bytes(), arch)}, {len(kernels)}, kernels, {{{symbols}}}, {', '.join(helpers)}, "
        f"{'&ht_cuda_pack_groups' if models else 'NULL'}}};"
    )
    for index, op in enumerate(ops):
        text += [*head(op, index), *op.placed_tables(index, kernel_index)]
    text += [
        "const ht_op ht_ops[] = {",
        *(row(op, index, TABLES.get(op.kind, GENERATED)) for index, op in enumerate(ops)),
        "};",
    ]
    text.append(f"const int ht_op_count = {len(ops)};")
    text += [
        f"HT_EXPORT int __tvm_ffi_{op.name}(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) "
        f"{{ (void)self; return {QUEUES.get(op.kind, 'ht_ffi_queue_operands')}({index}, args, count, result); }}"
        for index, op in enumerate(ops)
    ]
    return "\n".join(text) + "\n"


def _symbols(name: Callable[[str], str], dtypes: Set[str]) -> str:
    """Of a helper's kernel of each type, NULL where no op wants it, as an array of C."""
    return "{" + ", ".join(f'"{name(dtype)}"' if dtype in dtypes else "NULL" for dtype in DTYPES) + "}"


def pack_library(
    ops: Sequence[PackedOnDevice],
    arch: str,
    toolchain: Toolchain,
    out: Path,
    compile_object: CompileObject,
    groups: GroupSources | None = None,
) -> dict[str, Any]:
    """Build the pack's library; RuntimeError with the compiler's words. Returns ``driver`` for the manifest.

    ``compile_object`` puts a cubin at a path: the kernels under their own names, and the reductions of their dtypes.
    """
    with tempfile.TemporaryDirectory(prefix="haotuner-", dir=out.parent) as scratch:
        data, code = Path(scratch) / "pack_data.c", Path(scratch) / "kernels.cubin"
        compile_object(sorted({k for op in ops for k in op.micro_kernels}, key=lambda k: k.name), arch, code)
        data.write_text(pack_data(ops, code, arch, models=groups is not None))
        sources, driver = [data, *(RUNTIME_SOURCES / name for name in PACK_SOURCES)], needs(code.read_bytes(), arch)
        if groups is not None:
            image, tables = code.with_name("groups.cubin"), code.with_name("groups.c")
            build_groups(groups.device, image, arch=arch, cache=groups.cache)
            tables.write_text(groups.c + group_tables(groups.launches, _image(image, "ht_cuda_group_image")))
            sources += [tables, *(RUNTIME_SOURCES / name for name in MODEL_SOURCES)]
            driver = max(driver, needs(image.read_bytes(), arch))
        toolchain.link([], sources, [RUNTIME_SOURCES], out)
        return {"driver": {"version": driver}}


def _image(cubin: Path, name: str = "ht_cuda_image") -> list[str]:
    path = str(cubin)
    if not path.isprintable() or '"' in path or "\\" in path:
        raise ValueError(f"the assembler cannot be told the path {path!r}; use another folder for temporary files")
    return [
        '__asm__(".section .rodata\\n.balign 64\\n.hidden NAME\\n.globl NAME\\nNAME:\\n"'.replace("NAME", name),
        f'        ".incbin \\"{path}\\"\\n.byte 0\\n.text\\n");',
        f"extern const unsigned char {name}[];",
    ]


def _kernel(kernel: MicroKernel, launch: Launch, op: PackedOnDevice) -> str:
    boxes = {item.operand: item for item in launch.maps}
    required = steps_of(op.op, phased=launch.windows == WINDOWS.index("phases"))
    if op.kind in TABLES and not launch.direct and built_for(kernel) not in (required, ANY_STEPS):
        raise ValueError(f"{kernel.name}: it is not built for the steps of {op.name}; its candidates end in ep{required}")
    if launch.maps and set(boxes) != {"x", "w"}:
        raise ValueError(f"{kernel.name}: tensor maps of {', '.join(boxes)}; a launch has those of x and w, or none")
    swizzles = {item.swizzle_bytes for item in launch.maps} or {0}
    if len(swizzles) > 1:
        raise ValueError(f"{kernel.name}: its two tensor maps have different swizzles")
    sides = [f"{{{boxes[side].rows}, {boxes[side].columns}}}" if boxes else "{0, 0}" for side in ("x", "w")]
    splits, kn = MOST_SPLITS if launch.splits else 1, int(op.reads_kn and not launch.windows) + int(launch.across)
    return (
        f'  {{"{kernel.name}", {launch.tile_m}, {launch.tile_n}, {launch.threads}, {launch.shared_bytes}, {launch.vector}, '
        f"{len(launch.maps)}, {', '.join(sides)}, {swizzles.pop()}, {kn}, {DTYPES.index(op.dtype)}, "
        f"{splits}, {int(launch.groups)}, {int(launch.batch)}, {int(launch.windows)}, {int(launch.direct)}}},"
    )
