"""What a call costs beside its kernel: ``python -m tests.bench.dispatch [--json]``. Needs torch; run it on a quiet machine.

From C: call by call over the bare kernel, same tensors. From Python: over the bare tvm-ffi call, against ``F.linear`` on the
same tensors, and ``torch.ops.haotuner`` against an operator of the same schema and kind that only makes its output.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

import haotuner
from haotuner.torch import register
from tests.runtime.native_builds import LIBRARY, cc
from tests.runtime.packs import LANES, best_level, make_pack, packed_op

ONE, SMALL = "dense_n1_k1", "dense_n16_k16"
ROUNDS, CALLS = 60, 2000


def from_c(pack: Path, folder: Path) -> dict[str, float]:
    """Percentiles in ns of the bare kernel and of ht_call."""
    program = cc([Path(__file__).parent / "dispatch.c", *LIBRARY], folder / "dispatch", "-O2")
    kernel = next(k for k in haotuner.load(pack, threads=1).op(ONE).entry.kernels if "__mr1_" in k)
    widths = dict(zip(("nr", "pw"), kernel.split("__")[1].split("_")[1:3], strict=True))
    (library,) = (pack / "lib").iterdir()
    command = [program, pack, library, kernel, widths["nr"][2:], widths["pw"][2:]]
    answer = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True)
    times: dict[str, float] = json.loads(answer.stdout)
    return times


def medians(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """us a call, median of rounds that take turns."""
    seen: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            begin = time.perf_counter()
            for _ in range(CALLS):
                call()
            seen[name].append((time.perf_counter() - begin) / CALLS * 1e6)
    return {name: statistics.median(values) for name, values in seen.items()}


def from_python(path: Path) -> dict[str, float]:
    """us a call of every way in."""
    library = torch.library.Library("haotuner_empty", "FRAGMENT")
    library.define("op(Tensor x, Tensor packed, Tensor? bias=None) -> Tensor")
    library.define("op.out(Tensor x, Tensor packed, Tensor? bias=None, *, Tensor(a!) out) -> ()")
    library.impl("op", lambda x, packed, bias=None: x.new_empty(x.shape[0], 16), "CPU")
    library.impl("op.out", lambda x, packed, bias=None, *, out: None, "CPU")
    empty = torch.ops.haotuner_empty.op
    with haotuner.load(path, threads=1) as pack, register(pack) as handle, torch.inference_mode():
        weight, row, x, y = torch.randn(16, 16), torch.randn(16), torch.randn(1, 16), torch.empty(1, 16)
        plain, biased = pack.op(SMALL).bind(weight), pack.op(SMALL).bind(weight, row)
        packed, op = handle.pack_weight(SMALL, weight), getattr(torch.ops.haotuner, SMALL)
        call, panels, setting = plain.bound.call, plain.bound.packed, plain.bound.setting
        return medians({
            "nothing": lambda: None,
            "tvm-ffi": lambda: call(x, panels, y, setting),
            "linear(x, out=y)": lambda: plain(x, out=y),
            "linear(x)": lambda: plain(x),
            "F.linear(x, w)": lambda: F.linear(x, weight),
            "linear(x) with bias": lambda: biased(x),
            "F.linear(x, w, b)": lambda: F.linear(x, weight, row),
            "torch.ops": lambda: op.default(x, packed),
            "empty torch.ops": lambda: empty.default(x, packed),
            "torch.ops out": lambda: op.out(x, packed, out=y),
            "empty torch.ops out": lambda: empty.out(x, packed, out=y),
        })  # fmt: skip


def main() -> None:
    """Print every figure, then those that have a bar."""
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--json", action="store_true")
    args = reader.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder, level = Path(scratch), best_level()
        ops = [
            replace(packed_op(name, LANES[level], 2 * LANES[level]), first_m=1) for name in (ONE, SMALL)
        ]  # m = 1 in range
        pack = make_pack(folder / "pack", ops, level)
        c, python = from_c(pack.path, folder), from_python(pack.path)
    bars = {
        "C over the kernel, p50 ns (60)": c["call_p50_ns"] - c["bare_p50_ns"],
        "C over the kernel, p99 ns (200)": c["call_p99_ns"] - c["bare_p99_ns"],
        "out= over tvm-ffi, us (0.5)": python["linear(x, out=y)"] - python["tvm-ffi"],
        "linear(x) / F.linear (1)": python["linear(x)"] / python["F.linear(x, w)"],
        "linear(x) / F.linear with bias (1)": python["linear(x) with bias"] / python["F.linear(x, w, b)"],
        "torch.ops / empty (1.3)": python["torch.ops"] / python["empty torch.ops"],
        "torch.ops out / empty (1.3)": python["torch.ops out"] / python["empty torch.ops out"],
    }
    if args.json:
        print(json.dumps({"c_ns": c, "python_us": python, "bars": bars}, indent=1))
        return
    for name, value in (*c.items(), *python.items(), *bars.items()):
        print(f"{name:36} {value:9.3f}")


if __name__ == "__main__":
    main()
