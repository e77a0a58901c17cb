"""What can be seen of CUDA kernels without a GPU: ``python -m tests.bench.cuda_static --out docs/results/cuda-static.md``.

For what selection proposes for each device, type and number of rows: resources and machine code, beside Triton's matmul of
the same tile. Needs nvcc or NVRTC, and nvdisasm; ``--triton FOLDER`` names an unpacked wheel of Triton where none is
installed. The same compilers give the same page. Two minutes of two cores, seconds from a cache (``--cache FOLDER``).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from haotuner.backends.cuda.cubin import read_cubin
from haotuner.backends.cuda.device_code import Cubin, Programs, build_cubin, resident_blocks
from haotuner.backends.cuda.sass import Code, find_nvdisasm, read
from haotuner.cost.expected import over_traffic
from haotuner.errors import NothingLegal
from haotuner.hw_profiles.find import find_device
from haotuner.microkernels.cuda.dense import CudaDense
from haotuner.microkernels.cuda.families import DENSE_FAMILIES
from haotuner.search.select.funnel import select
from haotuner.spec.device import Device
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.shape import ShapeRange
from haotuner.spec.traffic import Traffic
from tests.microkernels.cuda_gates import MATRIX

DEVICES = ("a100-80gb", "h100", "h200", "l40s", "rtx-4090")
DTYPES = ("fp32", "fp16", "bf16")
OP, RANGE, SAMPLES, ROWS = "dense:n=4096,k=4096", "m=1..8192", 21, (16, 256, 4096)
UNIT = 6  # kernels of one cubin
TRITON_SECONDS = 900
COLUMNS = ("device", "dtype", "m", "kernel", "registers", "spilled bytes", "threads", "blocks an SM", "bytes a step",
           "matrix instructions in the loop", "other instructions for each", "local loads in the loop", "16-byte stores",
           "narrower stores", "Triton: registers", "Triton: others for each", "Triton: 16-byte stores")  # fmt: skip
ABSENT = "not at hand"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One kernel on one device."""

    device: Device
    m: int
    family: CudaDense
    kernel: MicroKernel

    @property
    def operation(self) -> str:
        """The instruction that multiplies."""
        return MATRIX[self.family.name.rpartition("_")[0]]


@dataclass(frozen=True, slots=True)
class Seen:
    """A compiled kernel: its code, and registers of a thread."""

    code: Code
    registers: int


def first_choices(device: Device, dtype: str) -> Iterator[Row]:
    """For each number of rows, the best by expectation of what selection keeps for the whole range, of all families."""
    op, traffic = Op.parse(f"{OP},dtype={dtype}"), Traffic.of_range(ShapeRange.parse(RANGE), SAMPLES)
    choices: dict[CudaDense, list[MicroKernel]] = {}
    for family in DENSE_FAMILIES:
        if family.serves(op) and family.runs_on(device):
            with contextlib.suppress(NothingLegal):
                funnel = select(op, family, device, traffic, over_traffic(op, family, device, traffic))
                choices[family] = [candidate.kernel for candidate in funnel.candidates]
    for m in ROWS:
        alone = Traffic.of_range(ShapeRange.parse(f"m={m}"))
        best: list[tuple[float, Row]] = []
        for family, kernels in choices.items():
            scores = over_traffic(op, family, device, alone)(kernels)
            at = int(scores.argmax())
            best.append((float(scores[at]), Row(device=device, m=m, family=family, kernel=kernels[at])))
        yield max(best, key=lambda pair: pair[0])[1]


def built(rows: Sequence[Row], folder: Path, cache: Path | None) -> dict[tuple[str, str], tuple[Seen, Cubin]]:
    """Each kernel's code and the facts of its cubin, by architecture and kernel."""
    nvdisasm = find_nvdisasm()
    assert nvdisasm is not None, "nvdisasm: neither on the PATH nor in a wheel nvidia-cuda-nvdisasm"
    cubins: dict[tuple[str, str], tuple[Seen, Cubin]] = {}
    for arch in sorted({row.device.arch for row in rows}):
        every: Programs = {row.kernel.name: (row.family, row.kernel) for row in rows if row.device.arch == arch}
        names = sorted(every)
        for at in range(0, len(names), UNIT):
            some = {name: every[name] for name in names[at : at + UNIT]}
            cubin = build_cubin(some, folder / f"{arch}-{at}.cubin", arch=arch, cache=cache)
            for name, code in read(cubin.path, nvdisasm).items():
                cubins[arch, name] = Seen(code, int(cubin.resources[name]["registers"])), cubin
    return cubins


