"""TVM expressions of element-wise functions of float32 lanes (``codegen/vector_functions.py``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from haotuner.codegen.lane_expressions import Lane, in_order
from haotuner.codegen.vector_functions import formula

TVM_TYPES = {"fp32": "float32", "fp64": "float64", "int32": "int32", "uint64": "uint64"}
_INFIX = {"add": "__add__", "sub": "__sub__", "mul": "__mul__", "div": "__truediv__", "bitand": "__and__", "bitor": "__or__",
          "bitxor": "__xor__", "less": "__lt__", "greater": "__gt__"}  # fmt: skip


def vector_function(function: str, arguments: Sequence[Any], lanes: int, once: Callable[[Any], Any]) -> Any:
    """A function of vectors of ``lanes`` float32 numbers; ``once`` binds an expression to a variable."""
    values: dict[int, Any] = {}
    inputs = [once(item) for item in arguments]
    result = formula(function)
    for lane in in_order(result):
        operands = [values[id(operand)] for operand in lane.arguments]
        if lane.function == "argument":
            values[id(lane)] = inputs[int(lane.number)]
        elif lane.function == "constant":
            values[id(lane)] = _constant(lane.number, lane.dtype, lanes)
        else:
            made = _applied(lane, operands, lanes)
            values[id(lane)] = made if lane.dtype == "bool" else once(made)
    return values[id(result)]


def _constant(number: float, dtype: str, lanes: int) -> Any:
    from tvm import tirx

    name = TVM_TYPES[dtype]
    item = tirx.FloatImm(name, number) if dtype in ("fp32", "fp64") else tirx.IntImm(name, int(number))
    return item if lanes == 1 else tirx.Broadcast(item, lanes)


def _applied(lane: Lane, operands: Sequence[Any], lanes: int) -> Any:
    from tvm import tirx

    function = lane.function
    if function in _INFIX:
        return getattr(operands[0], _INFIX[function])(operands[1])
    if function in ("shift_left", "shift_right"):
        count = _constant(lane.number, lane.dtype, lanes)
        return operands[0] << count if function == "shift_left" else operands[0] >> count
    if function == "equal":
        return tirx.EQ(*operands)
    if function == "select":
        return tirx.Select(*operands)
    if function == "is_nan":
        return tirx.isnan(operands[0])
    if function in ("sqrt", "abs"):
        return getattr(tirx, function)(operands[0])
    dtype = TVM_TYPES[lane.dtype] if lanes == 1 else f"{TVM_TYPES[lane.dtype]}x{lanes}"
    if function == "fused":
        return tirx.call_llvm_pure_intrin(dtype, "llvm.fmuladd", *operands)
    return tirx.Cast(dtype, operands[0]) if function == "cast" else tirx.reinterpret(dtype, operands[0])
