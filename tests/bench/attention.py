"""Attention beside other libraries: ``python -m tests.bench.attention --pack DIR [--page FILE] [--seconds 300]``.

Tunes attention of three depths, causal or not, into DIR where there is no pack, then races at heads, tokens and keys drawn
log-uniformly by seed: all tokens against all, the same causal, and one token against many keys (decode); one and two
threads, data in place from call to call. All take turns. Needs torch, onnxruntime, onnx and openvino, and a quiet machine.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

import haotuner
from haotuner.hw_profiles.find import find_device
from haotuner.spec import numerics
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from tests.bench import attention_peers as peers
from tests.bench.generated import timed
from tests.bench.sections import section_written

DEPTHS = (32, 64, 128)
USES = ("full", "causal", "decode")
RANGES = "b=1..32;t=1..2048;s=1..4096"
MOST = 2**31  # multiply-adds of a call
PEERS = ("torch", "onnxruntime", "openvino")


def op_name(depth: int, use: str) -> str:
    """The op that serves a use."""
    return f"attention_d{depth}" + ("_causalend" if use == "causal" else "")


def shapes(count: int, seed: int, use: str) -> list[Shape]:
    """Heads 4..32, tokens 1..2048; keys of a decode 16..4096."""
    rng, result = np.random.default_rng([seed, USES.index(use)]), list[Shape]()
    while len(result) < count:
        b = int(rng.choice([4, 8, 12, 16, 32]))
        low, high = (16, 4096) if use == "decode" else (1, 2048)
        tokens = int(np.exp(rng.uniform(np.log(low), np.log(high))))
        t = 1 if use == "decode" else tokens
        if b * t * tokens * 128 <= MOST:
            result.append(Shape.of(b=b, t=t, s=tokens))
    return result


def tune(pack: Path, budget: str) -> None:
    """One pack with every op of the race."""
    names = list(dict.fromkeys(op_name(depth, use) for depth in DEPTHS for use in USES))
    command = [sys.executable, "-m", "haotuner", "tune", "--out", str(pack), "--shapes", RANGES, "--threads", "1,2"]
    command += ["--budget", budget, "--peers", "none", *(word for name in names for word in ("--op", name))]
    subprocess.run(command, check=True)


def race(served: Any, name: str, shape: Shape, threads: int) -> dict[str, float]:
    """Microseconds by contender; ours is checked first, and the best of ONNX Runtime's two ways counts."""
    op = Op.parse(name)
    arrays = numerics.draw(op, shape, np.random.default_rng(0))
    causal, b = "causal" in name, arrays["q"].shape[0]
    out, other = (np.empty(arrays["q"].shape, np.float32) for _ in range(2))
    calls: dict[str, Callable[[], Any]] = {"ours": lambda: served.run(**arrays, out=out)}
    calls["torch"] = peers.torch_call(arrays, causal)
    turned = peers.multi_head_arrays(arrays)
    multi = peers.multi_head_model(b, op["d"], causal)
    calls["multi_head"] = peers.onnxruntime_call(multi, turned, np.empty_like(turned["q"]), threads)
    if not causal:
        calls["plain"] = peers.onnxruntime_call(peers.plain_model(op["d"]), arrays, other, threads)
    calls["openvino"] = peers.openvino_call(arrays, other, causal, threads)
    calls["ours"]()
    verdict = numerics.check(op, arrays, out)
    assert verdict.wrong == 0, f"{name} {shape}: {verdict}"
    for peer in [peer for peer in calls if peer != "ours"]:
        calls[peer]()
    result = timed(calls)
    result["onnxruntime"] = min(result.pop(way) for way in ("multi_head", "plain") if way in result)
    return result


Row = tuple[int, int, str, Shape, dict[str, float]]  # threads, depth, use


def told(rows: list[Row], command: str, host: str, tuned: str) -> str:
    """The results as Markdown."""
    text = [
        f"`{command}`, {date.today().isoformat()}, {host}. Median of 7 rounds in which all take turns, data hot; a ratio is "
        "the best other library's time over ours. ONNX Runtime: the better of the four plain operators and its own "
        "MultiHeadAttention in its own layout. Nothing was tuned for these shapes. " + tuned,
        "",
        "| threads | use | shapes | geometric mean | least | at | most | memory beside the operands |",
        "|---|---|---|---|---|---|---|---|",
    ]
    every: dict[int, list[float]] = {}
    for threads in sorted({row[0] for row in rows}):
        for use in USES:
            own = [row for row in rows if row[0] == threads and row[2] == use]
            if not own:
                continue
            ratios = [min(row[4][peer] for peer in PEERS) / row[4]["ours"] for row in own]
            every.setdefault(threads, []).extend(ratios)
            worst = own[ratios.index(min(ratios))]
            text.append(
                f"| {threads} | {use} | {len(own)} | {statistics.geometric_mean(ratios):.2f} | {min(ratios):.2f} | "
                f"d={worst[1]} {worst[3]} | {max(ratios):.2f} | the stack |"
            )
    means = ", ".join(f"{statistics.geometric_mean(values):.2f} with {count}" for count, values in every.items())
    text += ["", f"All shapes: geometric mean {means} thread(s).", ""]
    text += ["| threads | use | depth | shape | ours us | torch us | ONNX Runtime us | OpenVINO us |", "|---" * 8 + "|"]
    for threads, depth, use, shape, times in rows:
        cells = " | ".join(f"{times[who]:.1f}" for who in ("ours", *PEERS))
        text.append(f"| {threads} | {use} | {depth} | {shape} | {cells} |")
    return "\n".join(text)


def main() -> None:
    """Tune where needed, race, write the section."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pack", type=Path, required=True)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--shapes", type=int, default=4, help="of each depth and use")
    parser.add_argument("--seconds", type=float, default=300.0, help="shapes that are not begun by then are left out")
    parser.add_argument("--budget", default="200s", help="of tuning all ops of the pack")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tuned", default="", help="a sentence for the page: how the pack was tuned")
    inputs = parser.parse_args()
    if not inputs.pack.exists():
        tune(inputs.pack, inputs.budget)
    import torch

    torch.inference_mode().__enter__()  # for the life of this process
    begin, rows = time.monotonic(), list[Row]()
    for index in range(inputs.shapes):  # so that every depth and use has some where the time ends
        for threads in (1, 2):
            torch.set_num_threads(threads)
            with haotuner.load(inputs.pack, threads=threads) as pack:
                for depth in DEPTHS:
                    for use in USES:
                        if time.monotonic() - begin > inputs.seconds or op_name(depth, use) not in pack.ops:
                            continue
                        shape = shapes(inputs.shapes, inputs.seed + depth, use)[index]
                        times = race(pack.op(op_name(depth, use)), op_name(depth, use), shape, threads)
                        rows.append((threads, depth, use, shape, times))
                        print(threads, depth, use, shape, {who: round(us, 1) for who, us in times.items()}, flush=True)
    command = "python -m tests.bench.attention --pack DIR --page docs/results/generated.md"
    text = told(rows, command, find_device("cpu", measure=False).id, inputs.tuned)
    if inputs.page:
        section_written(inputs.page, "Attention", text)
    print(text)


if __name__ == "__main__":
    main()
