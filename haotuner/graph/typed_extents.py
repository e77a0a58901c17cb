"""Sizes that a file computes in its own types, as sympy functions: floating point, wraps and truncation of extents.

Such a function is one atom of an expression: nothing is expanded or cancelled through it. With known sizes it is a number.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import sympy

from haotuner.errors import UsageError
from haotuner.spec.size_arithmetic import REAL, TYPED, WHOLE, Operation

MOST_PARTS = 200  # of one expression: far more than arithmetic of sizes in real files


class Typed(sympy.Function):  # type: ignore[misc]
    """A function of ``TYPED``. Real operands that are numbers are exact doubles."""

    operation: Operation
    is_extended_real = True
    is_commutative = True

    @classmethod
    def eval(cls, *operands: Any) -> Any:
        """The number, where all operands are numbers and it is a finite one."""
        if not all(operand.is_Rational for operand in operands):
            return None
        values = [
            float(operand) if kind == REAL else int(operand)
            for operand, kind in zip(operands, cls.operation.of, strict=True)
        ]
        try:
            result = cls.operation.compute(*values)
        except (UsageError, ZeroDivisionError, OverflowError):
            return None
        return sympy.Rational(result) if abs(result) < float("inf") else None

    def _eval_is_integer(self) -> bool | None:
        return True if self.operation.gives == WHOLE else None

    def _eval_is_nonnegative(self) -> bool | None:
        """Of what never makes a negative number of others."""
        name = type(self).__name__
        if name.startswith("to_uint"):
            return True
        if name in ("real_sub", "to_int8", "to_int16", "to_int32"):
            return None
        signs = [argument.is_nonnegative for argument in self.args]
        return True if (any(signs) if name == "real_max" else all(signs)) else None


FUNCTIONS: Mapping[str, type[Typed]] = {
    name: type(name, (Typed,), {"operation": operation, "nargs": len(operation.of)}) for name, operation in TYPED.items()
}


def typed(name: str, *operands: Any) -> Any:
    """A function of ``TYPED``, or its number."""
    exact = (sympy.Rational(operand) if isinstance(operand, float) else sympy.sympify(operand) for operand in operands)
    result = FUNCTIONS[name](*exact)
    return int(result) if result.is_Integer and TYPED[name].gives == WHOLE else result


def is_real(value: Any) -> bool:
    """True if a value is a function that gives a real number: no extent."""
    return isinstance(value, Typed) and value.operation.gives == REAL


def concealed(e: Any) -> Any:
    """The expression with a dimension of its own in the place of each function, so that bounds of the rest can be shown."""
    atoms = e.atoms(Typed)
    return e.xreplace({atom: _stand_in(atom) for atom in atoms}) if atoms else e


@lru_cache(1 << 12)
def _stand_in(value: Any) -> Any:
    return sympy.Dummy(integer=value.is_integer, real=True, nonnegative=value.is_nonnegative)


@lru_cache(1 << 14)
def parts(e: Any) -> int:
    """Number of parts of an expression, shared ones as often as they stand in it."""
    return 1 + sum(map(parts, e.args)) if isinstance(e, sympy.Basic) else 1
