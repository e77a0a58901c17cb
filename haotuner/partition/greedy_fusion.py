"""Greedy fusion: an element-wise step joins its only reader; every other plan is held against this one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from haotuner.codegen.loops.c_ordered import ORDERED
from haotuner.codegen.loops.recompute import recomputed_reductions
from haotuner.graph.extents import Extent, evaluate
from haotuner.graph.graph import Graph, Node
from haotuner.partition.key_caches import Append, appends_of
from haotuner.partition.online_softmax import online_products
from haotuner.partition.products import Finder, Product
from haotuner.partition.program_forms import ProgramForm
from haotuner.spec.op import Op

MOST_NODES = 48  # of a group
ROW = 16  # elements that a vector holds
BYTES = ("uint8", "int8")
FREE = ("reshape", "transpose", "broadcast", "slice", "size", "iota")  # cost nothing to compute again


@dataclass(frozen=True, slots=True)
class Alias:
    """A tensor that is another one in memory, in another shape."""

    tensor: str
    of: str


@dataclass(frozen=True, slots=True)
class Loops:
    """A generated group; ``graph`` has the output whose loops they are, and the outputs beside it.

    ``form``: the program that computes it; None: plain loops do.
    """

    graph: Graph
    form: ProgramForm | None = None

    @property
    def output(self) -> str:
        """The tensor whose loops they are."""
        return self.graph.outputs[0]


Step = Product | Append | Loops | Alias


@dataclass(frozen=True, slots=True)
class Specialization:
    """The steps that serve requests at which ``extent`` is at most ``most``; None: requests of any sizes.

    ``graph``: whose tensors the steps name, of the same inputs and outputs; None: the model's.
    """

    steps: tuple[Step, ...]
    extent: Extent | None = None
    most: int = 0
    graph: Graph | None = field(default=None, compare=False)

    def serves(self, sizes: Mapping[str, int]) -> bool:
        """True if it serves a request of these sizes."""
        return self.extent is None or evaluate(self.extent, sizes) <= self.most


def looks_up_bytes(graph: Graph, node: Node) -> bool:
    """True if a node's elements are those of a table at places that bytes say."""
    return node.primitive == "gather" and graph.types[node.inputs[1]].dtype in BYTES


