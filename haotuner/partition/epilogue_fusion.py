"""Epilogue fusion into products: biases, functions, residuals, gates, and how real numbers become bytes again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from haotuner.graph.extents import same
from haotuner.graph.fold_scales import LARGEST_SHIFT
from haotuner.graph.graph import Graph, Node
from haotuner.graph.types import numpy_dtype
from haotuner.ops.epilogue import STEPS
from haotuner.ops.formula import FUNCTIONS
from haotuner.spec.op import Op

MOST_NODES = 10  # of a function: gelu and hard-swish have five, gelu by tanh nine
NEAR = 2.0 ** -np.arange(4.0, 25.0)  # below a threshold, and parts of what a large number rounds away
ORDINARY = 200.0  # of numbers up to here no exponential overflows in float64
# Where a small number that is added shows beside what vanishes; above the ends of images and of 16 bits, which clips have.
FAR = np.array([30.0, 80.0, ORDINARY, 300.0, 1e3, 1e5, 1e8, 1e16, 3e38])
ENDS = np.array([-np.inf, np.inf])
POINTS = np.concatenate([np.linspace(-6.0, 6.0, 97), NEAR, -NEAR, FAR, -FAR, ENDS])[:, None]  # a column: channels may differ
# Of two functions at all points, in float64: constants are rounded to fp32, and 1 + erf(x) is exact to 1e-16. No more, for a
# model may take the logarithm of what was kept from 0 by 1e-7.
ALIKE, LEAST = 1e-5, 1e-14  # of what was expected, and where that is nothing
ROUNDED = 1e-3  # of its numbers in fp32: further away are those of steps that round on purpose, (x + 2**23) - 2**23
NOTHING: Mapping[str, Any] = MappingProxyType({})
_Function = tuple[str, list[str], Mapping[str, Any]]  # a step, the nodes that it is, what it reads of each channel


@dataclass(frozen=True, slots=True)
class FusedEpilogue:
    """``steps`` by their names in epilogues; ``nodes``: what they compute, in order, ``counts`` of them a step.

    ``rows``: tensors of one number for each feature, by operand, which are no constants; ``out``: of a product of bytes,
    the result's type.
    """

    steps: tuple[str, ...]
    nodes: tuple[str, ...]
    counts: tuple[int, ...]
    constants: Mapping[str, Any]
    passed: Mapping[str, str]
    out: str = ""
    rows: Mapping[str, str] = field(default_factory=dict)

    def prefixes(self) -> Iterator[FusedEpilogue]:
        """Itself, then without its last step, and so on down to nothing."""
        for length in range(len(self.steps), -1, -1):
            steps = self.steps[:length]
            read = {name for step in steps for name, _ in STEPS[step].operands}
            yield FusedEpilogue(
                steps=steps,
                nodes=self.nodes[: sum(self.counts[:length])],
                counts=self.counts[:length],
                constants={name: value for name, value in self.constants.items() if name in read},
                passed={name: item for name, item in self.passed.items() if name in read},
            )

    def of(self, plain: Op) -> Op:
        """The operator with these steps behind it; a bias alone is bound without an epilogue."""
        options = (*plain.options, ("out", self.out)) if self.out else plain.options
        return replace(plain, options=options, epilogue=() if self.steps == ("bias",) else self.steps)


@dataclass(frozen=True, slots=True)
class EpilogueMatcher:
    """Matcher of epilogues by producers and readers of tensors; ``taken``: what products compute already."""

    graph: Graph
    producers: Mapping[str, Node]
    readers: Mapping[str, Sequence[Node]]
    used: set[str] = field(default_factory=set)

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
        result = self.after(tensor, "add")
        return None if result is None or result[0] in self.used else result

    def joined(self, tensor: str) -> tuple[str, str, str] | None:
        """A sum or a product with a tensor of its shape: the step, its output and that tensor.

        None where another product computes it: what joins two products is behind both, and the first takes it along.
        """
        for step, function in (("residual", "add"), ("mul", "mul")):
            result = self.after(tensor, function)
            if result is not None and result[0] not in self.used and self._alike(result[1], tensor):
                return step, *result
        return None

    def number(self, tensor: str) -> float | None:
        """A constant's only element."""
        value = self.graph.constants.get(tensor)
        return float(value.reshape(())) if value is not None and value.size == 1 else None

    def carried(self, tensor: str, row_of: Callable[[str], Any], channels: int, *, regrouped: bool = False) -> FusedEpilogue:
        """Epilogue that may follow a product of so many channels: a bias, a tensor added or multiplied, a function.

        The function comes before or behind that tensor.

        ``row_of`` gives a constant's row of channels, or None. ``regrouped``: also behind reshapes that keep the last axis,
        which are views of the same rows.
        """
        steps: list[str] = []
        nodes: list[str] = []
        counts: list[int] = []
        constants: dict[str, Any] = {}
        passed: dict[str, str] = {}
        views: list[str] = self._views(tensor) if regrouped else []
        last = views[-1] if views else tensor

        def take(step: str, made: Sequence[str], rows: Mapping[str, Any] = NOTHING) -> None:
            nonlocal last, views
            steps.append(step)
            nodes.extend([*views, *made])
            counts.append(len(views) + len(made))
            constants.update({name: np.full(channels, value, np.float32) for name, value in rows.items()})
            views = self._views(made[-1]) if regrouped else []
            last = views[-1] if views else made[-1]

        result = self.after(last, "add")
        # Kernels may begin their sums with the bias, which a large one would round term by term.
        if result is not None and (row := row_of(result[1])) is not None and np.max(np.abs(row), initial=0) <= LARGEST_SHIFT:
            take("bias", [result[0]], {"bias": row})
        function = self._function_of_one(last, row_of)
        if function is not None:
            take(*function)
        more = self.joined(last)
        if more is not None:
            step, output, other = more
            ((operand, _),) = STEPS[step].operands
            passed[operand] = other
            take(step, [output])
            function = self._function_of_one(last, row_of) if function is None else None
            if function is not None:
                take(*function)
        return FusedEpilogue(tuple(steps), tuple(nodes), tuple(counts), constants, passed)

    def _views(self, tensor: str) -> list[str]:
        """Reshapes after a tensor, each the only reader of what is before it, that keep its last axis."""
        result: list[str] = []
        channels = self.graph.types[tensor].shape[-1:]
        while (node := self.only_reader(result[-1] if result else tensor)) is not None and node.primitive == "reshape":
            shape = self.graph.types[node.output].shape
            if not channels or not shape or not same(shape[-1], channels[0]):
                break
            result.append(node.output)
        return result

    def _alike(self, tensor: str, other: str) -> bool:
        """True if a tensor that comes with the call has the shape of another one."""
        first, two = self.graph.types[tensor], self.graph.types[other]
        alike = len(first.shape) == len(two.shape) and all(same(a, b) for a, b in zip(first.shape, two.shape, strict=True))
        return alike and first.dtype == "fp32" and tensor not in self.graph.constants

    def _function_of_one(self, tensor: str, row: Callable[[str], Any]) -> _Function | None:
        """The largest function of the tensor alone that epilogues have, and its nodes in order: known by its values.

        ``row`` gives a constant's row of channels, or None.
        """
        if tensor in self.graph.outputs:
            return None
        values: dict[str, Any] = {tensor: POINTS}
        singles: dict[str, Any] = {tensor: POINTS.astype(np.float32)}
        nodes: list[str] = []
        best = None
        while len(nodes) < MOST_NODES:
            node = next(
                (item for name in values for item in self.readers.get(name, []) if self._computable(item, values, row)), None
            )
            if node is None:
                break
            for known, dtype in ((values, np.float64), (singles, np.float32)):
                operands = [known[name] if name in known else self._channels(name, row) for name in node.inputs]
                with np.errstate(all="ignore"):  # the farthest numbers overflow
                    known[node.output] = np.asarray(FUNCTIONS[node.attributes["function"]](*operands), dtype)
            nodes.append(node.output)
            if self._closed(set(values), node.output) and _alike(
                singles[node.output], values[node.output], ROUNDED, ROUNDED
            ):
                named = _named(values[node.output])
                best = (named[0], list(nodes), named[1]) if named else best
            if node.output in self.graph.outputs:
                break
        return best

    def _channels(self, tensor: str, row: Callable[[str], Any]) -> Any:
        """A constant as one number, or as one for each channel; None where it is neither."""
        number = self.number(tensor)
        return row(tensor) if number is None else number

    def _computable(self, node: Node, values: Mapping[str, Any], row: Callable[[str], Any]) -> bool:
        return (
            node.primitive == "map"
            and node.output not in values
            and self.graph.types[node.output].dtype in ("fp32", "bool")
            and all(tensor in values or self._channels(tensor, row) is not None for tensor in node.inputs)
        )

    def _closed(self, inside: set[str], last: str) -> bool:
        """True if nobody outside reads what is inside, but the last."""
        return all(reader.output in inside for name in inside - {last} for reader in self.readers.get(name, [])) and not (
            inside - {last}
        ) & set(self.graph.outputs)


