"""What a product carries along: a bias, a function of one number, a residual; each the only reader of what is before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from haotuner.graph.extents import same
from haotuner.graph.graph import Graph, Node
from haotuner.ops.epilogue import STEPS
from haotuner.ops.functions import FUNCTIONS

MOST_NODES = 10  # of a function: gelu and hard-swish have five, gelu by tanh nine
POINTS = np.linspace(-6.0, 6.0, 97)
ALIKE = 1e-5  # of two functions at all points


@dataclass(frozen=True, slots=True)
class Carried:
    """``steps`` by their names in epilogues; ``nodes``: what they compute, in order, ``counts`` of them a step.

    ``out``: of a product of bytes, how its spec says the result's type.
    """

    steps: tuple[str, ...]
    nodes: tuple[str, ...]
    counts: tuple[int, ...]
    constants: Mapping[str, Any]
    passed: Mapping[str, str]
    out: str = ""

    def prefixes(self) -> Iterator[Carried]:
        """Itself, then without its last step, and so on down to nothing."""
        for length in range(len(self.steps), -1, -1):
            steps = self.steps[:length]
            yield Carried(
                steps=steps,
                nodes=self.nodes[: sum(self.counts[:length])],
                counts=self.counts[:length],
                constants={name: value for name, value in self.constants.items() if name in steps},
                passed={name: one for name, one in self.passed.items() if name in steps},
            )

    @property
    def epilogue(self) -> str:
        """As a spec has it, behind the result's type; a bias alone is bound without one."""
        return self.out + (f",epilogue={'+'.join(self.steps)}" if self.steps not in ((), ("bias",)) else "")


@dataclass(frozen=True, slots=True)
class Following:
    """The graph, who makes and who reads each tensor; ``taken``: what products compute already."""

    graph: Graph
    made: Mapping[str, Node]
    readers: Mapping[str, Sequence[Node]]
    taken: set[str] = field(default_factory=set)

    def only_reader(self, tensor: str) -> Node | None:
        """The one primitive that reads a tensor which is no output; None where there are several."""
        readers = self.readers.get(tensor, [])
        return readers[0] if len(readers) == 1 and tensor not in self.graph.outputs else None

    def after(self, tensor: str, function: str) -> tuple[str, str] | None:
        """The only reader's output and other operand, if it is this element-wise step."""
        node = self.only_reader(tensor)
        if node is None or node.primitive != "map" or node.attributes["function"] != function:
            return None
        others = [name for name in node.inputs if name != tensor]
        return (node.output, others[0]) if len(others) == 1 else None

    def added(self, tensor: str) -> tuple[str, str] | None:
        """A sum after it that no other product computes: that of two products is behind both; the first takes it along."""
        found = self.after(tensor, "add")
        return None if found is None or found[0] in self.taken else found

    def number(self, tensor: str) -> float | None:
        """A constant's only element."""
        value = self.graph.constants.get(tensor)
        return float(value.reshape(())) if value is not None and value.size == 1 else None

    def carried(self, tensor: str, bias_of: Callable[[str], Any]) -> Carried:
        """What may follow a product: bias, function, residual, or bias, residual, function.

        ``bias_of`` gives a constant's row, or None.
        """
        steps: list[str] = []
        nodes: list[str] = []
        counts: list[int] = []
        constants: dict[str, Any] = {}
        passed: dict[str, str] = {}

        def take(step: str, made: Sequence[str]) -> None:
            steps.append(step)
            nodes.extend(made)
            counts.append(len(made))

        found = self.after(tensor, "add")
        if found is not None and (row := bias_of(found[1])) is not None:
            constants["bias"] = row
            take("bias", [found[0]])
        function = self._function_of_one(nodes[-1] if nodes else tensor)
        if function is not None:
            take(*function)
        more = self.added(nodes[-1] if nodes else tensor)
        if more is not None and self._alike(more[1], tensor):
            passed["residual"] = more[1]
            take("residual", [more[0]])
            function = self._function_of_one(more[0]) if function is None else None
            if function is not None:
                take(*function)
        return Carried(tuple(steps), tuple(nodes), tuple(counts), constants, passed)

    def _alike(self, tensor: str, other: str) -> bool:
        """Whether a tensor that comes with the call has the shape of another one."""
        one, two = self.graph.types[tensor], self.graph.types[other]
        alike = len(one.shape) == len(two.shape) and all(same(a, b) for a, b in zip(one.shape, two.shape, strict=True))
        return alike and one.dtype == "fp32" and tensor not in self.graph.constants

    def _function_of_one(self, tensor: str) -> tuple[str, list[str]] | None:
        """The largest function of the tensor alone that epilogues have, and its nodes in order: known by its values."""
        if tensor in self.graph.outputs:
            return None
        values: dict[str, Any] = {tensor: POINTS}
        nodes: list[str] = []
        best = None
        while len(nodes) < MOST_NODES:
            node = next(
                (one for name in values for one in self.readers.get(name, []) if self._computable(one, values)), None
            )
            if node is None:
                break
            given = [values[one] if one in values else self.number(one) for one in node.inputs]
            values[node.output] = np.asarray(FUNCTIONS[node.attributes["function"]](*given), np.float64)
            nodes.append(node.output)
            if self._closed(set(values), node.output):
                name = _named(values[node.output])
                best = (name, list(nodes)) if name else best
            if node.output in self.graph.outputs:
                break
        return best

    def _computable(self, node: Node, values: Mapping[str, Any]) -> bool:
        return (
            node.primitive == "map"
            and node.output not in values
            and self.graph.types[node.output].dtype == "fp32"
            and all(one in values or self.number(one) is not None for one in node.inputs)
        )

    def _closed(self, inside: set[str], last: str) -> bool:
        """Whether nobody outside reads what is inside, but the last."""
        return all(reader.output in inside for name in inside - {last} for reader in self.readers.get(name, [])) and not (
            inside - {last}
        ) & set(self.graph.outputs)


def _named(values: Any) -> str | None:
    """The step of these values at the points."""
    for name, step in STEPS.items():
        if not step.operands and np.allclose(step.apply(POINTS, {}), values, atol=ALIKE):
            return name
    return None
