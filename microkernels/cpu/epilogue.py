"""Epilogues of CPU micro-kernels: a program for each sequence of steps, run on a part of the output while it is in cache.

The runtime calls it once for every part of the output, after the last term of its sums (``native/epilogue.h``), whatever
computed them: a product's tiles, their narrow tail, or a sum of several parts. Families whose kernels name their epilogue in
the parameter ``ep`` have it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from haotuner.microkernels.cpu.epilogue_math import Maker
from haotuner.ops.epilogue import STEPS, operands_of
from haotuner.ops.formula import Apply, Formula, Load, Number, parts
from haotuner.spec.kernel import MicroKernel

FP32_BYTES = 4
_BASE = 64  # of the digits of a code; numbers of steps are below it
_BY_NUMBER = {step.number: step for step in STEPS.values()}


def code_of(steps: Sequence[str]) -> int:
    """The steps as one number, the first step its lowest digit; 0 for none."""
    return sum(STEPS[step].number * _BASE**index for index, step in enumerate(steps))


def steps_of(kernel: MicroKernel) -> tuple[str, ...]:
    """The steps that a micro-kernel's results go through. ValueError for a number that stands for none."""
    code, result = dict(kernel.params).get("ep", 0), []
    while code:
        code, number = divmod(code, _BASE)
        if number not in _BY_NUMBER:
            raise ValueError(f"{kernel.name}: epilogue step {number} is unknown; it was made by a newer haotuner")
        result.append(_BY_NUMBER[number].name)
    return tuple(result)


def with_epilogue(kernel: MicroKernel, steps: Sequence[str]) -> MicroKernel:
    """Copy of a micro-kernel with these steps behind it."""
    selected = tuple(param for param in kernel.params if param[0] != "ep")
    return MicroKernel(kernel.family, (*selected, ("ep", code_of(steps))) if steps else selected)


def bare(kernel: MicroKernel) -> MicroKernel:
    """The micro-kernel without its epilogue: the program that computes the sums, which kernels share."""
    return with_epilogue(kernel, ()) if "ep" in dict(kernel.params) else kernel


def symbol_of(kernel: MicroKernel) -> str:
    """Name of the program of its epilogue; empty where it has none. Kernels of equal lanes share it."""
    code = dict(kernel.params).get("ep", 0)
    return f"epilogue__ep{code}_vl{kernel['vl']}{'_rows' if along_rows(kernel) else ''}" if code else ""


def along_rows(kernel: MicroKernel) -> bool:
    """True if values of a channel run along the rows of a part: of convolutions with channels first."""
    return dict(kernel.params).get("cl") == 0


def program(steps: Sequence[str], lanes: int, symbol: str, *, rows_are_channels: bool = False) -> Any:
    """TVM function ``symbol(Y, operands…)``, all of them (rows, columns) float32 with rows any stride apart.

    Operands come in the order of ``ops.epilogue.operands_of``; of those of a channel only row 0 is read, or only column 0
    where rows are channels. Columns are whole vectors: what is left of a row the caller passes in a scratch row.
    """
    from tvm import tirx
    from tvm.script.ir_builder import IRBuilder
    from tvm.script.ir_builder import tirx as T

    operands = tuple(operands_of(steps))
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name(symbol)
        T.func_attr({"global_symbol": symbol, "tirx.noalias": True})
        handles = [T.arg(name, T.handle()) for name in ("y", *(name for name, _ in operands))]
        rows, columns = tirx.Var("rows", "int64"), tirx.Var("columns", "int64")

        def matrix(handle: Any, name: str) -> Any:
            strides = [tirx.Var(f"{name}_stride", "int64"), tirx.IntImm("int64", 1)]
            return T.match_buffer(handle, (rows, columns), "float32", strides=strides, align=FP32_BYTES)

        y = matrix(handles[0], "y")
        read = {name: (matrix(handle, name), extent) for handle, (name, extent) in zip(handles[1:], operands, strict=True)}

        make = Maker(lanes)
        with T.serial(rows) as row, T.serial(columns // lanes) as vector:
            position = tirx.Ramp(vector * lanes, tirx.IntImm("int64", 1), lanes)
            zero = tirx.IntImm("int64", 0)

            def operand(buffer: Any, extent: str, row: Any = row, position: Any = position, zero: Any = zero) -> Any:
                if extent == "channel" and rows_are_channels:
                    return tirx.Broadcast(buffer[row, zero], lanes)
                return buffer[zero if extent == "channel" else row, position]

            inputs = {name: operand(buffer, extent) for name, (buffer, extent) in read.items()}
            value = y[row, position]
            for step in steps:
                value = _stepped(make, step, make.keep(value), inputs)
            T.buffer_store(y, value, [row, position])
    return builder.get()


def _stepped(make: Maker, step: str, value: Any, inputs: dict[str, Any]) -> Any:
    """A step of a kept value: by its formula, but for two that have a shorter form."""
    number = make.number
    if step == "gelu":
        return value * make.normal(value)
    if step == "gelutanh":  # x (1 + tanh t) / 2 is x sigmoid(2 t)
        return value * make.sigmoid(value * (value * value * number(0.07135481627) + number(1.5957691216)))
    return _by_formula(make, STEPS[step].formula, {**inputs, "value": value})


def _by_formula(make: Maker, formula: Formula, inputs: dict[str, Any]) -> Any:
    """A formula's value; what it has twice is computed once. ValueError for a function without a program for epilogues."""
    repeats = Counter(part for part in parts(formula) if isinstance(part, Apply))
    values: dict[Formula, Any] = {}
    functions: dict[str, Callable[..., Any]] = {
        "add": lambda a, b: a + b,
        "sub": lambda a, b: a - b,
        "mul": lambda a, b: a * b,
        "div": lambda a, b: a / b,
        "max": make.above,
        "min": make.below,
        "abs": make.magnitude,
        "neg": lambda a: make.number(0.0) - a,
        "exp": make.exp,
        "sigmoid": make.sigmoid,
        "tanh": make.tanh,
    }

    def value_of(part: Formula) -> Any:
        if isinstance(part, Load):
            return inputs[part.operand]
        if isinstance(part, Number):
            return make.number(part.value)
        if not isinstance(part, Apply) or part.function not in functions:
            raise ValueError(f"epilogues have no program for {part}; they have {', '.join(functions)}")
        if part not in values:
            result = functions[part.function](*map(value_of, part.arguments))
            if repeats[part] == 1:
                return result
            values[part] = make.keep(result)
        return values[part]

    return value_of(formula)
