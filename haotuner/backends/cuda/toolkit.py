"""The CUDA toolkit on this machine: where nvcc is, what it builds for, and what ptxas reports."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from haotuner.errors import EnvironmentMissing, HaotunerError
from haotuner.isolate.answers import TimedOut
from haotuner.isolate.command import Finished, run
from haotuner.spec.device import Device

CUDA_12_ONLY = ("sm_60", "sm_61", "sm_70", "sm_72")  # dropped by the CUDA 13 toolkit (its release notes)
QUERY_SECONDS = 60  # nvcc --version on a cold disk took 3 s here
COMPILE_SECONDS = 1800  # a file of 8 kernels takes 10 to 40 s, a whole model has a hundred; who needs more is stuck


class CompileFailed(HaotunerError):
    """A compiler refused generated code, or did not finish; the message carries its output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolkit:
    """One CUDA compiler."""

    nvcc: Path
    release: str  # "13.0"
    archs: tuple[str, ...]  # real architectures it builds for, as sm_80

    def builds_for(self, arch: str) -> bool:
        """True if machine code of this architecture can be made."""
        return arch.rstrip("af") in self.archs  # nvcc lists sm_90, and builds its sm_90a with it


def find_toolkit(nvcc: str = "nvcc") -> Toolkit:
    """The toolkit whose nvcc has this name or path; EnvironmentMissing if there is none that answers."""
    result = shutil.which(nvcc)
    if result is None:
        raise EnvironmentMissing(
            f"asked for the CUDA compiler {nvcc!r}, found none on the PATH; install a CUDA 12.8 or later toolkit, or select "
            "and predict only (candidates, explain), which needs no compiler"
        )
    version = run_tool([result, "--version"], seconds=QUERY_SECONDS).out
    release = re.search(r"release ([0-9]+\.[0-9]+)", version)
    codes = run_tool([result, "--list-gpu-code"], seconds=QUERY_SECONDS).out.split()
    if release is None or not codes:
        raise EnvironmentMissing(f"{result} does not answer like nvcc: {version.strip()[:200]!r}")
    return Toolkit(nvcc=Path(result), release=release[1], archs=tuple(codes))


def why_not_built(device: Device, nvcc: str = "nvcc") -> str:
    """Reason that no machine code for a GPU is made here; empty where it is."""
    if device.kind != "cuda":
        return f"kernels are CUDA C++, {device.arch} is no CUDA architecture"
    try:
        toolkit = find_toolkit(nvcc)
    except EnvironmentMissing as error:
        return str(error)
    if toolkit.builds_for(device.arch):
        return ""
    older = "; a CUDA 12 nvcc builds for sm_50 to sm_90" if device.arch in CUDA_12_ONLY else ""
    return f"nvcc {toolkit.release} builds for {', '.join(toolkit.archs)}, not for {device.arch}{older}"


def run_tool(words: Sequence[str], *, seconds: float) -> Finished:
    """Run a build tool to its end; CompileFailed with the end of its output if it fails or takes too long."""
    try:
        done = run(words, seconds)
    except TimedOut as error:
        raise CompileFailed(f"{words[0]} did not finish in {seconds:.0f} s: {' '.join(words)[:400]}") from error
    except OSError as error:
        raise EnvironmentMissing(f"{words[0]} cannot be started: {error}") from error
    if done.code:
        output = (done.errors or done.out).strip()
        raise CompileFailed(f"{Path(words[0]).name} exited {done.code}: {output[-4000:]}")
    return done


def read_resources(ptxas: str) -> Mapping[str, Mapping[str, float]]:
    """Resources of each kernel as ``ptxas -v`` reports them: registers and bytes of stack, spills and static shared memory.

    A kernel built for several architectures keeps the largest figure of each.
    """
    result: dict[str, dict[str, float]] = {}
    kernel: dict[str, float] = {}
    for line in ptxas.splitlines():
        if entry := re.search(r"Compiling entry function '(\w+)'", line):
            kernel = result.setdefault(entry[1], {})
        seen: dict[str, float] = {}
        if stack := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            seen = {"stack_bytes": int(stack[1]), "spill_bytes": int(stack[2]) + int(stack[3])}
        if registers := re.search(r"Used (\d+) registers", line):
            shared = re.search(r"(\d+) bytes smem", line)
            seen = {"registers": int(registers[1]), "static_shared_bytes": int(shared[1]) if shared else 0}
        for name, value in seen.items():
            kernel[name] = max(value, kernel.get(name, 0))
    return result
