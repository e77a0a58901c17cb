"""Graphs of ONNX's node tests as a pack for GPUs serves them: launches over the stand-in driver, many graphs a pack.

``python -m tests.bench.onnx_nodes_queued PACK CASES ANSWERS`` is the child that finds the stand-in for the driver.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import haotuner
from haotuner.graph.graph import Graph
from haotuner.verify.device_numbers import answered
from tests.runtime.cuda_model_packs import model_pack, planned
from tests.standin import ROOT, environment

BATCH, ARCH, SECONDS = 48, "sm_80", 600

Given = Mapping[str, Any]
Found = dict[str, dict[str, Any] | str]


def served(cases: Mapping[str, tuple[Graph, Given]]) -> Found:
    """Outputs by name of every graph on its inputs, or in words why there are none."""
    results: Found = {}
    ready: list[str] = []
    for name, (graph, _) in cases.items():
        try:
            planned(name, graph, tuned=False)
            ready.append(name)
        except Exception as error:  # a graph must not end the list
            results[name] = f"no plan: {type(error).__name__}: {str(error)[:140]}"
    with tempfile.TemporaryDirectory() as folder:
        for at in range(0, len(ready), BATCH):
            results |= _together({name: cases[name] for name in ready[at : at + BATCH]}, Path(folder), str(at))
            print(f"{at + BATCH} of {len(ready)}", file=sys.stderr, flush=True)
    return results


def _together(cases: Mapping[str, tuple[Graph, Given]], folder: Path, called: str) -> Found:
    """Of graphs in one pack, or of its halves where it does not build, or where one of them ends the process."""
    text = "the process ended"
    try:
        pack = model_pack(
            folder / called, ARCH, folder / "code", {name: case[0] for name, case in cases.items()}, tuned=False
        )
        return _asked(pack, cases, folder)
    except Exception as error:
        text = f"{type(error).__name__}: {str(error)[-300:]}"
    if len(cases) == 1:
        return dict.fromkeys(cases, text)
    names = list(cases)
    half = len(names) // 2
    parts = [_together({name: cases[name] for name in part}, folder, f"{called}-{len(part)}-{part[0]}")
             for part in (names[:half], names[half:])]  # fmt: skip
    return parts[0] | parts[1]


def _asked(pack: Path, cases: Mapping[str, tuple[Graph, Given]], folder: Path) -> Found:
    feeds = {name: {name_: np.asarray(inputs[name_]) for name_ in graph.inputs} for name, (graph, inputs) in cases.items()}
    request, answer = folder / "asked", folder / "told"
    request.write_bytes(pickle.dumps(feeds))
    where = environment(folder / "images", device=ARCH, sources=folder / "code")
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.onnx_nodes_queued", str(pack), str(request), str(answer)],
        cwd=ROOT, env={**os.environ, **where}, capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip()[-300:])
    results: Found = pickle.loads(answer.read_bytes())
    return results


def main(pack: str, request: str, answer: str) -> None:
    """What a pack's models answer to arrays; a fault of the device ends the process."""
    results: Found = {}
    with haotuner.load(pack, device="cuda:0") as opened:
        for name, feeds in pickle.loads(Path(request).read_bytes()).items():
            try:
                results[name] = answered(opened.model(name), feeds)
            except haotuner.errors.UsageError as error:
                results[name] = f"{type(error).__name__}: {str(error)[:140]}"
    Path(answer).write_bytes(pickle.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
