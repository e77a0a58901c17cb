"""Measuring libraries written in C for the tests: jobs that go wrong, and micro-kernels with a seeded bug."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from haotuner.backends.cpu.compile import RUNTIME_SOURCES, TIMING_INCLUDES, TIMING_SOURCES
from haotuner.backends.cpu.timing_library import DENSE_SERVING
from haotuner.isolate.answers import Job
from tests.run_folder import toolchain

MR, NR, PW, K = 3, 8, 4, 37
ENVIRONMENT = {**os.environ, "TVM_FFI_DISABLE_TORCH_C_DLPACK": "1"}

JOB_SOURCE = """
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <tvm/ffi/c_api.h>
__attribute__((visibility("default")))
int __tvm_ffi_ht_time(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  (void)self; (void)args; (void)count;
  %s
  result->type_index = kTVMFFIInt;
  result->zero_padding = 0;
  result->v_int64 = 0;
  return 0;
}
"""

KERNEL_SOURCE = """
#include "kinds/dense.h"
#define MR {mr}
#define NR {nr}
#define PW {pw}
static int kernel(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {{
  (void)self; (void)count; (void)result;
  const DLTensor *tx = args[0].v_ptr, *tw = args[1].v_ptr, *ty = args[2].v_ptr;
  const float *x = tx->data, *w = tw->data;
  float* y = ty->data;
  int64_t tiles = args[3].v_int64, groups = args[4].v_int64, k = tx->shape[1];
  int64_t ldx = tx->strides[0], ldw = tw->strides[0], ldy = ty->strides[0], rows = tiles * MR, columns = groups * NR;
  {before}
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) {{
      float sum = {start};
      for (int64_t at = 0; at < k; ++at) sum += {term};
      {store};
    }}
  {after}
  (void)rows; (void)columns; (void)ldx; (void)ldw; (void)ldy;
  return {status};
}}
const ht_kernel ht_kernels[] = {{{{"mutant", kernel, MR, NR, PW, NULL, 0, NULL, 0}}}};
const int ht_kernel_count = 1;
const ht_typed* const ht_kernels_typed = NULL;
"""
SOUND = {
    "before": "",
    "start": "args[5].v_int64 ? y[i * ldy + j] : 0",
    "term": "x[i * ldx + at] * w[j / PW * ldw + at * PW + j % PW]",
    "store": "y[i * ldy + j] = sum",
    "after": "",
    "status": "0",
}


def job_library(folder: Path, body: str) -> Path:
    """A library whose measuring function does ``body`` instead."""
    source, out = folder / "job.c", folder / "job.so"
    source.write_text(JOB_SOURCE % body)
    toolchain().link([], [source], [], out)
    return out


# In place of hw_profiles/native/read.h: looks at memory are written down instead of made.
SPIED_READ = """
#include <stddef.h>
void spy(const char* kind, const void* at);
static long long read_pass(const char* data, size_t bytes, int variant) {
  (void)bytes, (void)variant;
  spy("look", data);
  return 0;
}
"""
SPY_SOURCE = """
__attribute__((visibility("default"))) long long spied_looks[4096], spied_calls[4096], spied_count;
static const void* weight;
void spy(const char* kind, const void* at) {
  if (*kind == 'c') weight = at;
  else if (spied_count < 4096) { spied_looks[spied_count] = (long long)at; spied_calls[spied_count++] = (long long)weight; }
}
"""


def mutant_library(folder: Path, **mutation: str) -> Path:
    """A measuring library of one plain C micro-kernel, parts of it replaced."""
    return _library(folder, mutation, [], [])


def spied_library(folder: Path) -> Path:
    """A measuring library that keeps where it looked, and which weight was read just before (``spied_*``, by ctypes)."""
    (folder / "read.h").write_text(SPIED_READ)
    (folder / "spy.c").write_text(SPY_SOURCE)
    noted = {"before": 'extern void spy(const char*, const void*); spy("call", w);'}
    return _library(folder, noted, [folder / "spy.c"], [folder])


def _library(folder: Path, mutation: Mapping[str, str], sources: Sequence[Path], headers: Sequence[Path]) -> Path:
    """Headers in ``headers`` come before ours."""
    source, out = folder / "mutant.c", folder / "mutant.so"
    source.write_text(KERNEL_SOURCE.format(mr=MR, nr=NR, pw=PW, **{**SOUND, **mutation}))
    runtime = [
        TIMING_SOURCES / "timing.c",
        TIMING_SOURCES / "watch.c",
        *(RUNTIME_SOURCES / name for name in DENSE_SERVING if name.endswith(".c")),
    ]
    toolchain().link([], [source, *runtime, *sources], [*headers, *TIMING_INCLUDES], out)
    return out


def job(library: Path, **fields: object) -> Job:
    """A complete job for a library of one kernel."""
    return {
        "do": "time", "library": str(library), "n": 2 * NR, "k": K, "pw": PW, "panels": 2 * NR // PW, "col_block": 2 * NR,
        "m": MR, "parts": [[0, 1]], "threads": 1, "split": 0, "row_block": 0, "k_block": 0, "sample_ns": 1000,
        "limit_ns": 10_000, "least": 3, "most": 4, "cold_bytes": 0,
        "mr": MR, "nr": NR, "nt": 0, "kernel": 0, "seed": 0, "op": f"dense_n{2 * NR}_k{K}", "floats": 2 * NR * K, **fields,
    }  # fmt: skip
