"""Rules of ONNX's sequences and optionals. A sequence is a list of tensors whose length is known when the file is read.

The builder knows it by a name (``ConstantFolding.sequences``); no primitive reads one. An optional that holds something is
that tensor or sequence, an empty one a name without elements.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from haotuner.errors import UsageError
from haotuner.frontends.onnx.constant_folding import ConstantFolding
from haotuner.frontends.onnx.layout import cut, joined, reshaped
from haotuner.frontends.onnx.node_context import NodeContext, Rule
from haotuner.graph.extents import Extent, canonical, same, shown, smallest

if TYPE_CHECKING:
    from haotuner.frontends.onnx.read import Reader

MOST = 1024  # elements of a sequence
PASSED = ("Identity", "If", "Loop", "SequenceMap")  # operators of tensors that take sequences, too


def _elements(c: NodeContext, index: int = 0) -> tuple[str, ...]:
    name = c.tensor(index)
    result = c.g.sequences.get(name)
    if result is None:
        raise c.bad(f"input {index} is {'an empty optional' if name in c.g.sequences else 'a tensor'}; expected a sequence")
    return result


def _sequence(c: NodeContext, elements: Sequence[str]) -> str:
    if len(elements) > MOST:
        raise c.bad(f"a sequence of {len(elements)} tensors; at most {MOST} are read")
    kinds = {c.g.types[element].dtype for element in elements}
    if len(kinds) > 1:
        raise c.bad(f"a sequence of tensors of {' and '.join(sorted(kinds))}; ONNX's have one element type")
    return c.g.sequence(elements)


def _position(c: NodeContext, index: int, low: int, high: int, default: int) -> int:
    """Index in a sequence, from the front; ``low`` to ``high`` may be asked for."""
    if not c.has_input(index):
        return default
    count = len(_elements(c))
    (result,) = c.whole(index)
    if not low <= result <= high:
        raise c.bad(f"position {result} in a sequence of {count}; {low} to {high} are in it")
    return result + count if result < 0 else result


def _at(c: NodeContext) -> str:
    """An element; of a position that data tell where all elements are alike, for then they are rows of one tensor."""
    elements = _elements(c)
    known = c.g.known(c.tensor(1))
    if known is not None and isinstance(np.asarray(known).reshape(-1)[0], (int, np.integer)):
        return elements[_position(c, 1, -len(elements), len(elements) - 1, 0)]
    shapes = [c.g.types[element].shape for element in elements]
    if not elements or not all(len(shape) == len(shapes[0]) and all(map(same, shape, shapes[0])) for shape in shapes):
        text = ", ".join(str(c.g.types[element]) for element in elements)
        raise c.bad(f"a position that the request tells, in a sequence of {text or 'nothing'}; elements have other shapes")
    rows = joined(c, [reshaped(c, element, (1, *shapes[0])) for element in elements], 0)
    return c.g.add("gather", rows, reshaped(c, c.tensor(1), ()), axis=0)


def _insert(c: NodeContext) -> str:
    elements = list(_elements(c))
    elements.insert(_position(c, 2, -len(elements), len(elements), len(elements)), c.tensor(1))
    return _sequence(c, elements)


def _erase(c: NodeContext) -> str:
    elements = list(_elements(c))
    if not elements:
        raise c.bad("the sequence is empty")
    del elements[_position(c, 1, -len(elements), len(elements) - 1, len(elements) - 1)]
    return _sequence(c, elements)


def _split(c: NodeContext) -> str:
    axis = c.axis(c.attribute("axis", 0))
    extent = c.shape()[axis]
    sizes = _sizes(c, extent)
    result: list[str] = []
    start = canonical(0)
    for size in sizes:
        stop = canonical(start + size)
        result.append(cut(c, c.tensor(0), axis, start, stop))
        start = stop
    if not c.has_input(1) and not c.attribute("keepdims", 1):
        shape = c.shape()
        result = [reshaped(c, item, (*shape[:axis], *shape[axis + 1 :])) for item in result]
    return _sequence(c, result)


def _sizes(c: NodeContext, extent: Extent) -> Sequence[Extent]:
    """Of each part along the axis."""
    if c.has_input(1) and c.type(1).rank == 1:
        return c.numbers(1)
    (step,) = c.numbers(1) if c.has_input(1) else (1,)
    if not isinstance(extent, int) or not isinstance(step, int):
        raise c.bad(
            f"parts of {shown(step)} of an axis of {shown(extent)}: how many there are depends on the request; "
            "export the model with that axis fixed, or with the size of each part"
        )
    if step < 1:
        raise c.bad(f"parts of {step}; a part has one place at least")
    if -(-extent // step) > MOST:
        raise c.bad(f"{-(-extent // step)} parts; at most {MOST} are read")
    return [smallest([step, extent - start]) for start in range(0, extent, step)]


def _concat(c: NodeContext) -> str:
    elements = _elements(c)
    if not elements:
        raise c.bad("the sequence is empty: nothing says what its result is like")
    axis, new = int(c.required("axis")), bool(c.attribute("new_axis", 0))
    rank = c.g.types[elements[0]].rank + new
    if not -rank <= axis < rank:
        raise c.bad(f"axis {axis} of a result with {rank} axes")
    axis %= rank
    if not new:
        return joined(c, list(elements), axis)
    shapes = [c.g.types[element].shape for element in elements]
    parts = [reshaped(c, first, (*own[:axis], 1, *own[axis:])) for first, own in zip(elements, shapes, strict=True)]
    return joined(c, parts, axis)


def _optional(c: NodeContext) -> str:
    return c.tensor(0) if c.has_input(0) else c.g.sequence(None)


def _empty(c: NodeContext) -> bool:
    """True if there is nothing in an optional."""
    name = c.maybe(0)
    return name is None or (name in c.g.sequences and c.g.sequences[name] is None)


def _element(c: NodeContext) -> str:
    if _empty(c):
        raise c.bad("the optional is empty")
    return c.tensor(0)


def mapped_results(
    reader: Reader,
    node: Any,
    inputs: Sequence[str | None],
    names: MutableMapping[str, str],
    opset: int,
    depth: int,
) -> list[str]:
    """Results of a SequenceMap: its body read once for each element, of all sequences among its inputs the same."""
    body = next((attribute.g for attribute in node.attribute if attribute.name == "body"), None)
    arguments = [operand for operand in inputs if operand is not None]
    if body is None or not arguments or arguments[0] not in reader.g.sequences or len(body.input) != len(arguments):
        raise UsageError("its body is missing, its first input is no sequence, or the body takes other inputs")
    c = NodeContext(reader.g, "SequenceMap", tuple(arguments), {}, opset, len(body.output))
    lists = {index: _elements(c, index) for index, item in enumerate(arguments) if item in reader.g.sequences}
    counts = {len(item) for item in lists.values()}
    if len(counts) > 1:
        raise UsageError(f"sequences of {' and '.join(map(str, sorted(counts)))} elements; all have as many")
    made: list[list[str]] = [[] for _ in body.output]
    for number in range(counts.pop()):
        inner = dict(names)
        inner |= {
            item.name: lists[index][number] if index in lists else arguments[index] for index, item in enumerate(body.input)
        }
        reader.run(body, inner, opset, depth + 1)
        for entry, item in zip(made, body.output, strict=True):
            entry.append(inner[item.name])
    return [_sequence(c, item) for item in made]


def refuse_sequences(g: ConstantFolding, op: str, inputs: Sequence[str | None]) -> None:
    """UsageError where an operator of tensors reads a sequence."""
    if op in TENSOR_SEQUENCES or op in PASSED:
        return
    for index, operand in enumerate(inputs):
        if operand in g.sequences:
            raise UsageError(f"input {index} is a sequence or an empty optional; it takes tensors")


TENSOR_SEQUENCES: Mapping[str, Rule] = {
    "SequenceEmpty": lambda c: c.g.sequence(()),
    "SequenceConstruct": lambda c: _sequence(c, [c.tensor(index) for index in range(len(c.inputs))]),
    "SequenceAt": _at,
    "SequenceInsert": _insert,
    "SequenceErase": _erase,
    "SequenceLength": lambda c: c.g.constant(len(_elements(c)), "int64"),
    "SplitToSequence": _split,
    "ConcatFromSequence": _concat,
    "Optional": _optional,
    "OptionalHasElement": lambda c: c.g.constant(not _empty(c), "bool"),
    "OptionalGetElement": _element,
}
