"""nvcc as a compiler of cubins."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from haotuner.backends.cuda.compiler import FLAGS, Compiled, compiled
from haotuner.backends.cuda.toolkit import COMPILE_SECONDS, Toolkit, find_toolkit, run_tool


@dataclass(frozen=True, slots=True)
class Nvcc:
    """The compiler of a toolkit."""

    toolkit: Toolkit

    @property
    def name(self) -> str:
        """As ``nvcc 13.0``."""
        return f"nvcc {self.toolkit.release}"

    def builds_for(self, arch: str) -> bool:
        """True if the toolkit makes machine code of this architecture."""
        return self.toolkit.builds_for(arch)

    def compile(self, source: str, arch: str, flags: Sequence[str] = ()) -> Compiled:
        """Compile a unit in a process of its own. CompileFailed with nvcc's words, or after ``COMPILE_SECONDS``."""
        with tempfile.TemporaryDirectory() as folder:
            unit, cubin = Path(folder, "unit.cu"), Path(folder, "unit.cubin")
            unit.write_text(source)
            words = ["-cubin", "-Xptxas=-v", f"-arch={arch}", *FLAGS, *flags]
            command = [str(self.toolkit.nvcc), *words, str(unit), "-o", str(cubin)]
            done = run_tool(command, seconds=COMPILE_SECONDS)
            return compiled(cubin.read_bytes(), done.out + done.errors, arch)


def find_nvcc(nvcc: str = "nvcc") -> Nvcc:
    """The compiler nvcc of this name or path; EnvironmentMissing if there is none that answers."""
    return Nvcc(find_toolkit(nvcc))
