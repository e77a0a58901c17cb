"""Evolution beside random search in a real tune: ``python -m tests.bench.policies_tune --seconds 40``, some ten minutes.

Each op is tuned by both policies with the same budget, in turns; then both packs serve the same shapes, in turns. The record
goes beside the tables, and the page of ``tests/bench/policies.py`` shows it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import haotuner
from haotuner.spec import numerics
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from haotuner.tuning.request import ops_of

RECORD = Path(__file__).with_name("records") / "policies" / "tune.json"  # apart: the folder itself holds timings of devices
POLICIES = ("evolution", "random")
BLOCK_S, ROUNDS = 0.05, 9
NORMS = ("layer_norm_scalebias", "rms_norm", "softmax")
ROWS = ("m=1..512;n=16..2048", ("m=3;n=100", "m=60;n=800", "m=500;n=2000"))
ONNX: dict[str, Any] = {  # nodes, inputs and output, shapes of the tune, shapes that are raced
    "conv_relu": (
        [("Conv", ["x", "w"], "c", {"pads": [1, 1, 1, 1]}), ("Relu", ["c"], "y", {})],
        {"x": ["b", 64, 56, 56], "w": [64, 64, 3, 3]}, ["b", 64, 56, 56], "b=1..4", ("b=1", "b=3"),
    ),
    "matmul_relu": (
        [("MatMul", ["x", "w"], "c", {}), ("Relu", ["c"], "y", {})],
        {"x": ["m", 512], "w": [512, 512]}, ["m", 512], "m=1..512", ("m=20", "m=150", "m=512"),
    ),
}  # fmt: skip


def saved(name: str, folder: Path) -> Path:
    """The ONNX file of a group."""
    import onnx
    from onnx import TensorProto, helper

    nodes, inputs, output, _, _ = ONNX[name]
    tensors = [helper.make_tensor_value_info(key, TensorProto.FLOAT, shape) for key, shape in inputs.items()]
    out = [helper.make_tensor_value_info("y", TensorProto.FLOAT, output)]
    onnx_nodes = [helper.make_node(kind, reads, [makes], **attributes) for kind, reads, makes, attributes in nodes]
    model = helper.make_model(helper.make_graph(onnx_nodes, name, tensors, out), opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    path = folder / f"{name}.onnx"
    onnx.save(model, str(path))
    return path


def tuned(op: str, shapes: str, policy: str, seconds: float, out: Path, seed: int) -> int:
    """Tune by a policy; kernels that were measured."""
    words = ["--op", op, "--shapes", shapes, "--search", policy, "--budget", f"{seconds:g}s", "--threads", "1"]
    settings = ["--peers", "none", "--cache-state", "hot", "--out", str(out), "--seed", str(seed), "--json", "-q"]
    command = [sys.executable, "-m", "haotuner", "tune", *words, *settings]
    answer = subprocess.run(command, check=False, capture_output=True, text=True)
    if answer.returncode not in (0, 3):
        raise SystemExit(f"{op} by {policy}: exit {answer.returncode}: {answer.stderr[-800:]}")
    return int(sum(row["measured"] for row in json.loads(answer.stdout)["ops"]))


def raced(packs: Mapping[str, Path], op: Op, shapes: Sequence[str]) -> dict[str, list[float]]:
    """Least microseconds of each pack at each shape, in turns."""
    result: dict[str, list[float]] = {policy: [] for policy in packs}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        served = {policy: haotuner.load(path).op(op.name) for policy, path in packs.items()}
    for text in shapes:
        shape = Shape.of({axis: int(size) for axis, _, size in (part.partition("=") for part in text.split(";"))})
        arrays = numerics.draw(op, shape, np.random.default_rng(0), whole=False)
        out = np.empty(op.operand_shape(op.meaning.output, shape), np.float32)
        calls: dict[str, Callable[[], Any]] = {p: partial(item.run, **arrays, out=out) for p, item in served.items()}
        least = dict.fromkeys(calls, np.inf)
        for _ in range(ROUNDS):
            for policy, call in calls.items():
                call()
                until = time.perf_counter() + BLOCK_S
                while time.perf_counter() < until:
                    begin = time.perf_counter()
                    call()
                    least[policy] = min(least[policy], (time.perf_counter() - begin) * 1e6)
        for policy, us in least.items():
            result[policy].append(round(us, 2))
    return result


def section(record: Mapping[str, Any]) -> list[str]:
    """The record as Markdown."""
    text = [
        "## In a real tune of equal time",
        "",
        f"`python -m tests.bench.policies_tune --seconds {record['seconds']:g}`, {record['date']}, {record['host']}, one "
        f"thread, load average {record['load']:.0f}. Each op is tuned by both policies with this "
        "budget; both packs then serve the same shapes in turns, the least time counts.",
        "",
        "| op | kernels measured, evolution / random | evolution us | random us | random over evolution |",
        "|---|---|---|---|---|",
    ]
    for row in record["rows"]:
        ratio = float(np.exp(np.mean(np.log(np.array(row["us"]["random"]) / np.array(row["us"]["evolution"])))))
        us = [", ".join(f"{value:,.1f}" for value in row["us"][policy]) for policy in POLICIES]
        counts = " / ".join(str(row["measured"][policy]) for policy in POLICIES)
        text.append(f"| {row['op']}, {' and '.join(row['shapes'])} | {counts} | {us[0]} | {us[1]} | {ratio:.2f} |")
    return [*text, ""]


def main() -> None:
    """Tune, race, write the record."""
    import os
    import platform

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--op", action="append", default=[], help="some of them")
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(arguments.op or [*ONNX, *NORMS]):
            spec = f"group:{saved(name, Path(folder))}" if name in ONNX else name
            shapes, drawn = ONNX[name][3:] if name in ONNX else ROWS
            (op,) = ops_of(spec)
            packs = {policy: Path(folder) / f"{name}-{policy}" for policy in POLICIES}
            order = POLICIES if number % 2 else POLICIES[::-1]
            measured = {policy: tuned(spec, shapes, policy, arguments.seconds, packs[policy], number) for policy in order}
            us = raced(packs, op, drawn)
            rows.append({"op": name, "shapes": list(drawn), "measured": measured, "us": us})
            print(rows[-1], flush=True)
    document = {"date": date.today().isoformat(), "host": platform.processor() or platform.machine(), "rows": rows,
                "seconds": arguments.seconds, "load": os.getloadavg()[1]}  # fmt: skip
    RECORD.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print("\n".join(section(document)))


if __name__ == "__main__":
    main()
