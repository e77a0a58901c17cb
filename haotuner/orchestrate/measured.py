"""Prices of which those that a plan wants are measured: bounds first, times only where a program asks for them.

As Korch prices kernels (ASPLOS 2024), but lazily: what was not measured counts with a bound under its expectation, so the
program looks at whatever might be cheaper; it is solved again until all kernels of its plan have times, or time is over.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from haotuner.backends.cpu.compile import RUNTIME_SOURCES
from haotuner.backends.cpu.pack_source import GROUP_FLAGS
from haotuner.backends.toolchain import Toolchain
from haotuner.errors import HaotunerError
from haotuner.graph.extents import evaluate
from haotuner.graph.graph import Graph
from haotuner.graph.types import numpy_dtype
from haotuner.orchestrate.c_loops import Group, loops_of
from haotuner.orchestrate.c_math import PRELUDE
from haotuner.orchestrate.costs import STEP_US, Prices
from haotuner.orchestrate.sizes import SizeTable

BOUND = 0.4  # of what an unmeasured kernel is expected to take
LARGEST_BYTES = 1 << 25  # of a kernel's tensors at a measured request
CHILD_LIMIT_S = 120.0
Key = tuple[str, frozenset[str]]


class Measured(Prices):
    """Prices at some requests; ``measure`` times kernels on this host, one thread, until ``limit_s`` is over."""

    def __init__(self, requests: Sequence[Mapping[str, int]], limit_s: float) -> None:
        super().__init__(requests)
        self._until = time.monotonic() + limit_s
        self._known: dict[Key, list[float]] = {}
        self.ratios: list[float] = []  # of their times over what was expected

    def each_us(self, graph: Graph) -> list[float]:
        """Measured, or a bound."""
        return self._known.get(_key(graph)) or [BOUND * one for one in super().each_us(graph)]

    def expected_us(self, graph: Graph) -> list[float]:
        """Measured, or what the bound is a bound of."""
        return self._known.get(_key(graph)) or super().each_us(graph)

    def knows(self, output: str, nodes: frozenset[str]) -> bool:
        """Whether this kernel has a time."""
        return (output, nodes) in self._known

    def measure(self, graphs: Sequence[Graph]) -> bool:
        """Time what has no time yet; False where there is nothing to time, or no time left."""
        new = [graph for graph in graphs if _key(graph) not in self._known]
        if not new or time.monotonic() > self._until:
            return False
        expected = [Prices.each_us(self, graph) for graph in new]
        for graph, usual, found in zip(new, expected, self._timed(new), strict=True):
            ratios = [us / one for us, one in zip(found, usual, strict=True) if us is not None]
            scale = float(np.exp(np.mean(np.log(ratios)))) if ratios else 1.0
            self.ratios += ratios
            self.count += bool(ratios)
            self._known[_key(graph)] = [scale * one if us is None else us for us, one in zip(found, usual, strict=True)]
        return True

    def _timed(self, graphs: Sequence[Graph]) -> list[list[float | None]]:
        """Microseconds at each request; None where it is too large, or the kernel did not answer."""
        sizes = SizeTable()
        groups = [loops_of(graph, f"ht_group_{place}", sizes.place) for place, graph in enumerate(graphs)]
        places = [sizes.places(group.loops) for group in groups]
        values = [sizes.values(one) for one in self.requests]
        nothing: list[list[float | None]] = [[None] * len(self.requests) for _ in graphs]
        tasks = [
            {"group": at, "loops": places[at], "request": number, "tensors": tensors}
            for at, (graph, group) in enumerate(zip(graphs, groups, strict=True))
            for number, one in enumerate(self.requests)
            if (tensors := _tensors(graph, group, one)) is not None
        ]
        with tempfile.TemporaryDirectory() as scratch:
            source, library = Path(scratch) / "groups.c", Path(scratch) / "groups.so"
            text = "\n".join(group.source.replace("static void", "void", 1) for group in groups)
            source.write_text(f"{PRELUDE}\n{text}\n", encoding="utf-8")
            try:
                command = [Toolchain.find().compiler, "-std=c11", "-O3", "-march=native", *GROUP_FLAGS, "-fPIC", "-shared",
                           "-I", str(RUNTIME_SOURCES), str(source), "-o", str(library), "-lm"]  # fmt: skip
                subprocess.run(command, check=True, capture_output=True, timeout=CHILD_LIMIT_S)
                job = json.dumps({"library": str(library), "values": values, "tasks": tasks})
                answer = subprocess.run([sys.executable, "-m", "haotuner.orchestrate.group_times"], input=job, text=True,
                                        capture_output=True, timeout=CHILD_LIMIT_S, check=False)  # fmt: skip
                lines = answer.stdout.splitlines()
            except subprocess.TimeoutExpired as error:
                lines = (error.stdout or b"").decode().splitlines() if isinstance(error.stdout, bytes) else []
            except (OSError, subprocess.CalledProcessError, HaotunerError):
                return nothing  # without a compiler prices stay what they are; the pack's own build says what is wrong
        for line in lines:
            if line.endswith("]"):
                at, number, us = json.loads(line)
                nothing[at][number] = STEP_US + us
        return nothing


def _key(graph: Graph) -> Key:
    return graph.outputs[0], frozenset(node.output for node in graph.nodes)


def _tensors(graph: Graph, group: Group, dims: Mapping[str, int]) -> list[Any] | None:
    """Element types and shapes of what a call passes; None where it is too large or empty."""
    found, total = [], 0
    for name in group.tensors:
        kind = graph.types[name]
        shape = [evaluate(extent, dims) for extent in kind.shape]
        dtype = numpy_dtype(kind.dtype)
        total += int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        found.append([dtype.name, shape])
    return found if 0 < total <= LARGEST_BYTES else None
