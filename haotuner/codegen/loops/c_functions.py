"""C of element-wise functions of float32 that compilers turn into vectors (``../vector_functions.py``)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache

from haotuner.codegen.lane_expressions import Lane, in_order
from haotuner.codegen.vector_functions import FORMULAS, OF_TWO, formula

C_NAMES: Mapping[str, str] = {"fp32": "float", "fp64": "double", "int32": "int32_t", "uint64": "uint64_t"}
ARGUMENTS = ("x", "y")
_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "bitand": "&", "bitor": "|", "bitxor": "^", "less": "<",
          "greater": ">", "equal": "=="}  # fmt: skip
_OTHER: Mapping[str, Callable[..., str]] = {
    "is_nan": lambda lane, x: f"({x} != {x})",
    "select": lambda lane, condition, value, other: f"({condition} ? {value} : {other})",
    "fused": lambda lane, a, b, c: f"{'ht_fused' if lane.dtype == 'fp32' else 'ht_fused_double'}({a}, {b}, {c})",
    "cast": lambda lane, x: f"({C_NAMES[lane.dtype]}){x}",
    "bits": lambda lane, x: f"whole({x})" if lane.dtype == "int32" else f"(uint64_t)whole64({x})",
    "from_bits": lambda lane, x: f"bits({x})" if lane.dtype == "fp32" else f"bits64((int64_t){x})",
    "sqrt": lambda lane, x: f"{'sqrtf' if lane.dtype == 'fp32' else 'sqrt'}({x})",
    "abs": lambda lane, x: f"{'fabsf' if lane.dtype == 'fp32' else 'fabs'}({x})",
    "shift_left": lambda lane, x: f"({C_NAMES[lane.dtype]})((u{C_NAMES[lane.dtype].removeprefix('u')}){x} << {lane.number})",
    "shift_right": lambda lane, x: f"({x} >> {lane.number})",
}


def _constant(lane: Lane) -> str:
    if lane.dtype == "int32":
        return "INT32_MIN" if lane.number == -(2**31) else str(lane.number)
    if lane.dtype == "uint64":
        return f"{lane.number:#x}u" if lane.number < 2**32 else f"{lane.number:#x}ull"
    value = float(lane.number)
    if value != value:
        return "NAN"
    if value in (float("inf"), float("-inf")):
        return "INFINITY" if value > 0 else "-INFINITY"
    return f"{value!r}{'f' if lane.dtype == 'fp32' else ''}"


def c_function(name: str, result: Lane, arguments: int) -> str:
    """The C of a function: a variable for every expression, comparisons where they are asked."""
    names: dict[int, str] = {}
    lines: list[str] = []
    for lane in in_order(result):
        operands = [names[id(operand)] for operand in lane.arguments]
        if lane.function == "constant":
            names[id(lane)] = _constant(lane)
        elif lane.function == "argument":
            names[id(lane)] = ARGUMENTS[int(lane.number)]
        else:
            infix = _INFIX.get(lane.function)
            text = f"({f' {infix} '.join(operands)})" if infix else _OTHER[lane.function](lane, *operands)
            if lane.dtype == "bool":
                names[id(lane)] = text
                continue
            names[id(lane)] = f"v{len(lines)}"
            lines.append(f"  const {C_NAMES[lane.dtype]} v{len(lines)} = {text};")
    head = f"INLINE float {name}({', '.join(f'float {item}' for item in ARGUMENTS[:arguments])}) {{"
    return "\n".join([head, *lines, f"  return {names[id(result)]};", "}"]) + "\n"


@cache
def _c_of(function: str) -> str:
    return c_function(f"ht_{function}", formula(function), 2 if function in OF_TWO else 1)


def c_functions(sources: Sequence[str]) -> str:
    """C of the functions that these groups call (``ht_log`` and its kin); behind ``ht_fused`` and what gives bits."""
    called = {name for source in sources for name in re.findall(r"\bht_([a-z0-9]+)\(", source)}
    functions = [_c_of(name) for name in FORMULAS if name in called]
    return "".join(functions)
