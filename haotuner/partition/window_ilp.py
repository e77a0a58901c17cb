"""The binary program of a window: which candidates are kernels, solved by HiGHS to proved optimality, or its bound told."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import lil_matrix

from haotuner.partition.costs import Kernel

WINDOW_S = 20.0  # for a window's program


@dataclass(frozen=True, slots=True)
class Candidate:
    """A kernel's ``outputs`` and the primitives that it computes, by the tensors they make; ``reads`` of the window.

    The first output is the one whose loops they are. ``us``: its price; ``usual_us``: what is expected of it at each request
    without a time.
    """

    outputs: tuple[str, ...]
    nodes: frozenset[str]
    reads: frozenset[str]
    us: float
    usual_us: tuple[float, ...] = ()

    @property
    def output(self) -> str:
        """The tensor whose loops they are."""
        return self.outputs[0]

    @property
    def key(self) -> Kernel:
        """By which prices know it."""
        return self.outputs, self.nodes


def solve(
    candidates: Sequence[Candidate],
    outputs: Sequence[str],
    limit_s: float = WINDOW_S,
    prices: Sequence[float] | None = None,
    *,
    kernels: bool = True,
) -> tuple[list[Candidate] | None, float, bool]:
    """The binary program: the plan, a lower bound on any plan's cost, and whether the plan meets it.

    ``y_t`` is the number of chosen kernels that make tensor t; at most one, one for each output, and one wherever a chosen
    kernel reads t. Kernels of several outputs may wait for each other in a circle: one that a plan has is then forbidden,
    and the program solved again. ``prices``: of the candidates, where they are others than their own. ``kernels``: whether
    candidates are such; other parts of a graph may make something before they have all that they read.
    """
    makers: dict[str, list[int]] = {}
    for index, candidate in enumerate(candidates):
        for name in candidate.outputs:
            makers.setdefault(name, []).append(index)
    if any(name not in makers for name in outputs):
        return None, 0.0, False
    reads = [(index, name) for index, candidate in enumerate(candidates) for name in sorted(candidate.reads)]
    rows: list[tuple[Mapping[int, float], float, float]] = []
    rows += [(dict.fromkeys(members, 1.0), float(name in outputs), 1.0) for name, members in makers.items()]
    rows += [({**dict.fromkeys(makers.get(name, ()), 1.0), tensor: -1.0}, 0.0, 1.0) for tensor, name in reads]
    until = time.monotonic() + limit_s
    while True:
        left = until - time.monotonic()
        result, bound, proved = _solved(
            candidates, rows, [candidate.us for candidate in candidates] if prices is None else prices, left
        )
        chosen = None if result is None else needed(result, outputs)
        circle = circle_of(chosen or ()) if kernels else []
        if not circle:
            return chosen, bound, proved
        if left <= 0:
            return None, bound, False
        members = [index for index, candidate in enumerate(candidates) if candidate in circle]
        rows.append((dict.fromkeys(members, 1.0), 0.0, len(members) - 1.0))


def _solved(
    candidates: Sequence[Candidate],
    rows: Sequence[tuple[Mapping[int, float], float, float]],
    prices: Sequence[float],
    left: float,
) -> tuple[list[Candidate] | None, float, bool]:
    """Candidates chosen under rows of factors, each with the least and the most that it may come to."""
    matrix = lil_matrix((len(rows), len(candidates)))
    for row, (factors, _, _) in enumerate(rows):
        for position, factor in factors.items():
            matrix[row, position] = factor
    low, high = np.array([(low, high) for _, low, high in rows]).T
    solution = milp(
        prices,
        constraints=LinearConstraint(matrix.tocsr(), low, high),
        bounds=Bounds(0, 1),
        integrality=np.ones(len(candidates)),
        options={"time_limit": max(left, 0.1), "mip_rel_gap": 0.0},
    )
    bound = float(solution.get("mip_dual_bound") or 0.0)
    if solution.x is None:
        return None, bound, False
    chosen = [candidate for candidate, taken in zip(candidates, solution.x, strict=True) if taken > 0.5]
    return chosen, bound, bool(solution.status == 0)


def needed(chosen: Iterable[Candidate], outputs: Sequence[str]) -> list[Candidate]:
    """Candidates among the chosen ones that the outputs need."""
    by_output = {name: kernel for kernel in chosen for name in kernel.outputs}
    result: dict[Kernel, Candidate] = {}
    waiting = list(outputs)
    while waiting:
        kernel = by_output[waiting.pop()]
        if kernel.key not in result:
            result[kernel.key] = kernel
            waiting += sorted(kernel.reads)
    return list(result.values())


def circle_of(chosen: Sequence[Candidate]) -> list[Candidate]:
    """A shortest circle of kernels of which each reads what the next one makes; empty where there is an order."""
    by_output = {name: kernel for kernel in chosen for name in kernel.outputs}
    before = {
        kernel.key: [by_output[name] for name in sorted(kernel.reads) if by_output[name] is not kernel] for kernel in chosen
    }
    best: list[Candidate] = []
    for first in (kernel for kernel in chosen if len(kernel.outputs) > 1):  # others make nothing that they wait for
        paths: dict[Kernel, list[Candidate]] = {first.key: [first]}
        waiting = [first]
        while waiting:
            here = waiting.pop(0)
            for kernel in before[here.key]:
                path = paths[here.key]
                if kernel is first and (not best or len(path) < len(best)):
                    best = path
                if kernel.key not in paths:
                    paths[kernel.key] = [*path, kernel]
                    waiting.append(kernel)
    return best
