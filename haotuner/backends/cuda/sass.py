"""Machine code of cubins as nvdisasm lists it: kernels, their loops, and what the loops hold."""

from __future__ import annotations

import re
import shutil
import sysconfig
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from haotuner.backends.cuda.compiler import run_tool

DISASM_SECONDS = 120
MULTIPLY = ("HGMMA", "HMMA", "FFMA")  # the widest first: what a kernel multiplies with is the first that it has in a loop
WIDTHS = {"HGMMA": 128, "HMMA": 32, "FFMA": 1}  # threads that one of them takes, as a fact of a record
MIN_LOOP = 8  # instructions: shorter ones wait for a barrier


def find_nvdisasm() -> Path | None:
    """On the PATH, beside nvcc, or in the wheel nvidia-cuda-nvdisasm."""
    nvcc = shutil.which("nvcc")
    beside = [Path(nvcc).resolve().parent / "nvdisasm"] if nvcc else []
    wheels = sorted(Path(sysconfig.get_path("purelib")).glob("nvidia/*/bin/nvdisasm"))
    result = shutil.which("nvdisasm")
    candidates = [*([Path(result)] if result else []), *beside, *wheels]
    return next((position for position in candidates if position.exists()), None)


@dataclass(frozen=True)
class Loop:
    """Instructions from a label to a branch back to it."""

    instructions: tuple[str, ...]

    def count(self, operation: str) -> int:
        """Instructions of an operation, as HGMMA, whatever follows its name."""
        return sum(item == operation for item in map(operation_of, self.instructions))


@dataclass(frozen=True)
class Code:
    """One kernel."""

    instructions: tuple[str, ...]
    loops: tuple[Loop, ...]

    def main_loop(self, operation: str) -> Loop:
        """The loop that the operation makes the largest part of."""
        return max(self.loops, key=lambda loop: loop.count(operation) / len(loop.instructions))

    def stores(self) -> Counter[str]:
        """Stores to global memory by their width: 128, 64, 32, U16 ..."""
        widths = (
            re.match(r"STG\.E\S*?\.(\d+|U16)\b", bare(instruction))
            for instruction in self.instructions
            if operation_of(instruction) == "STG"
        )
        return Counter(width[1] if width else "32" for width in widths)


def mix(code: Code) -> dict[str, float]:
    """Facts of a kernel's main loop, nothing without one: instructions, those that multiply, loads of spilled registers."""
    for operation in MULTIPLY:
        if any(loop.count(operation) for loop in code.loops):
            loop = code.main_loop(operation)
            return {
                "loop_instructions": float(len(loop.instructions)),
                "loop_multiplies": float(loop.count(operation)),
                "loop_width": float(WIDTHS[operation]),
                "loop_local_loads": float(loop.count("LDL")),
            }
    return {}


def bare(instruction: str) -> str:
    """Without its predicate."""
    return re.sub(r"^@!?U?P\w+\s+", "", instruction)


def operation_of(instruction: str) -> str:
    """``HGMMA`` of ``@P0 HGMMA.64x256x16.F32 ...``."""
    return bare(instruction).split()[0].split(".")[0]


def read(cubin: Path, nvdisasm: Path) -> dict[str, Code]:
    """Every kernel of a cubin by name; CompileFailed where the disassembler does not know its architecture."""
    done = run_tool([str(nvdisasm), "-c", str(cubin)], seconds=DISASM_SECONDS)
    sections = done.out.split("\t.section\t.text.")[1:]
    return {section.split(",")[0].strip('"'): _code(section) for section in sections}


def _code(section: str) -> Code:
    instructions: list[str] = []
    labels: dict[str, int] = {}
    for line in section.splitlines():
        if label := re.match(r"(\.L_\w+):", line):
            labels[label[1]] = len(instructions)
        elif match := re.search(r"/\*[0-9a-f]{4,}\*/\s+(.*?);", line):
            instructions.append(match[1].strip())
    return Code(tuple(instructions), tuple(_loops(instructions, labels)))


def _loops(instructions: list[str], labels: dict[str, int]) -> Iterator[Loop]:
    for at, instruction in enumerate(instructions):
        target = re.search(r"\bBRA\b.*`\((\.L_\w+)\)", instruction)
        if target and at - labels.get(target[1], at) >= MIN_LOOP:
            yield Loop(tuple(instructions[labels[target[1]] : at + 1]))