def _named(values: Any) -> tuple[str, Mapping[str, Any]] | None:
    """The step of these values at the points, which may differ by channel, and what it reads."""
    with np.errstate(all="ignore"):
        plain = {name: step.apply(POINTS, {}) for name, step in STEPS.items() if not step.operands}
    for name, results in plain.items():
        if _alike(results, values, ALIKE, LEAST):
            return name, NOTHING
    low, high = values[-2:]
    if np.isfinite([low, high]).all() and _alike(np.clip(POINTS, low, high), values, ALIKE, LEAST):
        return "clamp", {"low": low, "high": high}
    slopes = np.broadcast_to(values[0] / POINTS[0], values.shape[1:])
    if np.all(slopes == 1.0):
        return None  # the value itself
    if _alike(STEPS["prelu"].apply(POINTS, {"slope": slopes}), values, ALIKE, LEAST):
        return "prelu", {"slope": slopes}
    return None


def _alike(results: Any, values: Any, relative: float, absolute: float) -> bool:
    """True if results are those of the file's steps, where neither overflows, and finite at infinities if these are."""
    finite = np.isfinite(values) & np.isfinite(results)
    near = np.abs(POINTS[:, 0]) <= ORDINARY
    apart = finite & ~np.isclose(results, values, relative, absolute)
    apart |= np.isinf(POINTS) & np.isfinite(values) & ~np.isfinite(results)
    return bool(not apart.any() and np.isfinite(values[near]).all())


