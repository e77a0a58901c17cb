"""Words of CUDA C++ that generated programs are written with: types, element-wise functions, numbers of the program."""

from __future__ import annotations

from collections.abc import Sequence

from haotuner.codegen.vector_functions import FORMULAS, OF_TWO
from haotuner.errors import UsageError

TYPES = {"fp32": "float", "fp64": "double", "int64": "long long", "int32": "int", "bool": "bool"}
INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "equal": "==", "less": "<", "less_equal": "<=", "greater": ">",
         "greater_equal": ">=", "and": "&&", "or": "||", "xor": "!="}  # fmt: skip
CALLS = {
    "max": "ht_max({0}, {1})",
    "min": "ht_min({0}, {1})",
    "floordiv": "ht_floordiv({0}, {1})",
    "mod": "ht_mod({0}, {1})",
    "select": "({0} ? {1} : {2})",
    "neg": "(-{0})",
    "not": "(!{0})",
    "isnan": "({0} != {0})",
    "sign": "ht_sign({0})",
    "reciprocal": "(1.0f / {0})",
}
# A quotient that is 0 where its divisor is beyond 2^126 is what a sigmoid wants.
FLOATS = {"exp": "expf({0})", "log": "logf({0})", "tanh": "tanhf({0})", "erf": "erff({0})", "sqrt": "sqrtf({0})",
          "rsqrt": "(1.0f / sqrtf({0}))", "sigmoid": "__fdividef(1.0f, 1.0f + expf(-{0}))", "pow": "powf({0}, {1})",
          "abs": "fabsf({0})", "floor": "floorf({0})", "ceil": "ceilf({0})", "round": "rintf({0})", "sin": "sinf({0})",
          "cos": "cosf({0})", **{name: f"{name}f({{0}})" for name in FORMULAS if name not in ("sin", "cos", "log", *OF_TWO)},
          "fmod": "fmodf({0}, {1})",
          "isinf": "(fabsf({0}) == __uint_as_float(0x7f800000u))"}  # fmt: skip
SHORT = {"exp": "ht_exp({0})", "erf": "ht_erf({0})", "sigmoid": "__fdividef(1.0f, 1.0f + ht_exp(-{0}))"}  # kept in 16 bits
JOINS = {"sum": "add", "prod": "mul", "any_max": "max"}


class Code(str):
    """An expression of C; sums and products of extents are written with Python's operators."""

    __slots__ = ()

    def __add__(self, other: str) -> Code:
        return Code(f"({self} + {other})")

    def __sub__(self, other: str) -> Code:
        return Code(f"({self} - {other})")

    def __mul__(self, other: object) -> Code:
        return Code(f"({self} * {other})")


class Neighbour(Code):
    """The base of one vector of an iteration: its place among them, and what they have in common.

    ``room``: the name of how much of the axis is left from ``first`` on, and of what axis; None where all vectors exist.
    """

    first: Code
    place: int
    vectors: int
    pitch: int
    room: Code | None
    limit: Code | None

    @staticmethod
    def of(base: Code, first: Code, index: int, count: int, pitch: int, room: Code | None, limit: Code | None) -> Neighbour:
        """Vector ``index`` of an iteration of ``count``, begun at ``first``; see ``Machine.together``."""
        item = Neighbour(base)
        item.first, item.place, item.vectors, item.pitch, item.room, item.limit = first, index, count, pitch, room, limit
        return item

    def moved(self, lanes: int) -> str:
        """Arguments of ``ht_take`` and ``ht_put`` of device/generated.cuh behind the tensor and the registers."""
        how = ("ht_even", "ht_own", "ht_apart") if self.pitch > 1 else ("false", "ht_lane", "1")
        return ", ".join([*how, str(lanes * self.pitch), str(self.room or 0)])

    @property
    def form(self) -> str:
        """Their template arguments."""
        return f"<{self.pitch}, {str(self.limit is not None).lower()}>"


def apart(index: int, lanes: int, pitch: int) -> str:
    """Distance from an iteration's first vector to the vector of a place."""
    whole, own = index // pitch * lanes * pitch, index % pitch
    return f"{whole} + {own} * ht_apart" if own else str(whole)


def neighbour(indices: Sequence[Code], steps: Sequence[int] | None, lanes: int) -> Neighbour | None:
    """The base of a vector whose lanes lie along a tensor's last axis, just as an iteration's do."""
    last = indices[-1] if indices else None
    if lanes == 1 or steps is None or not isinstance(last, Neighbour):
        return None
    return last if steps[-1] == last.pitch and not any(steps[:-1]) else None


def function_call(function: str, arguments: Sequence[str], dtype: str, *, short: bool = False) -> str:
    """An expression of C for an element-wise function; ``short``: for results of 16 bits.

    UsageError for one that has no words in C.
    """
    if function == "cast":
        return f"({TYPES[dtype]})({arguments[0]})"
    if function in INFIX:
        return f"{arguments[0]} {INFIX[function]} {arguments[1]}"
    if function in ("floordiv", "mod") and dtype.startswith("fp"):
        raise UsageError(f"no program for the function {function!r} of {dtype}")
    if function in ("max", "min") or function in CALLS:
        typed = CALLS[function].replace("(", f"<{TYPES[dtype]}>(", 1) if function in ("max", "min") else CALLS[function]
        return typed.format(*arguments)
    if short and function in SHORT and dtype == "fp32":
        return SHORT[function].format(*arguments)
    if function in FLOATS and (dtype == "fp32" or function == "isinf"):
        return FLOATS[function].format(*arguments)
    if function == "abs":
        return f"({arguments[0]} < 0 ? -{arguments[0]} : {arguments[0]})"
    raise UsageError(f"no program for the function {function!r} of {dtype}")
