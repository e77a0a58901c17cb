"""Sketches: the structures that a graph's program may have, by Ansor's rules (Zheng et al., OSDI 2020, section 4.1).

Nodes are visited from the last to the first. Each rule is a condition on the graph, none on an operator; where several
apply a sketch goes on in several ways. What a sketch leaves open is annotated later (``space.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from haotuner.codegen import rfactor
from haotuner.codegen.access import Accesses
from haotuner.codegen.expressions import Fold, Load, free_variables, parts
from haotuner.codegen.online_softmax import match_online_softmax
from haotuner.codegen.schedule import FOLDS, Schedule, keepable, planned
from haotuner.errors import UsageError
from haotuner.graph.graph import Graph, Node

TILED = "SSRSRS"  # tiles of threads, of the cache, parts of the terms, blocks, terms, rows and vectors in registers


@dataclass(frozen=True, slots=True)
class Step:
    """Decision of a rule on a node."""

    rule: str
    node: str
    words: str = ""

    def __str__(self) -> str:
        """As goldens and people read it."""
        return f"{self.rule} {self.node}" + (f": {self.words}" if self.words else "")


@dataclass(frozen=True, slots=True)
class Sketch:
    """The steps of one structure, in the order in which nodes were visited."""

    steps: tuple[Step, ...] = ()

    def nodes(self, rule: str) -> tuple[str, ...]:
        """The nodes that a rule was applied to."""
        return tuple(step.node for step in self.steps if step.rule == rule)

    @property
    def cached(self) -> tuple[str, ...]:
        """Tensors that are kept while the program goes on."""
        return self.nodes("cache")

    @property
    def tiled(self) -> bool:
        """True if some node's operands are used for several points of a tile in registers."""
        return bool(self.nodes("tile") or self.nodes("tile and fuse"))


Condition = Callable[[Graph, Node, Sketch], bool]


def inlinable(graph: Graph, node: Node, so_far: Sketch) -> bool:
    """An element-wise or a layout node that something reads: it can be computed where it is read."""
    return node.primitive not in FOLDS and node.output not in graph.outputs


def reuses(graph: Graph, node: Node, so_far: Sketch) -> bool:
    """A fold some of whose operands are read again for other points of its output."""
    if node.primitive not in FOLDS:
        return False
    accesses = Accesses(graph)
    own = tuple(accesses.variable("i") for _ in graph.types[node.output].shape)
    value = accesses.computed(node.output, own)
    wide = {v.name for v, extent in zip(own, graph.types[node.output].shape, strict=True) if extent != 1}
    loads = [p for fold in parts(value) if isinstance(fold, Fold) for p in parts(fold.value) if isinstance(p, Load)]
    return any(wide - free_variables(load) for load in loads)


def fusible(graph: Graph, node: Node) -> str:
    """The one node that reads a node's result, element for element; empty where there is none."""
    readers = graph.readers(node.output)
    if len(readers) != 1 or readers[0].primitive not in ("map", "cast"):
        return ""
    alike = graph.types[readers[0].output].shape == graph.types[node.output].shape
    return readers[0].output if alike else ""


def tiles(graph: Graph, node: Node, so_far: Sketch) -> bool:
    """Reuse, and no consumer to fuse."""
    return reuses(graph, node, so_far) and not fusible(graph, node)


def tiles_and_fuses(graph: Graph, node: Node, so_far: Sketch) -> bool:
    """Reuse, and a consumer that can be computed on the tile while it is in registers."""
    return reuses(graph, node, so_far) and bool(fusible(graph, node))


def caches(graph: Graph, node: Node, so_far: Sketch) -> bool:
    """An inlinable node that a fold reads and something else does, too: keeping it saves computing it again."""
    twice = len(graph.readers(node.output)) > 1
    return inlinable(graph, node, so_far) and twice and not so_far.cached and node.output in keepable(graph)


def factors(graph: Graph, node: Node, so_far: Sketch) -> bool:
    """A fold without reuse: its terms offer more to do at a time than its results."""
    return node.primitive in FOLDS and not reuses(graph, node, so_far)