@dataclass(frozen=True, slots=True)
class Rows:
    """A product's ``features``, and tensors that are one number for each: ``of`` a constant these, else None.

    ``told``: of what data tell the tensor (features,) that lies there, else None.
    """

    features: int
    of: Callable[[str], Any]
    row_of: Callable[[str], str | None]


NONE = FusedEpilogue((), (), (), {}, {})


def of_bytes(follow: EpilogueMatcher, tensor: str, rows: Rows) -> Iterator[FusedEpilogue]:
    """All that may follow sums in int32, then less and less of it; the last has nothing: the sums themselves."""
    head = _real(follow, tensor, rows)
    if head is not None:
        if not head.rows:
            yield from _bytes_again(follow, head, rows)
        more = follow.carried(head.nodes[-1], lambda _: None, rows.features)
        for part in more.prefixes():
            yield FusedEpilogue(
                steps=(*head.steps, *part.steps),
                nodes=(*head.nodes, *part.nodes),
                counts=(*head.counts, *part.counts),
                constants={**head.constants, **part.constants},
                passed=part.passed,
                out="fp32",
                rows=head.rows,
            )
    yield NONE


def _real(follow: EpilogueMatcher, tensor: str, rows: Rows) -> FusedEpilogue | None:
    """Numbers added to sums, the sums as real numbers, times scales, and a bias; without scales there is nothing.

    Scales, and with them a bias, may be tensors of one number for each feature.
    """
    nodes: list[str] = []
    added = np.zeros(rows.features)
    last = tensor
    while (result := _with_row(follow, last, "add", rows)) is not None:
        added += result[1]
        last = result[0]
        nodes.append(last)
    cast = follow.only_reader(last)
    if cast is None or cast.primitive != "cast" or cast.attributes["dtype"] != "fp32":
        return None
    scaled = _with_row(follow, cast.output, "mul", rows)
    if scaled is None:
        return None if added.any() else _data_scaled(follow, [*nodes, cast.output], rows)
    last, scale = scaled
    nodes += [cast.output, last]
    steps, counts = ["scale"], [len(nodes)]
    bias = _with_row(follow, last, "add", rows)
    if bias is not None:
        nodes.append(bias[0])
    if bias is not None or added.any():
        steps.append("bias")
        counts.append(int(bias is not None))
    whole = added * scale + (0.0 if bias is None else bias[1])
    constants = {"scale": scale, "bias": whole} if "bias" in steps else {"scale": scale}
    return FusedEpilogue(tuple(steps), tuple(nodes), tuple(counts), _rows(constants), {})


