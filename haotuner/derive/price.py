"""Price of an expression: expected time of its nests on a core, by the rates that plans of models have.

It orders the states of a search. What a model's plan takes is the price of the graph that an expression becomes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, prod

from haotuner.derive.expression import Loop, Read, Scope, Tensor, box_of, reads, scopes
from haotuner.derive.kernels import Kernel, hangs_on, is_constant, is_plain, kernels
from haotuner.derive.nests import operations
from haotuner.graph.extents import canonical, evaluate, is_symbolic
from haotuner.partition.costs import CORE, Rates

ELEMENT = 4  # bytes
LANES = 16  # numbers side by side: results that are fewer leave some idle
MOST_COPIES = 4  # of a constant's numbers: larger layouts are made at the request, or would fill a pack
SHORT_DEPTH = 8  # of a product whose sums are so short, half of the time goes into what is around them


def price_us(root: Scope, requests: Sequence[Mapping[str, int]], rates: Rates = CORE) -> float:
    """Expected microseconds, the mean over some requests; each nest counts once, however often it is read."""
    nests = dict.fromkeys(scopes(root))
    return sum(_scope_us(scope, requests, rates) for scope in nests) / len(requests)


def kernel_of(scope: Scope, sizes: Mapping[str, int], rates: Rates = CORE, *, may_be_loops: bool = True) -> Kernel | None:
    """The cheapest kernel of a nest; None where generated loops are it, or cheaper and ``may_be_loops``."""
    priced = [(_kernel_us(scope, kernel, sizes, rates), at, kernel) for at, kernel in enumerate(kernels(scope))]
    if not priced or may_be_loops and min(priced)[0] > _loops_us(scope, sizes, rates):
        return None
    return min(priced)[2]


def _scope_us(scope: Scope, requests: Sequence[Mapping[str, int]], rates: Rates) -> float:
    """Microseconds of a nest in its cheapest kernel or in loops, the sum over the requests."""
    if is_constant(Read(scope, ())):
        return 0.0
    every = list(kernels(scope))
    return sum(
        min([_loops_us(scope, sizes, rates), *(_kernel_us(scope, kernel, sizes, rates) for kernel in every)])
        for sizes in requests
    )


def points(loops: Sequence[Loop], sizes: Mapping[str, int]) -> int:
    """Values that some iterators have together."""
    return prod(max(0, evaluate(loop.extent, sizes)) for loop in loops)


def _elements(source: Tensor | Scope, sizes: Mapping[str, int]) -> int:
    return prod(max(0, evaluate(canonical(high - low), sizes)) for low, high in box_of(source))


def _loops_us(scope: Scope, sizes: Mapping[str, int], rates: Rates) -> float:
    """Generated loops: bytes of all that they read once, or an addition and the body's arithmetic for each point."""
    all_loops = (*scope.spatial, *scope.sums)
    moved = points(scope.spatial, sizes)
    for read in dict.fromkeys(reads(scope.body)):
        read_iterators = hangs_on(read)
        reach = points([loop for loop in all_loops if loop.name in read_iterators], sizes)
        moved += min(_elements(read.source, sizes), reach)
    arithmetic = points(all_loops, sizes) * (operations(scope.body) + (1 if scope.sums else 0))
    return rates.step_us + max(moved * ELEMENT / rates.bytes_moved, arithmetic / rates.simple)


def _kernel_us(scope: Scope, kernel: Kernel, sizes: Mapping[str, int], rates: Rates) -> float:
    """The kernel's own time and that of operands that must first be laid out."""
    if kernel.kind == "band":
        return _loops_us(scope, sizes, rates)
    extents = {loop.name: max(1, evaluate(loop.extent, sizes)) for loop in (*scope.spatial, *scope.sums)}
    symbolic = {loop.name for loop in (*scope.spatial, *scope.sums) if is_symbolic(loop.extent)}
    total, moved = rates.step_us, points(scope.spatial, sizes)
    for read in (kernel.first, kernel.second):
        laid = prod(extents[name] for name in hangs_on(read))
        plain = is_plain(read) or bool(kernel.windows) and read is kernel.first
        source_elements = _elements(read.source, sizes)
        moved += source_elements if plain else laid
        fixed = is_constant(read) and not symbolic & hangs_on(read)
        if not plain and (not fixed or laid > MOST_COPIES * source_elements):
            total += rates.step_us + (source_elements + laid) * ELEMENT / rates.bytes_moved
    n = prod(extents[name] for name in kernel.roles["n"])
    m = prod(extents[name] for name in kernel.roles["m"])
    k = prod(extents[name] for name in kernel.roles["k"])
    share = utilisation(n if kernel.kind == "conv" else max(n, m), k, 0 if kernel.kind == "conv" else min(n, m))
    flops = 2.0 * points((*scope.spatial, *scope.sums), sizes)
    return total + max(flops / (rates.flops * share), moved * ELEMENT / rates.bytes_moved)


def utilisation(side: int, depth: int, rows: int = 0) -> float:
    """Share of a product's rate that is reached: results ``side`` by side, sums of a ``depth``, ``rows`` that share them.

    Of one row nothing is used twice; ``rows`` 0: enough.
    """
    share = side / (ceil(side / LANES) * LANES) * depth / (depth + SHORT_DEPTH)
    return share * rows / (rows + 1) if rows else share
