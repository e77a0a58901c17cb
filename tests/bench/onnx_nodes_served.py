"""Graphs of ONNX's node tests computed as a pack serves them: plain loops in C, many graphs in one library.

A library takes seconds to compile whatever it holds, so a pack has ``BATCH`` graphs. One that does not build is halved until
the graph that stops it is alone; the others are served all the same.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import haotuner
from haotuner.graph.graph import Graph
from tests.runtime.model_packs import model_pack, planned
from tests.runtime.packs import LANES, best_level

BATCH = 48  # graphs of one library

Given = Mapping[str, Any]


def served(cases: Mapping[str, tuple[Graph, Given]]) -> dict[str, dict[str, Any] | str]:
    """Outputs by name of every graph on its inputs, or in words why there are none."""
    results: dict[str, dict[str, Any] | str] = {}
    ready: list[str] = []
    for name, (graph, _) in cases.items():
        try:
            planned({name: graph}, LANES[best_level()], tuned=False, exact=False)
            ready.append(name)
        except Exception as error:  # a graph must not end the list
            results[name] = f"no plan: {type(error).__name__}: {str(error)[:140]}"
    for at in range(0, len(ready), BATCH):
        results |= _together({name: cases[name] for name in ready[at : at + BATCH]})
    return results


def _together(cases: Mapping[str, tuple[Graph, Given]]) -> dict[str, dict[str, Any] | str]:
    """Of graphs in one pack, or of its halves where it does not build."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            path = model_pack(
                Path(folder) / "pack", {name: graph for name, (graph, _) in cases.items()}, tuned=False, exact=False
            )
            with haotuner.load(path, threads=1) as pack:
                return {name: _one(pack.model(name), graph, feeds) for name, (graph, feeds) in cases.items()}
        except Exception as error:
            if len(cases) == 1:
                return dict.fromkeys(cases, f"no pack: {type(error).__name__}: {str(error)[:140]}")
    names = list(cases)
    half = len(names) // 2
    parts = [_together({name: cases[name] for name in part}) for part in (names[:half], names[half:])]
    return parts[0] | parts[1]


def _one(model: Any, graph: Graph, feeds: Given) -> dict[str, Any] | str:
    try:
        out: dict[str, Any] = model.run({name: np.asarray(feeds[name]) for name in graph.inputs})
        return out
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:140]}"
