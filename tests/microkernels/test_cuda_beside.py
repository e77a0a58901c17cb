"""Programs with several outputs as CUDA C++: executed by the emulator on ragged shapes, in fp32 and fp16."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from haotuner.backends.cuda.translation_unit import ARGUMENTS, _types_first
from haotuner.microkernels.cuda.device_calls import DEVICE
from haotuner.microkernels.cuda.generated_kernel import kernel_text, shared_text
from tests.emulator import build
from tests.microkernels.cuda_beside import PROGRAMS
from tests.microkernels.cuda_generated import entries
from tests.standin.patience import ran

ROOT = Path(__file__).parents[2]


def unit() -> str:
    kernels = (kernel_text(symbol, plan, 256, dtype) for symbol, (plan, dtype) in PROGRAMS.items())
    return "\n".join([*_types_first((DEVICE / "prelude.cuh").read_text(), ARGUMENTS.read_text()), shared_text(), *kernels])


@pytest.mark.skipif(bool(build.toolchain_missing()), reason=build.toolchain_missing())
def test_all_outputs_are_right_on_ragged_shapes(tmp_path):
    source = tmp_path / "beside.cu"
    source.write_text(unit() + entries(tuple(PROGRAMS)))
    library = build.build_plain([source], tmp_path / "beside.so")
    command = [sys.executable, "-m", "tests.microkernels.cuda_beside", str(library), *PROGRAMS]
    done = ran(command, 200, cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr[-2000:]


def test_a_kernel_writes_all_and_loads_once():
    plan, dtype = PROGRAMS["norm_fp16"]
    text = kernel_text("norm", plan, 256, dtype)
    assert text.count("__global__") == 1 and text.count("ht_half* __restrict__") == 7
    assert text.count("const ht_half* __restrict__") == 2, "inputs alone are not written"
    assert text.count("ht_take<4, true>(") == 2 + 2 * 3, "each input's first iteration, for all, and an end of each pass"
    assert text.count("__shfl_xor_sync") == 3, "sum and largest in one pass, then the squares"
    plan, _ = PROGRAMS["norm_stages"]
    text = kernel_text("norm", plan)
    assert "if (a.phase == 3) {" in text and "ht_max<long long>(" in text, "one part of the last stage says what is a row's"
