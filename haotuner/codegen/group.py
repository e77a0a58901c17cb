"""Op kinds out of a file's graph: one output, or several that one program writes.

Outputs of a graph that one program writes: those over the same rows, whose folds run along them.

Each output is asked for in turn, the widest first, and joins a program that can write it too. What stays apart says why.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from haotuner.codegen.access import Accesses
from haotuner.codegen.expressions import Fold, Load, Size, Variable, free_variables, parts
from haotuner.codegen.online_softmax import match_online_softmax
from haotuner.codegen.rfactor import joined
from haotuner.codegen.schedule import Schedule, levels_of_folds, planned, tileable
from haotuner.codegen.sketch import sketches
from haotuner.errors import UsageError
from haotuner.graph.extents import dimensions, is_symbolic, renamed
from haotuner.graph.graph import Graph, Node
from haotuner.graph.group import dims_of, learned
from haotuner.graph.serialize import extents_in, text_of, to_document
from haotuner.graph.types import FLOATS, TensorType
from haotuner.ops.groups import PREFIX
from haotuner.ops.kind import OpKind
from haotuner.spec.limits import MAX_AXES, MAX_DYNAMIC, MAX_OPERANDS


@dataclass(frozen=True, slots=True)
class OutputGroup:
    """Outputs of one program, the one whose points the loops are first; ``apart``: why one has a program of its own."""

    outputs: tuple[str, ...]
    apart: str = ""


def part_of(graph: Graph, outputs: tuple[str, ...]) -> Graph:
    """Subgraph that some outputs need. UsageError for one that is an input, or depends on none."""
    needed, selected = set(outputs), []
    for node in reversed(graph.nodes):
        if node.output in needed:
            selected.append(node)
            needed.update(node.inputs)
    for output in outputs:
        if graph.producer(output) is None:
            raise UsageError(f"output {output} is an input as it came: there is nothing to compute")
    inputs = tuple(name for name in graph.inputs if name in needed)
    if not inputs:
        raise UsageError(f"output {outputs[0]} depends on no input")
    return Graph(
        inputs=inputs,
        outputs=outputs,
        nodes=tuple(reversed(selected)),
        types={name: tensor_type for name, tensor_type in graph.types.items() if name in needed},
        constants={name: constant for name, constant in graph.constants.items() if name in needed},
    )


def output_groups(graph: Graph, fits: Callable[[Graph], None]) -> tuple[OutputGroup, ...]:
    """All outputs; ``fits`` raises UsageError for what has no room."""
    left = sorted(dict.fromkeys(graph.outputs), key=lambda item: -_width(graph, item))
    result, why = [], dict[str, str]()
    while left:
        own: tuple[str, ...] = (left.pop(0),)
        for other in tuple(left):
            try:
                _joinable(part_of(graph, (*own, other)), fits)
            except UsageError as error:
                why.setdefault(other, f"not written with {', '.join(own)}: {error}")
                why.setdefault(own[0], f"not written with {other}: {error}")  # said where none joins it
                continue
            own = (*own, other)
            left.remove(other)
        result.append(own)
    return tuple(OutputGroup(own, why.get(own[0], "") if len(own) == 1 else "") for own in result)


def _width(graph: Graph, output: str) -> int:
    """Axes that are more than one point: rows have fewer than what lies along them."""
    return sum(extent != 1 for extent in graph.types[output].shape)


def _joinable(graph: Graph, fits: Callable[[Graph], None]) -> None:
    """UsageError says why no program writes all outputs, or why separate ones do better."""
    first, *_ = graph.outputs
    alone = {tensor: part_of(graph, (tensor,)) for tensor in graph.outputs}
    for left, own in alone.items():
        last = graph.types[left].rank - 1
        if match_online_softmax(own) is not None or any(sketch.tiled for sketch in sketches(own)) and tileable(own, last):
            raise UsageError(f"{left} has tiles of its own, whose operands are used again")
    plan = planned(graph, Schedule(lane_axis=graph.types[first].rank - 1, lanes=2, unroll=1))
    folds = {part for value in plan.values() for part in parts(value) if isinstance(part, Fold)}
    lanes = plan.loops[-1][0].name
    if len({lanes in free_variables(fold) for fold in folds}) > 1:
        raise UsageError("some of them fold along rows, others across")
    cut = next((first for first, own in alone.items() if joined(own)), None)
    if cut is not None and not levels_of_folds(plan):
        raise UsageError(f"blocks share the fold of {cut} where rows are few and long, which beside others they could not")
    fits(graph)


LONGEST_NAME = 24  # letters of a group's name beside the prefix and the hash
OF_INTEGERS = ("mod", "fmod", "floordiv")  # exact remainders of floats take a loop of their own
TAKEN = ("out",)  # what a call's own arguments are named


def kinds_of(graph: Graph, stem: str, serves: Callable[[OpKind], bool] | None = None) -> tuple[OpKind, ...]:
    """The kinds of a graph, learned: one for each output, or for outputs that one program writes where ``serves`` takes it.

    UsageError says why programs cannot be made of it.
    """
    if not graph.outputs:
        raise UsageError(f"{stem}: the graph has no output")
    for output in graph.outputs:
        _check(plainly_named(part_of(graph, (output,))), f"{PREFIX}:{stem}")
    alone = tuple(_learned(graph, stem, (output,), {}) for output in graph.outputs)
    if serves is None or len(graph.outputs) == 1 or len(set(graph.outputs)) < len(graph.outputs):
        return alone
    joints = output_groups(graph, lambda item: _check(plainly_named(item), f"{PREFIX}:{stem}"))
    result: dict[int, OpKind] = {}  # by the first output's place in the file
    for joint in joints:
        output_indices = [graph.outputs.index(tensor) for tensor in joint.outputs]
        kind = _learned(graph, stem, joint.outputs, {"places": output_indices, "apart": joint.apart})
        result |= {min(output_indices): kind} if serves(kind) else {position: alone[position] for position in output_indices}
    return tuple(result[position] for position in sorted(result))


def _learned(graph: Graph, stem: str, outputs: tuple[str, ...], more: Mapping[str, Any]) -> OpKind:
    """The kind of some outputs of a file; ``more``: what its definition says beside."""
    own = plainly_named(part_of(graph, outputs))
    whole = len(outputs) == len(graph.outputs)
    name = _word(stem if whole else f"{stem}_{own.outputs[0]}", LONGEST_NAME)
    spatial = sorted(frozenset.intersection(*(spatial_axes(part_of(own, (tensor,))) for tensor in own.outputs)))
    return learned(text_of({"name": name, "graph": to_document(own), "spatial": spatial, **more}))


def kind_of_part(graph: Graph, stem: str) -> OpKind:
    """The kind of a model's group, learned: one program writes all outputs. UsageError says why none can."""
    plain = plainly_named(part_of(graph, graph.outputs))
    _check(plain, stem)
    return _learned(graph, stem, graph.outputs, {})


