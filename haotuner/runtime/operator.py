"""Operator: an op of an open pack that takes all of its operands at every call."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from math import prod
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from haotuner.errors import UsageError
from haotuner.ops.arithmetic import arithmetic_of
from haotuner.ops.dtypes import DTYPES
from haotuner.pack.op import PackOp, PackOperand
from haotuner.runtime.addresses import ARRAYS
from haotuner.runtime.call_errors import REFUSED, check_written, explain, read_only
from haotuner.runtime.reprs import described_op
from haotuner.spec.limits import MAX_AXES

if TYPE_CHECKING:
    from haotuner.runtime.pack import Pack


class Operator:
    """An operator that binds nothing: ``y = op.run(a, b)`` or ``op.run(a, b, out=y)``.

    Operands are numpy arrays, CPU torch tensors or other DLPack tensors.

    An operand may have more axes than the op says: the leading ones are folded into its first axis, if evenly spaced.
    Concurrent calls are allowed.
    """

    def __init__(self, pack: Pack, op: PackOp, threads: int | None = None) -> None:
        self._pack, self.entry = pack, op
        self._call, self._setting = pack.entry(op, threads)
        self._addressed = pack.addressed(self._setting)
        self._derived = derived_of(op)
        self._names = tuple(operand.name for operand in op.inputs)
        self._count = -1 if self._derived else len(self._names)  # operands of a call that is passed on as it comes
        self._several = itemgetter(*self._names) if len(self._names) > 1 else None

    def __repr__(self) -> str:
        return described_op(self)

    @property
    def name(self) -> str:
        """Canonical name."""
        return self.entry.name

    def with_threads(self, threads: int) -> Operator:
        """The same op with another thread count than the pack's."""
        return Operator(self._pack, self.entry, threads)

    def run(self, *operands: Any, out: Any = None, **named: Any) -> Any:
        """The result, in ``out`` if that is given, else new and of the first operand's kind.

        Operands come in the op's order or by name. TypeError or ValueError name the operand, what was expected and what was
        found; PackClosed after the pack was closed.
        """
        if not self._pack.is_open:
            self._pack.library()
        if out is not None and not getattr(out, "requires_grad", False) and len(operands) + len(named) == self._count:
            # What nearly every call of a server is: half of a small call's time was spent on names.
            try:
                several = self._several
                passed = operands if not named else (named[self._names[0]],) if several is None else several(named)
                if self._addressed and type(out) is np.ndarray and ARRAYS.issuperset(map(type, passed)):
                    self._call(self._addressed, *map(id, passed), id(out))
                else:
                    self._call(self._setting, *passed, out)
                return out
            except (KeyError, *REFUSED):  # said below
                pass
        return self._run_named(operands, out, named)

    def _run_named(self, operands: tuple[Any, ...], out: Any, named: Mapping[str, Any]) -> Any:
        """As ``run``, of any operands. Apart from the usual call: variables that comprehensions share cost it a tenth."""
        inputs = self._given(operands, named)
        if out is None:
            out = self._empty(inputs)
        else:
            check_written(self.name, out)
            if self._derived:
                self._fits(inputs, out)
        written = out if len(self.entry.output.dims) > 1 else self._as_row(inputs, out)
        try:
            self._call(self._setting, *inputs.values(), written)
        except REFUSED as error:
            frozen = {name: value for name, value in inputs.items() if read_only(value)}
            if not frozen:
                raise explain(self.name, self._typed(inputs, out), error) from error
            self.run(out=out, **(inputs | {name: value.copy() for name, value in frozen.items()}))
        return out

    def cell(self, extents: Mapping[str, int]) -> int:
        """The cell of the plan's table that serves a shape, from the library's own look-up."""
        derived = {axis.name: 0 for axis in self.entry.axes if axis.derived}  # no plan is looked up by them
        sizes = {axis.name: axis.extent for axis in self.entry.axes if axis.extent is not None} | derived | dict(extents)
        known = {axis.name: sizes[axis.name] for axis in self.entry.axes}
        values = np.zeros(MAX_AXES, np.int64)
        values[: len(known)] = list(known.values())
        plan = self._pack.plan_index(self.entry)
        return int(self._pack.library().function("ht_cell")(self._pack.place(self.entry), plan, values))

    def _given(self, operands: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
        names = self._names
        if not named and len(operands) == len(names):
            return dict(zip(names, operands, strict=True))
        if not operands and named.keys() == set(names):
            return {name: named[name] for name in names}
        result = dict(zip(names, operands, strict=False)) | dict(named)
        if len(operands) > len(names) or set(result) != set(names) or len(operands) + len(named) != len(names):
            raise TypeError(
                f"{self.name} takes {', '.join(names)}, once each; got {len(operands)} in order and {list(named)}"
            )
        return {name: result[name] for name in names}

    def _as_row(self, inputs: Mapping[str, Any], out: Any) -> Any:
        """A contiguous output of one axis, with the leading axes of its operands, as that axis; others as they are."""
        contiguous = getattr(out, "is_contiguous", None)
        plain = out.flags.c_contiguous if isinstance(out, np.ndarray) else contiguous is not None and contiguous()
        shape = tuple(getattr(out, "shape", ()))
        return out.reshape(-1) if len(shape) > 1 and plain and shape == self.output_shape(inputs) else out

    def _fits(self, inputs: Mapping[str, Any], out: Any) -> None:
        """Refuse an output of other extents than follow from the operands."""
        want, result = self.output_shape(inputs), tuple(getattr(out, "shape", ()))
        if result != want:
            raise ValueError(f"{self.name}: out must be of the shape {want}, got {result}")

    def _empty(self, inputs: Mapping[str, Any]) -> Any:
        """An output for these operands; what is wrong with them is said by the call itself."""
        return empty_like(self.name, self.output_shape(inputs), DTYPES[self.entry.output.dtype].numpy, inputs)

    def output_shape(self, inputs: Mapping[str, Any], written: PackOperand | None = None) -> tuple[int, ...]:
        """Dimensions of the output for these operands, or of what is ``written`` beside it."""
        extents: dict[str, int] = {axis.name: axis.extent for axis in self.entry.axes if axis.extent is not None}
        leading: dict[str, tuple[int, ...]] = {}
        for operand in self.entry.inputs:
            shape = getattr(inputs[operand.name], "shape", None)
            rank = len(operand.dims)
            if shape is None or len(shape) < max(1, rank - 1):
                raise TypeError(f"{self.name}: {self._wanted(operand)}, got {type(inputs[operand.name]).__name__}")
            shape = tuple(int(extent) for extent in shape)
            split = len(shape) - rank + 1
            leading.setdefault(operand.dims[0], shape[:split])
            extents |= dict(zip(operand.dims[1:], shape[split:], strict=True))
        out = written or self.entry.output
        for axis, before in leading.items():
            extents.setdefault(axis, prod(before))
        if self._derived:
            extents |= {axis: int(of(extents)) for axis, of in self._derived.items()}
        before = leading.get(out.dims[0], (extents.get(out.dims[0], -1),))
        size = (*before, *(extents.get(axis, -1) for axis in out.dims[1:]))
        if min(size, default=0) < 0:
            raise UsageError(f"{self.name}: no operand says how large the result is; pass out=")
        return size

    def _typed(self, inputs: Mapping[str, Any], out: Any) -> dict[str, tuple[Any, str]]:
        types = {operand.name: DTYPES[operand.dtype].numpy for operand in self.entry.operands}
        every = {name: (value, types[name]) for name, value in inputs.items()}
        return every | {"out": (out, types[self.entry.output.name])}

    def _wanted(self, operand: PackOperand) -> str:
        return f"{operand.name} must be a {DTYPES[operand.dtype].numpy} array or tensor ({', '.join(operand.dims)})"


def empty_like(name: str, size: tuple[int, ...], dtype: str, inputs: Mapping[str, Any]) -> Any:
    """An array of what the first operand is of. ValueError where torch would want a gradient."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(next(iter(inputs.values())), torch.Tensor):
        if any(getattr(value, "requires_grad", False) for value in inputs.values()) and torch.is_grad_enabled():
            raise ValueError(f"{name}: an operand requires grad; a pack only infers: use torch.inference_mode()")
        return torch.empty(size, dtype=getattr(torch, dtype))
    return np.empty(size, np.dtype(dtype))


def derived_of(op: PackOp) -> dict[str, Callable[[Mapping[str, int]], int]]:
    """Axes whose extent follows from the others', with what computes it: read once, for a call takes microseconds."""
    names = [axis.name for axis in op.axes if axis.derived]
    formulas = {axis.name: arithmetic_of(axis.formula) for axis in op.axes if axis.formula}
    if set(formulas) == set(names):
        return formulas
    kind, options = op.op.meaning, op.op.all_options()

    def of(axis: str) -> Callable[[Mapping[str, int]], int]:
        return lambda extents: int(kind.derived[axis](extents, options))

    return {axis: of(axis) for axis in names}
