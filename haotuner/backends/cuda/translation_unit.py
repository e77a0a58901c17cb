"""CUDA micro-kernels as one translation unit of device code: kernels and reductions alone, by one argument structure.

TVM writes each program as CUDA C++; of its text only the kernels and the helpers that they call are kept. A kernel becomes
an inlined function under an ``extern "C" __global__ void SYMBOL(ht_cuda_args[, x_map, w_map])``. The unit includes
nothing: ``nvcc -cubin`` and NVRTC (``-default-device``) compile it as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from haotuner.backends.script_parser import shallow
from haotuner.errors import HaotunerError
from haotuner.microkernels.cuda.dense import TVM_DTYPES, CudaDense
from haotuner.microkernels.cuda.device_calls import DEVICE, ELEMENT_TYPES, UNROLL, products_text, warpgroup_text
from haotuner.microkernels.cuda.direct import CudaDirect
from haotuner.microkernels.cuda.fused import built_for, steps_text
from haotuner.microkernels.cuda.generated import CudaGenerated
from haotuner.microkernels.cuda.generated_kernel import shared_text
from haotuner.microkernels.cuda.launch import REDUCE_THREADS, fold_symbol, reduce_symbol, unfold_symbol
from haotuner.ops.dtypes import DTYPE_BYTES
from haotuner.spec.kernel import MicroKernel

ARGUMENTS = Path(__file__).parents[2] / "runtime" / "native" / "cuda" / "ht_cuda_args.h"
# Text and instructions do not depend on it; it has those of every family.
GENERATED_FOR = {
    "kind": "cuda", "arch": "sm_90a",
    "max_threads_per_block": 1024, "max_shared_memory_per_block": 232448, "thread_warp_size": 32,
}  # fmt: skip
# Unrolled loops stay loops with a pragma: a third of the text, half of nvcc's time, the same machine code.
PASSES = {"tirx.UnrollLoop": {"explicit_unroll": False}}
# What TVM calls a kernel's parameters, as the fields of the argument.
FIELDS = {"m": "m", "n": "n", "k": "k", "x_stride": "ldx", "x_ptr": "x", "x_rows_ptr": "x", "wf_ptr": "w", "w_ptr": "w",
          "w_stride": "ldw"}  # fmt: skip
ALONG_K = ("k", "x_stride", "w_stride")  # of these a program that takes several elements of k as one is told less
BYTES = "int8"
OWN_TYPES = {
    "half": "ht_half", "__float2half_rn": "ht_half", "CUtensorMap": "ht_tensor_map",
    "nv_bfloat16": "ht_bf16", "__nv_bfloat16": "ht_bf16", "__float2bfloat16_rn": "ht_bf16",
}  # fmt: skip
UNFOLDED = {4: "unsigned int", 2: "unsigned short", 1: "unsigned char"}  # what image columns are copied as, by bytes
WITH_STEPS = r"\b(ht_store_\w+|ht_gemv\w*)<"  # device functions of two builds
WITH_ARGUMENT = (
    r"\b(ht_first_step|ht_last_step|(?:ht_store_\w+|ht_gemv\w*|ht_window_\w+)<[^>]*>)\("  # device functions that read it
)
# What a block of a grouped kernel finds out for itself.
GROUP_WORDS = {
    "((int)blockIdx.x)": "ht_at.block", "ht_block_again()": "ht_at.block", "ht_x_row()": "ht_at.x_row",
    "ht_w_row()": "ht_at.w_row",
}  # fmt: skip
_HELPER = re.compile(r"^__forceinline__ __device__ [^;{]*\{\n.*?^\}\n", re.MULTILINE | re.DOTALL)
_KERNEL = re.compile(
    r'^extern "C" __global__ void __launch_bounds__\((?P<threads>\d+)(?:, (?P<blocks>\d+))?\) '
    r"(?P<symbol>\w+)_kernel\((?P<parameters>[^;{]*)\) \{\n(?P<body>.*?)^\}\n",
    re.MULTILINE | re.DOTALL,
)


class NotAUnit(HaotunerError):
    """TVM's text is not as this version of haotuner reads it."""


