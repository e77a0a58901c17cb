"""The integer program of a window: which candidates are kernels, solved by HiGHS to proved optimality, or its bound stated.

``y_t``, the number of chosen kernels that make tensor t, is at most 1, and 1 for each output. Of the kernels that make r
and read t at most ``y_t`` are chosen: these rows do not depend on which candidates there are, so the relaxation gives each
further candidate a reduced cost (``candidate_search.py``).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from scipy.sparse import csr_matrix, vstack

from haotuner.partition.costs import Kernel, Prices

WINDOW_S = 20.0  # for a window's program


@dataclass(frozen=True, slots=True)
class Candidate:
    """A kernel's ``outputs`` and the primitives that it computes, by the tensors they make; ``reads`` of the window.

    The first output is the one whose loops they are. ``us``: its price; ``usual_us``: what is expected of it at each request
    without a time. ``alias``: its output is the memory of what it reads, and no kernel makes it.
    """

    outputs: tuple[str, ...]
    nodes: frozenset[str]
    reads: frozenset[str]
    us: float
    usual_us: tuple[float, ...] = ()
    alias: bool = False

    @property
    def output(self) -> str:
        """The tensor whose loops they are."""
        return self.outputs[0]

    @property
    def key(self) -> Kernel:
        """By which prices know it."""
        return self.outputs, self.nodes

    def price(self, prices: Prices) -> float:
        """Its price in us; 0 of an alias."""
        return 0.0 if self.alias else prices.price_of(self.key, self.usual_us)


def total_us(kernels: Iterable[Candidate]) -> float:
    """Price of some kernels together."""
    return sum(kernel.us for kernel in kernels)


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of the program: makers of each tensor, by its name; candidates that make a tensor and read another one."""

    makers: Mapping[str, Sequence[int]]
    readers: Mapping[tuple[str, str], Sequence[int]]  # (what is read, what is made)

    @staticmethod
    def of(candidates: Sequence[Candidate]) -> Rows:
        """The rows of these candidates, by their places."""
        makers: dict[str, list[int]] = {}
        readers: dict[tuple[str, str], list[int]] = {}
        for index, candidate in enumerate(candidates):
            for name in candidate.outputs:
                makers.setdefault(name, []).append(index)
                for tensor in sorted(candidate.reads):
                    readers.setdefault((tensor, name), []).append(index)
        return Rows(makers, readers)

    def links(self) -> list[Mapping[int, float]]:
        """Factors of each row of ``readers``: at least 0, candidates that make what is read less those that read it."""
        return [
            {**dict.fromkeys(self.makers.get(tensor, ()), 1.0), **_negative(members, self.makers.get(tensor, ()))}
            for (tensor, _), members in self.readers.items()
        ]


def _negative(members: Iterable[int], makers: Sequence[int]) -> Mapping[int, float]:
    """Factors of candidates that read a tensor; one that makes it, too, needs no other."""
    return {index: -1.0 for index in members if index not in makers}


def solve(
    candidates: Sequence[Candidate],
    outputs: Sequence[str],
    limit_s: float = WINDOW_S,
    prices: Sequence[float] | None = None,
    *,
    kernels: bool = True,
) -> tuple[list[Candidate] | None, float, bool]:
    """The integer program: the plan, a lower bound on any plan's cost, and whether the plan meets it.

    Kernels of several outputs may wait for each other in a circle: one that a plan has is then forbidden, and the program
    solved again. ``prices``: of the candidates, where they are others than their own. ``kernels``: whether candidates are
    such; other parts of a graph may make something before they have all that they read.
    """
    constraints = Rows.of(candidates)
    if any(name not in constraints.makers for name in outputs):
        return None, 0.0, False
    rows: list[tuple[Mapping[int, float], float, float]] = []
    rows += [(dict.fromkeys(members, 1.0), float(name in outputs), 1.0) for name, members in constraints.makers.items()]
    rows += [(factors, 0.0, np.inf) for factors in constraints.links()]
    costs = [candidate.us for candidate in candidates] if prices is None else prices
    until = time.monotonic() + limit_s
    while True:
        left = until - time.monotonic()
        result, bound, proved = _solved(candidates, rows, costs, left)
        chosen = None if result is None else needed(result, outputs)
        circle = circle_of(chosen or ()) if kernels else []
        if not circle:
            return chosen, bound, proved
        if left <= 0:
            return None, bound, False
        members = [index for index, candidate in enumerate(candidates) if candidate in circle]
        rows.append((dict.fromkeys(members, 1.0), 0.0, len(members) - 1.0))