def onlines(graph: Graph, node: Node, so_far: Sketch) -> bool:
    """A sum of products of exponentials of x - max x, x itself a sum of products: both need no more than a tile of x."""
    match = match_online_softmax(graph) if node.primitive in FOLDS else None
    return match is not None and match.weighted.tensor == node.output


def joined(graph: Graph, node: Node, so_far: Sketch) -> bool:
    """The maximum and the sum that an online sum goes with."""
    match = match_online_softmax(graph) if so_far.nodes("online") else None
    return match is not None and node.output in (match.maximum, match.total.tensor)


def skips(graph: Graph, node: Node, so_far: Sketch) -> bool:
    """True if a node can neither be inlined nor tiled: it stays as it is; of a fold, each lane folds its own."""
    return not inlinable(graph, node, so_far) and not reuses(graph, node, so_far)


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition, and the steps that follow from it."""

    name: str
    condition: Condition
    steps: Callable[[Graph, Node], tuple[Step, ...]]


def _sharers(graph: Graph, node: Node) -> str:
    """Workers, where the output is one fold that may be cut among them."""
    alone = len(graph.outputs) == 1 and [node.output for node in graph.nodes if node.primitive in FOLDS] == [node.output]
    return "workers, " if alone and rfactor.joined(graph) else ""


def _plain(name: str) -> Callable[[Graph, Node], tuple[Step, ...]]:
    return lambda graph, node: (Step(name, node.output),)


RULES = (
    Rule("inline", inlinable, _plain("inline")),
    Rule("tile", tiles, lambda graph, node: (
        Step("cache stage", node.output, "accumulators in registers"), Step("tile", node.output, TILED))),
    Rule("tile and fuse", tiles_and_fuses, lambda graph, node: (
        Step("tile and fuse", node.output, f"{TILED}, {fusible(graph, node)} on the tile"),)),
    Rule("cache", caches, lambda graph, node: (Step("cache", node.output, "in the output's row"),)),
    Rule("online", onlines, lambda graph, node: (
        Step("online", node.output, "a tile of keys at a time, rescaled by the maximum so far"),)),
    Rule("factor", factors, lambda graph, node: (
        Step("factor", node.output, f"{_sharers(graph, node)}lanes and accumulators, then joined"),)),
    Rule("skip", skips, _plain("skip")),
)  # fmt: skip


def sketches(graph: Graph) -> tuple[Sketch, ...]:
    """Every sketch of a graph that has a program, each once; the first takes the first rule that applies everywhere."""
    every = dict.fromkeys(_from(graph, len(graph.nodes) - 1, Sketch()))
    return tuple(sketch for sketch in every if sketch.nodes("online") or lane_axes(graph, sketch))


def _from(graph: Graph, index: int, so_far: Sketch) -> Iterator[Sketch]:
    if index < 0:
        yield so_far
        return
    node = graph.nodes[index]
    if joined(graph, node, so_far):
        yield from _from(graph, index - 1, Sketch((*so_far.steps, Step("online", node.output, "so far"))))
        return
    for rule in RULES:
        if rule.condition(graph, node, so_far):
            yield from _from(graph, index - 1, Sketch((*so_far.steps, *rule.steps(graph, node))))


def lane_axes(graph: Graph, sketch: Sketch) -> tuple[int, ...]:
    """Axes of the output along which lanes may run in a sketch's programs, the last one first; -1: in folds alone.

    A fold is factored where its result does not vary along the lanes. Online sums have lanes of their own
    (``online_softmax_schedule.py``).
    """
    if sketch.nodes("online"):
        return ()
    result = []
    for axis in (*reversed(range(graph.types[graph.outputs[0]].rank)), -1):
        try:
            plan = planned(graph, Schedule(lane_axis=axis, lanes=2, unroll=1, cached=sketch.cached))
        except UsageError:
            continue
        lanes, fits = plan.loops[-1][0].name, True
        folds = {part for value in plan.values() for part in parts(value) if isinstance(part, Fold)}
        for fold in folds:
            own = lanes in free_variables(fold)
            fits &= not (fold.tensor in sketch.nodes("factor") and own or fold.tensor in sketch.nodes("skip") and not own)
        if fits and (axis >= 0 or folds):
            result.append(axis)
    return tuple(result)