def device_unit(
    every: Mapping[str, tuple[CudaDense | CudaGenerated | CudaDirect, MicroKernel]],
    *,
    reduces: Sequence[str] = (),
    bounds: bool = True,
) -> str:
    """CUDA C++ of the programs by symbol, and of ``haotuner_reduce_DTYPE`` for each dtype of ``reduces``.

    ``bounds=False`` leaves out the least number of resident blocks: ptxas then takes the registers that it wants.
    Raises NotAUnit where TVM writes what cannot be read.
    """
    written: dict[str, tuple[CudaGenerated, MicroKernel]] = {}
    direct: dict[str, tuple[CudaDirect, MicroKernel]] = {}
    programs: dict[str, tuple[CudaDense, MicroKernel]] = {}
    for symbol, (family, kernel) in every.items():
        if isinstance(family, CudaGenerated):
            written[symbol] = family, kernel
        elif isinstance(family, CudaDirect):
            direct[symbol] = family, kernel
        else:
            programs[symbol] = family, kernel
    needed = dict.fromkeys(name for family, _ in programs.values() for name in family.device)
    families = [family for family, _ in programs.values()]
    needed |= dict.fromkeys(
        ["bytes"] * (BYTES in reduces or any(family.dtype == BYTES for family in families))
        + ["groups"] * any(family.grouped for family in families)
        + ["batches"] * any(family.batched for family in families)
        + ["windows"] * any(family.windows for family in families)
        + ["phases"] * any(family.phased for family in families)
    )
    texts = dict.fromkeys(("prelude", "result", "epilogue", *needed))
    parts = [ARGUMENTS.read_text(), *(_device_text(name) for name in texts)]
    # The argument's types come first, its text after them; then what the epilogue calls.
    parts[0], parts[1] = _types_first(parts[1], parts[0])
    parts.insert(2, _device_text("short") + steps_text())
    if programs:
        parts += _generated(programs, bounds)
    # Products of a batch are those of convolutions, too, whose other factor is laid out first.
    unfolded = sorted({family.dtype for family in families if family.batched})
    if unfolded or direct:
        parts += [_device_text("unfold"), _device_text("fold")]
    if direct:
        parts += [_device_text("direct"), *(family.text(kernel, symbol) for symbol, (family, kernel) in direct.items())]
    if unfolded:
        parts += [text(dtype) for dtype in unfolded for text in (_unfolding, _folding)]
    if written:
        parts.append(shared_text())
        if any(family.launch(kernel).shared_bytes for family, kernel in written.values()):
            parts.append(_device_text("attention"))
        products = sorted({product for family, kernel in written.values() for product in family.products(kernel)})
        if products:
            parts += [products_text(), *(warpgroup_text(*product) for product in products), _device_text("attention_wide")]
        parts += [_written(symbol, *function) for symbol, function in written.items()]
    if reduces:
        parts.append(_device_text("reduce"))
        parts += [_reduction(dtype) for dtype in reduces]
    return "\n".join(parts)


def _written(symbol: str, family: CudaGenerated, kernel: MicroKernel) -> str:
    text = family.text(kernel, symbol)
    if text is None:
        raise NotAUnit(f"{kernel.name}: the operator cannot be run with this schedule on a GPU")
    return text


def _device_text(name: str) -> str:
    return (DEVICE / f"{name}.cuh").read_text()


def _types_first(prelude: str, arguments: str) -> tuple[str, str]:
    end = prelude.index("#endif\n") + len("#endif\n")
    return prelude[:end] + arguments, prelude[end:]


def _generated(programs: Mapping[str, tuple[CudaDense, MicroKernel]], bounds: bool) -> list[str]:
    source = _tvm_source(tuple(programs.items()))
    device, _, _ = source.partition("#include <tvm/ffi/c_api.h>")
    result = {kernel["symbol"]: kernel for kernel in _KERNEL.finditer(device)}
    if result.keys() != programs.keys():
        raise NotAUnit(f"asked TVM for {', '.join(programs)}, read {', '.join(result) or 'none'}; is it the pinned TVM?")
    helpers = [text for text in _HELPER.findall(device) if "GmmaDescriptor" not in text]
    return [
        _own_types("".join(helpers)),
        *(_kernel(result[symbol], source, bounds, *programs[symbol]) for symbol in programs),
    ]