def _matrix(rows: Sequence[Mapping[int, float]], columns: int) -> csr_matrix:
    entries = [(row, column, factor) for row, factors in enumerate(rows) for column, factor in factors.items()]
    at, of, factors_ = zip(*entries, strict=True) if entries else ((), (), ())
    return csr_matrix((factors_, (at, of)), shape=(len(rows), columns))


def _solved(
    candidates: Sequence[Candidate],
    rows: Sequence[tuple[Mapping[int, float], float, float]],
    prices: Sequence[float],
    left: float,
) -> tuple[list[Candidate] | None, float, bool]:
    """Candidates chosen under rows of factors, each with the least and the most that it may come to."""
    low, high = np.array([(low, high) for _, low, high in rows]).T
    solution = milp(
        prices,
        constraints=LinearConstraint(_matrix([factors for factors, _, _ in rows], len(candidates)), low, high),
        bounds=Bounds(0, 1),
        integrality=np.ones(len(candidates)),
        options={"time_limit": max(left, 0.1), "mip_rel_gap": 0.0},
    )
    bound = float(solution.get("mip_dual_bound") or 0.0)
    if solution.x is None:
        return None, bound, False
    chosen = [candidate for candidate, taken in zip(candidates, solution.x, strict=True) if taken > 0.5]
    return chosen, bound, bool(solution.status == 0)


@dataclass(frozen=True, slots=True)
class Duals:
    """Dual values of the relaxation in us.

    ``us`` of its optimum; ``worth`` of making a tensor; ``reading``: what a reader pays, by what it reads and what it makes.
    """

    us: float
    worth: Mapping[str, float]
    reading: Mapping[tuple[str, str], float]

    def reduced_cost(self, output: str, reads: Iterable[str], us: float) -> float:
        """Reduced cost of a candidate of one output; below 0 the relaxation would take some of it."""
        return us - self.worth.get(output, 0.0) + sum(self.reading.get((tensor, output), 0.0) for tensor in reads)


def duals(candidates: Sequence[Candidate], outputs: Sequence[str]) -> Duals | None:
    """The relaxation of the program, where candidates may be chosen in part; None where it has no solution."""
    rows = Rows.of(candidates)
    links = _matrix(rows.links(), len(candidates))
    required = set(outputs)
    equal = [name for name in rows.makers if name in required]
    most = [name for name in rows.makers if name not in required]
    makers = {name: dict.fromkeys(members, 1.0) for name, members in rows.makers.items()}
    limits = vstack([_matrix([makers[name] for name in most], len(candidates)), -links])
    result = linprog(
        [candidate.us for candidate in candidates],
        A_ub=limits if limits.shape[0] else None,
        b_ub=[*np.ones(len(most)), *np.zeros(links.shape[0])] if limits.shape[0] else None,
        A_eq=_matrix([makers[name] for name in equal], len(candidates)) if equal else None,
        b_eq=np.ones(len(equal)) if equal else None,
        bounds=(0, None),
        method="highs",
    )
    if result.x is None:
        return None
    worth = dict(zip(equal, result.eqlin.marginals, strict=True)) | dict(
        zip(most, result.ineqlin.marginals[: len(most)], strict=True)
    )
    reading: dict[tuple[str, str], float] = {}
    for (tensor, output), value in zip(rows.readers, result.ineqlin.marginals[len(most) :], strict=True):
        reading[tensor, output] = -float(value)
        worth[tensor] = worth.get(tensor, 0.0) - float(value)
    return Duals(float(result.fun), {name: float(value) for name, value in worth.items()}, reading)


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
