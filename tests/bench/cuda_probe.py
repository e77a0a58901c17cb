"""Any ops of packs on a GPU, right and how fast, beside torch: ``python -m tests.bench.cuda_probe run PACKS --out FILE``.

PACKS is a folder of packs. Calls of torch's own and of ours are captured in graphs of twenty, operands hot; TF32 is off and
cuDNN chooses by timing. ``page FILES… --page docs/results/cuda-probe.md`` writes what such runs found, and the walks beside.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from haotuner.bench.images import ConvAttributes
from haotuner.bench.peers.torch_expressions import expression
from haotuner.host.files import written_aside
from haotuner.ops.convolution import is_convolution
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape

CALLS, REPLAYS = 20, 7
TOLERANCE = {"fp32": 3e-6, "fp16": 2e-3, "bf16": 1.2e-2, "int8": 0.0, "uint8": 0.0}  # of the norm, of sums of any order
SHAPES: dict[str, tuple[dict[str, int], ...]] = {
    "dense": tuple({"m": m} for m in (1, 16, 128, 777, 2048)),
    "grouped": tuple({"m": m} for m in (64, 777, 2048)),
    "batch_matmul": tuple({"b": b, "m": m, "n": n} for b, m, n in (
        (12, 16, 16), (12, 61, 61), (96, 128, 128), (24, 425, 425), (24, 512, 512), (12, 1, 512))),
    "convolution": tuple({"b": b, "h": h, "w": h} for b, h in ((1, 56), (8, 28), (8, 56), (4, 13))),
    "attention": tuple({"b": b, "t": t, "s": s} for b, t, s in (
        (12, 128, 128), (12, 333, 333), (96, 512, 512), (24, 2048, 2048), (32, 1, 1024))),
    "rows": tuple({"m": m, "n": n} for m, n in ((1, 4096), (37, 777), (4096, 768), (2048, 4096), (3000, 1501))),
}  # fmt: skip
HEAD = """# Ops and models on a GPU beside torch

