"""A small bundle built for the emulator, with sound and with broken kernels, and the script that runs it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from haotuner.bundle.build import assemble
from haotuner.bundle.candidates import Choice
from haotuner.bundle.libraries import NATIVE, PROBE_SOURCES, Resources
from haotuner.bundle.suites import TINY, Suite
from haotuner.microkernels.cuda.families import CUDA_FAMILIES
from haotuner.words.kernel import MicroKernel
from tests.emulator import build

RUN_SECONDS = 400  # a whole run takes 20 s on a quiet machine
SOUND = (
    "cuda_simt_fp32__bm32_bn64_bk8_tm4_tn4_v4_kn0",
    "cuda_simt_fp32__bm32_bn64_bk8_tm4_tn4_v1_kn0",
    "cuda_mma_fp16__bm32_bn32_bk32_wm1_wn2_st2_v8_kn0",
    "cuda_mma_bf16__bm32_bn32_bk32_wm1_wn2_st2_v8_kn0",
    "cuda_wgmma_fp16__bm64_bn32_bk64_wr1_st3_v8_kn0",
)
# A kernel and how its body is broken, one for each way a kernel can go wrong.
BROKEN: Mapping[str, Callable[[str], str]] = {
    "cuda_simt_fp32__bm32_bn64_bk16_tm4_tn4_v4_kn0": lambda body: re.sub(r"\+ \(xf_ptr", "- (xf_ptr", body),  # wrong
    "cuda_simt_fp32__bm64_bn64_bk8_tm4_tn4_v4_kn0": lambda body: " {\n  *(volatile int*)0 = 1;" + body[2:],  # crash
    "cuda_simt_fp32__bm16_bn64_bk8_tm2_tn4_v4_kn0": lambda body: (
        " {\n  for (volatile int on = 1; on;) {}" + body[2:]
    ),  # hang
    "cuda_simt_fp32__bm32_bn128_bk8_tm4_tn8_v4_kn0": lambda body: (  # stray: as if Y had another column
        " {\n  ht_cuda_args wider = ht_args;\n  wider.n += 1;\n" + body[2:].replace(">(ht_args, ", ">(wider, ")
    ),
}


@dataclass(frozen=True)
class Emulated:
    """g++ and the emulator in nvcc's place."""

    release: str = "emulated"
    broken: Mapping[str, Callable[[str], str]] = field(default_factory=dict)

    def kernels(self, source: str, library: Path, arch: str) -> Resources:
        for kernel, breaks in self.broken.items():
            start = source.find(" {\n", source.find(f"void {kernel}_kernel("))
            if f"void {kernel}_kernel(" in source:
                end = source.index("\n}\n", start)
                changed = breaks(source[start:end])
                assert changed != source[start:end], f"{kernel}: the text to break is gone"
                source = source[:start] + changed + source[end:]
        build.build_unit(source, library)
        library.with_suffix(".cc").unlink()
        return {}

    def probe(self, library: Path, arch: str) -> None:
        build.build_plain([NATIVE / name for name in PROBE_SOURCES], library)
        for unit in library.parent.glob("probe-*.cc"):
            unit.unlink()


def choice(name: str) -> Choice:
    kernel = MicroKernel.parse(name)
    return Choice(family=next(family for family in CUDA_FAMILIES if family.name == kernel.family), kernel=kernel)


def make(root: Path, *names: str, compiler: Emulated | None = None, suite: Suite = TINY) -> Path:
    """A bundle of these kernels for sm_90a under ``root``."""
    build.machine()  # before the compiler's threads: all libraries must share one
    chosen = {"sm_90a": [choice(name) for name in names]}
    assemble(root, chosen, suite, compiler or Emulated(), jobs=1, with_wheels=False, say=lambda line: None)
    return root


def environment(**machine: str) -> dict[str, str]:
    """The caller's environment, without what would let the run find this checkout, and the emulated machine's traits."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**kept, "OPENBLAS_NUM_THREADS": "1", **machine}


def run(root: Path, out: Path, *arguments: str, **machine: str) -> subprocess.CompletedProcess[str]:
    """``gpu_run.py`` as on a GPU machine, from another directory."""
    return subprocess.run(
        [sys.executable, "-W", "error", str(root / "gpu_run.py"), "--out", str(out), *arguments],
        capture_output=True, text=True, timeout=RUN_SECONDS, check=False, cwd=out.parent, env=environment(**machine),
    )  # fmt: skip