@lru_cache(maxsize=16)  # the text of a kernel is hashed before it is compiled
def _tvm_source(programs: tuple[tuple[str, tuple[CudaDense, MicroKernel]], ...]) -> str:
    import tvm
    from tvm.backend.cuda import export_cuda_host

    target = tvm.target.Target(GENERATED_FOR, host="cuda_host")
    functions: dict[object, object] = {}
    for module in shallow(lambda: [family.schedule(kernel, symbol) for symbol, (family, kernel) in programs]):
        functions.update(module.functions.items())
    with target, tvm.transform.PassContext(config=PASSES):
        return str(export_cuda_host(tvm.compile(tvm.IRModule(functions), target=target, tir_pipeline="tirx").mod))


def _kernel(result: re.Match[str], source: str, bounds: bool, family: CudaDense, kernel: MicroKernel) -> str:
    """One kernel: TVM's as an inlined function, and ours above it that unpacks the argument."""
    symbol, maps, packed = result["symbol"], "", family.packed(kernel)
    parameters: list[str] = []
    passed: list[str] = []
    launcher = re.search(rf" __tvm_ffi_{symbol}\([^;{{]*\) {{\n(.*?)TVM_FFI_SAFE_CALL_END", source, re.DOTALL)
    host = "" if launcher is None else launcher[1]
    for parameter in result["parameters"].split(", "):
        *kind, name = parameter.split()
        if "__grid_constant__" in kind:
            parameters.append(f"const ht_tensor_map& {name}")
            passed.append(name)
            continue
        parameters.append(_own_types(parameter))
        if name in FIELDS:
            of = f" / {packed}" if packed > 1 and name in ALONG_K else ""
            passed.append(f"({_own_types(kind[0])}){f'(ht_args.{FIELDS[name]}{of})' if of else f'ht_args.{FIELDS[name]}'}")
        elif expression := re.search(rf"^  int32_t {name} = ([^;]*);$", host, re.MULTILINE):
            k = "ht_args.k" if packed == 1 else f"(ht_args.k / {packed})"
            passed.append(re.sub(r"\bk\b", k, re.sub(r"\b([mn])\b", r"ht_args.\1", expression[1])))
        else:
            raise NotAUnit(f"{symbol}: TVM passes {parameter!r}, which nothing says the value of; is it the pinned TVM?")
    if "x_map" in passed:
        maps = ", const __grid_constant__ ht_tensor_map x_map, const __grid_constant__ ht_tensor_map w_map"
    body = re.sub(WITH_STEPS, rf"\1<{built_for(kernel)}ull, ", _own_types(result["body"]))
    body = re.sub(WITH_ARGUMENT, r"\1(ht_args, ", body)
    # The 128-byte swizzle repeats every 1024 bytes of shared memory: the tiles are placed for it, so it starts there.
    body = re.sub(r"extern __shared__ __align__\(\d+\)", "extern __shared__ __align__(1024)", body)
    for times, call in UNROLL.items():
        body = body.replace(f"{call}();", f"#pragma unroll {times}")
    if family.grouped:
        for own, ours in GROUP_WORDS.items():
            body = body.replace(own, ours)
        if "blockIdx.x" in body:
            raise NotAUnit(f"{symbol}: TVM writes the block's number in a form that is not known; is it the pinned TVM?")
    limits = result["threads"] + (f", {result['blocks']}" if bounds and result["blocks"] else "")
    if family.grouped:
        return _grouped_kernel(symbol, ", ".join(parameters), ", ".join(passed), maps, limits, body, family, kernel)
    if family.batched:
        return _batched_kernel(symbol, ", ".join(parameters), ", ".join(passed), limits, body, family, kernel)
    taken = f"const __grid_constant__ ht_cuda_args ht_args{maps}"
    return (
        f"HT_DEVICE void {symbol}_kernel(const ht_cuda_args& ht_args, {', '.join(parameters)}) {{\n{body}}}\n"
        f'extern "C" __global__ void __launch_bounds__({limits}) {symbol}({taken}) {{\n'
        f"  {symbol}_kernel(ht_args, {', '.join(passed)});\n}}\n"
    )


