"""What of a model a device has no kernels for, step by step: said before anything is tuned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from haotuner.graph.graph import Graph
from haotuner.orchestrate.greedy import Loops
from haotuner.orchestrate.products import Product
from haotuner.orchestrate.tasks import AskedModel
from haotuner.words.op import Op

SHOWN = 8  # of each kind of step; the others are counted
PRIMITIVES = 4  # of a group, the most frequent


def steps_lacking(model: AskedModel, serves: Callable[[Op], bool]) -> tuple[str, ...]:
    """Of a model the steps that nothing on a device computes, in words: products, generated groups, cuts.

    ``serves``: whether the device has a kernel for an op.
    """
    ops = list(dict.fromkeys(Op.parse(one.op).name for one in model.steps if isinstance(one, Product)))
    lost = [name for name in ops if not serves(Op.parse(name))]
    groups = [_group(one.graph) for one in model.steps if isinstance(one, Loops)]
    found = [f"product {name}" for name in _shown(lost)]
    found += [f"group {one}" for one in _shown(groups)]
    if len(model.parts) > 1:
        found.append(f"{len(model.parts) - 1} cuts where a size depends on data, at which the host must wait for it")
    return tuple(found)


def products_served(model: AskedModel, serves: Callable[[Op], bool]) -> tuple[int, int]:
    """How many of a model's products a device has kernels for, and how many there are."""
    every = [Op.parse(one.op) for one in model.steps if isinstance(one, Product)]
    return sum(serves(op) for op in every), len(every)


def _group(graph: Graph) -> str:
    """The tensor that a group makes, and of what: ``y (3 map, 1 reduce)``."""
    counted = Counter(node.primitive for node in graph.nodes).most_common(PRIMITIVES)
    return f"{graph.outputs[0]} ({', '.join(f'{count} {name}' for name, count in counted)})"


def _shown(names: Sequence[str]) -> list[str]:
    more = len(names) - SHOWN
    return [*names[:SHOWN], *([f"… and {more} more"] if more > 0 else [])]