def plainly_named(graph: Graph) -> Graph:
    """Copy of a graph with names that an op's operands, and its axes on a command line, can have."""
    used = {name for t in graph.types.values() for extent in t.shape for name in dimensions(extent)}
    used |= {
        name
        for node in graph.nodes
        for attribute in node.attributes.values()
        for e in extents_in(attribute)
        for name in dimensions(e)
    }
    order = [*graph.dimensions, *sorted(used - set(graph.dimensions))]
    letters = [re.sub(r"[^a-z]", "", name.lower()) or "n" for name in order]
    axes = dict(zip(order, _fresh(letters, letters=True), strict=True))
    tensors = list(graph.types)
    plain = dict(zip(tensors, _fresh((_word(name, 32) for name in tensors), before=TAKEN), strict=True))

    def of(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return tuple(map(of, value))
        return renamed(value, axes) if is_symbolic(value) else value

    nodes = tuple(
        Node(
            node.primitive,
            tuple(plain[tensor] for tensor in node.inputs),
            plain[node.output],
            {key: of(value) for key, value in node.attributes.items()},
        )
        for node in graph.nodes
    )
    return replace(
        graph,
        inputs=tuple(plain[tensor] for tensor in graph.inputs),
        outputs=tuple(plain[tensor] for tensor in graph.outputs),
        nodes=nodes,
        types={plain[name]: TensorType(tuple(map(of, t.shape)), t.dtype) for name, t in graph.types.items()},
        constants={plain[name]: value for name, value in graph.constants.items()},
    )


def _word(name: str, longest: int) -> str:
    result = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")[:longest].rstrip("_")
    return result if result[:1].isalpha() else f"t{result}"[:longest]


def _fresh(names: Iterable[str], *, letters: bool = False, before: Iterable[str] = ()) -> list[str]:
    """The names, later ones changed until each is new."""
    taken, result = set(before), []
    for name in names:
        number, chosen = 1, name
        while chosen in taken:
            number += 1
            chosen = f"{name}{chr(ord('a') + number - 1) * letters or f'_{number}'}"
        taken.add(chosen)
        result.append(chosen)
    return result


def _check(graph: Graph, what: str) -> None:
    """UsageError where no program can be made, or the runtime has no room."""
    dims = dims_of(graph)
    axes = {axis for own in dims.values() for axis in own}
    dynamic = graph.dimensions
    if len(axes) > MAX_AXES or len(dims) > MAX_OPERANDS or len(dynamic) > MAX_DYNAMIC:
        raise UsageError(
            f"{what} has {len(axes)} axes, {len(dynamic)} dynamic ones and {len(dims)} operands; the runtime has room for "
            f"{MAX_AXES}, {MAX_DYNAMIC} and {MAX_OPERANDS}: fix some dimensions in the file, or cut the group"
        )
    for node in graph.nodes:
        if node.attributes.get("function") in OF_INTEGERS and graph.types[node.output].dtype in FLOATS:
            raise UsageError(f"{what}: {node.output} is a remainder of {graph.types[node.output]}, which has no program")
        if str(node.attributes.get("function")).startswith("bit"):
            raise UsageError(f"{what}: {node.output} is of the bits of whole numbers, which have no program")
        if node.primitive in ("reduce", "arg_reduce") and not _folded_extents(graph, node):
            raise UsageError(f"{what}: {node.output} reduces over no axis; leave it out")
        if node.primitive in ("reduce", "arg_reduce") and 0 in _folded_extents(graph, node):
            raise UsageError(f"{what}: {node.output} reduces over nothing: an axis has the extent 0")
    planned(graph, Schedule(lane_axis=-1, lanes=1, unroll=1))


def _folded_extents(graph: Graph, node: Node) -> list[Any]:
    shape = graph.types[node.inputs[0]].shape
    axes = node.attributes["axes"] if "axes" in node.attributes else (node.attributes["axis"],)
    return [shape[axis] for axis in axes]


def spatial_axes(graph: Graph) -> frozenset[str]:
    """Axes of the output of which any part can be computed by a call on the same part of every operand.

    An element may read an operand that has such an axis at its own place only, and nothing may depend on the extent.
    """
    (out,) = graph.outputs
    accesses, dims = Accesses(graph), dims_of(graph)
    variables = tuple(accesses.variable("i") for _ in dims[out])
    every = list(parts(accesses.computed(out, variables)))
    result = set()
    for variable, axis in zip(variables, dims[out], strict=True):
        elsewhere = [e for name, e in zip(dims[out], graph.types[out].shape, strict=True) if name != axis]
        known = axis in graph.dimensions and not any(axis in dimensions(e) for e in elsewhere)
        if known and all(_keeps_place(part, axis, variable, dims) for part in every):
            result.add(axis)
    return frozenset(result)


def _keeps_place(part: Any, axis: str, variable: Variable, dims: Mapping[str, tuple[str, ...]]) -> bool:
    if isinstance(part, Size):
        return axis not in dimensions(part.extent)
    if isinstance(part, Fold):
        return not any(axis in dimensions(extent) for _, extent in part.axes)
    if isinstance(part, Load):
        return all(index == variable for own, index in zip(dims[part.tensor], part.indices, strict=True) if own == axis)
    return True