def _grouped_kernel(
    symbol: str, parameters: str, passed: str, maps: str, limits: str, body: str, family: CudaDense, kernel: MicroKernel
) -> str:
    """The kernel of one group's product, and ours above it that finds the block's group first."""
    launch = family.launch(kernel)
    element = ELEMENT_TYPES[TVM_DTYPES[family.dtype]]
    enter = f"ht_enter_group<{element}, {launch.tile_m}, {launch.tile_n}, {int(family.reads_kn(kernel))}>"
    taken = f"const __grid_constant__ ht_cuda_args ht_all, const __grid_constant__ ht_cuda_groups ht_groups{maps}"
    return (
        f"HT_DEVICE void {symbol}_kernel(const ht_cuda_args& ht_args, const ht_place& ht_at, {parameters}) {{\n{body}}}\n"
        f'extern "C" __global__ void __launch_bounds__({limits}) {symbol}({taken}) {{\n'
        f"  ht_cuda_args ht_args = ht_all;\n  ht_place ht_at;\n"
        f"  if (!{enter}(ht_args, ht_groups, ht_at)) return;\n"
        f"  {symbol}_kernel(ht_args, ht_at, {passed});\n}}\n"
    )


def _batched_kernel(
    symbol: str, parameters: str, passed: str, limits: str, body: str, family: CudaDense, kernel: MicroKernel
) -> str:
    """The kernel of one product of a batch, and ours above it that finds the block's matrices first."""
    element = ELEMENT_TYPES[TVM_DTYPES[family.dtype]]
    taken = "const __grid_constant__ ht_cuda_args ht_all, const __grid_constant__ ht_cuda_batch ht_batch"
    kind, more, enter = "batch", "", f"ht_enter_matrix<{element}>(ht_args);"
    if family.windows:
        of = "phase" if family.phased else "window"
        kind, more, taken = of, ", ht_windows", f"{taken}, const __grid_constant__ ht_cuda_{of}s ht_windows"
    if family.phased:
        launch = family.launch(kernel)
        enter = f"if (!ht_enter_phase<{element}, {launch.tile_m}, {launch.tile_n}>(ht_args)) return;"
    return (
        f"HT_DEVICE void {symbol}_kernel(const ht_{kind}_args& ht_args, {parameters}) {{\n{body}}}\n"
        f'extern "C" __global__ void __launch_bounds__({limits}) {symbol}({taken}) {{\n'
        f"  ht_{kind}_args ht_args(ht_all, ht_batch{more});\n  {enter}\n"
        f"  {symbol}_kernel(ht_args, {passed});\n}}\n"
    )


def _own_types(text: str) -> str:
    return re.sub(rf"\b({'|'.join(OWN_TYPES)})\b", lambda name: OWN_TYPES[name[0]], text)


def _unfolding(dtype: str) -> str:
    return (
        f'extern "C" __global__ void __launch_bounds__({REDUCE_THREADS}) {unfold_symbol(dtype)}'
        f"(const __grid_constant__ ht_cuda_unfold ht_args) {{\n"
        f"  ht_unfold<{UNFOLDED[DTYPE_BYTES[dtype]]}>(ht_args);\n}}\n"
    )


def _folding(dtype: str) -> str:
    types = "ht_byte, int" if dtype == BYTES else ELEMENT_TYPES[TVM_DTYPES[dtype]]
    return (
        f'extern "C" __global__ void __launch_bounds__({REDUCE_THREADS}) {fold_symbol(dtype)}'
        f"(const __grid_constant__ ht_cuda_fold ht_folded, const __grid_constant__ ht_cuda_args ht_args) {{\n"
        f"  ht_fold<{types}>(ht_args, ht_folded);\n}}\n"
    )


def _reduction(dtype: str) -> str:
    if dtype not in TVM_DTYPES:
        raise ValueError(f"no reduction for dtype {dtype!r}; known: {', '.join(TVM_DTYPES)}")
    return (
        f'extern "C" __global__ void __launch_bounds__({REDUCE_THREADS}) {reduce_symbol(dtype)}'
        f"(const __grid_constant__ ht_cuda_args ht_args) {{\n"
        f"  {'ht_reduce_bytes' if dtype == BYTES else f'ht_reduce<{ELEMENT_TYPES[TVM_DTYPES[dtype]]}>'}(ht_args);\n}}\n"
    )
