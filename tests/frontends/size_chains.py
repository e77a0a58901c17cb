"""Chains of operators on a tensor's size, as exporters write them, and what numpy makes of each step in its own type."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402, after the skip

SIGNED, FLOAT = ("int64", "int32", "int16", "int8"), ("float32", "float64", "float16")
TYPES = (*SIGNED, "uint8", "uint16", "uint32", *FLOAT)
_CODES = {
    name: getattr(TensorProto, name.upper().replace("FLOAT64", "DOUBLE").replace("FLOAT32", "FLOAT")) for name in TYPES
}
_REAL = (0.7, 0.1, 0.3, 0.6, 1.1, 2.3, 1 / 3, 0.5, 0.25, 2.0, 3.0, 16.0, -0.75, 1.5, 32.0, 100.0)
_WHOLE = (1, 2, 3, 4, 5, 7, 8, 9, 10, 16, 31, 64, 999)
_OF_FLOAT = ("Add", "Sub", "Mul", "Div", "Max", "Min", "Floor", "Ceil", "Round", "Sqrt", "Neg", "Abs", "Reciprocal")
_OF_WHOLE = ("Add", "Sub", "Mul", "Div", "Mod", "Max", "Min", "Neg", "Abs")
_ONNX_RUNTIME = ("int64", "int32", "float32", "float64")  # it has all of these operators for, without casts of its own
_UNARY: dict[str, Any] = {"Floor": np.floor, "Ceil": np.ceil, "Round": np.round, "Sqrt": np.sqrt, "Neg": np.negative,
                          "Abs": np.abs, "Reciprocal": lambda value: (1 / value).astype(value.dtype)}  # fmt: skip
_BINARY: dict[str, Any] = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Max": np.maximum, "Min": np.minimum,
                           "Mod": np.mod}  # fmt: skip


@dataclass
class Chain:
    """``nodes`` from the tensor ``size`` to ``out``; ``values``: what it comes to at each size, float32."""

    out: str
    nodes: list[Any] = field(default_factory=list)
    weights: dict[str, Any] = field(default_factory=dict)
    types: set[str] = field(default_factory=lambda: {"int64"})
    words: str = "n"
    values: Any = None

    @property
    def in_onnx_runtime(self) -> bool:
        """Whether ONNX Runtime computes it step by step in the types that it names."""
        return self.types <= set(_ONNX_RUNTIME)


def drawn(number: int, draw: random.Random, sizes: Any) -> Chain:
    """A chain of two to four operators behind the size, all of whose numbers are finite and held by their types."""
    chain, name, value = Chain(f"y{number}"), "size", np.asarray(sizes, np.int64)
    steps = draw.randint(2, 4)
    while steps:
        step = _step(draw, value)
        if step is None:
            continue
        operator, operand, result = step
        output = f"c{number}_{steps}"
        if operator == "Cast":
            chain.nodes.append(helper.make_node("Cast", [name], [output], to=_CODES[str(result.dtype)]))
            chain.words = f"{result.dtype}({chain.words})"
        else:
            inputs = [name]
            if operand is not None:
                chain.weights[f"{output}_by"] = operand
                inputs.append(f"{output}_by")
            chain.nodes.append(helper.make_node(operator, inputs, [output]))
            chain.words = f"{operator}({chain.words}{'' if operand is None else f', {operand}'})"
        chain.types.add(str(result.dtype))
        name, value, steps = output, result, steps - 1
    chain.nodes += [helper.make_node("Cast", [name], [f"{name}_real"], to=TensorProto.FLOAT),
                    helper.make_node("Add", ["x", f"{name}_real"], [chain.out])]  # fmt: skip
    chain.values = value.astype(np.float32)
    return chain


def _step(draw: random.Random, value: Any) -> tuple[str, Any, Any] | None:
    """An operator, its other operand or None, and its results; None where some result is none of the type."""
    kind = value.dtype
    real = kind.kind == "f"
    with np.errstate(all="ignore"):
        if draw.random() < (0.3 if real else 0.5):
            to = np.dtype(draw.choice(TYPES))
            result = value.astype(to)
            if to == kind or real and to.kind in "iu" and not _fits(value, to):
                return None
            return ("Cast", None, result) if np.all(np.isfinite(result)) else None
        operator = draw.choice(_OF_FLOAT if real else _OF_WHOLE)
        if operator in _UNARY:
            if kind.kind == "u" or operator == "Reciprocal" and not np.all(value):
                return None
            result, operand = np.asarray(_UNARY[operator](value)), None
        else:
            operand = np.asarray(draw.choice(_REAL if real else _WHOLE)).astype(kind)
            operand = -operand if kind.kind != "u" and draw.random() < 0.2 and operator != "Mod" else operand
            if not operand and operator in ("Div", "Mod"):
                return None
            result = _quotients(value, operand) if operator == "Div" else np.asarray(_BINARY[operator](value, operand))
    result = result.astype(kind)
    return (operator, operand, result) if np.all(np.isfinite(result)) else None


def _quotients(value: Any, operand: Any) -> Any:
    if value.dtype.kind == "f":
        return np.asarray(value / operand)
    return np.array(
        [int(abs(int(element)) // abs(int(operand))) * (1 if (element < 0) == (operand < 0) else -1) for element in value]
    )


def _fits(value: Any, to: Any) -> bool:
    whole = np.trunc(value.astype(np.float64))
    return bool(np.all((whole >= np.iinfo(to).min) & (whole <= min(np.iinfo(to).max, 2**62))))


def model_of(chains: list[Chain], *, joined: bool = False) -> Any:
    """A model that adds what each chain comes to to the input x, whose size they begin with.

    ``joined``: one output y, with a row for each chain, instead of one for each.
    """
    nodes = [helper.make_node("Shape", ["x"], ["size"]), *(node for chain in chains for node in chain.nodes)]
    ends: list[str] = [chain.out for chain in chains]
    shape: list[str | int] = ["n"]
    if joined:
        nodes += [helper.make_node("Unsqueeze", [end, "first"], [f"{end}_row"]) for end in ends]
        nodes.append(helper.make_node("Concat", [f"{end}_row" for end in ends], ["y"], axis=0))
        ends, shape = ["y"], [len(ends), "n"]
    weights = {"first": np.array([0]), **{name: value for chain in chains for name, value in chain.weights.items()}}
    graph = helper.make_graph(
        nodes,
        "chains",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])],
        [helper.make_tensor_value_info(end, TensorProto.FLOAT, shape) for end in ends],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
