"""Triton's matmul compiled ahead of time, without a GPU: ``python -m tests.bench.triton_ahead`` with jobs as JSON on stdin.

A job is ``[capability, dtype, rows, columns, step, warps, stages, path]``: a cubin is written to the path. The answer is a
list of texts, empty where it was written, else what Triton said.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

DTYPES = {"fp32": "fp32", "fp16": "fp16", "bf16": "bf16"}
GROUPED = 8


def build(capability: int, dtype: str, rows: int, columns: int, step: int, warps: int, stages: int, path: str) -> None:
    """Compile one tile."""
    triton: Any = importlib.import_module("triton")
    compiler: Any = importlib.import_module("triton.backends.compiler")
    multiply = importlib.import_module("haotuner.bench.peers.gpu_triton_kernel").multiply
    pointers = dict.fromkeys(("x", "w", "y"), f"*{DTYPES[dtype]}")
    constants = {"ROWS": rows, "COLUMNS": columns, "STEP": step, "GROUPED": GROUPED}
    signature = {**pointers, **dict.fromkeys(("m", "n", "k"), "i32"), **dict.fromkeys(constants, "constexpr")}
    # As at run time: what is a multiple of 16 there is known to be one.
    divisible = {(at,): [["tt.divisibility", 16]] for at in range(6)}
    source = triton.compiler.ASTSource(multiply, signature, constexprs=constants, attrs=divisible)
    target = compiler.GPUTarget("cuda", capability, 32)
    done = triton.compile(source, target=target, options={"num_warps": warps, "num_stages": stages})
    Path(path).write_bytes(done.asm["cubin"])


def main() -> None:
    """Answer each job."""
    answers = []
    for job in json.load(sys.stdin):
        try:
            build(*job)
            answers.append("")
        except Exception as error:  # what Triton refuses is a cell of the page
            answers.append(f"{type(error).__name__}: {error}"[:200] or "failed")
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