def _data_scaled(follow: EpilogueMatcher, nodes: list[str], rows: Rows) -> FusedEpilogue | None:
    """Scales that data tell, and a bias, behind real numbers, the last of the nodes."""
    scaled = _data_row(follow, nodes[-1], "mul", rows)
    if scaled is None:
        return None
    nodes, scale = [*nodes, scaled[0]], {"scale": scaled[1]}
    counts, constants = [len(nodes)], dict[str, Any]()
    bias, more = _with_row(follow, nodes[-1], "add", rows), _data_row(follow, nodes[-1], "add", rows)
    if bias is not None:
        constants["bias"] = bias[1]
    elif more is not None:
        scale["bias"] = more[1]
    if bias is not None or more is not None:
        nodes.append(bias[0] if bias is not None else more[0] if more is not None else "")
        counts.append(1)
    steps = ("scale", "bias")[: len(counts)]
    return FusedEpilogue(steps, tuple(nodes), tuple(counts), _rows(constants), {}, rows=scale)


def _data_row(follow: EpilogueMatcher, tensor: str, function: str, rows: Rows) -> tuple[str, str] | None:
    """The only reader's output and the tensor of one number for each feature that is joined there."""
    result = follow.after(tensor, function)
    row = None if result is None else rows.row_of(result[1])
    return None if result is None or row is None else (result[0], row)


def _rows(constants: Mapping[str, Any]) -> dict[str, Any]:
    return {name: np.ascontiguousarray(value, np.float32) for name, value in constants.items()}


def _with_row(follow: EpilogueMatcher, tensor: str, function: str, rows: Rows) -> tuple[str, Any] | None:
    """The only reader's output and the numbers that it joins with a tensor, one for each feature, in float64."""
    result = follow.after(tensor, function)
    if result is None:
        return None
    single = follow.number(result[1])
    value = np.full(rows.features, single) if single is not None else rows.of(result[1])
    return None if value is None else (result[0], value.astype(np.float64))


def _bytes_again(follow: EpilogueMatcher, head: FusedEpilogue, rows: Rows) -> Iterator[FusedEpilogue]:
    """Real numbers kept within bounds, divided by a scale, rounded, moved by a zero point and kept in the range of bytes."""
    low, high, last, nodes = -np.inf, np.inf, head.nodes[-1], list(head.nodes)
    while (bound := _number_after(follow, last, "max", "min")) is not None:
        node, value = bound
        bounded = max if node.attributes["function"] == "max" else min
        low, high = bounded(low, value), bounded(high, value)
        last = node.output
        nodes.append(last)
    divided = _number_after(follow, last, "div")
    if divided is None or divided[0].inputs[0] != last:
        return
    rounded = follow.only_reader(divided[0].output)
    if rounded is None or rounded.primitive != "map" or rounded.attributes["function"] != "round":
        return
    nodes += [divided[0].output, rounded.output]
    last, step, zero = rounded.output, divided[1], 0.0
    moved = _number_after(follow, last, "add")
    if moved is not None:
        last, zero = moved[0].output, moved[1]
        nodes.append(last)
    ends = {}
    for function in ("max", "min"):
        number = _number_after(follow, last, function)
        if number is None:
            return
        last, ends[function] = number[0].output, number[1]
        nodes.append(last)
    cast = follow.only_reader(last)
    dtype = cast.attributes["dtype"] if cast is not None and cast.primitive == "cast" else ""
    if cast is None or dtype not in ("uint8", "int8") or not step > 0:
        return
    limits = np.iinfo(numpy_dtype(dtype))
    if (ends["max"], ends["min"]) != (limits.min, limits.max):
        return
    nodes.append(cast.output)
    bias = head.constants.get("bias", np.zeros(rows.features))
    constants = {"scale": head.constants["scale"] / step, "bias": bias / step + zero}
    steps = ["scale", "bias"]
    first, end = low / step + zero, high / step + zero
    if first > limits.min or end < limits.max:  # others are where bytes end
        steps.append("clamp")
        constants |= {"low": np.full(rows.features, first), "high": np.full(rows.features, end)}
    counts = (len(nodes), *(0 for _ in steps[1:]))
    yield FusedEpilogue(tuple(steps), tuple(nodes), counts, _rows(constants), {}, dtype)


def _number_after(follow: EpilogueMatcher, tensor: str, *functions: str) -> tuple[Node, float] | None:
    """The only reader, where it joins a tensor with one number by one of these functions."""
    node = follow.only_reader(tensor)
    if node is None or node.primitive != "map" or node.attributes["function"] not in functions:
        return None
    result = follow.after(tensor, node.attributes["function"])
    value = None if result is None else follow.number(result[1])
    return None if value is None else (node, value)
