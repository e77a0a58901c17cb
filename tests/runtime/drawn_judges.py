"""Drawn models through the interpreter and through packs, beside ONNX Runtime.

``python -m tests.runtime.drawn_judges [--first SEED] [--count N] [--packs] [--tuned]``: a line for each answer that
differs. ``--packs``: built and served, too; ``--tuned``: by the exact plan with products as layers, instead of plain loops.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import haotuner
from haotuner.errors import HaotunerError
from haotuner.frontends.onnx.read import graph_of
from haotuner.graph.graph import Graph
from haotuner.graph.interpret import interpret
from tests.runtime.drawn_nets import drawn, requests
from tests.runtime.model_packs import model_pack

BATCH, REQUESTS = 24, 4  # models of one library; requests of a model
NEAR = 1e-4  # of fp32, beside the largest number of an answer
MOVED = np.float32(1 + 1e-6)  # what a rounding changes: Floor of a number that is almost whole may jump by it


@dataclass(frozen=True, slots=True)
class Drawn:
    """A model that was read: seed, operators in words, graph, and its requests with the interpreter's answers."""

    seed: int
    words: str
    graph: Graph
    answers: tuple[tuple[Any, Any], ...]


def read(seed: int) -> tuple[Drawn | None, list[str]]:
    """A model as the interpreter answers it, and what is wrong with that; None where ONNX Runtime loads no such model."""
    import onnxruntime

    model, operators, start = drawn(seed)
    words, wrong, answers = f"{seed} {start} {' '.join(operators)}", list[str](), list[tuple[Any, Any]]()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        peer = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception:  # operators of types that it has not: its errors have no class of their own
        return None, []
    try:
        graph = graph_of(model, None, {})
    except HaotunerError as error:
        return None, [f"{words}: refused: {error}"]
    for x in requests(start, seed, REQUESTS):
        try:
            expected = peer.run(None, {"x": x})[0]
        except Exception:  # sizes that it refuses
            continue
        with np.errstate(all="ignore"):
            try:
                answer = interpret(graph, {"x": x})["y"]
            except HaotunerError as error:
                wrong.append(f"{words} at {x.shape}: refused: {error}")
                continue
        answers.append((x, answer))
        why = apart(answer, expected)
        if why and not apart(peer.run(None, {"x": x * MOVED})[0], expected):
            wrong.append(f"{words} at {x.shape}: {why}")
    return Drawn(seed, words, graph, tuple(answers)), wrong


def apart(answer: Any, expected: Any) -> str:
    """Why two answers differ; nothing where they are alike, also in what is infinite or no number."""
    a, b = np.asarray(answer), np.asarray(expected)
    if a.shape != b.shape:
        return f"shape {a.shape}, expected {b.shape}"
    if not b.size:
        return ""
    largest = np.max(np.abs(b), where=np.isfinite(b), initial=1e-3)
    same = np.isclose(a, b, rtol=NEAR, atol=NEAR * largest, equal_nan=True)
    return "" if same.all() else f"{np.sum(~same)} of {b.size} elements, {a[~same][:3]}, expected {b[~same][:3]}"


def served(models: Sequence[Drawn], *, tuned: bool) -> Iterator[str]:
    """What packs of these models answer in another way than the interpreter, in words; a pack that does not build raises."""
    for first in range(0, len(models), BATCH):
        part = models[first : first + BATCH]
        with tempfile.TemporaryDirectory() as folder:
            graphs = {f"drawn{model.seed}": model.graph for model in part}
            path = model_pack(Path(folder) / "pack", graphs, tuned=tuned, exact=tuned)
            with haotuner.load(path, threads=1) as pack:
                for model in part:
                    yield from _unlike(model, pack.model(f"drawn{model.seed}"))


def _unlike(model: Drawn, handle: Any) -> Iterator[str]:
    for x, expected in model.answers:
        why = apart(handle.run({"x": x})["y"], expected)
        if why:
            with np.errstate(all="ignore"):
                moved = interpret(model.graph, {"x": x * MOVED})["y"]
            if not apart(moved, expected):
                yield f"{model.words} at {x.shape}: {why}"


def main() -> int:
    """Print every answer that is another one. Exit 1 where there is one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--packs", action="store_true")
    parser.add_argument("--tuned", action="store_true")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    models, wrong = list[Drawn](), 0
    for seed in range(args.first, args.first + args.count):
        model, lines = read(seed)
        wrong += len(lines)
        print(*lines, sep="\n", end="\n" if lines else "", flush=True)
        models += [model] if model is not None else []
    print(f"{len(models)} models, {sum(len(model.answers) for model in models)} requests", flush=True)
    for line in served(models, tuned=args.tuned) if args.packs or args.tuned else ():
        wrong += 1
        print(f"pack: {line}", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