Made by `python -m tests.bench.cuda_probe page FILES… --walks FILE… --page docs/results/cuda-probe.md`, from what its `run`
and `tests.bench.cuda_probe_models` measured: microseconds of a call in a captured graph, operands hot, TF32 off, cuDNN's
choice by timing. *torch* is what a user writes, eager; above 1 ours is faster. Every result is compared with torch's in
float64 (bytes: exactly)."""


def kind_of(op: Op) -> str:
    """Whose shapes an op is probed at."""
    return "convolution" if is_convolution(op.kind) else op.kind if op.kind in SHAPES else "rows"


class Probe:
    """torch's side of a GPU: operands, a stream, graphs that are timed."""

    def __init__(self) -> None:
        import torch

        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.benchmark = True
        self.torch, self.stream = torch, torch.cuda.Stream()
        self.types = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "int8": torch.int8,
                      "uint8": torch.uint8, "int32": torch.int32}  # fmt: skip

    def drawn(self, size: Sequence[int], dtype: str, seed: int) -> Any:
        """An operand."""
        maker = self.torch.Generator("cuda").manual_seed(seed)
        if dtype in ("int8", "uint8", "int32"):
            low = 0 if dtype == "uint8" else -8
            return self.torch.randint(low, 9, tuple(size), generator=maker, device="cuda", dtype=self.types[dtype])
        return self.torch.randn(tuple(size), generator=maker, device="cuda").to(self.types[dtype])

    def timed(self, call: Callable[[], Any], calls: int = CALLS) -> float:
        """Median microseconds of a call in a graph of so many."""
        torch = self.torch
        with torch.cuda.stream(self.stream):
            call()
            self.stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream):
            for _ in range(calls):
                call()
        times: list[float] = []
        with torch.cuda.stream(self.stream):
            graph.replay()
            for _ in range(REPLAYS):
                first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                first.record()
                graph.replay()
                last.record()
                last.synchronize()
                times.append(first.elapsed_time(last) * 1000 / calls)
        return statistics.median(times)

    def probed(self, pack: Any, op: Op, shape: Shape) -> dict[str, Any]:
        """One op at one shape."""
        torch, served, stream = self.torch, pack.op(op.name), self.stream.cuda_stream
        inputs = [operand for operand in op.meaning.inputs if operand.name != "offsets"]
        operands = [
            self.drawn(op.operand_shape(operand, shape), op.dtype_of(operand), seed) for seed, operand in enumerate(inputs)
        ]
        if "bias" in op.epilogue:
            operands.append(self.drawn((op["n"] if op.kind == "dense" else op["f"],), op.dtype, 9))
        ends = [shape["m"] * (group + 1) // op["g"] for group in range(op["g"])] if op.kind == "grouped" else []
        offsets = torch.tensor(ends, device="cuda", dtype=torch.int32)
        written = op.meaning.output
        y = torch.full(op.operand_shape(written, shape), 77, device="cuda", dtype=self.types[op.dtype_of(written)])
        with torch.cuda.stream(self.stream):
            if op.kind in ("dense", "grouped") or is_convolution(op.kind):
                bound = served.bind(*operands[1:])
                bound.prepare(stream)
                call = partial(bound, *[operands[0], offsets][: 1 + bool(ends)], out=y, stream=stream)
            else:
                if hasattr(served, "prepare"):
                    served.prepare(stream)
                call = partial(served.run, *operands, out=y, stream=stream)
            call()
            self.stream.synchronize()
            peer: Callable[[], Any] | None
            if ends:
                x, w = (operand.double() for operand in operands[:2])
                parts = zip([0, *ends[:-1]], ends, w, strict=True)
                expected = torch.cat([x[first:last] @ matrix.T for first, last, matrix in parts])
                peer = partial(torch._grouped_mm, operands[0], operands[1].transpose(1, 2), offs=offsets)
            else:
                computed = expression(torch, op)
                wide = torch.float64 if op.dtype == "fp32" or not is_convolution(op.kind) else torch.float32
                more = {"bias": operands[-1]} if "bias" in op.epilogue else {}
                passed = operands[: len(operands) - len(more)]
                last = is_convolution(op.kind) and ConvAttributes.of(op).last
                if last:
                    passed[0] = passed[0].movedim(-1, 1)
                exact = {name: operand.to(wide) for name, operand in more.items()}
                expected = computed(*(operand.to(wide) for operand in passed), **exact).double()
                expected = expected.movedim(1, -1) if last else expected
                peer = partial(computed, *passed, **more) if op.dtype != "int8" else None
            error = float((y.double() - expected).norm() / (expected.norm() + 1e-30))
        ours = self.timed(call)
        theirs = self.timed(peer) if peer is not None else None
        return {"error": error, "right": error <= TOLERANCE[op.dtype], "ours_us": ours, "torch_us": theirs}


def run(folder: Path, out: Path) -> int:
    """Every op of every pack; how many rows were wrong or failed."""
    import haotuner

    probe, wrong = Probe(), 0
    named = probe.torch.cuda.get_device_name()
    with out.open("a") as file, probe.torch.inference_mode():
        for path in sorted(entry for entry in folder.iterdir() if entry.is_dir()):
            pack = haotuner.load(path, device="cuda:0")
            for op in map(Op.parse, pack.ops):
                for extents in SHAPES[kind_of(op)]:
                    shape = Shape.of({axis: extents[axis] for axis in op.dynamic})
                    line: dict[str, Any] = {"device": named, "pack": path.name, "op": op.name, "shape": shape.as_dict()}
                    try:
                        line |= probe.probed(pack, op, shape)
                    except Exception as error:
                        line["failed"] = f"{type(error).__name__}: {error}"[:300]
                    wrong += not line.get("right", False)
                    file.write(json.dumps(line) + "\n")
                    print(json.dumps(line), flush=True)
    return wrong


def page(files: Sequence[Path], walks: Sequence[Path], note: str) -> Iterator[str]:
    """Ops by pack, models, walks."""
    rows = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    ops = [row for row in rows if "op" in row]
    yield from (HEAD, "")
    if note:
        yield from (note, "")
    walked = [json.loads(line) for path in walks for line in path.read_text().splitlines()]
    if walked:
        right = {(row_["walk"], row_["pack"]) for row_ in walked if row_["exit"] == 0}
        wrong = {(row_["walk"], row_["pack"]) for row_ in walked} - right
        yield f"**Walks** (`tests.runtime.cuda_silicon`): {len(right)} right, {len(wrong)} not."
        yield from (f"Not right: {walk}, {pack}." for walk, pack in sorted(wrong))
        yield ""
    bad = [row for row in ops if not row.get("right")]
    yield f"**Ops**: {len(ops)} rows, {len(bad)} wrong or failed."
    yield from ("", "| op | pack | shape | ours | torch | ratio |", "|---|---|---|---|---|---|")
    for row in ops:
        shape = " x ".join(str(extent) for extent in row["shape"].values())
        ours, theirs = row.get("ours_us", math.nan), row.get("torch_us")
        beside = f"{theirs:.1f} | {theirs / ours:.2f}" if theirs else "- | -"
        yield f"| {row['op']} | {row['pack']} | {shape} | {ours:.1f} | {beside} |"
    models = [row for row in rows if "model" in row and "ours" in row]
    if models:
        yield from ("", "## Whole models", "", "fp32. *queued*: calls one after the other without a graph.", "")
        yield from ("| model | size | ours | torch | ratio | queued: ours | torch |", "|---|---|---|---|---|---|---|")
    for row in models:
        ours, theirs = row["ours_graph"], row["torch_graph"]
        cells = f"{ours:.0f} | {theirs:.0f} | {theirs / ours:.2f} | {row['ours']:.0f} | {row['torch']:.0f}"
        yield f"| {row['model']} | {' x '.join(map(str, row['size']))} | {cells} |"


def main(arguments: Sequence[str]) -> int:
    """Run, or write the page."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.cuda_probe", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    runs = verbs.add_parser("run")
    runs.add_argument("packs", type=Path)
    runs.add_argument("--out", type=Path, required=True)
    pages = verbs.add_parser("page")
    pages.add_argument("files", type=Path, nargs="+")
    pages.add_argument("--walks", type=Path, nargs="*", default=[])
    pages.add_argument("--note", default="")
    pages.add_argument("--page", type=Path, required=True)
    args = parser.parse_args(arguments)
    if args.verb == "run":
        return int(run(args.packs, args.out) > 0)
    with written_aside(args.page) as aside:
        aside.write_text("\n".join(page(args.files, args.walks, args.note)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
