"""Generated kernels beside other libraries: ``python -m tests.bench.generated --pack DIR [--page FILE] [--seconds 300]``.

Tunes the ops below into DIR and folders beside it where there is no pack, then races each at rows and columns drawn
log-uniformly by seed, data in place from call to call (in cache where it fits). All take turns, ``--threads`` each. Needs
torch; onnxruntime and openvino where they are installed. Run it on a quiet machine. ``--tune`` stops after tuning.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import date
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import haotuner
from haotuner.hw_profiles.find import find_device
from haotuner.spec import numerics
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from tests.bench.generated_peers import ONNX, TORCH, onnxruntime_call, openvino_call, torch_call
from tests.bench.sections import sections_of_others

LARGEST = 2**24  # elements of an input: 64 MB
BLOCK_S, ROUNDS = 0.02, 7
Span = tuple[int, int]
ROWS, COLUMNS = (1, 8192), (8, 16384)
# Ops whose rows and columns have other names or lie elsewhere: (axis of the rows, their range, columns).
ELSEWHERE: dict[str, tuple[str, Span, Span]] = {
    "instance_norm_b1_scalebias_relu": ("c", (1, 2048), (8, 50176)),
    "group_norm_b1_d4_scalebias": ("g", (1, 512), (8, 50176)),
    "reduce_mean": ("m", (1, 8), (1024, 2**22)),  # few long rows
    "transpose_b1": ("m", ROWS, COLUMNS),
}


def spans(name: str) -> tuple[str, Span, Span]:
    """The axis of an op's rows, their range, and that of its columns."""
    return ELSEWHERE.get(name, ("m", ROWS, COLUMNS))


def shapes(name: str, count: int, seed: int) -> list[tuple[int, int]]:
    """Rows and columns, log-uniform."""
    rng = np.random.default_rng(seed)
    drawn: list[tuple[int, int]] = []
    while len(drawn) < count:
        m, n = (int(np.exp(rng.uniform(np.log(low), np.log(high)))) for low, high in spans(name)[1:])
        if m * n * (4 if "_d4" in name else 1) <= LARGEST:
            drawn.append((m, n))
    return drawn


def folders(pack: Path) -> dict[Path, list[str]]:
    """The packs of the race with their ops: one for all that share axes, one for each other."""
    alike = {pack: [name for name in TORCH if name not in ELSEWHERE]}
    return alike | {pack.with_name(f"{pack.name}-{name.partition('_b1')[0]}"): [name] for name in ELSEWHERE}


def tune(pack: Path, budget: str, threads: str) -> None:
    """The packs that are not there; ``budget``: seconds of one op."""
    for out, names in folders(pack).items():
        if out.exists():
            continue
        axis, rows, columns = spans(names[0])
        ranges = f"{axis}={rows[0]}..{rows[1]};n={columns[0]}..{columns[1]}"
        command = [sys.executable, "-m", "haotuner", "tune", "--out", str(out), "--shapes", ranges, "--threads", threads]
        command += ["--budget", f"{float(budget.rstrip('s')) * len(names):g}s", "--peers", "none"]
        subprocess.run([*command, *(word for name in names for word in ("--op", name))], check=True)