class Greedy:
    """The steps of a graph in an order in which they can run. Without ``tuned`` everything runs as plain loops.

    ``serves``: as of ``Finder``.
    """

    def __init__(self, graph: Graph, *, tuned: bool = True, serves: Callable[[Op], bool] | None = None) -> None:
        self.graph = graph
        self.finder = Finder(graph, serves)
        self.producers = self.finder.producers
        self.order = {node.output: index for index, node in enumerate(graph.nodes)}
        self.products = {product.output: product for product in self.finder.products()} if tuned else {}
        for product in online_products(self.finder) if tuned and serves is None else ():
            parts = [name for name in self.products if name in product.nodes]
            if self.prefers(product, [self.products[name] for name in parts]):
                for name in parts:
                    del self.products[name]
                self.products[product.output] = product
        self.fixed: dict[str, Product | Append] = dict(self.products)  # steps that all plans have
        self.fixed |= {step.output: step for step in (appends_of(self.finder) if tuned and serves is None else ())}
        self.inside = {
            name: product for product in self.products.values() for name in product.nodes if name != product.output
        }

    def prefers(self, product: Product, parts: Sequence[Product]) -> bool:
        """True if one kernel of online softmax is taken for its products and the loops between: it stores less."""
        return True

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """The steps of the groups."""
        stored, groups = self.chosen
        return self._ordered(stored, groups.values())

    def required(self) -> set[str]:
        """Tensors that lie in memory in every plan. What only nodes inside of products read, such as a pad, does not."""
        stored = set(self.graph.outputs)
        for product in self.fixed.values():
            stored |= {product.output, *product.reads}
        read = set(stored)
        for node in reversed(self.graph.nodes):
            if node.output in read and node.output not in self.inside and node.output not in self.fixed:
                read.update(node.inputs)
                stored |= set(self._operands_to_store(node))
        return stored

    @cached_property
    def chosen(self) -> tuple[set[str], dict[str, Graph]]:
        """Tensors in memory grow until no group computes a reduction again and again; the groups by what they make."""
        stored = self.required()
        while True:
            stored = self._grown(stored)
            groups = {name: self._group(name, stored) for name in self._roots(stored)}
            late = {name: recomputed_reductions(group) for name, group in groups.items()}
            more = {cut for cut in late.values() if cut is not None} - stored
            if not more:
                return stored, groups
            stored |= more

    def _operands_to_store(self, node: Node) -> Iterable[str]:
        """Operands that would be computed once for every element that reads them."""
        if node.output in self.inside or node.output in self.fixed:
            return ()
        if node.primitive in ORDERED:
            return [*node.inputs, node.output]
        if looks_up_bytes(self.graph, node):
            return [node.inputs[1], node.output]  # what is looked up is no vector: around it there may be some
        if node.primitive in ("transpose", "reshape") and self.graph.types[node.output].dtype in BYTES:
            return self._strided_operands(node)
        if node.primitive == "gather":
            return [tensor for tensor in node.inputs if not self._cheap(tensor, table=True)]
        if node.primitive in ("window", "contract", "concat"):
            return [tensor for tensor in node.inputs if not self._cheap(tensor)]
        if node.primitive == "cast" and self.graph.types[node.inputs[0]].dtype == "fp64":
            return [node.output]
        return ()

    def _strided_operands(self, node: Node) -> Iterable[str]:
        """Of bytes that are turned: what is read across for a short row; rows that a reshape would put side by side."""
        (of,) = node.inputs
        if node.primitive == "transpose":
            row = self.graph.types[node.output].shape[-1]
            return [of] if isinstance(row, int) and 1 < row < ROW and not self._cheap(of) else ()
        before = self.producers.get(of)
        if before is None or before.primitive != "transpose" or node.output in self.graph.outputs:
            return ()
        row, order = self.graph.types[of].shape[-1], before.attributes["order"]
        return [of] if isinstance(row, int) and row >= ROW and order[-1] == len(order) - 1 else ()

    def _cheap(self, tensor: str, *, table: bool = False) -> bool:
        """True if an element is a load, nothing but where to load it, or the real number that a loaded byte stands for.

        ``table``: one of which few rows are read, so that constants of rows and columns may make the number, too.
        """
        node = self.producers.get(tensor)
        if node is None or tensor in self.fixed:
            return True
        of = self._stands_for(node, table=table)
        if of is not None:
            return self._cheap(of)
        return node.primitive in (*FREE, "pad", "window") and all(self._cheap(tensor) for tensor in node.inputs)

    def _stands_for(self, node: Node, *, table: bool = False) -> str | None:
        """The bytes whose real numbers a node makes: less one number, times one number; None: it makes something else.

        ``table``: less and times constants of any shape.
        """
        while node.primitive == "map" and node.attributes["function"] in ("sub", "mul"):
            before = self.producers.get(node.inputs[0])
            value = self.graph.constants.get(node.inputs[1])
            if before is None or value is None or not (table or value.size == 1):
                return None
            node = before
        made_of = node.inputs[0] if node.primitive == "cast" else ""
        return made_of if made_of and self.graph.types[made_of].dtype in BYTES else None

    def _grown(self, stored: set[str]) -> set[str]:
        """From the last node on: what all its readers compute in one group joins it, the rest lies in memory."""
        stored = {name for name in stored if name in self.producers}
        group: dict[str, str] = {}
        size: dict[str, int] = {}
        for node in reversed(self.graph.nodes):
            name = node.output
            if name in self.inside:
                continue
            readers = [item.output for item in self.finder.readers.get(name, [])]
            roots = {group[reader] for reader in readers if reader in group and reader not in self.fixed}
            if name not in stored and name not in self.fixed:
                if not roots:
                    continue  # a product reads through it, or nobody does
                single = len(roots) == 1 and size[next(iter(roots))] < MOST_NODES
                if single:
                    group[name] = next(iter(roots))
                    size[group[name]] += 1
                    continue
                if self._cheap_chain(name) and len(roots) > 1:
                    continue  # each group computes it for itself
                stored.add(name)
            group[name], size[name] = name, 1
        return stored

    def _cheap_chain(self, tensor: str) -> bool:
        node = self.producers[tensor]
        return node.primitive in FREE and self._cheap(tensor)

    def _roots(self, stored: set[str]) -> list[str]:
        return [node.output for node in self.graph.nodes
                if node.output in stored and node.output not in self.fixed and not self.alias(node, stored)]  # fmt: skip

    def alias(self, node: Node, stored: Collection[str]) -> str | None:
        """Tensor whose memory a stored reshape is, or None; an output is memory of its own."""
        if node.primitive != "reshape" or node.output in self.graph.outputs:
            return None
        of = node.inputs[0]
        return of if of in stored or (of in self.graph.inputs and of not in self.graph.constants) else None

    def _group(self, root: str, stored: set[str]) -> Graph:
        """Subgraph of a tensor from stored ones; only what leads to it is looked at, of a large graph a small part."""
        selected, waiting = {root}, [root]
        while waiting:
            more = {
                operand
                for operand in self.producers[waiting.pop()].inputs
                if operand in self.producers and operand not in stored
            } - selected
            selected |= more
            waiting += more
        return self.subgraph((root,), selected)

    def subgraph(self, outputs: Sequence[str], names: Iterable[str]) -> Graph:
        """The graph of some primitives, by the tensors that they make; it gives ``outputs`` alone."""
        made = set(names)
        selected = [self.producers[name] for name in sorted(made, key=self.order.__getitem__)]
        needed = set(outputs).union(*(node.inputs for node in selected))
        inputs = []
        for name in needed - made:
            value = self.graph.constants.get(name)
            if value is None or value.size != 1:
                inputs.append(name)
        constants = {name: self.graph.constants[name] for name in sorted(needed - made) if name not in inputs}
        return replace(
            self.graph,
            inputs=tuple(sorted(inputs)),
            outputs=tuple(outputs),
            nodes=tuple(selected),
            constants=constants,
        )

    def _ordered(self, stored: set[str], groups: Iterable[Graph]) -> tuple[Step, ...]:
        """The steps, each behind those that make what it reads."""
        loops = {name: Loops(group) for group in groups for name in group.outputs}
        steps: dict[str, Step] = {}
        for node in self.graph.nodes:
            name = node.output
            if name in self.fixed:
                steps[name] = self.fixed[name]
            elif name in loops:
                steps[name] = loops[name]
            elif name in stored and (of := self.alias(node, stored)) is not None:
                steps[name] = Alias(name, of)
        result: list[Step] = []
        begun: set[str] = set()
        done: set[str] = set()

        def visit(name: str) -> None:
            if name in begun or name not in steps:
                assert name in done or name not in steps, f"{name} waits for itself"
                return
            step = steps[name]
            made = step.graph.outputs if isinstance(step, Loops) else (name,)
            begun.update(made)
            if isinstance(step, Alias):
                reads: tuple[str, ...] = (step.of,)
            else:
                reads = step.graph.inputs if isinstance(step, Loops) else step.reads
            for tensor in reads:
                visit(tensor)
            done.update(made)
            result.append(step)

        for name in steps:
            visit(name)
        lost = {tensor for step in result if isinstance(step, Loops) for tensor in step.graph.inputs} & set(
            self.producers
        ) - done
        assert not lost, f"nobody makes {', '.join(sorted(lost))}"
        return tuple(result)
