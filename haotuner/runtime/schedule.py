"""A model's schedule as the document beside it says it: for people and tools; calls go by the library's words."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from haotuner.errors import PackInvalid, UsageError
from haotuner.spec.size_arithmetic import OPERATIONS

LARGEST_EXTENT = 1 << 40  # elements; what a shape comes to beyond it cannot be meant
LONGEST_TEXT = 80
_SIGNS = ("+", "-", "*", "//", "%")


def sizes_of(lines: Sequence[Sequence[Any]], dims: Mapping[str, int]) -> list[Any]:
    """Every line of a size table for a request; extents are whole."""
    result: list[Any] = []
    for line in lines:
        if line[0] == "dim":
            result.append(dims[line[1]])
        elif line[0] == "number":
            result.append(line[1])
        else:
            result.append(OPERATIONS[line[0]].compute(*(result[operand] for operand in line[1:])))
    return result


def size_text(lines: Sequence[Sequence[Any]], index: int) -> str:
    """A line of a size table as people write it, cut after ``LONGEST_TEXT`` characters."""
    texts: list[str] = []
    for operation, *parts in lines[: index + 1]:
        if operation in ("dim", "number"):
            result = str(parts[0])
        elif operation in _SIGNS:
            result = f"({texts[parts[0]]} {operation} {texts[parts[1]]})"
        else:
            result = f"{operation}({', '.join(texts[part] for part in parts)})"
        texts.append(result[: LONGEST_TEXT + 1])
    result = texts[index]
    return f"{result[:LONGEST_TEXT]}..." if len(result) > LONGEST_TEXT else result


@dataclass(frozen=True, slots=True)
class End:
    """An input or output: ``tensor`` is its name in the schedule."""

    name: str
    tensor: str
    dtype: str
    shape: tuple[int, ...]  # lines of the size table


@dataclass(frozen=True, slots=True)
class SpecializationOf:
    """``steps[first:end]`` serve requests at which a line of the size table is at most ``most``; None: the rest."""

    line: int | None
    most: int
    first: int
    end: int
    where: str


@dataclass(frozen=True, slots=True)
class ExecutionPlan:
    """``sizes``: the table of extents; ``tensors``: element type and shape (lines); ``steps`` in the order they run."""

    name: str
    dims: tuple[str, ...]
    sizes: tuple[tuple[Any, ...], ...]
    tensors: Mapping[str, tuple[str, tuple[int, ...]]]
    weights: Mapping[str, Mapping[str, Any]]
    steps: tuple[Mapping[str, Any], ...]
    inputs: tuple[End, ...]
    outputs: tuple[End, ...]
    equal: tuple[tuple[int, int], ...] = ()  # lines that a request must make equal
    required: tuple[tuple[int, str], ...] = ()  # lines that are not 0 at a request that is served, and words for the others
    ways: tuple[SpecializationOf, ...] = ()  # of a model with several plans, in the order they are tried

    @staticmethod
    def of(raw: bytes, where: str) -> ExecutionPlan:
        """Read a schedule. PackInvalid names ``where``."""
        try:
            document = json.loads(raw)
            sizes = tuple(tuple(line) for line in document["sizes"])
            for index, (operation, *operands) in enumerate(sizes):
                if operation in OPERATIONS:
                    if len(operands) != len(OPERATIONS[operation].of) or not all(
                        type(operand) is int and 0 <= operand < index for operand in operands
                    ):
                        raise ValueError(f"size {index} reads {operands}")
                elif operation not in ("dim", "number") or len(operands) != 1:
                    raise ValueError(f"size {index} is {operation!r}")
            schedule = ExecutionPlan(
                name=document["name"],
                dims=tuple(document["dims"]),
                sizes=sizes,
                tensors={name: (item["dtype"], tuple(item["shape"])) for name, item in document["tensors"].items()},
                weights=document["weights"],
                steps=tuple(document["steps"]),
                inputs=tuple(_end(end) for end in document["inputs"]),
                outputs=tuple(_end(end) for end in document["outputs"]),
                equal=tuple((int(way), int(other)) for way, other in document.get("equal", [])),
                required=tuple((int(line), str(words)) for line, words in document.get("required", [])),
                ways=tuple(_way(way, len(sizes)) for way in document.get("ways", [])),
            )
            schedule._check()
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise PackInvalid(f"{where} is not a model's schedule: {error!r}; restore the pack or tune again") from error
        return schedule

    def _check(self) -> None:
        shapes = [shape for _, shape in self.tensors.values()] + [end.shape for end in (*self.inputs, *self.outputs)]
        if any(type(extent) is not int or not 0 <= extent < len(self.sizes) for shape in shapes for extent in shape):
            raise ValueError("a shape names a size that is not there")
        lines = [*(line for pair in self.equal for line in pair), *(line for line, _ in self.required)]
        if any(not 0 <= line < len(self.sizes) for line in lines):
            raise ValueError("an agreement names a size that is not there")
        for end in (*self.inputs, *self.outputs):
            if end.tensor not in self.tensors:
                raise ValueError(f"{end.name} is no tensor")

    def way_of(self, dims: Mapping[str, int]) -> SpecializationOf:
        """The way that serves a request."""
        values = sizes_of(self.sizes, dims) if self.ways else []
        for way in self.ways:
            if way.line is None or values[way.line] <= way.most:
                return way
        return SpecializationOf(None, 0, 0, len(self.steps), "any sizes")

    def values(self, dims: Mapping[str, int]) -> list[int]:
        """Every size for a request. UsageError where an extent comes out negative or absurd."""
        result = sizes_of(self.sizes, dims)
        for line, words in self.required:
            if not result[line]:
                raise UsageError(f"{self.name}: {words}")
        for first, other in self.equal:
            if result[first] != result[other]:
                left, right = (size_text(self.sizes, line) for line in (first, other))
                raise UsageError(
                    f"{self.name}: {dict(dims)} make {left} = {result[first]} and {right} = {result[other]}, which must be "
                    "equal; the model takes no such request"
                )
        for name, (_, shape) in self.tensors.items():
            extents = [result[extent] for extent in shape]
            if min(extents, default=0) < 0 or max(extents, default=0) > LARGEST_EXTENT:
                raise UsageError(
                    f"{self.name}: {dims} make the tensor {name} of the shape {extents}; this model takes no such request"
                )
        return result


def _way(way: Mapping[str, Any], lines: int) -> SpecializationOf:
    if way["line"] is not None and not 0 <= way["line"] < lines:
        raise ValueError("a way is for a size that is not there")
    return SpecializationOf(way["line"], int(way["most"]), int(way["first"]), int(way["end"]), str(way["where"]))


def _end(end: Mapping[str, Any]) -> End:
    return End(end["name"], end["tensor"], end["dtype"], tuple(end["shape"]))
