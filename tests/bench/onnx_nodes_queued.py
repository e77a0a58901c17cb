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
    found: Found = {}
    ready: list[str] = []
    for name, (graph, _) in cases.items():
        try:
            planned(name, graph, tuned=False)
            ready.append(name)
        except Exception as error:  # a graph must not end the list
            found[name] = f"no plan: {type(error).__name__}: {str(error)[:140]}"
    with tempfile.TemporaryDirectory() as place:
        for at in range(0, len(ready), BATCH):
            found |= _together({name: cases[name] for name in ready[at : at + BATCH]}, Path(place), str(at))
            print(f"{at + BATCH} of {len(ready)}", file=sys.stderr, flush=True)
    return found


def _together(cases: Mapping[str, tuple[Graph, Given]], place: Path, called: str) -> Found:
    """Of graphs in one pack, or of its halves where it does not build, or where one of them ends the process."""
    told = "the process ended"
    try:
        pack = model_pack(place / called, ARCH, place / "code", {name: one[0] for name, one in cases.items()}, tuned=False)
        return _asked(pack, cases, place)
    except Exception as error:
        told = f"{type(error).__name__}: {str(error)[-300:]}"
    if len(cases) == 1:
        return dict.fromkeys(cases, told)
    names = list(cases)
    half = len(names) // 2
    parts = [_together({name: cases[name] for name in part}, place, f"{called}-{len(part)}-{part[0]}")
             for part in (names[:half], names[half:])]  # fmt: skip
    return parts[0] | parts[1]


def _asked(pack: Path, cases: Mapping[str, tuple[Graph, Given]], place: Path) -> Found:
    given = {name: {one: np.asarray(inputs[one]) for one in graph.inputs} for name, (graph, inputs) in cases.items()}
    asked, told = place / "asked", place / "told"
    asked.write_bytes(pickle.dumps(given))
    where = environment(place / "images", device=ARCH, sources=place / "code")
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.onnx_nodes_queued", str(pack), str(asked), str(told)],
        cwd=ROOT, env={**os.environ, **where}, capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip()[-300:])
    found: Found = pickle.loads(told.read_bytes())
    return found


def main(pack: str, asked: str, told: str) -> None:
    """What a pack's models answer to arrays; a fault of the device ends the process."""
    found: Found = {}
    with haotuner.load(pack, device="cuda:0") as opened:
        for name, given in pickle.loads(Path(asked).read_bytes()).items():
            try:
                found[name] = answered(opened.model(name), given)
            except haotuner.errors.UsageError as error:
                found[name] = f"{type(error).__name__}: {str(error)[:140]}"
    Path(told).write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
