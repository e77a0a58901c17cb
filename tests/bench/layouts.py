"""Channels first, last, or as the program chooses: ``python -m tests.bench.layouts MODEL.onnx SHAPES [--page FILE]``.

One pack from predictions alone holds the model three times; nothing is timed for it. Then the three run the same requests in
turns on one thread. Told are CPU times, each the least of many. ``--pack`` runs such a pack again.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import haotuner
from haotuner.frontends.onnx.read import read
from haotuner.graph.graph import Graph
from haotuner.partition import tasks
from haotuner.partition.costs import Prices
from haotuner.partition.dim_ranges import requests, spans_of
from haotuner.partition.greedy_fusion import Loops
from haotuner.partition.ilp_partition import IlpPartitioner
from haotuner.partition.layout import LAYOUTS
from haotuner.partition.products import Product
from haotuner.verify.model_check import drawn_inputs, name_of

REQUESTS, TURNS = 6, 12


def packed(model: Path, shapes: str, out: Path) -> None:
    """A pack that holds the model in each layout, its name behind its own."""
    from haotuner.entry import main

    plain, files = tasks.model_task, []
    for layout in LAYOUTS:
        files.append(out.parent / f"{model.stem}_{layout}.onnx")
        files[-1].unlink(missing_ok=True)
        files[-1].symlink_to(model.resolve())

    def asked(name: str, *others: Any, **named: Any) -> tasks.ModelTask:
        return plain(name, *others, **{**named, "layout": name.rsplit("_", 1)[1]})

    command = ["tune", *map(str, files), "--shapes", shapes, "--zero-measure", "--peers", "none", "--threads", "1"]
    with (
        mock.patch.object(tasks, "model_task", asked),
        mock.patch.object(sys, "argv", ["haotuner", *command, "--out", str(out)]),
    ):
        try:
            main()
        except SystemExit as error:
            if error.code != 3:  # a pack that nobody verified
                raise


def raced(pack: Path, model: Path, graph: Graph, sizes: Sequence[Mapping[str, int]]) -> list[str]:
    """A row for each request: milliseconds of each layout, and how far its answer is from that of channels first."""
    rows = []
    with haotuner.load(pack, threads=1) as opened:
        models = {layout: opened.model(name_of(Path(f"{model.stem}_{layout}.onnx"))) for layout in LAYOUTS}
        for dims in sizes:
            inputs = drawn_inputs(graph, dims)
            answers = {layout: bound.run(inputs) for layout, bound in models.items()}
            least = dict.fromkeys(models, float("inf"))
            for _ in range(TURNS):
                for layout, bound in models.items():
                    begin = time.process_time()
                    bound.run(inputs)
                    least[layout] = min(least[layout], (time.process_time() - begin) * 1e3)
            far = max(
                float(np.max(np.abs(answer[name] - expected)) / max(1.0, float(np.max(np.abs(expected)))))
                for answer in answers.values()
                for name, expected in answers["first"].items()
            )
            size_text = " x ".join(map(str, dims.values()))
            rows.append(f"| {model.stem} | {size_text} | {' | '.join(f'{least[bound]:.2f}' for bound in LAYOUTS)} "
                        f"| {least['first'] / least['cheapest']:.2f} | {far:.0e} |")  # fmt: skip
    return rows


def plans(model: Path, graph: Graph, sizes: Sequence[Mapping[str, int]]) -> list[str]:
    """A row for each layout: what its plan is expected to take, its steps, and the CPU seconds of planning."""
    rows = []
    for layout, laid_out in LAYOUTS.items():
        begin, prices = time.process_time(), Prices(sizes)
        plan = laid_out(IlpPartitioner(graph, prices))
        steps = plan.steps
        products = [step for step in steps if isinstance(step, Product)]
        us = plan.report.chosen_us + sum(prices.product_us(step, plan.graph) for step in products)
        last = sum(step.kind == "dense" or dict(step.op.options).get("layout", "").startswith("n") for step in products)
        rows.append(f"| {model.stem} | {layout} | {us:,.0f} | {len(products)}, {last} | "
                    f"{sum(isinstance(step, Loops) for step in steps)} | {time.process_time() - begin:.1f} |")  # fmt: skip
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Print both tables; ``--page`` puts rows into the page's section."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("shapes")
    parser.add_argument("--pack", type=Path, help="that an earlier run left")
    parser.add_argument("--plans", action="store_true", help="plan alone, run nothing")
    parser.add_argument("--page", type=Path, help="append the rows to")
    args = parser.parse_args(arguments)
    graph = read(args.model)
    sizes = requests(spans_of(graph, args.shapes), REQUESTS)
    rows = plans(args.model, graph, sizes)
    with tempfile.TemporaryDirectory() as scratch:
        pack = args.pack or Path(scratch) / "pack"
        if not args.plans:
            if not pack.exists():
                packed(args.model, args.shapes, pack)
            rows += raced(pack, args.model, graph, sorted(sizes, key=lambda dims: float(np.prod(list(dims.values())))))
    print("\n".join(rows))
    if args.page:
        with args.page.open("a", encoding="utf-8") as page:
            page.write("\n".join(rows) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