def of_triton(rows: Sequence[Row], folder: Path, triton: Path | None) -> dict[tuple[str, str], Seen]:
    """Triton's matmul of each tile; what it cannot build is left out, and so is all without Triton."""
    nvdisasm = find_nvdisasm()
    assert nvdisasm is not None
    jobs: dict[tuple[str, str], list[object]] = {}
    for row in rows:
        kernel, capability = row.kernel, int(row.device.arch.removeprefix("sm_").rstrip("a"))
        params = dict(kernel.params)
        if (
            any(params[key] & (params[key] - 1) for key in ("bm", "bn", "bk"))
            or row.operation == "HGMMA"
            and params["bm"] < 64
        ):
            continue  # its tiles are powers of two
        warps = row.family.launch(kernel).threads // 32 - (4 if row.operation == "HGMMA" else 0)  # ours has one that copies
        cubin = folder / f"triton-{row.device.arch}-{kernel.name}.cubin"
        jobs[row.device.arch, kernel.name] = [
            capability, row.family.dtype, params["bm"], params["bn"], params["bk"], warps, params.get("st", 2), str(cubin),
        ]  # fmt: skip
    root = Path(__file__).resolve().parents[2]
    paths = os.pathsep.join(str(path) for path in (root, triton) if path is not None)
    missing = {key: job for key, job in jobs.items() if not Path(str(job[-1])).exists()}  # others are kept from before
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.triton_ahead"], input=json.dumps(list(missing.values())), text=True,
        capture_output=True, timeout=TRITON_SECONDS, check=False,
        env={**os.environ, "PYTHONPATH": paths, "TRITON_CACHE_DIR": str(folder / "triton")},
    )  # fmt: skip
    answers = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else ["failed"] * len(missing)
    failed = {key: why for key, why in zip(missing, answers, strict=True) if why}
    results: dict[tuple[str, str], Seen] = {}
    for key, job in jobs.items():
        if why := failed.get(key):
            print(f"Triton: {key[1]}: {why}", file=sys.stderr)
            continue
        path = Path(str(job[-1]))
        (name, code), *_ = read(path, nvdisasm).items()
        results[key] = Seen(code, read_cubin(path.read_bytes()).kernels[name].registers)
    return results


def cells(row: Row, mine: Seen, cubin: Cubin, triton: Seen | None) -> list[str]:
    """A line of the table."""
    kernel, facts, launch = row.kernel, cubin.resources[row.kernel.name], row.family.launch(row.kernel)
    loop, stores = mine.code.main_loop(row.operation), mine.code.stores()
    blocks = resident_blocks(
        row.device, threads=launch.threads, registers=mine.registers,
        shared_bytes=launch.shared_bytes + int(facts["static_shared_bytes"]),
    )  # fmt: skip
    return [
        row.device.id, row.family.dtype, str(row.m), f"`{kernel.name}`", str(mine.registers), f"{facts['spill_bytes']:.0f}",
        str(launch.threads), str(blocks), str((kernel["bm"] + kernel["bn"]) * kernel["bk"] * row.family.bytes_per_element()),
        f"{loop.count(row.operation)} {row.operation}", others(mine, row.operation), str(loop.count("LDL")),
        str(stores["128"]), str(sum(stores.values()) - stores["128"]),
        *([ABSENT] * 3 if triton is None else
          [str(triton.registers), others(triton, row.operation), str(triton.code.stores()["128"])]),
    ]  # fmt: skip


def others(seen: Seen, operation: str) -> str:
    """Other instructions of the main loop for each that multiplies."""
    if not seen.code.loops:
        return "no loop"
    loop = seen.code.main_loop(operation)
    count = loop.count(operation)
    return f"{(len(loop.instructions) - count) / count:.2f}" if count else f"no {operation}"


def page(rows: Sequence[Row], folder: Path, cache: Path | None, triton: Path | None) -> str:
    """The page in Markdown."""
    mine, theirs = built(rows, folder, cache), of_triton(rows, cache or folder, triton)
    compilers = sorted({cubin.compiler for _, cubin in mine.values()})
    lines = [
        "# What can be seen of CUDA kernels without a GPU", "",
        f"Made by `python -m tests.bench.cuda_static`, compiled by {', '.join(compilers)}. No figure here is a time. A row",
        f"is the best by expectation, at m rows, of what selection keeps for `{OP}` and `{RANGE}` "
        "on a device's profile.", "",
        "*Blocks an SM*: by CUDA's rules from the compiled kernel's registers. *Bytes a step*: of X and W that a block",
        "loads for one step along k. *The loop*: the one that is made most of matrix instructions (HGMMA, HMMA), or of FFMA",
        "in fp32 and in gemv; *others for each* are its other instructions over those. *Stores*: in the kernel's text, of",
        "every path; only aligned outputs take the 16-byte ones. *Triton*: the matmul of",
        "`haotuner/bench/peers/gpu_triton_kernel.py`, the same tile, warps and stages, compiled ahead of time, without",
        f"tensor maps; *{ABSENT}*: Triton is not there, or has no such tile (its sides are powers of two).", "",
        "| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS),
    ]  # fmt: skip
    for row in rows:
        key = (row.device.arch, row.kernel.name)
        lines.append("| " + " | ".join(cells(row, *mine[key], theirs.get(key))) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="the page; without it, it is printed")
    parser.add_argument(
        "--cache", type=Path, help="compiled units are kept here, and Triton's cubins: empty it for another Triton"
    )
    parser.add_argument("--triton", type=Path, help="folder of an unpacked wheel of Triton")
    parser.add_argument("--devices", default=",".join(DEVICES))
    args = parser.parse_args()
    if args.cache is not None:
        args.cache.mkdir(parents=True, exist_ok=True)
    rows = [
        row
        for device in args.devices.split(",")
        for dtype in DTYPES
        for row in first_choices(find_device(device, measure=False), dtype)
    ]
    with tempfile.TemporaryDirectory() as folder:
        text = page(rows, Path(folder), args.cache, args.triton)
    if args.out is None:
        print(text, end="")
    else:
        args.out.write_text(text)


if __name__ == "__main__":
    main()
