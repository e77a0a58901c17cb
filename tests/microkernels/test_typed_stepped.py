"""Cheap epilogues of whole sums in one pass: the bits of the three passes that it stands for, on every instruction set."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from haotuner.backends.cpu.compile import RUNTIME_SOURCES, kernel_table, object_code, types_of
from haotuner.microkernels.cpu.epilogue import steps_of
from haotuner.microkernels.cpu.typed import CpuTyped, output_of, stepped_symbol
from haotuner.microkernels.index import families_for
from haotuner.ops.epilogue import operands_of
from haotuner.runtime.arrays import numpy_type
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from tests.microkernels.test_cpu_dense_results import TARGETS
from tests.run_folder import toolchain

ROWS, STRIDE = 5, 48
STEPPED = (
    "epilogue=scale+bias,out=uint8",
    "epilogue=scale+bias+clamp,out=int8",
    "epilogue=bias+relu+scale,out=int32",
    "epilogue=scale+hardswish,out=fp32",
    "epilogue=scale+bias+hardsigmoid+relu6,out=bf16",
    "epilogue=relu,out=fp16",
)
APART = (
    "dtype=bf16,epilogue=scale+bias",
    "dtype=int8",
    "dtype=int8,epilogue=scale+silu",
    "dtype=int8,epilogue=scale+residual",
)


def kernel_of(rest: str, lanes: int) -> MicroKernel:
    op = Op.parse(f"dense:n=48,k=8,{rest}")
    (family,) = families_for(op, "cpu")
    assert isinstance(family, CpuTyped)
    return family.typed(op, (1, lanes, lanes, 1, lanes, 0))


def test_steps_that_read_tensors_or_compute_long_stay_programs() -> None:
    assert [stepped_symbol(kernel_of(rest, 8)) for rest in APART] == [None] * len(APART)
    symbols = [stepped_symbol(kernel_of(f"dtype=int8,{rest}", 8)) for rest in STEPPED]
    assert None not in symbols and len(set(symbols)) == len(STEPPED)


@pytest.mark.long
@pytest.mark.parametrize("target", TARGETS)
def test_one_pass_has_the_bits_of_three(target: tuple[str, int], tmp_path: Path) -> None:
    mcpu, lanes = target
    kernels = [kernel_of(f"dtype=int8,{rest}", lanes) for rest in STEPPED]
    both = built(kernels, mcpu, tmp_path)
    rng = np.random.default_rng(5)
    for index, kernel in enumerate(kernels):
        kind = np.dtype(np.uint16) if output_of(kernel) == "bf16" else numpy_type(output_of(kernel))
        names = [name for name, _ in operands_of(steps_of(kernel))]
        for columns in (1, 7, 16, 24, 48):
            sums = rng.integers(-90_000, 90_000, (ROWS, STRIDE), dtype=np.int32)
            width = {name: 40 / 9_000 if name == "scale" else 40 for name in names}
            operands = {name: rng.normal(0, width[name], columns).astype(np.float32) for name in names}
            if "high" in operands:
                operands["high"] = operands["low"] + np.float32(60)
            results = [np.full((ROWS, STRIDE), 77, kind) for _ in range(2)]
            pointers = (ctypes.c_void_p * 5)(*(value.ctypes.data for value in operands.values()))
            words = [ctypes.c_void_p(array.ctypes.data) for array in (sums, *results)]
            assert both(index, *words, pointers, len(names), ctypes.c_int64(columns)) == 0
            assert results[0].tobytes() == results[1].tobytes(), (kernel.name, columns)
            assert (results[0][:, columns:] == 77).all(), "nothing beyond the columns is written"
            assert columns == 1 or len(np.unique(results[0][:, :columns])) > 1


def built(kernels: list[MicroKernel], mcpu: str, folder: Path) -> Any:
    """``both(kernel, sums, one, three, given, extras, columns)``: one pass, then three over the same sums."""
    import tvm_ffi

    text = [
        '#include "kinds/dense.h"',
        '#include "epilogue.h"',
        kernel_table(kernels, "kernels", "static "),
        *(types_of(kernel, f"typed_{index}") for index, kernel in enumerate(kernels)),
        f"static const ht_typed* const types[] = {{{', '.join(f'&typed_{index}' for index in range(len(kernels)))}}};",
        "#pragma GCC visibility push(default)",
        "int both(int index, void* sums, char* one, char* three, const float** given, int extras, int64_t columns);",
        "int both(int index, void* sums, char* one, char* three, const float** given, int extras, int64_t columns) {",
        "  const ht_kernel* k = &kernels[index];",
        "  const ht_typed* typed = types[index];",
        f"  const int64_t step = {STRIDE} * typed->y.bits / 8;",
        "  ht_extra extra[HT_MAX_EXTRA] = {{0}};",
        "  for (int i = 0; i < extras; ++i) extra[i] = (ht_extra){given[i], 0, 1};",
        f"  k->stepped(sums, {STRIDE}, one, step, {ROWS}, columns, given);",
        f"  typed->floats(sums, {STRIDE}, sums, {STRIDE * 4}, {ROWS}, columns);",
        f"  const int rc = ht_epilogue_run(k->epilogue, k->lanes, sums, {STRIDE}, extra, extras, 0, 0, {ROWS}, columns);",
        f"  typed->store(sums, {STRIDE}, three, step, {ROWS}, columns);",
        "  return rc;",
        "}",
    ]
    source, code, out = folder / "both.c", folder / "kernels.o", folder / "both.so"
    source.write_text("\n".join(text) + "\n")
    object_code(kernels, mcpu, code, ways="wide")
    toolchain().link([code], [source], [RUNTIME_SOURCES], out)
    ctypes.CDLL(tvm_ffi.libinfo.find_libtvm_ffi(), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(out)).both