def timed(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Median microseconds of each call over rounds in which all take turns."""
    counts = {}
    for name, call in calls.items():
        call()
        begin = time.perf_counter()
        call()
        counts[name] = max(1, int(BLOCK_S / max(time.perf_counter() - begin, 1e-7)))
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            begin = time.perf_counter()
            for _ in range(counts[name]):
                call()
            samples[name].append((time.perf_counter() - begin) / counts[name] * 1e6)
    return {name: statistics.median(times) for name, times in samples.items()}


def race(packs: list[Any], name: str, m: int, n: int, threads: int) -> dict[str, float]:
    """Microseconds by contender; results are checked first."""
    op = Op.parse(name)
    shape = Shape.of({axis: {spans(name)[0]: m, "n": n}[axis] for axis in op.dynamic})
    arrays = numerics.draw(op, shape, np.random.default_rng([m, n]), whole=False)
    out = np.empty(op.operand_shape(op.meaning.output, shape), np.float32)
    served = next(pack for pack in packs if name in pack.ops).op(name)
    calls: dict[str, Callable[[], Any]] = {"ours": lambda: served.run(**arrays, out=out)}
    calls["torch"] = torch_call(name, arrays)
    other = np.empty_like(out)
    for peer, make in (("onnxruntime", onnxruntime_call), ("openvino", openvino_call)):
        if find_spec(peer) is not None and name in ONNX:
            calls[peer] = make(name, arrays, other, threads)
    calls["ours"]()
    verdict = numerics.check(op, arrays, out, whole=False)
    assert verdict.wrong == 0, f"{name} {m} x {n}: {verdict}"
    return timed(calls)


def page(rows: dict[str, list[tuple[int, int, dict[str, float]]]], command: str, host: str, threads: int) -> str:
    """The results as Markdown."""
    text = [
        "# Generated kernels beside other libraries",
        "",
        f"`{command}`, {date.today().isoformat()}, {host}, threads: {threads}. Median of {ROUNDS} rounds in which "
        "all take turns; "
        "each shape's ratio is the best other library's time over ours. Nothing was tuned for these shapes.",
        "",
        "| op | shapes | geometric mean | least | at | most |",
        "|---|---|---|---|---|---|",
    ]
    every: list[float] = []
    for name, shapes_ in rows.items():
        ratios = [min(us for who, us in times.items() if who != "ours") / times["ours"] for _, _, times in shapes_]
        every += ratios
        worst = shapes_[ratios.index(min(ratios))]
        mean = statistics.geometric_mean(ratios)
        text.append(
            f"| {name} | {len(shapes_)} | {mean:.2f} | {min(ratios):.2f} | {worst[0]} x {worst[1]} | {max(ratios):.2f} |"
        )
    text += ["", f"All {len(every)} shapes: geometric mean {statistics.geometric_mean(every):.2f}."]
    text += ["", "| op | rows x columns | ours us | torch us | ONNX Runtime us | OpenVINO us |", "|---|---|---|---|---|---|"]
    for name, shapes_ in rows.items():
        for m, n, times in shapes_:
            cells = [f"{times[who]:.1f}" if who in times else "-" for who in ("ours", "torch", "onnxruntime", "openvino")]
            text.append(f"| {name} | {m} x {n} | {' | '.join(cells)} |")
    return "\n".join([*text, ""])


def main() -> None:
    """Tune where needed, race, write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pack", type=Path, required=True)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--shapes", type=int, default=12, help="of each op")
    parser.add_argument("--seconds", type=float, default=600.0, help="ops that are not begun by then are left out")
    parser.add_argument("--budget", default="20s", help="of tuning one op")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tune", default="", metavar="THREADS", help="tune for these thread counts, such as 1,2, and stop")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    tune(args.pack, args.budget, args.tune or str(args.threads))
    if args.tune:
        return
    import torch

    torch.set_num_threads(args.threads)
    torch.inference_mode().__enter__()  # for the life of this process
    packs = [haotuner.load(folder, threads=args.threads) for folder in folders(args.pack)]
    begin = time.monotonic()
    rows: dict[str, list[tuple[int, int, dict[str, float]]]] = {}
    for name in TORCH:
        if time.monotonic() - begin > args.seconds:
            print(f"{name}: no time was left")
            continue
        rows[name] = []
        for m, n in shapes(name, args.shapes, args.seed):
            rows[name].append((m, n, race(packs, name, m, n, args.threads)))
            print(name, m, n, {who: round(us, 1) for who, us in rows[name][-1][2].items()}, flush=True)
    command = f"python -m tests.bench.generated --pack DIR --threads {args.threads} --shapes {args.shapes}"
    text = page(rows, command, find_device("cpu", measure=False).id, args.threads)
    if args.page:
        args.page.write_text(text + sections_of_others(args.page), encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
